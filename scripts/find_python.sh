#!/usr/bin/env bash
# Prints the path of a Python that can make a virtual environment for a line.
#
#   scripts/find_python.sh tf1|tf2|lint|docs|wheels
#
# Looks at the variable PYTHON_TF1 or PYTHON_TF2, then on PATH, in pyenv, conda and uv. A candidate counts only if it
# runs (pyenv puts shims on PATH that do not) and has what a virtual environment needs.
# Exit status: 0 found; 3 no such Python; 4 found, but without the modules for virtual environments; 1 a wrong variable.
# On 4 the interpreter's path is printed too. The reason is on standard error.
set -euo pipefail

line=${1:?usage: find_python.sh tf1|tf2|lint|docs|wheels}
case $line in
  tf1) versions="3.7" named=${PYTHON_TF1:-} variable=PYTHON_TF1 ;;
  tf2) versions="3.11 3.10 3.9" named=${PYTHON_TF2:-} variable=PYTHON_TF2 ;;
  lint) versions="3.11 3.12 3.13 3.10 3.9 3.8 3.7" named="" variable="" ;;
  docs | wheels) versions="3.11 3.12 3.13 3.10" named="" variable="" ;;
  *) echo "find_python.sh: '$line' is no line; it is tf1, tf2, lint, docs or wheels" >&2; exit 1 ;;
esac

# Prints "ok PATH" or "no-venv PATH" for an interpreter of one of the versions $2..., nothing for others. PATH is the
# interpreter itself, where $1 is a shim or belongs to a virtual environment (perhaps the one about to be made anew).
judge() {
  local python=$1
  shift
  [ -x "$python" ] || return 0
  timeout 20 "$python" -I -c '
import os, sys
version = "%d.%d" % sys.version_info[:2]
if version in sys.argv[1:]:
    base = os.path.join(sys.base_prefix, "bin", "python" + version)
    path = base if os.access(base, os.X_OK) else sys.executable
    try:
        import ctypes, ensurepip, ssl, venv, zlib
        print("ok", path)
    except ImportError:
        print("no-venv", path)
' "$@" 2>/dev/null </dev/null || true
}

# Prints every place where an interpreter of version $1 may lie, one a line, best first.
candidates() {
  local version=$1 root base
  type -aP "python$version" python3 python 2>/dev/null || true
  for root in "${PYENV_ROOT:-}" "$HOME/.pyenv"; do
    [ -n "$root" ] && ls -d "$root/versions/$version"*/bin/"python$version" 2>/dev/null | sort -rV || true
  done
  base=$( (command -v conda >/dev/null && timeout 30 conda info --base 2>/dev/null) || true)
  for root in "${CONDA_PREFIX:-}" "$base" "$HOME/miniconda3" "$HOME/miniforge3" "$HOME/anaconda3" /opt/conda; do
    [ -n "$root" ] && ls -d "$root/bin/python$version" "$root"/envs/*/bin/"python$version" 2>/dev/null || true
  done
  if [ -r "$HOME/.conda/environments.txt" ]; then
    sed "s|\$|/bin/python$version|" "$HOME/.conda/environments.txt"
  fi
  if command -v uv >/dev/null; then
    timeout 30 uv python find --no-python-downloads "$version" 2>/dev/null || true
  fi
  root=${UV_PYTHON_INSTALL_DIR:-${XDG_DATA_HOME:-$HOME/.local/share}/uv/python}
  ls -d "$root"/cpython-"$version"[.-]*/bin/"python$version" 2>/dev/null | sort -rV || true
}

if [ -n "$named" ]; then
  path=$(type -P "$named" || true)
  # shellcheck disable=SC2086
  verdict=$([ -n "$path" ] && judge "$path" $versions || true)
  case $verdict in
    "ok "*) echo "${verdict#ok }"; exit 0 ;;
    "no-venv "*)
      echo "${verdict#no-venv }"
      echo "$variable=$named lacks the modules venv, ensurepip or ssl" >&2
      exit 4
      ;;
    *) echo "$variable=$named is not a Python that runs with version ${versions// / or }" >&2; exit 1 ;;
  esac
fi

incomplete=""
for version in $versions; do
  while IFS= read -r path; do
    verdict=$(judge "$path" "$version")
    case $verdict in
      "ok "*) echo "${verdict#ok }"; exit 0 ;;
      "no-venv "*) incomplete=${incomplete:-${verdict#no-venv }} ;;
    esac
  done < <(candidates "$version")
done
if [ -n "$incomplete" ]; then
  echo "$incomplete"
  echo "$incomplete lacks the modules venv, ensurepip or ssl" >&2
  exit 4
fi
echo "no Python ${versions// / or } found on PATH, in pyenv, conda or uv" >&2
exit 3
