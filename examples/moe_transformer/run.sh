#!/bin/sh
# What each worker runs: epl-launch --num_workers 2 --gpu_per_worker 1 run.sh
set -e
export TF_CPP_MIN_LOG_LEVEL="${TF_CPP_MIN_LOG_LEVEL:-3}" # TensorFlow logs much; exceptions still show
exec python -u "$(dirname "$0")/train.py" "$@"
