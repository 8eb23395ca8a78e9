#!/usr/bin/env bash
# Real clients against `octavo serve` with the built-in model. Makes a Python environment of its own.
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

log=$(mktemp)
"$octavo" serve --port 0 2>"$log" &
server=$!
trap 'kill "$server" 2>/dev/null; rm -f "$log"' EXIT
for _ in $(seq 200); do
  url=$(grep -o 'http://[^ ]*' "$log" || true)
  [[ -n $url ]] && break
  sleep 0.1
done
[[ -n ${url:-} ]] || { echo "the server did not begin: $(cat "$log")"; exit 1; }

"$environment/bin/python" tests/clients/openai_client.py "$url/v1"

kill "$server"
wait "$server" || { echo "the server ended with $?"; exit 1; }
trap - EXIT
rm -f "$log"
