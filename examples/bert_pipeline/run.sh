#!/bin/sh
# What the worker runs: epl-launch --num_workers 1 --gpu_per_worker 2 run.sh
set -e
cd "$(dirname "$0")"
exec python -u pretrain.py "$@"
