"""The audit of compiled graphs: right ones are proven, planted faults are found, and what is not followed is said."""

import collections

import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.audit.audit import NOT_SHOWN, PROVEN, WRONG, audit
from epl.audit.audited_job import audit_table, by_design, is_wrong
from epl.capture.record import make_program
from epl.config import Config
from tests.helpers import planning
from tests.helpers.programs import tables
from tests.mutants import graphs

LAYOUTS = [(1, 2, 1), (1, 1, 2), (1, 2, 2), (2, 1, 1), (2, 2, 2)]
OPTIMIZERS = {
    "sgd": lambda: tf.train.GradientDescentOptimizer(0.1),
    "momentum": lambda: tf.train.MomentumOptimizer(0.1, 0.9),
    "adam": lambda: tf.train.AdamOptimizer(0.1),
}


def dense():
    return planning.layers(3)


def wide():
    """Of matrices that are worth dividing in rows, and vectors that are not."""
    x = planning.batch(features=64)
    for i in range(2):
        x = tf.tanh(tf.matmul(x, planning.variable("w%d" % i, [64, 64])) + planning.variable("b%d" % i, [64]))
    return tf.reduce_mean(tf.square(x))


def stages():
    with epl.replicate(1, name="first"):
        x = tf.tanh(tf.matmul(planning.batch(), planning.variable("w0")))
    with epl.replicate(1, name="second"):
        return tf.reduce_mean(tf.square(tf.matmul(x, planning.variable("w1"))))


def job(build, optimizer="sgd", workers=1, devices=2, **config):
    """(captured Program, {worker: its compiled Graph})"""
    with planning.capture(seed=1) as graph:
        OPTIMIZERS[optimizer]().minimize(build(), global_step=tf.train.get_or_create_global_step())
        program = make_program(graph)
        return program, {i: planning.compiled(program, workers, devices, i, **config).graph for i in range(workers)}


def verdicts(findings):
    return collections.Counter(finding.verdict for finding in findings)


@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
@pytest.mark.parametrize("workers,devices,micro_batches", LAYOUTS)
def test_data_parallelism_is_proven(workers, devices, micro_batches, optimizer):
    found = audit(*job(dense, optimizer, workers, devices, pipeline__num_micro_batch=micro_batches))
    assert len(found) >= 7 and verdicts(found) == {PROVEN: len(found)}, audit_table(found)


@pytest.mark.parametrize("workers,devices", [(1, 2), (2, 1), (2, 2), (4, 1)])
def test_pipelines_are_proven(workers, devices):
    found = audit(*job(stages, workers=workers, devices=devices, pipeline__num_micro_batch=2))
    assert verdicts(found) == {PROVEN: 3}, audit_table(found)


@pytest.mark.parametrize("level", ["v0", "v1", "v2", "v3"])
@pytest.mark.parametrize("workers,devices,micro_batches", [(2, 1, 1), (1, 2, 1), (2, 2, 1), (2, 1, 2), (3, 1, 1)])
def test_zero_is_proven(workers, devices, micro_batches, level):
    made = job(wide, "momentum", workers, devices, zero__level=level, pipeline__num_micro_batch=micro_batches)
    found = audit(*made)
    assert len(found) == 5 and verdicts(found) == {PROVEN: 5}, audit_table(found)


@pytest.mark.parametrize("level", ["v0", "v1", "v2", "v3"])
@pytest.mark.parametrize("workers,devices", [(2, 1), (1, 2), (2, 2)])
def test_variables_of_which_each_device_has_rows_are_not_called_wrong(workers, devices, level):
    def recommender():
        ids = tf.cast(planning.batch()[:, 0], tf.int32)
        rows = tf.gather(planning.variable("table", [2101, 8]), ids)
        return tf.reduce_mean(tf.square(tf.matmul(rows, planning.variable("kernel", [8, 4]))))

    made = job(recommender, "momentum", workers, devices, zero__level=level)
    assert any(name.endswith("/epl_rows_0") for name in made[1][0].nodes)
    found = audit(*made)
    assert {"table", "kernel"} <= {finding.variable for finding in found}
    assert not is_wrong(found), audit_table(found)


def test_variables_that_a_step_writes_twice_are_not_called_wrong():
    """Copies of them are set to what both writes, a decay and an update, have made of another one."""
    with planning.capture() as graph:
        tables.build(None, False, "decayed", False)
        program = make_program(graph)
    config = {"zero__level": "v1", "offload__level": "v0"}
    found = audit(program, {i: planning.compiled(program, 2, 1, i, **config).graph for i in range(2)})
    assert {finding.verdict for finding in found if finding.variable in ("all/table", "all/kernel")} == {NOT_SHOWN}


def test_an_audit_leaves_the_graphs_as_they_are():
    program, compiled = job(dense, workers=2, devices=1, zero__level="v1")
    before = {
        worker: graph.to_graph_def(tf.GraphDef).SerializePartialToString(deterministic=True)
        for worker, graph in compiled.items()
    }
    audit(program, compiled)
    for worker, graph in compiled.items():
        assert graph.to_graph_def(tf.GraphDef).SerializePartialToString(deterministic=True) == before[worker]


def looked_up(rows=8):
    """Of rows of a table by their ids, with a sparse gradient."""
    x = planning.batch(rows or 8) if rows else tf.placeholder(tf.float32, [None, 4])
    found = tf.gather(planning.variable("table", [16, 4]), tf.cast(x, tf.int32))
    return tf.reduce_mean(tf.square(tf.matmul(tf.reduce_sum(found, 1), planning.variable("kernel"))))


@pytest.mark.parametrize("rows,optimizer", [(8, "sgd"), (8, "momentum"), (None, "adam")])
@pytest.mark.parametrize("workers,devices,micro_batches", LAYOUTS)
def test_sparse_gradients_are_proven(workers, devices, micro_batches, rows, optimizer):
    made = job(lambda: looked_up(rows), optimizer, workers, devices, pipeline__num_micro_batch=micro_batches)
    found = audit(*made)
    assert "table" in {finding.variable for finding in found}
    assert verdicts(found) == {PROVEN: len(found)}, audit_table(found)


def clipped(optimizer="adam", workers=1, devices=2, **config):
    """A job whose gradients, one of them sparse, are clipped by the norm of all of them."""
    with planning.capture(seed=1) as graph:
        updates = OPTIMIZERS[optimizer]()
        gradients, variables = zip(*updates.compute_gradients(looked_up()))
        updates.apply_gradients(zip(tf.clip_by_global_norm(gradients, 0.1)[0], variables))
        program = make_program(graph)
        config = dict({"communication__clip_after_allreduce": True}, **config)
        return program, {i: planning.compiled(program, workers, devices, i, **config).graph for i in range(workers)}


@pytest.mark.parametrize("workers,devices,micro_batches", LAYOUTS)
def test_clipped_gradients_are_proven(workers, devices, micro_batches):
    found = audit(*clipped("momentum", workers, devices, pipeline__num_micro_batch=micro_batches))
    assert len(found) >= 2 and verdicts(found) == {PROVEN: len(found)}, audit_table(found)


def test_gradients_that_each_copy_clips_are_not_called_right():
    found = audit(*clipped(communication__clip_after_allreduce=False))
    assert not is_wrong(found), audit_table(found)
    assert {"table", "kernel"} <= {each.variable for each in found if each.verdict == NOT_SHOWN}


def test_what_is_not_followed_is_not_called_right():
    def taken_in_turn():
        with planning.control_flow("v1"):
            w = planning.variable("w")
            made = tf.while_loop(lambda i, _: i < 2, lambda i, x: (i + 1, tf.matmul(x, w)), [0, planning.batch()])
        return tf.reduce_mean(tf.square(made[1]))

    found = {finding.variable: finding for finding in audit(*job(taken_in_turn, workers=2, devices=1))}
    assert found["w"].verdict == NOT_SHOWN and "is not followed" in found["w"].reason
    assert not is_wrong(found.values())


def test_a_sum_over_the_rows_is_not_called_right():
    found = audit(*job(lambda: tf.reduce_sum(tf.square(tf.matmul(planning.batch(), planning.variable("w"))))))
    assert {finding.variable: finding.verdict for finding in found} == {"w": NOT_SHOWN, "global_step": PROVEN}


def test_a_worker_alone_shows_nothing_of_what_is_reduced():
    program, compiled = job(dense, workers=2, devices=1)
    found = {finding.variable: finding for finding in audit(program, {0: compiled[0]})}
    assert found["w0"].verdict == NOT_SHOWN
    assert "1 workers take part in it, where 2 should" in found["w0"].reason


def test_a_gradient_of_one_copy_is_named():
    program, compiled = job(dense)
    mutation = next(each for each in graphs.mutations(compiled[0], 1) if each.kind == "missing all-reduce")
    found = [each for each in audit(program, {0: mutation.apply(compiled[0])}) if each.verdict == WRONG]
    assert len(found) == 1 and found[0].node == mutation.node
    assert "is of worker 0's copy 0, micro-batch 0 only, and not of all 2 copies" in found[0].reason
    assert "  wrong     %s: what is written" % found[0].variable in audit_table(found)


PLANTED = {
    "replicas": ("missing all-reduce", "doubled all-reduce", "wrong scale", "one copy only", "doubled micro-batch")
    + ("dropped micro-batch", "swapped gradients", "update twice", "missing update", "wrong weight"),
    "rows": ("missing gather", "doubled gather", "wrong scale of rows", "indices in another order"),
    "clipped": ("norm of a part",),
    "zero": ("sum for a mean", "wrong shard", "wrong row order", "stale weight", "copy not updated"),
}


@pytest.mark.parametrize("layout,kind", [(layout, kind) for layout in sorted(PLANTED) for kind in PLANTED[layout]])
def test_planted_faults_are_found(layout, kind):
    if layout == "replicas":
        program, compiled = job(dense, "adam", pipeline__num_micro_batch=2)
    elif layout == "rows":
        program, compiled = job(looked_up, "adam", 2, 2)
    elif layout == "clipped":
        program, compiled = clipped()
    else:
        program, compiled = job(wide, "momentum", 2, 1, zero__level="v1")
    planted = [each for each in graphs.mutations(compiled[0], 1) if each.kind == kind]
    assert planted
    missed = [each.node for each in planted if not is_wrong(audit(program, _with(compiled, each)))]
    assert not missed


def _with(compiled, mutation):
    return {worker: mutation.apply(graph) if worker == 0 else graph for worker, graph in compiled.items()}


def test_all_kinds_of_faults_are_planted():
    assert {kind for kinds in PLANTED.values() for kind in kinds} == set(graphs.KINDS)


def test_state_that_changes_with_each_micro_batch_is_not_called_wrong():
    def averaged():
        x = planning.batch()
        average = planning.variable("average", [4], trainable=False)
        with tf.control_dependencies([tf.assign_sub(average, 0.1 * (average - tf.reduce_mean(x, 0)))]):
            return tf.reduce_mean(tf.square(tf.matmul(tf.identity(x), planning.variable("w"))))

    found = audit(*job(averaged, devices=1, pipeline__num_micro_batch=3))
    assert {finding.variable: finding.verdict for finding in found}["average"] == NOT_SHOWN
    assert not is_wrong(found)


def test_numbers_that_are_to_differ_are_not_called_wrong():
    program, compiled = job(dense, workers=2, devices=1, local_sgd__k_steps=2)
    why = by_design(Config({"local_sgd.k_steps": 2}))
    assert why == "local_sgd.k_steps asks for other numbers than one device's"
    found = audit(program, compiled, why)
    assert not is_wrong(found) and any(why in finding.reason for finding in found)
    assert is_wrong(audit(program, compiled))


def split():
    with epl.replicate(2):
        x = tf.tanh(tf.matmul(planning.batch(), planning.variable("w0")))
    with epl.split(2):
        return tf.reduce_mean(tf.square(tf.matmul(x, planning.variable("w1", [4, 8])) + planning.variable("b1", [8])))


# What planted faults are looked for in: model, optimizer, workers, devices, configuration.
SCORED = collections.OrderedDict(
    [
        ("data parallelism, 1x2", (dense, "adam", 1, 2, {"pipeline__num_micro_batch": 2})),
        ("data parallelism, 2x2", (dense, "momentum", 2, 2, {})),
        ("pipeline, 1x2", (stages, "momentum", 1, 2, {"pipeline__num_micro_batch": 2})),
        ("pipelines, 4x1", (stages, "adam", 4, 1, {"pipeline__num_micro_batch": 2})),
        ("split, 1x2", (split, "momentum", 1, 2, {"cluster__colocate_split_and_replicate": True})),
        ("sparse gradients, 2x2", (looked_up, "adam", 2, 2, {})),
        ("ZeRO v0, 2x1", (wide, "momentum", 2, 1, {"zero__level": "v0"})),
        ("ZeRO v1, 2x2", (dense, "momentum", 2, 2, {"zero__level": "v1"})),
        ("ZeRO v2, 2x1", (dense, "adam", 2, 1, {"zero__level": "v2"})),
        ("ZeRO v3, 2x2", (wide, "momentum", 2, 2, {"zero__level": "v3"})),
        ("recomputation, 2x1", (dense, "adam", 2, 1, {"gradient_checkpoint__type": "auto"})),
        ("offload, 1x2", (dense, "momentum", 1, 2, {"offload__level": "v0"})),
        ("LocalSGD, 2x1", (dense, "momentum", 2, 1, {"local_sgd__k_steps": 2})),
    ]
)


@pytest.mark.nightly
def test_most_of_all_planted_faults_are_found(capsys):
    planted, found = collections.Counter(), collections.Counter()
    for layout, (build, optimizer, workers, devices, config) in SCORED.items():
        program, compiled = job(build, optimizer, workers, devices, **config)
        why = by_design(Config({key.replace("__", "."): value for key, value in config.items()}))
        assert not is_wrong(audit(program, compiled, why))
        for mutation in graphs.mutations(compiled[0], 1, 25):
            planted[layout] += 1
            found[layout] += is_wrong(audit(program, _with(compiled, mutation), why))
    with capsys.disabled():
        for layout in SCORED:
            print("\naudit: %3d of %3d planted faults found: %s" % (found[layout], planted[layout], layout), end="")
        print("\naudit: %3d of %3d planted faults found" % (sum(found.values()), sum(planted.values())))
    assert sum(planted.values()) >= 200
    assert sum(found.values()) >= 0.7 * sum(planted.values())
