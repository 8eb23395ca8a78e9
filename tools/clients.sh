#!/usr/bin/env bash
# Real clients, many clients and hostile clients against `octavo serve` with the built-in model.
# Makes a Python environment of its own.
#
#     tools/clients.sh target/release/octavo
set -euo pipefail
cd "$(dirname "$0")/.."
octavo=$1

environment=target/clients
if [[ ! -x $environment/bin/python ]]; then
  python3 -m venv "$environment"
fi
"$environment/bin/pip" install --quiet "openai>=1.60"
python=$environment/bin/python

log=$(mktemp)
server=
trap 'kill "$server" 2>/dev/null; rm -f "$log"' EXIT

# begins a server with these options; its address is in $url
begin() {
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
end

# few pages: requests wait, and give their place back
begin --kv-pages 40 --parallel 8 --queue 64
"$python" tests/clients/soak.py "$url" --requests 2000 --seed 1
end

begin
"$python" tests/clients/hostile_http.py "$url"
end

trap - EXIT
rm -f "$log"
