"""Every way in which a script can run its graph, on two devices, against plain TensorFlow."""

import numpy as np
import pytest

from tests.helpers import on_gpus
from tests.helpers.checks import assert_same, assert_same_state, assert_same_training, pairs

SESSIONS = "tests.helpers.programs.sessions:"


def test_monitored_session_with_hooks(plain, two_devices, tmp_path):
    folders = [str(tmp_path / name) for name in ("plain", "epl")]
    want, got = plain(SESSIONS + "hooks", folders[0]), two_devices(SESSIONS + "hooks", folders[1])
    assert len(want["losses"]) == 5 and want["calls"] == got["calls"] == ["begin", "create", "end"]
    for key in ("losses", "recorded", "logged"):
        assert_same(got[key], want["losses"])
    without_events = [[name for name in result["files"] if "tfevents" not in name] for result in (got, want)]
    assert without_events[0] == without_events[1]
    saved = [plain(SESSIONS + "read_checkpoint", folder + "/worker_0") for folder in folders]
    assert_same_state(saved[1][0], saved[0][0])
    assert saved[1][1] == saved[0][1]


def test_summaries_of_a_monitored_session(plain, two_devices, tmp_path):
    points = {}
    for name, call in (("plain", plain), ("epl", two_devices)):
        call(SESSIONS + "hooks", str(tmp_path / name))
        points[name], has_graph = plain(SESSIONS + "read_summaries", str(tmp_path / name / "worker_0"))
        assert has_graph
    assert points["plain"] and [step for step, _ in points["epl"]] == [step for step, _ in points["plain"]]
    # A summary is made inside the graph, of the first replica's loss; merging is for what is fetched itself.
    assert all(0.5 < value < 2.0 for _, value in points["epl"])


def test_interactive_session(plain, two_devices):
    want, got = plain(SESSIONS + "interactive"), two_devices(SESSIONS + "interactive")
    assert_same(got[0], want[0])
    assert got[1] == want[1] == 5
    assert_same_state(got[2], want[2])


def test_make_callable(plain, two_devices):
    want, got = plain(SESSIONS + "callables"), two_devices(SESSIONS + "callables")
    assert_same(got[0], want[0])
    assert_same_state(got[1], want[1])


def assert_same_nest(got, want):
    assert type(got).__name__ == type(want).__name__
    if isinstance(want, dict):
        assert list(got) == list(want)
        for key in want:
            assert_same_nest(got[key], want[key])
    elif isinstance(want, (list, tuple)):
        for one, other in pairs(got, want):
            assert_same_nest(one, other)
    elif want is None or isinstance(want, (bytes, str)):
        assert got == want
    else:
        assert_same(got, want)


def test_nested_fetches(plain, two_devices):
    want, got = plain(SESSIONS + "nests"), two_devices(SESSIONS + "nests")
    assert_same_nest(got, want)


def test_branches_that_were_not_taken_have_no_value(plain, two_devices):
    want, got = plain(SESSIONS + "not_taken"), two_devices(SESSIONS + "not_taken")
    assert got == want == [(), "no value", "no value", "no value", (0,)]


@pytest.mark.parametrize("program", ["queues", "generator"])
def test_every_row_is_consumed_once(plain, two_devices, program):
    want, got = plain(SESSIONS + program), two_devices(SESSIONS + program)
    if program == "queues":
        want, got = want[0], got[0]
    assert len(got) == len(want) == 5
    np.testing.assert_array_equal(np.sort(np.concatenate(got)), np.sort(np.concatenate(want)))
    np.testing.assert_array_equal(np.sort(np.concatenate(want)), np.arange(40))


@pytest.mark.skipif(on_gpus.wanted(), reason="looks for CPU devices")
def test_run_options_and_metadata(plain, two_devices):
    want, got = plain(SESSIONS + "metadata"), two_devices(SESSIONS + "metadata")
    assert want["graphs"] >= 1 and got["graphs"] >= 2
    assert {"CPU:0", "CPU:1"} <= {name.rsplit("/device:")[-1] for name in got["devices"]}


def test_user_graph_is_left_alone(plain, two_devices):
    for got in (plain(SESSIONS + "user_graph"), two_devices(SESSIONS + "user_graph")):
        assert got["same"] and got["unchanged"]
        assert got["grown"] == 12 and got["second"] == [0, 10] and got["first"] == [2, 12]


@pytest.mark.skipif(on_gpus.wanted(), reason="GPUs do not look at what they gather")
def test_failing_run_raises_what_tensorflow_raises(plain, two_devices):
    want, got = plain(SESSIONS + "failing_run"), two_devices(SESSIONS + "failing_run")
    assert want[0][0] == "InvalidArgumentError" and want[1] == 1
    assert got == want


def test_graphs_with_constants_that_are_no_numbers_may_grow(plain, two_devices):
    want, got = plain(SESSIONS + "late_summaries"), two_devices(SESSIONS + "late_summaries")
    assert_same_state(got[0], want[0])
    assert got[1:] == want[1:]


def assert_same_uneven(got, want):
    assert_same_training(got, want)
    assert_same(got["metrics"], want["metrics"])
    assert_same(got["predicted"], want["predicted"])
    for rows, wanted in pairs(got["rows"], want["rows"]):
        assert_same(rows, wanted)


@pytest.mark.parametrize("layout", [(1, 2), (2, 2)], ids=str)
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_batches_that_do_not_divide(jobs, plain, layout, micro_batches):
    # Of two workers with two devices or micro-batches each: 4, 3, 4, 4, 1, 5, 8 and 8 rows. Two steps after a short one
    # show whether all copies have gone on with the optimizer's state of the one that was trained.
    sizes = [8, 6, 8, 8, 2, 10, 16, 16]
    want = plain(SESSIONS + "uneven", sizes)
    for got in jobs[layout](SESSIONS + "uneven", sizes, micro_batches):
        assert_same_uneven(got, want)


def test_a_batch_that_does_not_divide_is_said_once(two_devices):
    assert two_devices(SESSIONS + "said_of_uneven", [4, 8]) == []
    (said,) = two_devices(SESSIONS + "said_of_uneven", [4, 3, 5, 7])
    assert "'x:0' is fed 3 rows, which do not divide evenly over the 2 copies" in said and "multiple of 2" in said


def test_a_short_batch_for_collectives_of_the_program(two_devices):
    message, untouched = two_devices("tests.helpers.programs.collectives:short_batch")
    assert "'x:0' is fed a batch of 3" in message and "Feed a multiple of 2" in message and untouched
    assert "(epl.ops) is one of all copies" in message
