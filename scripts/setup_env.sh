#!/usr/bin/env bash
# Makes the environment .venv/LINE: virtual environment, TensorFlow, test requirements, the native part, `epl-launch`.
#
#   scripts/setup_env.sh tf1|tf2|lint|docs|wheels
#
# Does only what is missing or out of date; stamps in the environment hold digests of what each step was made from.
# Exit status: 0 ready; 3 this line has no Python here, so it may be skipped; anything else: a step failed.
set -euo pipefail
cd "$(dirname "$0")/.."

line=${1:?usage: setup_env.sh tf1|tf2|lint|docs|wheels}
env=.venv/$line
is_tools() { [[ $line =~ ^(lint|docs|wheels)$ ]]; } # environments without TensorFlow and EPL
say() { echo "[$line] $*"; }

digest() { cat "$@" | sha256sum | cut -c1-64; }
current() { [ "$(cat "$env/$1.stamp" 2>/dev/null || true)" = "$2" ]; }
stamp() { echo "$2" >"$env/$1.stamp"; }

# Installs Debian packages if this user may; returns 1 if not.
apt_install() {
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    return 1
  fi
  say "installing $* with apt-get"
  mkdir -p .venv
  (
    flock 9  # both lines may be set up at the same time
    export DEBIAN_FRONTEND=noninteractive
    apt-get -qq -o Acquire::Retries=3 update >/dev/null
    apt-get -qq -o Acquire::Retries=3 -o Dpkg::Use-Pty=0 install -y --no-install-recommends "$@" >/dev/null
  ) 9>.venv/apt.lock
}

find_python() {
  local status=0 path version reason
  reason=$(mktemp)
  path=$(scripts/find_python.sh "$line" 2>"$reason") || status=$?
  if [ $status = 4 ]; then
    version=$("$path" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    if [[ $path == /usr/bin/* ]] && apt_install "python$version-venv" >&2; then
      status=0
      path=$(scripts/find_python.sh "$line" 2>"$reason") || status=$?
    fi
  fi
  if [ $status != 0 ]; then
    say "$(cat "$reason")." >&2
    case $status in
      3)
        version=$([ "$line" = tf1 ] && echo 3.7 || echo 3.11)
        say "Install one (pyenv install $version; conda create -n py$version python=$version; uv python install" \
          "$version)$(is_tools || echo " or name one: PYTHON_${line^^}=/path/to/python")." >&2
        ;;
      4) say "On Debian: apt-get install python${version}-venv" >&2 && status=3 ;;
    esac
    rm -f "$reason"
    return $status
  fi
  rm -f "$reason"
  echo "$path"
}

make_venv() {
  if "$env/bin/python" -c 'import pip' 2>/dev/null; then
    return
  fi
  local python status=0
  python=$(find_python) || status=$?
  [ $status = 0 ] || exit $status
  say "making $env with $("$python" --version 2>&1) ($python)"
  rm -rf "$env"
  "$python" -m venv "$env"
}

# pip's own lines say what is being fetched; those about what is already there are left out. What is imported is
# compiled then: a third of it, of thousands of files.
pip_install() {
  local uninteresting='^(Requirement already|Looking in|INFO|WARNING: (Running pip|Location)'
  uninteresting+='|  (Checking|Created|Stored|Using|Preparing|Downloading .* kB))'
  "$env/bin/python" -m pip install --disable-pip-version-check --progress-bar off --no-compile "$@" 2>&1 |
    { grep --line-buffered -vE "$uninteresting" || true; }
}

install_requirements() {
  local requirements=(requirements/build.txt "requirements/$line.txt") wanted filtered
  is_tools && requirements=("requirements/$line.txt")
  wanted=$(digest "${requirements[@]}")
  if current requirements "$wanted"; then
    return
  fi
  if ! is_tools; then
    pip_install -r requirements/build.txt
    say "installing TensorFlow and what the tests need; this takes some minutes the first time"
  fi
  # `tensorflow-cpu`, where somebody put it there, serves as well and must not be overwritten file by file.
  filtered=$(mktemp)
  if "$env/bin/python" -m pip show -q tensorflow-cpu 2>/dev/null; then
    grep -v '^tensorflow==' "requirements/$line.txt" >"$filtered"
  else
    cat "requirements/$line.txt" >"$filtered"
  fi
  pip_install -r "$filtered"
  rm -f "$filtered"
  stamp requirements "$wanted"
}

has_gloo() {
  echo '#include <gloo/context.h>' | "${CXX:-g++}" -std=c++17 -E -x c++ - >/dev/null 2>&1
}

# A compiler must be there; Gloo, which carries the traffic between machines, should.
need_build_tools() {
  local missing=()
  command -v "${CXX:-g++}" >/dev/null || missing+=(g++)
  has_gloo || missing+=(libgloo-dev)
  if [ ${#missing[@]} = 0 ] || apt_install "${missing[@]}"; then
    return
  fi
  say "the native part needs ${missing[*]}. On Debian: apt-get install ${missing[*]}" >&2
  if [ "${missing[*]}" != libgloo-dev ]; then
    exit 1
  fi
  say "building without Gloo: workers of one machine only" >&2
}

build_native() {
  local wanted
  wanted=$(
    {
      find csrc/comm csrc/ops epl/communicators/build.py -type f -print0 | LC_ALL=C sort -z | xargs -0 cat
      cat "requirements/$line.txt"
      if has_gloo; then echo "with Gloo"; fi
    } | sha256sum | cut -c1-64
  )
  if current native "$wanted" && [ -e epl/communicators/lib/libepl_comm.so ] &&
    [ -e "epl/communicators/lib/epl_ops-$line.so" ]; then
    return
  fi
  need_build_tools
  say "building the native part"
  "$env/bin/python" epl/communicators/build.py
  stamp native "$wanted"
}

install_project() {
  local wanted
  wanted=$(digest setup.py pyproject.toml)
  if current project "$wanted"; then
    return
  fi
  say "installing the project into $env (editable)"
  # One line at a time: both write what the package is called and holds into this folder.
  (
    flock 9
    pip_install --no-build-isolation --no-deps -e .
  ) 9>.venv/project.lock
  stamp project "$wanted"
}

make_venv
install_requirements
if ! is_tools; then
  build_native
  install_project
fi
