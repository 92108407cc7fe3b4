#!/usr/bin/env bash
# Compiles what csrc/comm declares of NCCL and of the CUDA runtime against NVIDIA's headers and links it with the real
# library, then runs the tests of the NCCL back end against doubles of both. Needs no GPU. The wheels with the headers
# go to build/nvidia; they are installed nowhere.
#
#   scripts/check_nccl.sh [--declarations]
#
# --declarations   without the tests, for one who runs them under the sanitizers.
set -euo pipefail
cd "$(dirname "$0")/.."

case "${1:-}" in
  "" | --declarations) ;;
  *) echo "usage: check_nccl.sh [--declarations]" >&2 && exit 2 ;;
esac

# The NCCL of `pip install .[gpu]`. CUDA 11 beside it, because the headers of 12 include files that no wheel has; of 12
# the runtime, which is what TensorFlow 2.15 uses. The compiler's wheel has headers that those of the runtime include.
cu11=(nvidia-nccl-cu11==2.16.5 nvidia-cuda-runtime-cu11==11.8.89 nvidia-cuda-nvcc-cu11==11.8.89)
cu12=(nvidia-cuda-runtime-cu12==12.2.140)
nvidia=$PWD/build/nvidia

if [ "$(uname -m)" != x86_64 ]; then
  echo "not compared with NVIDIA's headers: their wheels of this version are for x86_64, this machine is $(uname -m)"
else
  python=python3
  for line in tf2 tf1; do
    if [ -x ".venv/$line/bin/python" ]; then
      python=.venv/$line/bin/python
      break
    fi
  done
  wanted="${cu11[*]} ${cu12[*]}"
  if [ "$(cat "$nvidia/stamp" 2>/dev/null || true)" != "$wanted" ]; then
    rm -rf "$nvidia"
    for set in cu11 cu12; do
      declare -n wheels=$set
      "$python" -m pip install -q --disable-pip-version-check --no-deps --no-compile --target "$nvidia/$set" \
        "${wheels[@]}"
    done
    echo "$wanted" >"$nvidia/stamp"
  fi
  make -s -C csrc gpu-headers NVIDIA="$nvidia"
fi
[ "${1:-}" = --declarations ] || make -s -j"$(nproc)" -C csrc gpu
