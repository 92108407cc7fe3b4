#!/usr/bin/env bash
# The demo: trains on handwritten digits with two workers, then evaluates the checkpoint without EPL.
# Needs $LINE and the environment of that line first on PATH, as scripts/lines.sh gives them.
set -euo pipefail
cd "$(dirname "$0")/.."

work=build/demo/$LINE # examples/digits/run.sh changes folders, so it gets absolute paths
rm -rf "$work"
mkdir -p "$work"
export TF_CPP_MIN_LOG_LEVEL="${TF_CPP_MIN_LOG_LEVEL:-3}"

python examples/digits/convert.py --data_dir "$work/data"
epl-launch --num_workers 2 --gpu_per_worker 1 --log_dir "$work/log" examples/digits/run.sh \
  --data_dir "$PWD/$work/data" --checkpoint_dir "$PWD/$work/checkpoint" 2>&1 | tee "$work/train.txt"
echo
echo "Evaluating the checkpoint with plain TensorFlow:"
python examples/digits/evaluate.py --data_dir "$work/data" --checkpoint_dir "$work/checkpoint" --at_least 97 |
  tee "$work/evaluate.txt"

accuracy() { sed -n 's/.*test accuracy: \([0-9.]* %\).*/\1/p' "$1" | sort -u; }
if [ "$(accuracy "$work/train.txt")" != "$(accuracy "$work/evaluate.txt")" ]; then
  echo "The two programs disagree: training said $(accuracy "$work/train.txt" | tr '\n' ' ')" >&2
  exit 1
fi
echo "Both programs measure $(accuracy "$work/evaluate.txt"). The checkpoint is in $work/checkpoint."
