#!/usr/bin/env bash
# Runs the quick start under epl-launch: scripts/quickstart.sh WORKERS DEVICES_PER_WORKER. Every worker has to finish.
set -euo pipefail
cd "$(dirname "$0")/.."

output=$(mktemp -d)
trap 'rm -rf "$output"' EXIT
TF_CPP_MIN_LOG_LEVEL=3 timeout 300 epl-launch --num_workers "$1" --gpu_per_worker "$2" --log_dir "$output/log" \
  examples/quickstart/run.sh
finished=$(cat "$output"/log/worker-*.log | grep -c 'Train Finished\.' || true)
if [ "$finished" != "$1" ]; then
  echo "$finished of $1 workers finished" >&2
  exit 1
fi
echo "quick start, $1 workers with $2 devices each: finished"
