#!/usr/bin/env bash
# Fetches the libraries of the server's page from npm, in the versions and with the hashes below,
# into src/server/page/vendor, where they are committed as they come.
#
#     tools/get_page_libraries.sh             writes the files
#     tools/get_page_libraries.sh --check     compares the committed files with npm's
set -euo pipefail
cd "$(dirname "$0")/.."
folder=src/server/page/vendor

# package@version, the file in it, its name here, its SHA-256
libraries=(
  'marked@18.2.1 lib/marked.esm.js marked.js
    5371fea86fd0656b4fc7bea7c94c663109d82789b69433eeee78d42895aa44de'
  'marked@18.2.1 LICENSE marked.LICENSE
    8e3a3f82f59a60958f56ca08f445647c32a4733dc7ca6c2c46f6eb898471ab9c'
  'dompurify@3.5.0 dist/purify.min.js purify.js
    f69a46022ab1f53e969c8ebbca98172c8995785a9b3be72ea4a12d25b1a1bf67'
  'dompurify@3.5.0 LICENSE purify.LICENSE
    cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30'
  '@highlightjs/cdn-assets@11.12.0 es/highlight.min.js highlight.js
    1ed8fc5256b738b8875b74e4d3f0754f60d6411fb034d618dfbc4e6e6c9999d7'
  '@highlightjs/cdn-assets@11.12.0 LICENSE highlight.LICENSE
    6c081431591d9df696c82dc598fe1423765b8a299b200ed00b281afd0f64c490'
  'temml@0.13.5 dist/temml.min.js temml.js
    1ab19148afe0dbc836b7a74f344071b3f3a70a7a8259ae4049e76894fcdf8d95'
  'temml@0.13.5 dist/Temml-Local.css temml.css
    544f4e3fee4c36f4568e4f145fa626dc9573c5f4c96c523aadcc433c3989a239'
  'temml@0.13.5 dist/Temml.woff2 Temml.woff2
    fc70501355ae6d38ff0b80f825af153557d5f2f474198d6b9b7dd2d3a291a0cc'
  'temml@0.13.5 LICENSE temml.LICENSE
    12b4e5592a12baaf50637881f2cb9d66667b26b8d51a73cd8f0d6bcefe176ab6'
)

fetched=$(mktemp -d)
trap 'rm -rf "$fetched"' EXIT

# unpack PACKAGE: fetches a package's archive from the registry, once, and prints its folder
unpack() {
  local at=$fetched/${1//\//+}
  if [[ ! -d $at ]]; then
    mkdir "$at"
    npm pack --silent --pack-destination "$at" "$1" >/dev/null
    tar -xzf "$at"/*.tgz -C "$at" --strip-components=1
  fi
  echo "$at"
}

wrong=0
for library in "${libraries[@]}"; do
  read -r package inside name hash <<<"${library//$'\n'/ }"
  file=$(unpack "$package")/$inside
  found=$(sha256sum <"$file")
  if [[ ${found%% *} != "$hash" ]]; then
    echo "$package $inside: SHA-256 ${found%% *}, expected $hash" >&2
    exit 1
  fi
  if [[ ${1:-} != --check ]]; then
    mkdir -p "$folder"
    cp "$file" "$folder/$name"
    chmod 644 "$folder/$name"
  elif ! cmp "$file" "$folder/$name"; then
    wrong=1
  fi
done
if [[ ${1:-} == --check && $wrong == 0 ]]; then
  echo "$folder: ${#libraries[@]} files are npm's"
fi
exit "$wrong"
