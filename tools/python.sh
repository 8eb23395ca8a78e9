#!/usr/bin/env bash
# The Python package: builds the wheel from what Cargo has built, installs it in an empty
# environment, and runs its tests, mypy, the README's lines, the examples and the notebooks. Keeps
# its packages in target/python and leaves the wheel in target/wheels, the notebooks as pages in
# target/notebooks.
#
#     tools/python.sh
#     tools/python.sh --install      only brings the packages
#     tools/python.sh --manylinux    only builds the wheel for PyPI, by zig (compiles everything)
set -euo pipefail
cd "$(dirname "$0")/.."

target=${CARGO_TARGET_DIR:-target}
environment=$target/python
package=src/python
requirements=$package/tests/requirements.txt
python=$environment/bin/python

if ! cmp -s "$requirements" "$environment/installed.txt"; then
  python3 -m venv "$environment"
  "$python" -m pip install --quiet -r "$requirements"
  cp "$requirements" "$environment/installed.txt"
fi
[[ ${1:-} != --install ]] || exit 0

wheels=$target/wheels
rm -rf "$wheels"
maturin() { "$environment/bin/maturin" build --release --quiet -m $package/Cargo.toml "$@"; }

if [[ ${1:-} == --manylinux ]]; then
  "$python" -m pip install --quiet ziglang==0.17.1
  # as `cargo xtask dist` compiles, with which it shares what both need: no paths of this machine
  without() { echo "--remap-path-prefix=$(realpath "$1")=$2"; }
  CARGO_ENCODED_RUSTFLAGS=$(without . /octavo)$'\x1f'$(without "${CARGO_HOME:-$HOME/.cargo}" /cargo)
  export CARGO_ENCODED_RUSTFLAGS CARGO_PROFILE_RELEASE_DEBUG=line-tables-only
  export CARGO_ZIGBUILD_PYTHON_PATH=$(realpath -s "$python")
  maturin --zig --target x86_64-unknown-linux-gnu --compatibility manylinux2014 \
    --compression-level 9 --out "$target/dist"
  exit 0
fi

# maturin's default name for a wheel of this machine, whose symbols need not be old ones; Rust's
# linker keeps one of identical functions
maturin --compatibility linux --compression-level 9 --out "$wheels" -- -C link-arg=-Wl,--icf=all
wheel=$(echo "$wheels"/*.whl)
bytes=$(stat -c %s "$wheel")
echo "$(basename "$wheel"): $((bytes / 1000)) kB"
((bytes < 15000000)) || { echo "expected a wheel of less than 15 MB"; exit 1; }

# what a user does: an empty environment, the wheel, the README's lines
empty=$(mktemp -d)
trap 'rm -rf "$empty"' EXIT
python3 -m venv "$empty"
"$empty/bin/pip" install --quiet "$wheel"
"$empty/bin/python" $package/tests/readme.py README.md docs/python.md
"$empty/bin/octavo" run -q -p "1+1=" -n 1 | grep -qx 2
"$empty/bin/python" examples/python/retrieval.py >/dev/null

"$python" -m pip install --quiet --no-deps --force-reinstall "$wheel"
"$environment/bin/mypy" --config-file $package/pyproject.toml $package/octavo
OCTAVO=$target/release/octavo "$python" -m pytest --quiet $package

# evaluations in the process and over HTTP, where lm-evaluation-harness is (tools/clients.sh)
clients=$target/clients/bin/python
if [[ -x $clients ]]; then
  "$clients" -m pip install --quiet --no-deps --force-reinstall "$wheel"
  "$clients" $package/tests/lm_eval_figures.py
fi

pages=$target/notebooks
MPLBACKEND=module://matplotlib_inline.backend_inline "$python" -m nbconvert --log-level ERROR \
  --to html --execute --output-dir "$pages" examples/python/*.ipynb
echo "notebooks: $(ls "$pages" | wc -l) pages in $pages"
