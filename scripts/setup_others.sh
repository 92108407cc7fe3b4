#!/usr/bin/env bash
# Makes .venv/others: programs by others and what they import, for the tests that run them on the line tf1.
#
# A folder of packages and no environment: its Python, TensorFlow and NumPy are those of .venv/tf1, which it leaves as
# it is. Does nothing if it is there already, or if the line tf1 cannot be served here or is not wanted (LINE=tf2).
# Without the packages the tests are skipped; STRICT=1 makes it an error that they cannot be installed.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=.venv/others
python=.venv/tf1/bin/python
say() { echo "[others] $*"; }

[ "${LINE:-tf1}" = tf1 ] || exit 0
status=0
scripts/setup_env.sh tf1 || status=$?
if [ $status = 3 ]; then
  [ "${STRICT:-}" != 1 ] || exit 1
  exit 0
fi
[ $status = 0 ] || exit $status

wanted=$(cat requirements/others.txt scripts/setup_others.sh | sha256sum | cut -c1-64)
if [ "$(cat $folder/made_from 2>/dev/null || true)" = "$wanted" ]; then
  exit 0
fi
say "installing programs by others and what they import"
rm -rf $folder $folder.new
# Some come as sources; the tools that build them are in .venv/tf1.
if $python -m pip install -q --disable-pip-version-check --no-warn-conflicts --no-deps --no-build-isolation \
  --no-compile --target $folder.new -r requirements/others.txt 2>&1 \
  | { grep -v '^WARNING: \(Location\|Target directory\)' || true; }; then
  echo "$wanted" >$folder.new/made_from
  mv $folder.new $folder
else
  rm -rf $folder.new
  say "they could not be installed; the tests that need them will be skipped" >&2
  [ "${STRICT:-}" != 1 ] || exit 1
fi
