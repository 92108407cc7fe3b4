#!/bin/sh
# What each worker runs: epl-launch --num_workers 1 --gpu_per_worker 2 run.sh
set -e
cd "$(dirname "$0")"
exec python -u local_model.py
