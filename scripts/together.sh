#!/usr/bin/env bash
# Like lines.sh with one command, but for both TensorFlow lines at the same time. The output of each line comes in one
# piece, when it has ended.
#
#   scripts/together.sh 'COMMAND'
#
# With LINE=tf1 or tf2, or where only one line can be served, it is lines.sh.
set -uo pipefail
cd "$(dirname "$0")/.."

served=()
for line in ${LINE:-tf2 tf1}; do
  status=0
  scripts/setup_env.sh "$line" || status=$?
  case $status in
    0) served+=("$line") ;;
    3) [ "${STRICT:-}" != 1 ] || exit 1 ;;
    *) exit $status ;;
  esac
done
if [ ${#served[@]} -lt 2 ]; then
  exec scripts/lines.sh "$@"
fi

folder=$(mktemp -d)
jobs=()
stop() {
  trap - EXIT INT TERM
  for job in "${jobs[@]}"; do kill -INT "$job" 2>/dev/null; done
  wait
  rm -rf "$folder"
}
trap stop EXIT
trap 'exit 130' INT TERM

echo "running for ${served[*]} at the same time; what they say comes when they have ended"
for line in "${served[@]}"; do
  once=$([ "$line" = "${served[-1]}" ] && echo unit || echo rest)
  # Jobs in the background ignore SIGINT, unless they have a process group of their own.
  set -m
  LINE=$line ONCE="--once $once" scripts/lines.sh "$@" >"$folder/$line" 2>&1 &
  jobs+=($!)
  set +m
done
failed=0
for index in "${!served[@]}"; do
  wait "${jobs[$index]}" || failed=1
  cat "$folder/${served[$index]}"
done
exit $failed
