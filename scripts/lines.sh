#!/usr/bin/env bash
# Runs shell commands in the environment of each TensorFlow line and says at the end how each went.
#
#   scripts/lines.sh [--first] 'COMMAND' ['COMMAND' ...]
#
# Every command runs for every line before the next command starts, so that quick checks of both lines come first. In a
# command, $LINE is the line and `python` is the line's Python. $ONCE tells pytest which part of what is the same on
# both lines is to run: "--once unit" for the last line that is served, whose Python is the oldest, "--once rest" for
# the other; it is empty where there is only one.
# --first   only the first line whose Python is there, tf2 before tf1.
# Variables: LINE=tf1 or tf2 chooses one line. STRICT=1 makes a line that is skipped an error. ONCE, if it is set
# (together.sh does), is handed on.
set -uo pipefail
cd "$(dirname "$0")/.."

first=""
if [ "${1:-}" = --first ]; then
  first=1
  shift
fi
[ $# -gt 0 ] || { echo "usage: lines.sh [--first] 'COMMAND' ..." >&2; exit 2; }
case ${LINE:-} in
  "") lines="tf2 tf1" ;;
  tf1 | tf2) lines=$LINE ;;
  *) echo "LINE=$LINE: it is tf1 (TensorFlow 1.15) or tf2 (TensorFlow 2.15); leave it out for both." >&2; exit 2 ;;
esac

served=()
report=()
failed=0
for line in $lines; do
  status=0
  scripts/setup_env.sh "$line" || status=$?
  if [ $status = 0 ]; then
    served+=("$line")
    [ -z "$first" ] || break
  elif [ $status = 3 ]; then
    report+=("$line  skipped: its Python is missing (see above)")
    [ "${STRICT:-}" != 1 ] || failed=1
  else
    echo "[$line] setting up failed with status $status." >&2
    exit $status
  fi
done
if [ ${#served[@]} = 0 ]; then
  echo "Nothing can be served: ${LINE:-tf1 and tf2} without a Python. The line tf1 needs 3.7, tf2 3.9 to 3.11." >&2
  exit 1
fi

folder=$(mktemp -d)
output=$folder/output
trap 'rm -rf "$folder"' EXIT

# Runs a command for a line in a process group of its own, and prints and keeps its output. What the command leaves
# running ends with it; what has left the group as well holds the output open, but is not waited for.
run_for() {
  local line=$1 command=$2 status=0 tee once=${ONCE:-}
  if [ -z "$once" ] && [ ${#served[@]} -gt 1 ]; then
    once=$([ "$line" = "${served[-1]}" ] && echo "--once unit" || echo "--once rest")
  fi
  rm -f "$folder/pipe"
  mkfifo "$folder/pipe"
  tee "$output" <"$folder/pipe" &
  tee=$!
  set -m
  (
    export LINE=$line ONCE=$once PATH="$PWD/.venv/$line/bin:$PATH" VIRTUAL_ENV="$PWD/.venv/$line"
    exec bash -euo pipefail -c "$command"
  ) </dev/null >"$folder/pipe" 2>&1 &
  group=$!
  set +m
  wait $group || status=$?
  kill -KILL -- -$group 2>/dev/null
  group=""
  for _ in {1..100}; do
    kill -0 $tee 2>/dev/null || break
    sleep 0.02
  done
  kill $tee 2>/dev/null
  wait $tee 2>/dev/null
  return $status
}

group=""
stop() {
  trap - INT TERM
  [ -z "$group" ] || kill -INT -- -$group 2>/dev/null
  [ -z "$group" ] || wait $group
  exit 130
}
trap stop INT TERM

for command in "$@"; do
  for line in "${served[@]}"; do
    started=$SECONDS
    status=0
    run_for "$line" "$command" || status=$?
    verdict=ok
    if [ $status != 0 ]; then
      verdict="FAILED (status $status)"
      failed=1
    fi
    report+=("$line  $verdict, $((SECONDS - started)) s: $(tail -n 1 "$output" | tr -d '=' | sed 's/^ *//;s/ *$//')")
  done
done
echo
printf '%s\n' "${report[@]}"
exit $failed
