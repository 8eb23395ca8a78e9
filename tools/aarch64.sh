#!/usr/bin/env bash
# aarch64.sh: builds the tests for 64-bit Arm and runs them under qemu: all of them on the best CPU
# that qemu has, the packed kernels also on two older ones, which lack the later instructions.
# Installs the target, a linker and qemu where they are missing (Debian).
set -euo pipefail
cd "$(dirname "$0")/.."
target=aarch64-unknown-linux-gnu
rustup target list --installed | grep -qx $target || rustup target add $target
for tool in aarch64-linux-gnu-gcc qemu-aarch64; do
  command -v $tool >/dev/null && continue
  apt-get update -qq
  apt-get install -y -qq gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user >/dev/null
  break
done
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
# the committed models only: emulation is slow; and what a compiler makes here does not run there
export OCTAVO_SHARED=/nonexistent OCTAVO_REQUIRE_SHARED=0 OCTAVO_REQUIRE_CXX=0
# kernels' tests take a part of their cases
export OCTAVO_EMULATED=1
# all but the kernels and the oracle (see Cargo.toml) is compiled fast
export CARGO_PROFILE_RELEASE_OPT_LEVEL=1

# always the same, or Cargo would build what they need with other features each time
crates=(-p octavo-quant -p octavo-simd -p octavo-isa -p octavo-kernels -p octavo-engine)

# on CPU ISAS ARGUMENTS...: tests on an emulated CPU, on which exactly these instruction sets must
# run
on() {
  local cpu=$1 isas=$2
  shift 2
  printf '\n-- %s: %s\n' "$cpu" "$isas"
  local runner="qemu-aarch64 -cpu $cpu -L /usr/aarch64-linux-gnu"
  OCTAVO_EXPECT_ISA=$isas CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER=$runner \
    cargo test --release --target $target "${crates[@]}" "$@"
}

all=scalar,neon,dotprod,i8mm
# a GPU on the CPU is code of this machine's compiler, which does not run there; of the libraries'
# own tests, only those of NVRTC need such code
no_gpu=(--skip cuda_shim:: --skip cuda::)
# what asks for equal bits in many batches takes minutes there, and is no different from elsewhere;
# Arm has no kernels for prompts in 8 bits, so that those tests are the ones of 16 bits again; and
# tests of attention have every pair of types of the cache
slow=(--skip windows_depend_on_no_neighbour --skip prompts_in_eight_bits
  --skip a_cache_of_two_types)
on max $all --lib --test isa -- --skip cuda::nvrtc::
on max $all --test kernels --test engine -- matmul:: attention:: absorbed:: goldens:: \
  "${no_gpu[@]}" "${slow[@]}"
# a kernel that used more than its name says would stop here with an illegal instruction
named=(--lib --test isa --test kernels -- every_vector strips naive packed "${no_gpu[@]}")
on cortex-a53 scalar,neon "${named[@]}"
on cortex-a76 scalar,neon,dotprod "${named[@]}"
