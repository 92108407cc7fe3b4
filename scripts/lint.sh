#!/usr/bin/env bash
# Checks code without running it: errors first, format last. Uses the pinned tools of .venv/lint.
#
#   scripts/lint.sh [--no-format]
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup_env.sh lint
tools=.venv/lint/bin
mapfile -t cpp < <(git ls-files -co --exclude-standard 'csrc/*.h' 'csrc/*.cc')

echo "[lint] ruff: errors, for Python 3.7"
"$tools/ruff" check .
echo "[lint] compile with Python 3.7, where it is there"
if python37=$(scripts/find_python.sh tf1 2>/dev/null); then
  git ls-files -co --exclude-standard '*.py' | "$python37" scripts/check_syntax.py
else
  echo "[lint] no Python 3.7 here; ruff alone has checked the syntax"
fi
echo "[lint] house rules"
"$tools/python" scripts/check_house.py
if [ "${1:-}" != --no-format ]; then
  echo "[lint] format (\`make format\` mends it)"
  "$tools/ruff" format --check .
  [ ${#cpp[@]} = 0 ] || "$tools/clang-format" --dry-run --Werror "${cpp[@]}"
fi
echo "[lint] clean"
