#!/usr/bin/env bash
# aarch64.sh: builds the tests for 64-bit Arm and runs them under qemu, to prove the portable kernels on another
# architecture. Installs the target, a linker and qemu where they are missing (Debian).
set -euo pipefail
cd "$(dirname "$0")/.."
target=aarch64-unknown-linux-gnu
rustup target list --installed | grep -qx $target || rustup target add $target
if ! command -v aarch64-linux-gnu-gcc qemu-aarch64 >/dev/null; then
  apt-get update -qq
  apt-get install -y -qq gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user >/dev/null
fi
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -L /usr/aarch64-linux-gnu"
# the committed models only: emulation is slow
OCTAVO_SHARED=/nonexistent OCTAVO_REQUIRE_SHARED=0 \
  cargo test --release --target $target -p octavo-quant -p octavo-kernels -p octavo-llm --lib --test matmul --test attention --test goldens
