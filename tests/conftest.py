"""Fixtures of all tests. TensorFlow is imported by the tests that need it, not here."""

import collections
import os
import pickle
import random

import hypothesis
import pytest

from tests.helpers import on_gpus, processes, quicker, zoo_results
from tests.helpers.forks import Template
from tests.helpers.line_shares import divided
from tests.helpers.remote import Job

# How long an example takes says more about the machine than about the code. What an ordinary run draws follows from the
# test alone, so that a run that fails tells of a change and not of chance; --exhaustive draws anew each time.
UNTIMED = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
hypothesis.settings.register_profile("same", derandomize=True, **UNTIMED)
hypothesis.settings.register_profile("drawn", **UNTIMED)
hypothesis.settings.load_profile("same")


# What runs only if it is asked for: marker -> the options that ask for it.
ON_REQUEST = {"exhaustive": ("--exhaustive",), "nightly": ("--nightly", "--exhaustive")}


def pytest_addoption(parser):
    parser.addoption("--exhaustive", action="store_true", help="run all tests, every combination; takes hours")
    parser.addoption("--nightly", action="store_true", help="also run the tests marked nightly; takes minutes")
    parser.addoption("--on-gpus", action="store_true", help="run jobs on this machine's GPUs, of which one is enough")
    parser.addoption("--fault-seed", type=int, help="of the faults that are drawn; printed, random if left out")
    parser.addoption(
        "--once",
        choices=("unit", "rest"),
        help="of what is the same on both TensorFlow lines (once) run only the unit tests and those faults that run "
        "alone, or only the rest, because another run has the others",
    )


def pytest_configure(config):
    if config.getoption("--on-gpus"):
        on_gpus.want()
    if config.getoption("--exhaustive"):
        hypothesis.settings.load_profile("drawn")
    given = config.getoption("--fault-seed")
    config.fault_seed = random.SystemRandom().randrange(10**6) if given is None else given


def part_of(item):
    """The value of --once with which it runs; the two take about as long, and so do their tests that run alone."""
    folder = os.path.basename(os.path.dirname(str(item.fspath)))
    return "unit" if folder == "unit" or folder == "faults" and item.get_closest_marker("alone") else "rest"


def pytest_report_header(config):
    return "faults are drawn with --fault-seed %d" % config.fault_seed


def pytest_collection_modifyitems(config, items):
    unwanted = {mark for mark, options in ON_REQUEST.items() if not any(config.getoption(option) for option in options)}
    part = config.getoption("--once")
    chosen = [
        item
        for item in items
        if not any(item.get_closest_marker(mark) for mark in unwanted)
        and not (item.get_closest_marker("once") and part not in (None, part_of(item)))
    ]
    if part is not None and not config.getoption("--exhaustive"):
        both = [item for item in chosen if _is_shared(item)]
        here = set(divided(both, line=0 if part == "unit" else 1))
        chosen = [item for item in chosen if item in here or not _is_shared(item)]
    wanted = set(chosen)
    config.hook.pytest_deselected(items=[item for item in items if item not in wanted])
    items[:] = chosen


def pytest_collection_finish():
    quicker.build_graphs_quickly()


def _is_shared(item):
    """Whether each case of a test runs on one line, of those that could run on both."""
    folder = os.path.basename(os.path.dirname(str(item.fspath)))
    return folder in ("unit", "numerics", "multiproc") and not any(
        item.get_closest_marker(mark) for mark in ("once", "each_line", "skipif", "alone")
    )


def pytest_terminal_summary(terminalreporter):
    """Where the time went: the modules that took longest, beside pytest's own list of tests."""
    seconds = collections.Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            seconds[getattr(report, "nodeid", "").partition("::")[0]] += getattr(report, "duration", 0)
    longest = [(module, spent) for module, spent in seconds.most_common(30) if spent >= 5]
    if longest:
        terminalreporter.section("longest modules of %.0f s" % sum(seconds.values()))
    for module, spent in longest:
        terminalreporter.write_line("%7.1f s  %s" % (spent, module))


@pytest.fixture(autouse=True)
def no_foreign_cluster(monkeypatch):
    """Variables that a launcher or a shell has set do not reach the tests."""
    for key in processes.foreign_variables(os.environ):
        monkeypatch.delenv(key)


@pytest.fixture(scope="session")
def template():
    """Starts Python processes that have imported TensorFlow already: `template.python`, like `processes.python`."""
    with Template() as started:
        yield started


@pytest.fixture(scope="session")
def run(template):
    """run(folder, *arguments): the output of a Python command in `folder`, which has to end well."""

    def run_python(folder, *arguments):
        environ = processes.clean_environment(TMPDIR=folder)
        log = os.path.join(str(folder), "output.txt")
        ended = template.python(arguments, environ, log, str(folder)).wait(400)
        assert ended.code == 0, ended
        return ended.output

    return run_python


@pytest.fixture(scope="session")
def zoo_runs(request, template, tmp_path_factory):
    """What the cases of the zoo left. All selected tests together say which cases run, so each layout starts once."""
    results = zoo_results.Results(template.python, tmp_path_factory.mktemp("zoo"))
    for item in request.session.items:
        if "zoo_runs" in getattr(item, "fixturenames", ()) and hasattr(item, "callspec"):
            case, layout = item.callspec.params["case"], item.callspec.params.get("layout", zoo_results.PLAIN)
            results.want(layout, case)
    return results


@pytest.fixture(scope="session")
def jobs(template, tmp_path_factory):
    """The processes that run the programs of tests/helpers/programs; each job starts when it is first called."""
    folder = tmp_path_factory.mktemp("jobs")
    started = {
        name: Job(template.python, folder, plain=True) if name == "plain" else Job(template.python, folder, *name)
        for name in ("plain", (1, 1), (1, 2), (1, 4), (1, 8), (2, 1), (2, 2), (2, 4), (3, 1), (4, 1), (4, 2), (8, 1))
    }
    yield started
    for job in started.values():
        job.stop()


@pytest.fixture(scope="session")
def plain(jobs):
    """Calls a program with plain TensorFlow; returns what the program returned.

    What many tests compare with is computed once, unless an argument looks like a path: then files change as well.
    """
    known = {}

    def ask(*args, **kwargs):
        key = pickle.dumps((args, sorted(kwargs.items())))
        if b"/" in key:
            return jobs["plain"](*args, **kwargs)[0]
        if key not in known:
            known[key] = pickle.dumps(jobs["plain"](*args, **kwargs)[0])
        return pickle.loads(known[key])

    return ask


@pytest.fixture(scope="session")
def by_hand(plain):
    """What one device computes of a pipeline, micro-batch by micro-batch.

    Takes the arguments of `by_hand` in tests/helpers/programs/pipelines.py.
    """
    return lambda *args, **kwargs: plain("tests.helpers.programs.pipelines:by_hand", *args, **kwargs)


@pytest.fixture
def two_devices(jobs):
    """Calls a program with EPL in one process with two devices; returns what the program returned."""
    return lambda *args, **kwargs: jobs[1, 2](*args, **kwargs)[0]


@pytest.fixture
def four_devices(jobs):
    """The same with four devices."""
    return lambda *args, **kwargs: jobs[1, 4](*args, **kwargs)[0]


@pytest.fixture
def two_workers(jobs):
    """Calls a program in two worker processes with one device each; returns a list of what they returned."""
    return jobs[2, 1]


@pytest.fixture
def two_by_two(jobs):
    """Calls a program in two worker processes with two devices each; returns a list of what they returned."""
    return jobs[2, 2]
