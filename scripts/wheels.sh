#!/usr/bin/env bash
# Makes a wheel for one TensorFlow line, of what is committed, and tries it in a fresh environment without a compiler.
#
#   scripts/wheels.sh [--no-try]         in the environment of a line (scripts/lines.sh)
#
# The wheel lands in dist/. Nothing in it depends on Python's own binary interface, only on TensorFlow's: one serves all
# Python versions of a line. It is built without Gloo, which communication.backend="gloo" alone needs, as the libraries
# that Gloo needs are not the same on other systems.
# Variables: EPL_WHEEL_SECONDS, how long installing it beside TensorFlow may take (default 20).
set -euo pipefail
cd "$(dirname "$0")/.."

say() { echo "[$LINE] $*"; }
root=$PWD
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir -p dist

case $LINE in
  tf1) pythons=cp37 ;;
  tf2) pythons=cp39.cp310.cp311 ;;
esac

scripts/setup_env.sh wheels
tools=$root/.venv/wheels/bin
git archive --prefix=epl/ HEAD | tar -x -C "$folder"
say "building"
EPL_WITH_GLOO=0 python -m pip wheel -q --disable-pip-version-check --no-build-isolation --no-deps \
  -w "$folder/plain" "$folder/epl"
"$tools/python" -m wheel tags --remove --python-tag $pythons --abi-tag none "$folder"/plain/*.whl >/dev/null
# TensorFlow's own library is there wherever TensorFlow is.
PATH=$tools:$PATH "$tools/auditwheel" repair --exclude 'libtensorflow_framework.so.*' -w "$folder/made" \
  "$folder"/plain/*.whl
wheel=$(ls "$folder"/made/*.whl)
cp "$wheel" dist/
say "dist/$(basename "$wheel"), $(($(stat -c %s "$wheel") / 1024)) KiB"
[ "${1:-}" != --no-try ] || exit 0

say "trying it in a fresh environment"
python -m venv "$folder/fresh"
fresh=$folder/fresh/bin
"$fresh/python" -m pip install -q --disable-pip-version-check --no-compile -r requirements/build.txt
# All that the wheel asks for is there; the test then is the wheel's own.
"$fresh/python" - "$wheel" >"$folder/needs.txt" <<'PYTHON'
import sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as wheel:
    name = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")][0]
    lines = wheel.read(name).decode("utf-8").split("\n\n")[0].splitlines()
needs = [line.split(": ", 1)[1] for line in lines if line.startswith("Requires-Dist") and "extra ==" not in line]
print("\n".join(needs))
PYTHON
"$fresh/python" -m pip install -q --disable-pip-version-check --no-compile -r "$folder/needs.txt"
started=$(date +%s%N)
"$fresh/python" -m pip install -q --disable-pip-version-check --no-index "$wheel"
spent=$((($(date +%s%N) - started) / 1000000))
say "installed beside TensorFlow in $((spent / 1000)).$(printf '%03d' $((spent % 1000))) s"
[ $spent -le $((${EPL_WHEEL_SECONDS:-20} * 1000)) ] || { say "that is more than ${EPL_WHEEL_SECONDS:-20} s"; exit 1; }
"$fresh/python" -m pip check --disable-pip-version-check
cp -r examples/quickstart "$folder/quickstart"
cd "$folder/quickstart"
say "two workers with two devices each, with no compiler at hand"
env -i HOME="$folder" PATH="$fresh:/usr/bin:/bin" CXX=/nowhere \
  "$fresh/epl-launch" --num_workers 2 --gpu_per_worker 2 run.sh | tee "$folder/output.txt"
grep -q "Train Finished" "$folder/output.txt"
say "the wheel trains"
