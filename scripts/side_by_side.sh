#!/usr/bin/env bash
# Runs shell commands at the same time. What each says comes in one piece, in their order, once it has ended.
#
#   scripts/side_by_side.sh 'COMMAND' ['COMMAND' ...]
#
# Exit status: 0 if all ended well.
set -uo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
jobs=()
for command in "$@"; do
  bash -euo pipefail -c "$command" >"$folder/${#jobs[@]}" 2>&1 &
  jobs+=($!)
done
failed=0
for index in "${!jobs[@]}"; do
  wait "${jobs[$index]}" || failed=1
  cat "$folder/$index"
done
exit $failed
