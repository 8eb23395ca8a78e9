#!/usr/bin/env bash
# Real clients, many clients and hostile clients against `octavo serve` with the built-in model.
# Keeps their packages in target/clients: 850 MB, which take minutes only the first time.
#
#     tools/clients.sh target/release/octavo
#     tools/clients.sh --install      only brings the packages
set -euo pipefail
cd "$(dirname "$0")/.."
octavo=$1

environment=target/clients
wanted=tests/clients/requirements.txt
if ! cmp -s "$wanted" "$environment/installed.txt"; then
  python3 -m venv "$environment"
  "$environment/bin/pip" install --quiet -r "$wanted"
  cp "$wanted" "$environment/installed.txt"
fi
python=$environment/bin/python

modules=$environment/node
node_openai=6.30.1 # later ones want a newer Node than Debian has
if ! grep -qs "\"version\": \"$node_openai\"" "$modules/node_modules/openai/package.json"; then
  npm install --prefix "$modules" --no-audit --no-fund --silent "openai@$node_openai"
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
node tests/clients/openai_client.cjs "$modules" "$url/v1"
"$python" tests/clients/lm_eval_client.py "$octavo" "$url"
end

# a model that sees, where the shared folder is
seeing=${OCTAVO_SHARED:-../shared}/vision
if [[ -d $seeing ]]; then
  model=$seeing/vl-a-text-F32.gguf tower=$seeing/vl-a-mmproj-F32.gguf
  begin "$model" --mmproj "$tower"
  "$python" tests/clients/openai_pictures.py "$octavo" "$url/v1" "$model" "$tower" \
    "$seeing/images/photo.png"
  end
fi

# few pages: requests wait, and give their place back
begin --kv-pages 40 --parallel 8 --queue 64
"$python" tests/clients/soak.py "$url" --requests 2000 --seed 1 --pid "$server"
end

begin
"$python" tests/clients/hostile_http.py "$url"
"$python" tests/clients/hostile_requests.py "$url"
end

trap - EXIT
rm -f "$log"
