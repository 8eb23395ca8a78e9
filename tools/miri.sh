#!/usr/bin/env bash
# Runs Miri, which sees undefined behaviour that no test can: over a tiny layer of the executor in
# both of its models of what references may do, and over such unit tests of the crates as it is fast
# enough for (a call takes it ten microseconds). Installs what it needs. A few minutes on 2 cores.
set -euo pipefail
cd "$(dirname "$0")/.."

rustup +nightly component list --installed 2>/dev/null | grep -q '^miri' ||
  rustup toolchain install nightly --profile minimal --component miri,rust-src

# functions that are not exact on every platform give one result; temporary files may be made
export MIRIFLAGS="-Zmiri-deterministic-floats -Zmiri-disable-isolation"
# the same packages always, or Cargo would build what they need with other features each time
miri() {
  cargo +nightly miri test --quiet --target-dir target/miri \
    -p octavo-simd -p octavo-kernels -p octavo-quant -p gguf-rs-lite "$@"
}

miri --no-run

# Time goes with what is computed here, so that threads go missing at the same places every time.
layer() {
  MIRIFLAGS="-Zmiri-deterministic-floats $*" miri --test kernels -- layer:: recurrence::a_tiny
}
echo "a layer, Tree Borrows and Stacked Borrows"
layer -Zmiri-tree-borrows &
tree=$!
layer
wait "$tree"

echo "unit tests, and planted faults, which must be seen"
# of vectors, the kernels, the formats, and the files: none of those is mapped there
quick=(arena:: attention::int16::tests::a_few memory::tests::floats memory::tests::a_buffer awq::
  format:: layout:: types:: temporary::)
miri --lib -- "${quick[@]}" --skip kv_layout:: &
units=$!
for planted in planted_parts_that_overlap planted_read_of_a_whole_row; do
  if seen=$(miri --lib -- --ignored "$planted" 2>&1); then
    echo "Miri saw nothing wrong in $planted"
    exit 1
  fi
  grep -qE "Undefined Behavior: (Data race|not granting access)" <<<"$seen" || {
    echo "$seen"
    exit 1
  }
done
wait "$units"
