"""The scripts behind the Makefile: which interpreter they choose, what happens to a line without one."""

import os
import re
import shutil
import signal
import stat
import subprocess

import pytest

pytestmark = pytest.mark.once

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SYSTEM_TOOLS = "bash env timeout sed sort ls tee tail tr mktemp mkfifo rm dirname cat sleep".split()


def executable(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def interpreter(path, found_inf="ok"):
    """Something at `path` that judges itself as an interpreter of the right version does."""
    executable(path, '#!/bin/sh\necho "%s %s"\n' % (found_inf, path))


@pytest.fixture
def bare(tmp_path):
    """Environment variables of a machine without any Python; PATH is {tmp}/bin, HOME is {tmp}/home."""
    tools = tmp_path / "bin"
    tools.mkdir()
    (tmp_path / "home").mkdir()
    for name in SYSTEM_TOOLS:
        (tools / name).symlink_to(shutil.which(name))
    return {"PATH": str(tools), "HOME": str(tmp_path / "home")}


def call(command, environ, cwd=ROOT):
    return subprocess.run(
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environ,
        cwd=str(cwd),
        universal_newlines=True,
        timeout=60,
    )


def find(line, environ):
    return call([os.path.join(ROOT, "scripts", "find_python.sh"), line], environ)


def test_no_python_says_where_it_looked(bare):
    result = find("tf1", bare)
    assert (result.returncode, result.stdout) == (3, "")
    assert "no Python 3.7 found on PATH, in pyenv, conda or uv" in result.stderr


@pytest.mark.parametrize(
    "place",
    [
        "bin/python3.7",
        "home/.pyenv/versions/3.7.16/bin/python3.7",
        "home/miniconda3/envs/old/bin/python3.7",
        "home/.local/share/uv/python/cpython-3.7.9-linux-x86_64-gnu/bin/python3.7",
    ],
)
def test_python_is_found(bare, tmp_path, place):
    interpreter(tmp_path / place)
    result = find("tf1", bare)
    assert (result.returncode, result.stdout.strip()) == (0, str(tmp_path / place))


def test_conda_environment_of_another_place_is_found(bare, tmp_path):
    interpreter(tmp_path / "work" / "py37" / "bin" / "python3.7")
    listed = tmp_path / "home" / ".conda" / "environments.txt"
    listed.parent.mkdir()
    listed.write_text("%s\n" % (tmp_path / "work" / "py37"))
    assert find("tf1", bare).stdout.strip() == str(tmp_path / "work" / "py37" / "bin" / "python3.7")


def test_shim_that_does_not_run_is_passed_over(bare, tmp_path):
    executable(tmp_path / "bin" / "python3.7", "#!/bin/sh\necho 'command not found' >&2\nexit 127\n")
    interpreter(tmp_path / "home/.pyenv/versions/3.7.16/bin/python3.7")
    assert "/.pyenv/versions/" in find("tf1", bare).stdout


def test_newest_version_of_a_line_is_preferred(bare, tmp_path):
    interpreter(tmp_path / "bin" / "python3.9")
    interpreter(tmp_path / "home/.pyenv/versions/3.11.7/bin/python3.11")
    assert find("tf2", bare).stdout.strip().endswith("python3.11")


def test_python_without_venv_is_the_last_resort(bare, tmp_path):
    interpreter(tmp_path / "bin" / "python3.11", "no-venv")
    result = find("tf2", bare)
    assert (result.returncode, result.stdout.strip()) == (4, str(tmp_path / "bin" / "python3.11"))
    assert "lacks the modules venv, ensurepip or ssl" in result.stderr
    interpreter(tmp_path / "bin" / "python3.9")
    assert find("tf2", bare).stdout.strip() == str(tmp_path / "bin" / "python3.9")


def test_named_python_is_used_or_refused(bare, tmp_path):
    interpreter(tmp_path / "bin" / "python3.7")
    interpreter(tmp_path / "mine" / "python")
    assert find("tf1", dict(bare, PYTHON_TF1=str(tmp_path / "mine" / "python"))).stdout.strip().endswith("mine/python")
    result = find("tf1", dict(bare, PYTHON_TF1="/nowhere/python3.7"))
    assert (result.returncode, result.stdout) == (1, "")
    assert "PYTHON_TF1=/nowhere/python3.7 is not a Python that runs with version 3.7" in result.stderr


@pytest.fixture
def checkout(tmp_path):
    """A copy of lines.sh in which setting up tf1 ends with the status in the variable TF1_STATUS."""
    scripts = tmp_path / "checkout" / "scripts"
    scripts.mkdir(parents=True)
    shutil.copy(os.path.join(ROOT, "scripts", "lines.sh"), str(scripts))
    setup = '#!/bin/sh\nif [ $1 = tf1 ]; then echo "[tf1] reason" >&2; exit ${TF1_STATUS:-0}; fi\n'
    executable(scripts / "setup_env.sh", setup)
    return tmp_path / "checkout"


def lines(checkout, bare, *arguments, **environ):
    return call([checkout / "scripts" / "lines.sh"] + list(arguments), dict(bare, **environ), cwd=checkout)


def test_commands_run_for_both_lines_quick_ones_first(checkout, bare):
    result = lines(checkout, bare, "echo quick $LINE", "echo slow $LINE")
    assert result.returncode == 0
    assert result.stdout.splitlines()[:4] == ["quick tf2", "quick tf1", "slow tf2", "slow tf1"]


def test_one_line_runs_what_is_the_same_on_both(checkout, bare):
    told = "echo $LINE runs ${ONCE:-everything}"
    result = lines(checkout, bare, told)
    assert result.stdout.splitlines()[:2] == ["tf2 runs --once rest", "tf1 runs --once unit"]
    assert "tf2 runs everything" in lines(checkout, bare, told, TF1_STATUS="3").stdout
    assert "tf2 runs everything" in lines(checkout, bare, told, LINE="tf2").stdout
    assert "tf2 runs --once unit" in lines(checkout, bare, told, LINE="tf2", ONCE="--once unit").stdout


def test_a_line_without_python_is_skipped_and_named(checkout, bare):
    result = lines(checkout, bare, "echo ran $LINE", TF1_STATUS="3")
    assert result.returncode == 0
    assert "ran tf2" in result.stdout and "ran tf1" not in result.stdout
    assert "tf1  skipped: its Python is missing" in result.stdout
    assert "[tf1] reason" in result.stderr


def test_strict_insists_on_both_lines(checkout, bare):
    result = lines(checkout, bare, "echo ran $LINE", TF1_STATUS="3", STRICT="1")
    assert result.returncode == 1
    assert "ran tf2" in result.stdout


def test_nothing_to_serve_is_an_error(checkout, bare):
    result = lines(checkout, bare, "echo ran", TF1_STATUS="3", LINE="tf1")
    assert result.returncode == 1
    assert "Nothing can be served" in result.stderr and "ran" not in result.stdout.split()


def test_a_failed_setup_ends_everything(checkout, bare):
    result = lines(checkout, bare, "echo ran $LINE", TF1_STATUS="7")
    assert result.returncode == 7
    assert "ran" not in result.stdout


def test_first_takes_tf2_or_what_there_is(checkout, bare):
    assert "only tf2" in lines(checkout, bare, "--first", "echo only $LINE").stdout
    assert "only tf1" in lines(checkout, bare, "--first", "echo only $LINE", LINE="tf1").stdout


def test_a_failure_is_reported_after_the_rest_has_run(checkout, bare):
    result = lines(checkout, bare, "[ $LINE = tf1 ]", "echo === 3 passed ===")
    assert result.returncode == 1
    assert "tf2  FAILED (status 1)" in result.stdout
    assert len(re.findall(r"tf[12]  ok, \d+ s: 3 passed\n", result.stdout)) == 2


def test_what_a_command_leaves_running_ends_with_it(checkout, bare):
    result = lines(checkout, bare, "sleep 50 & echo $! >left; echo done", LINE="tf2")
    assert result.returncode == 0 and "s: done" in result.stdout
    left = int((checkout / "left").read_text())
    assert not os.path.exists("/proc/%d" % left) or "Z" in open("/proc/%d/stat" % left).read().split(")")[1]


def test_a_process_that_left_the_group_is_not_waited_for(checkout, bare, tmp_path):
    (tmp_path / "bin" / "setsid").symlink_to(shutil.which("setsid"))
    result = lines(checkout, bare, "setsid sleep 1000 >/dev/null 2>&1 & echo $! >left; echo done", LINE="tf2")
    os.kill(int((checkout / "left").read_text()), signal.SIGKILL)  # fails where it has ended already
    assert result.returncode == 0


def test_an_unknown_line_is_refused(checkout, bare):
    result = lines(checkout, bare, "echo ran", LINE="tf3")
    assert result.returncode == 2
    assert "LINE=tf3: it is tf1" in result.stderr


def test_commands_side_by_side_run_at_the_same_time_and_one_that_fails_is_told(tmp_path):
    script = os.path.join(ROOT, "scripts", "side_by_side.sh")
    meet = "touch {0}; for _ in {{1..500}}; do [ ! -e {1} ] || break; sleep 0.02; done; [ -e {1} ]; echo {0} met"
    commands = [meet.format(*names) for names in (("one", "other"), ("other", "one"))]
    result = call([script] + commands, os.environ, tmp_path)
    assert (result.returncode, result.stdout) == (0, "one met\nother met\n")
    result = call([script, "echo wrong >&2; exit 3", "echo right"], os.environ, tmp_path)
    assert (result.returncode, result.stdout) == (1, "wrong\nright\n")
