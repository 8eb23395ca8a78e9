#!/bin/sh
# install.sh: installs Octavo @VERSION@ on Linux: the program, its manual pages and completions.
#
#     sh install.sh                    into ~/.local
#     sh install.sh --prefix DIR       into another folder
#     sh install.sh --from DIR|URL     from a folder or address that has the archives
set -eu
version=@VERSION@
prefix=$HOME/.local
from=@REPOSITORY@/releases/download/v$version

fail() {
  echo "install.sh: $*" >&2
  exit 1
}

while [ $# -gt 0 ]; do
  case $1 in
    --prefix | --from) [ $# -gt 1 ] || fail "$1: expected a value" ;;
    *) fail "$1: expected --prefix DIR or --from DIR|URL" ;;
  esac
  case $1 in
    --prefix) prefix=$2 ;;
    --from) from=$2 ;;
  esac
  shift 2
done

case $(uname -sm) in
  "Linux x86_64") target=x86_64-unknown-linux-gnu ;;
  "Linux aarch64") target=aarch64-unknown-linux-gnu ;;
  *) fail "$(uname -sm): there is no archive for it; with Rust: cargo install octavo-llm" ;;
esac
archive=octavo-$version-$target.tar.xz

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# fetch FILE: brings a file of the release into the working folder
fetch() {
  case $from in
    *://*)
      if command -v curl >/dev/null; then
        curl --fail --location --silent --show-error --output "$work/$1" "$from/$1"
      else
        wget --quiet --output-document "$work/$1" "$from/$1"
      fi
      ;;
    *) cp "$from/$1" "$work/$1" ;;
  esac || fail "$from/$1: could not be fetched"
}
fetch "$archive"
fetch SHA256SUMS

grep " $archive\$" "$work/SHA256SUMS" >"$work/sum" || fail "SHA256SUMS: has no line of $archive"
(cd "$work" && sha256sum --quiet --check sum) || fail "$archive: is damaged"

mkdir -p "$prefix"
tar -xJf "$work/$archive" --strip-components=1 -C "$prefix" || fail "$archive: cannot be unpacked"
"$prefix/bin/octavo" --version || fail "$prefix/bin/octavo: does not run here"
echo "installed in $prefix"
case :$PATH: in
  *":$prefix/bin:"*) ;;
  *) echo "to find it: export PATH=\"$prefix/bin:\$PATH\"" ;;
esac
