#!/usr/bin/env bash
# Like lines.sh with one command, but for both TensorFlow lines at the same time, their environments included. The
# output of each line comes in one piece, when it has ended.
#
#   scripts/together.sh 'COMMAND'
#
# With LINE=tf1 or tf2, or where only one line can be served, it is lines.sh.
set -uo pipefail
cd "$(dirname "$0")/.."

folder=$(mktemp -d)
jobs=()
stop() {
  trap - EXIT INT TERM
  for job in "${jobs[@]}"; do kill -INT -- "-$job" 2>/dev/null; done
  wait
  rm -rf "$folder"
}
trap stop EXIT
trap 'exit 130' INT TERM

# Starts a command in the background. Jobs there ignore SIGINT, unless they have a process group of their own.
start() {
  set -m
  "$@" &
  jobs+=($!)
  set +m
}

read -ra lines <<<"${LINE:-tf2 tf1}"
for line in "${lines[@]}"; do start scripts/setup_env.sh "$line"; done
served=()
for index in "${!lines[@]}"; do
  status=0
  wait "${jobs[$index]}" || status=$?
  case $status in
    0) served+=("${lines[$index]}") ;;
    3) [ "${STRICT:-}" != 1 ] || exit 1 ;;
    *) exit $status ;;
  esac
done
jobs=()
if [ ${#served[@]} -lt 2 ]; then
  rm -rf "$folder"
  exec scripts/lines.sh "$@"
fi

# Runs the commands for a line.
run_for() {
  local once
  once=$([ "$1" = "${served[-1]}" ] && echo unit || echo rest)
  LINE=$1 ONCE="--once $once" scripts/lines.sh "${@:2}" >"$folder/$1" 2>&1
}

echo "running for ${served[*]} at the same time; what they say comes when they have ended"
for line in "${served[@]}"; do start run_for "$line" "$@"; done
failed=0
for index in "${!served[@]}"; do
  wait "${jobs[$index]}" || failed=1
  cat "$folder/${served[$index]}"
done
exit $failed
