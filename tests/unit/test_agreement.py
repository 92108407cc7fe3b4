"""Step agreement between workers that are threads here."""

import hashlib
import threading

import pytest
import tensorflow.compat.v1 as tf

from epl.config import Config
from epl.errors import WorkerError
from epl.session.agreement import HELPS, OVER, READS, Agreed, Agreement, SessionOver, Vote, agree
from epl.session.rewritten import Rewritten
from tests.helpers import planning

TIMEOUT_S = 20


class FakeStep(object):
    """A step of a graph that is a list of lines; every fetch and target is a line of its own."""

    def __init__(self, graph, fetches, targets):
        self.fetches, self.targets = tuple(fetches), tuple(targets)
        self._lines = list(graph) + sorted(set(self.fetches) | set(self.targets))
        self.fingerprint = hashlib.sha256("\n".join(self._lines).encode()).digest()[:16]

    def lines(self):
        return self._lines


class Workers(object):
    """Exchanges over lists, with a barrier. Counts the exchanges of each worker."""

    def __init__(self, size):
        self._barrier = threading.Barrier(size)
        self._slots = [None] * size
        self.exchanges = [0] * size

    def exchange_of(self, worker):
        def exchange(message):
            assert isinstance(message, bytes)
            self.exchanges[worker] += 1
            self._slots[worker] = message
            self._barrier.wait(TIMEOUT_S)
            all_messages = list(self._slots)
            self._barrier.wait(TIMEOUT_S)
            return all_messages

        return exchange

    def abort(self):
        self._barrier.abort()


def run(votes, graphs=None, variables=None):
    """Lets one thread for each vote agree; returns ([the Agreed or the error of each], Workers)."""
    workers = Workers(len(votes))
    results = [None] * len(votes)

    def work(index):
        vote = votes[index]
        graph = graphs[index] if graphs else ["a = Const()"]
        describe = variables[index].get if variables else lambda name: "float32"

        def make_step(fetches, targets, whole):
            return FakeStep(graph + ["whole"] * whole, fetches, targets)

        try:
            step = make_step(vote.fetches, vote.targets, vote.whole)
            results[index] = agree(workers.exchange_of(index), vote, step, make_step, Agreement(), describe)
        except (SessionOver, WorkerError) as error:
            results[index] = error
        except BaseException:
            workers.abort()  # the others must not wait for this thread
            raise

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(votes))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * TIMEOUT_S)
    assert all(result is not None for result in results), results
    return results, workers


def vote(fetches=(), targets=("train",), fresh=(), session=1):
    return Vote(session, tuple(fetches), tuple(targets), tuple(fresh))


def test_equal_wishes_take_one_exchange():
    results, workers = run([vote(["loss:0"])] * 3)
    assert workers.exchanges == [1, 1, 1]
    assert all(agreed.step.fetches == ("loss:0",) and agreed.fresh == () for agreed in results)


def test_all_take_their_batches_whole_where_one_has_to():
    results, _ = run([vote(), vote()._replace(whole=True), vote()])
    assert len({agreed.step.fingerprint for agreed in results}) == 1 and "whole" in results[0].step.lines()


def test_a_worker_alone():
    results, _ = run([vote(fresh=["v"])])
    assert results[0].fresh == ("v",)


@pytest.mark.parametrize("size", [2, 4])
def test_different_fetches_become_their_union(size):
    votes = (
        [vote(["loss:0", "summary:0"])] + [vote(["loss:0"])] * (size - 2) + [vote(["accuracy:0"], ["train", "count"])]
    )
    results, workers = run(votes)
    assert all(agreed.step.fetches == ("accuracy:0", "loss:0", "summary:0") for agreed in results)
    assert all(agreed.step.targets == ("count", "train") for agreed in results)
    assert len({agreed.step.fingerprint for agreed in results}) == 1
    assert len(set(workers.exchanges)) == 1 and workers.exchanges[0] <= 3


def test_rows_are_fed_by_the_weights_of_devices():
    votes = [vote()._replace(rows=rows) for rows in (4.0, 4.0, 2.0)]
    results, _ = run(votes)
    assert {type(result) for result in results} == {WorkerError}
    text = "rows for each part of weight 1 are 4 at worker 0, 4 at worker 1, 2 at worker 2"
    assert all(text in str(result) and result.worker == 2 for result in results)
    assert all(result.step is not None for result in run([vote()._replace(rows=4.0)] * 2)[0])


def test_different_hints_are_told_before_what_follows_from_them():
    votes = [vote()._replace(hints=hints, sharded=tuple(hints)) for hints in ({"v": "a"}, {"v": "a"}, {"v": "b"})]
    results, _ = run(votes, graphs=[["hint: %s" % sorted(each.hints.items())] for each in votes])
    assert {str(each) for each in results} == {str(results[0])} and results[0].worker == 2
    assert "the hints for 'v' differ: worker 0 has a, and worker 2 has b" in str(results[0])
    lacking = [vote()._replace(hints={"v": "a"}), vote()]
    results, _ = run(lacking, graphs=[["a"], ["b"]])
    assert "worker 0 has a, and worker 1 has no hint" in str(results[0])


def test_the_same_names_in_another_order_agree():
    results, _ = run([vote(["a:0", "b:0"]), vote(["b:0", "a:0"])])
    assert {agreed.step.fingerprint for agreed in results} == {results[0].step.fingerprint}


def test_fresh_variables_are_the_same_on_all():
    same, workers = run([vote(fresh=["v", "w"])] * 2)
    assert [agreed.fresh for agreed in same] == [("v", "w")] * 2 and workers.exchanges == [1, 1]
    different, _ = run([vote(fresh=["v"]), vote(fresh=["u", "w"]), vote()])
    assert [agreed.fresh for agreed in different] == [("u", "v", "w")] * 3


def test_variables_that_all_have_made_alike_are_not_fresh():
    def made(**constants):
        return Vote(1, (), ("train",), ("w",), constants=constants)

    same, workers = run([made(m="1", v="2")] * 3)
    assert [agreed.fresh for agreed in same] == [("w",)] * 3 and workers.exchanges == [1, 1, 1]
    # One has made m otherwise, another has not made v at all.
    different, _ = run([made(m="1", v="2", x="3"), made(m="7", v="2", x="3"), made(m="1", x="3")])
    assert [agreed.fresh for agreed in different] == [("m", "v", "w")] * 3


@pytest.mark.parametrize(
    "variables, said",
    [
        (
            [{"v": "float32"}, {"v": "float32", "x": "int32"}],
            "worker 1's graph has variable 'x' (int32), which worker 0's",
        ),
        (
            [{"v": "float32", "x": "int32"}, {"v": "float32"}],
            "worker 0's graph has variable 'x' (int32), which worker 1's",
        ),
        (
            [{"v": "float32 (3)", "x": ""}, {"v": "float32 (4)", "x": ""}],
            "'v' is float32 (3) at worker 0, and float32 (4)",
        ),
    ],
)
@pytest.mark.parametrize("constants", [False, True])
def test_what_first_values_are_sent_of_is_in_all_graphs(variables, said, constants):
    votes = [vote(fresh=sorted(each), targets=()) for each in variables]
    if constants:
        votes = [each._replace(fresh=("v",), constants={v: "1" for v in each.fresh if v != "v"}) for each in votes]
    results, _ = run(votes, variables=variables)
    assert all(isinstance(error, WorkerError) and error.cause == "different graphs" for error in results), results
    assert len({str(error) for error in results}) == 1 and said in str(results[0])


def test_different_graphs_get_the_same_error():
    graphs = [
        ["a = Const()", "b = MatMul(a, a)"],
        ["a = Const()", "b = MatMul(a, a)"],
        ["a = Const()", "b = Add(a, a)"],
    ]
    results, workers = run([vote()] * 3, graphs)
    assert all(isinstance(error, WorkerError) for error in results)
    assert len({str(error) for error in results}) == 1
    text = str(results[0])
    assert "worker 0 has\n    b = MatMul(a, a)\n" in text and "worker 2 has\n    b = Add(a, a)\n" in text
    assert "same script" in text and results[0].worker == 2
    assert len(set(workers.exchanges)) == 1


def test_a_graph_that_is_longer():
    results, _ = run([vote(), vote()], [["a = Const()"], ["a = Const()", "b = Identity(a)"]])
    assert "worker 1 has\n    b = Identity(a)" in str(results[0]) and str(results[0]) == str(results[1])


def test_sessions_out_of_step():
    results, workers = run([vote(session=1), vote(session=2)])
    assert all(isinstance(error, WorkerError) for error in results)
    assert len({str(error) for error in results}) == 1
    assert "worker 0: number 1, worker 1: number 2" in str(results[0])
    assert workers.exchanges == [2, 2]


def test_many_names_and_odd_ones():
    names = ["größe/%d:0" % i for i in range(5000)]
    results, _ = run([vote(names), vote(names[:10])])
    assert results[0].step.fetches == tuple(sorted(names)) == results[1].step.fetches


# ---------------------------------------------------------------------------------------------------------------------
# What has to be the same for workers to agree.


def trained(worker, optimizer=None, rate=0.1, rows=3, shard=0, config=None, **kwargs):
    """The step that trains a small model, as this worker would take it."""
    planning.library.load()
    with planning.capture() as graph:
        files = tf.constant(["part-%d" % shard])
        x = tf.reshape(tf.cast(tf.strings.length(tf.py_func(lambda f: f, [files], tf.string)), tf.float32), [1, 1])
        loss = planning.layers(x=tf.tile(x, [rows, 4]), **kwargs)
        (optimizer or tf.train.GradientDescentOptimizer)(rate).minimize(loss, name="train")
        return Rewritten(graph, Config(config or {}), planning.cluster(2, 1, worker), 7).step((), ("train",), ())


def test_data_may_differ():
    assert trained(0).fingerprint == trained(1, shard=1).fingerprint
    assert trained(0).traffic.communicates


@pytest.mark.parametrize(
    "other, difference",
    [
        ({"rate": 0.2}, "0.2"),
        ({"optimizer": tf.train.AdamOptimizer}, "ApplyAdam"),
        ({"count": 3}, "w2"),
        ({"config": {"communication.gradients_reduce_method": "sum"}}, "summed"),
        ({"config": {"communication.fp16": True}}, "float16 on the wire True"),
    ],
)
def test_what_changes_variables_may_not_differ(other, difference):
    ours, theirs = trained(0), trained(1, **other)
    assert ours.fingerprint != theirs.fingerprint
    assert difference in "\n".join(set(theirs.lines()) - set(ours.lines()))


def test_only_the_chief_fetches_a_summary():
    with planning.capture() as graph:
        loss = planning.layers()
        planning.sgd(loss, name="train")
        rewritten = Rewritten(graph, Config(), planning.cluster(2, 1), 0)
    plain, more = rewritten.step((), ("train",), ()), rewritten.step((loss.name,), ("train",), ())
    assert plain.fingerprint == more.fingerprint and plain.traffic.orders == more.traffic.orders


def test_a_session_that_is_over_for_one_worker_is_over_for_all():
    over = Vote(1, (), (), (), OVER)
    for votes in ([over, over], [vote(), over], [over, vote(), vote()]):
        results, workers = run(votes)
        assert all(isinstance(result, SessionOver) for result in results), results
        assert len(set(workers.exchanges)) == 1
    assert "worker 0 has stopped" in str(results[1])


def test_workers_in_different_sessions_are_not_over():
    results, _ = run([vote(), Vote(2, (), (), (), OVER)])
    assert all(isinstance(result, WorkerError) for result in results)


def test_all_workers_have_the_chiefs_clock(monkeypatch):
    times = iter([100.0, 200.0])
    monkeypatch.setattr("epl.session.agreement.time.monotonic", lambda: next(times))
    workers, owners_found_infs = Workers(2), [Agreement(), Agreement()]
    blocks = [None, None]

    def exchange(index):
        blocks[index] = owners_found_infs[index].exchange(workers.exchange_of(index), b"block %d" % index)

    threads = [threading.Thread(target=exchange, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert blocks == [[b"block 0", b"block 1"]] * 2
    assert owners_found_infs[0].clock == owners_found_infs[1].clock and owners_found_infs[0].clock in (100.0, 200.0)


def test_all_workers_know_the_rows_of_each_without_a_further_exchange():
    workers, agreements = Workers(2), [Agreement(), Agreement()]
    results = [None, None]

    def work(index):
        step = FakeStep([], ["loss:0"], [])
        asked = Vote(1, ("loss:0",), (), ())._replace(fed=5 - 2 * index)
        results[index] = agree(workers.exchange_of(index), asked, step, None, agreements[index], None)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert all(isinstance(each, Agreed) for each in results)
    assert [each.fed for each in agreements] == [(5, 3)] * 2 and workers.exchanges == [1, 1]


def reads(names):
    return Vote(1, tuple(names), (), (), READS)


def test_whoever_only_reads_is_helped_first():
    results, workers = run([vote(["train"]), reads(["w:0"]), reads(["v:0"])])
    assert workers.exchanges == [2, 2, 2]
    for agreed in results:
        assert agreed.step is None and agreed.reader == 1
        assert list(agreed.reads.fetches) == ["w:0"]


def test_helpers_without_a_reader_go_on():
    results, _ = run([vote(["train"]), Vote(1, (), (), (), HELPS)])
    assert all(agreed == Agreed() for agreed in results)
    results, workers = run([Vote(1, (), (), (), HELPS)] * 2)
    assert all(agreed == Agreed() for agreed in results) and workers.exchanges == [1, 1]


def test_all_who_read_the_same_run_it_together():
    results, workers = run([reads(["v:0"]), reads(["v:0"])])
    assert all(agreed.step.fetches == ("v:0",) for agreed in results) and workers.exchanges == [1, 1]


def test_a_session_that_is_through_comes_before_reading():
    results, _ = run([reads(["v:0"]), Vote(1, (), (), (), OVER)])
    assert all(isinstance(result, SessionOver) for result in results)
