#!/usr/bin/env bash
# aarch64.sh: builds the tests for 64-bit Arm and runs them under qemu: all of them on the best CPU that qemu has, the
# packed kernels also on two older ones, which lack the later instructions. Installs the target, a linker and qemu
# where they are missing (Debian).
set -euo pipefail
cd "$(dirname "$0")/.."
target=aarch64-unknown-linux-gnu
rustup target list --installed | grep -qx $target || rustup target add $target
if ! command -v aarch64-linux-gnu-gcc qemu-aarch64 >/dev/null; then
  apt-get update -qq
  apt-get install -y -qq gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user >/dev/null
fi
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
# the committed models only: emulation is slow; and what a compiler makes here does not run there
export OCTAVO_SHARED=/nonexistent OCTAVO_REQUIRE_SHARED=0 OCTAVO_REQUIRE_CXX=0

# on CPU ISAS ARGUMENTS...: tests on an emulated CPU, on which exactly these instruction sets must run
on() {
  local cpu=$1 isas=$2
  shift 2
  printf '\n-- %s: %s\n' "$cpu" "$isas"
  OCTAVO_EXPECT_ISA=$isas CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -cpu $cpu -L /usr/aarch64-linux-gnu" \
    cargo test --release --target $target -p octavo-quant -p octavo-kernels -p octavo-llm "$@"
}

on max scalar,neon,dotprod,i8mm --lib --test matmul --test attention --test absorbed --test goldens
# a kernel that used more than its name says would stop here with an illegal instruction
on cortex-a53 scalar,neon --lib --test matmul --test attention -- instruction_set naive packed
on cortex-a76 scalar,neon,dotprod --lib --test matmul --test attention -- instruction_set naive packed
