#!/usr/bin/env bash
# get_axe.sh DIR: fetches axe-core (MPL-2.0, from npm), which tests of the page use, into DIR, and
# checks its hash. OCTAVO_AXE=DIR/axe.min.js names it for the tests.
set -euo pipefail
dir=${1:?usage: get_axe.sh DIR}
mkdir -p "$dir"
npm pack --silent --pack-destination "$dir" axe-core@4.14.1 >/dev/null
tar -xzf "$dir/axe-core-4.14.1.tgz" -C "$dir" --strip-components=1 package/axe.min.js
rm "$dir/axe-core-4.14.1.tgz"
hash=29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c
if [[ $(sha256sum "$dir/axe.min.js") != $hash\ * ]]; then
  echo "$dir/axe.min.js: not the file that was expected" >&2
  exit 1
fi
echo "$dir/axe.min.js"
