#!/usr/bin/env bash
# Checks code without running it, with the pinned tools of .venv/lint. Runs every check, then says whether all passed.
#
#   scripts/lint.sh [--no-format]
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup_env.sh lint
tools=.venv/lint/bin
mapfile -t cpp < <(git ls-files -co --exclude-standard 'csrc/*.h' 'csrc/*.cc')
failed=()

check() {
  local what=$1
  shift
  echo "[lint] $what"
  "$@" || failed+=("$what")
}

compile_python37() {
  local python
  if python=$(scripts/find_python.sh tf1 2>/dev/null); then
    git ls-files -co --exclude-standard '*.py' | "$python" scripts/check_syntax.py
  else
    echo "no Python 3.7 here; ruff alone has checked the syntax"
  fi
}

check "errors, order of imports (ruff)" "$tools/ruff" check --output-format concise .
check "Python 3.7 compiles it" compile_python37
check "house rules" "$tools/python" scripts/check_house.py
check "names and types that editors see (pyright)" "$tools/python" scripts/check_typing.py
if [ "${1:-}" != --no-format ]; then
  check "format of Python (make format mends it)" "$tools/ruff" format --check .
  check "format of C++ (make format mends it)" "$tools/clang-format" --dry-run --Werror "${cpp[@]}"
fi
if [ ${#failed[@]} != 0 ]; then
  printf '[lint] FAILED: %s\n' "${failed[@]}"
  exit 1
fi
echo "[lint] clean"
