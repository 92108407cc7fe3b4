"""Forked processes behave as new ones do."""

import os
import signal
import sys
import textwrap
import time

import pytest

from tests.helpers import forks, processes

TELL = """
import atexit, os, sys
atexit.register(lambda: print("AT EXIT"))
print(__name__, sys.argv[1:], os.environ["MINE"], os.getcwd(), os.getsid(0) == os.getpid())
print("PATH", [os.path.realpath(part) for part in sys.path if "site-packages" not in part and "/lib" not in part])
print("LEFT", [name for name in sys.modules if name.split(".")[0] in ("epl", "tests")])
"""


def outputs(template, tmp_path, arguments):
    """The output of a forked and of a new process, and how they ended."""
    environ = processes.clean_environment(MINE="x")
    ends = [
        start(arguments, environ, tmp_path / name, str(tmp_path)).wait(60)
        for name, start in (("forked", template.python), ("new", processes.python))
    ]
    return [each.output for each in ends], [each.code for each in ends]


def test_arguments_environment_folder_and_path(template, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(TELL)
    (forked, new), codes = outputs(template, tmp_path, [script, "a", 1])
    assert forked == new and codes == [0, 0]
    assert "__main__ ['a', '1'] x %s True" % os.path.realpath(str(tmp_path)) in forked
    assert "AT EXIT" in forked and "LEFT []" in forked


@pytest.mark.parametrize(
    "ending, code",
    [
        ("sys.exit(7)", 7),
        ("sys.exit('words')", 1),
        ("sys.exit()", 0),
        ("def f():\n    raise KeyError('no luck')\nf()", 1),
        ("os.kill(os.getpid(), 9)", -9),
        ("raise KeyboardInterrupt()", None),
        ("import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.3), print('LATE'))).start()", 0),
    ],
)
def test_endings(template, tmp_path, ending, code):
    script = tmp_path / "script.py"
    script.write_text("import os, sys\n" + ending + "\n")
    (forked, new), codes = outputs(template, tmp_path, [script])
    assert forked == new
    if code is not None:
        assert codes == [code, code]
    else:  # Python 3.7 ends with 1, later ones by the signal itself
        assert codes[0] == -signal.SIGINT


def test_random_numbers_differ(template, tmp_path):
    command = ["-c", "import random, numpy; print(random.random(), numpy.random.rand())"]
    environ = processes.clean_environment()
    ends = [template.python(command, environ, tmp_path / str(each)).wait(60) for each in range(2)]
    assert [end.code for end in ends] == [0, 0]
    first, second = (end.output.split() for end in ends)
    assert first[0] != second[0] and first[1] != second[1]


def test_signals_and_time_outs(template, tmp_path):
    child = template.python(
        ["-c", "import time; print('ON'); time.sleep(1000)"], processes.clean_environment(), tmp_path / "log"
    )
    child.wait_for("ON", 60)
    assert child.running()
    child.signal(signal.SIGTERM)
    assert child.wait(60).code == -signal.SIGTERM and not child.running()
    child = template.python(["-c", "import time; time.sleep(1000)"], processes.clean_environment(), tmp_path / "log")
    assert child.wait(0.2).code is None and not child.running()


@pytest.mark.parametrize("forked", [True, False], ids=["forked", "new"])
def test_what_has_ended_is_signalled_only_while_its_number_is_its_own(template, tmp_path, monkeypatch, forked):
    """The system soon gives the number of a process that has been waited for to another one, which is a stranger."""
    killed = []
    monkeypatch.setattr(os, "killpg", lambda pid, _: killed.append(os.path.exists("/proc/%d" % pid)))
    start = template.python if forked else processes.python
    program = "import os; open('pid', 'w').write(str(os.getpid()))"
    child = start(["-c", program], processes.clean_environment(), tmp_path / "log", str(tmp_path))
    while child.running():
        time.sleep(0.01)
    own = processes.Noted(tmp_path / "pid")
    assert own == child.pid and not processes.alive(own)  # it is a zombie
    for _ in range(2):
        assert child.wait(20).code == 0
        child.kill()
    assert killed == [True]


def test_a_process_of_the_same_number_is_another_one(tmp_path):
    path = tmp_path / "pid"
    path.write_text(str(os.getpid()))
    assert processes.alive(processes.Noted(path))
    os.utime(str(path), (0, time.time() - 3600))  # long before this process began
    assert not processes.alive(processes.Noted(path))


def test_what_imports_see_gets_an_interpreter_of_its_own(template, tmp_path):
    environ = processes.clean_environment(PYTHONHASHSEED="5")
    child = template.python(["-c", "import sys; print('tensorflow' in sys.modules)"], environ, tmp_path / "log")
    ended = child.wait(60)
    assert not isinstance(child, forks.ForkedProcess) and (ended.code, ended.output) == (0, "False\n")


def test_workers_of_a_launcher_are_forked_too(template, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        textwrap.dedent("""
        import sys
        print("tensorflow" in sys.modules, sys.argv[1:], "epl.launch" in sys.modules)
        sys.stdout.flush()
        raise ValueError("no luck")
        """)
    )
    command = ["-m", "epl.launch", "--num_workers", 1, "--device", "cpu", script, "a"]
    ended = template.python(
        command, processes.clean_environment(TMPDIR=tmp_path), tmp_path / "log", str(tmp_path)
    ).wait(60)
    assert ended.code == 1, ended
    assert "[worker 0] True ['a'] False" in ended.output and "ValueError: no luck" in ended.output
    assert "fork_server" not in ended.output and sys.executable
