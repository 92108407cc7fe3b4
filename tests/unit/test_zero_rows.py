"""Rows of large variables divided over owners (zero.level): which, how evenly, and what stays whole."""

import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.plan.exchange.order import collective_keys, settle
from epl.plan.report.plan_table import plan_table
from epl.plan.zero.zero_sums import owned_sums
from epl.rules import effects
from tests.helpers.planning import batch, capture, compiled, of_op, variable
from tests.helpers.programs import tables
from tests.helpers.programs.zero import Adafactor

CASES = [(sparse, name, True) for sparse in (False, True) for name in ("adam", "momentum", "adagrad", "lazy")]


def program(sparse, optimizer, resource):
    with capture() as graph:
        tables.build(None, sparse, optimizer, resource)
        tf.train.Saver()
    return graph


def held_bytes(compiled_program, variables):
    """Of some variables, what a worker's graph has."""
    found = 0
    for name in compiled_program.graph.find(effects.VARIABLES.__contains__):
        if name in variables:
            shape = variables[name].shape
            found += 4 * shape[0] * shape[1]
    return found


@pytest.mark.parametrize("case", CASES + [(True, "adam", False), (False, "momentum", False)])
def test_state_is_divided_evenly(case):
    """The table has 99 % of the parameters; that is no share of a worker's state."""
    graph = program(*case)
    programs = [compiled(graph, 2, 1, index, zero__level="v1") for index in range(2)]
    known = programs[0].plan.variables
    state = {v: known[v] for update in programs[0].plan.zero.updates for v in update.slots}
    held = [held_bytes(each, state) for each in programs]
    assert sum(held) == sum(programs[0].plan.zero.state_bytes)
    assert sum(held) == len(tables_slots(graph)) * 4 * (tables.ROWS * tables.WIDTH + tables.WIDTH * 4)
    assert max(held) <= 1.05 / 2 * sum(held)
    zero = compiled(graph, 2, 2, 0, zero__level="v1").plan.zero
    assert max(zero.state_bytes) <= 1.05 / 4 * sum(zero.state_bytes)


@pytest.mark.parametrize("level", ["v2", "v3"])
@pytest.mark.parametrize(
    "case", [(False, "adam", True), (True, "adam", False), (True, "adam", True), (False, "sgd", True)]
)
def test_parameters_are_divided_evenly_with_their_state(case, level):
    graph = program(*case)
    programs = [compiled(graph, 2, 1, index, zero__level=level) for index in range(2)]
    known, zero = programs[0].plan.variables, programs[0].plan.zero
    assert {"all/table/epl_rows_0", "all/table/epl_rows_1", "all/kernel"} == zero.parameters
    state = {v: known[v] for update in zero.updates for v in update.slots + (update.variable,)}
    held = [held_bytes(each, state) for each in programs]
    assert sum(held) == sum(zero.state_bytes) and max(held) <= 1.05 / 2 * sum(held)
    assert sum(held) == (1 + len(tables_slots(graph))) * 4 * (tables.ROWS * tables.WIDTH + tables.WIDTH * 4)


@pytest.mark.parametrize("level, amp", [("v1", "O1"), ("v3", "O2")])
@pytest.mark.parametrize("case", [(False, "adam", False), (True, "lazy", True)])
def test_owners_of_rows_judge_their_gradients_and_leave_their_updates_out(case, level, amp):
    programs = [
        compiled(program(*case), 2, 1, i, zero__level=level, amp__level=amp, amp__dtype="float16") for i in (0, 1)
    ]
    plan = programs[0].plan
    assert max(plan.zero.state_bytes) <= 1.05 / 2 * sum(plan.zero.state_bytes)
    (found_inf,) = plan.found_infs
    flags = [[f for f in found_inf.flags if "epl_rows" in f and f in each.graph.nodes] for each in programs]
    assert [len(each) for each in flags] == [1, 1] and flags[0] != flags[1]
    shards = {u.variable: u for u in plan.zero.updates if "epl_rows" in u.variable}
    for update in shards.values():
        left_out = [w for w in found_inf.gates if w in update.members and "epl_rows" in w]
        done = {w for w in update.writes if not w.endswith("/begin")}  # rows are held in each step
        assert left_out and done <= {found_inf.gates[w][-1] for w in left_out}
        assert all((w in each.graph.nodes) == (i == update.owner) for w in left_out for i, each in enumerate(programs))


@pytest.mark.parametrize("level", ["v2", "v3"])
def test_shards_come_together_and_are_joined_for_each_pass_by_itself(level):
    (worker,) = [compiled(program(False, "adam", True), 2, 1, 0, zero__level=level, zero__segment_mb=1e-3)]
    graph, table = worker.whole, ("all/table/epl_rows_0", "all/table/epl_rows_1")
    segments = [s for s in worker.plan.zero.segments if "all/kernel" not in s.variables]
    assert [s.variables for s in segments] == [table] * (2 if level == "v3" else 1)
    joins = [{user for users in s.users for user, _ in users} for s in segments]
    assert all(len(join) == 1 for join in joins) and len(set.union(*joins)) == len(segments)
    assert all(graph.nodes[name].op == "ConcatV2" for join in joins for name in join)
    if level == "v3":
        forward, backward = segments
        assert forward.after is None and backward.after in graph.ancestors(joins[1])


@pytest.mark.parametrize("level", ["v0", "v1", "v2"])
def test_state_of_a_stage_is_divided_evenly_over_its_copies(level):
    """Each of two workers with the stage of the table has half of its slots; the other stage is small, and whole."""
    with capture() as graph:
        tables.build(epl, False, "adam", True, groups=2)
    for index in range(4):
        program = compiled(graph, 4, 1, index, zero__level=level)
        known = program.plan.variables
        zero = program.plan.zero
        state = {v: known[v] for u in zero.updates for v in u.slots + (u.variable,) * (level == "v2")}
        kept = 2 + (level == "v2")
        assert sum(program.plan.zero.state_bytes) == 4 * kept * tables.WIDTH * (tables.ROWS if index % 2 == 0 else 4)
        if index % 2 == 0:
            assert held_bytes(program, state) <= 1.05 / 2 * sum(program.plan.zero.state_bytes)


def tables_slots(graph):
    """The slots of the table."""
    return [v for v in graph.get_collection(tf.GraphKeys.GLOBAL_VARIABLES) if "table/" in v.op.name]


def test_nothing_but_the_trained_variable_is_whole_anywhere():
    """Dense gradients come to owners in rows, and checkpoints take slices."""
    graph = program(False, "adam", True)
    for index in range(2):
        worker = compiled(graph, 2, 1, index, zero__level="v1")
        whole = [n for n in worker.graph.find(lambda op: op == "VarHandleOp") if "table" in n and "rows" not in n]
        assert whole == ["all/table"] and len(of_op(worker.graph, "EplReduceScatter")) == 1
        assert not of_op(worker.graph, "EplAllReduce")
    save = of_op(compiled(graph, 2, 1, 0, zero__level="v1").source.graph, "SaveV2")[0]
    nodes = compiled(graph, 2, 1, 0, zero__level="v1").source.graph.nodes
    slices = list(nodes[save.input[2]].attr["value"].tensor.string_val)
    assert slices.count(b"2101 8 0,1051:-") == slices.count(b"2101 8 1051,1050:-") == 2


def test_what_is_divided_stays_so_when_the_graph_grows():
    graph = program(True, "adam", True)
    before = compiled(graph, 2, 1, 0, zero__level="v1").plan.zero
    with graph.as_default():
        other = variable("later", (4096, 16))
        tf.train.MomentumOptimizer(0.1, 0.9).minimize(tf.reduce_sum(other), var_list=[other])
    after = compiled(graph, 2, 1, 0, zero__level="v1").plan.zero
    assert after.updates[: len(before.updates)] == before.updates and len(after.updates) == len(before.updates) + 2


class Normed(tf.train.MomentumOptimizer):
    """Divides each gradient by its largest element."""

    def _resource_apply_dense(self, grad, var):
        return super(Normed, self)._resource_apply_dense(grad / tf.reduce_max(grad), var)


def whole_after(optimizer, config=None, use=None):
    with capture() as graph:
        table = tf.get_variable("table", [4096, 8], use_resource=True, initializer=tf.zeros_initializer())
        optimizer.minimize(tf.reduce_sum(tf.square(table - 1.0)))
        if use is not None:
            use(table, optimizer)
    found = compiled(graph, 2, 1, 0, zero__level="v1", **(config or {})).plan.zero.updates
    return [update.variable for update in found] == ["table"]


def test_what_needs_all_rows_stays_whole():
    assert not whole_after(tf.train.MomentumOptimizer(0.1, 0.9))
    assert whole_after(Normed(0.1, 0.9))
    assert whole_after(tf.train.MomentumOptimizer(0.1, 0.9), {"offload__level": "v0"})

    def gathered(table, optimizer):
        slot = optimizer.get_slot(table, "momentum")
        tf.gather(slot, [1])

    assert whole_after(tf.train.MomentumOptimizer(0.1, 0.9), use=gathered)


@pytest.mark.parametrize("level", ["v1", "v2"])
def test_norms_are_added_up_over_rows(level):
    """LAMB's two: of the variable, and of its step. One number of each worker travels for each."""
    with capture() as graph:
        with tf.variable_scope("all", use_resource=True):
            table = tf.get_variable("table", [4096, 8], initializer=tf.ones_initializer())
            epl.optimizers.LambOptimizer(0.1).minimize(tf.reduce_sum(tf.square(table - batch()[0, 0])))
    for index in range(2):
        worker = compiled(graph, 2, 1, index, zero__level=level)
        zero, norms = worker.plan.zero, owned_sums(worker.plan)
        assert zero.state_bytes == (4096 * 4 * 4 * (2 + (level == "v2")),) * 2
        assert [[owner for _, owner in norm.parts] for norm in norms] == [[0, 1]] * 2
        for norm in norms:
            reduced = worker.graph.nodes[norm.name]
            (own,) = [text for text in reduced.input if text[0] != "^"]
            assert own.endswith("from_%d" % index)
            assert reduced.op == "EplAllReduce" and worker.graph.nodes[norm.joined].input[0] == norm.name
            assert set(norm.parts_of(index)) == set(worker.graph.nodes[own].input)


@pytest.mark.parametrize("level, shape", [("v1", (4096, 8)), ("v2", (4096, 8)), ("v1", (256, 256))])
def test_means_of_columns_are_added_up_over_rows(level, shape):
    """Adafactor: of a square matrix too, whose two slots have one shape, that of rows alone is divided."""
    with capture() as graph:
        table = tf.get_variable("table", shape, use_resource=True, initializer=tf.ones_initializer())
        Adafactor(0.1).minimize(tf.reduce_sum(tf.square(table - batch()[0, 0])))
        tf.train.Saver()
    rows, columns = shape
    for index in range(2):
        worker = compiled(graph, 2, 1, index, zero__level=level)
        zero, sums = worker.plan.zero, owned_sums(worker.plan)
        assert zero.state_bytes == (4 * (rows // 2 + columns + rows // 2 * columns * (level == "v2")),) * 2
        known = {v: worker.plan.variables[v].shape for update in zero.updates for v in update.slots}
        assert known == {
            "table/Adafactor/epl_rows_0": (rows // 2,),
            "table/Adafactor/epl_rows_1": (rows // 2,),
            "table/Adafactor_1/epl_rows_0": (columns,),
            "table/Adafactor_1/epl_rows_1": (columns,),
        }
        assert sorted(each.shape for each in sums) == [(), (), (), (columns,)]
        assert all(worker.graph.nodes[each.name].op == "EplAllReduce" for each in sums)
    save = of_op(worker.source.graph, "SaveV2")[0]
    names, parts = [worker.source.graph.nodes[i].attr["value"].tensor.string_val for i in save.input[1:3]]
    written = sorted((n.decode(), p.decode()) for n, p in zip(names, parts) if b"Adafactor" in n)
    half = rows // 2
    assert written == [
        ("table/Adafactor", "%d 0,%d" % (rows, half)),
        ("table/Adafactor", "%d %d,%d" % (rows, half, half)),
        ("table/Adafactor_1", ""),
    ]


@pytest.mark.parametrize("level", ["v1", "v3"])
@pytest.mark.parametrize("how", sorted(tables.CLIPPED))
def test_owners_of_rows_say_their_part_of_the_norm_of_all_gradients(how, level):
    """Only that is all-reduced; gradients come to their owners alone, though they are clipped."""
    graph = program(False, how, True)
    for index in range(2):
        worker = compiled(graph, 2, 1, index, zero__level=level, communication__clip_after_allreduce=True)
        sums = owned_sums(worker.plan)
        assert max(worker.plan.zero.state_bytes) <= 1.05 / 2 * sum(worker.plan.zero.state_bytes)
        assert {owner for _, owner in sums[0].parts} == {0, 1} and len(sums) == 1 + (how == "clipped_own")
        assert {n.name for n in of_op(worker.graph, "EplAllReduce")} == {each.name for each in sums}
        assert len(of_op(worker.graph, "EplReduceScatter")) == 1


def test_no_sum_over_rows_comes_before_a_collective_that_it_needs():
    """The gradients of both tables travel together, and norms of the first need these."""
    with capture() as graph:
        loss = tf.constant(0.0)
        for name, rows in (("first", 8192), ("second", 4096)):
            table = tf.get_variable(name, [rows, 8], initializer=tf.ones_initializer(), use_resource=True)
            loss += tf.reduce_sum(tf.square(table - batch()[0, 0]))
        epl.optimizers.LambOptimizer(0.1).minimize(loss)
    worker = compiled(graph, 2, 1, 0, zero__level="v1")
    keys = settle(collective_keys(worker.plan, worker.whole), worker.whole, worker.plan)
    found = {each.name for each in owned_sums(worker.plan)}
    assert len(found) == 4 and found < set(keys)
    for name in keys:
        assert all(keys[before] < keys[name] for before in worker.whole.ancestors([name]) & set(keys) - {name})


class Changed(tf.train.MomentumOptimizer):
    """Makes something of each gradient first."""

    def __init__(self, change):
        super(Changed, self).__init__(0.1, 0.9)
        self._change = change

    def _resource_apply_dense(self, grad, var):
        return super(Changed, self)._resource_apply_dense(self._change(grad), var)


CHANGES = [
    (lambda g: g / tf.norm(g), True),
    (lambda g: g - tf.reduce_mean(g, 0, keepdims=True), True),
    (lambda g: g / tf.sqrt(tf.reduce_mean(tf.square(g), 1, keepdims=True)), True),
    (lambda g: g / tf.squeeze(tf.expand_dims(tf.reduce_sum(g, 0), 0), [0]), True),
    (lambda g: g * tf.reduce_mean(g, 1), False),  # numbers of rows, in the places of columns
    (lambda g: g * tf.reduce_mean(g, 0)[:, None], False),
    (lambda g: g - tf.reduce_mean(g, 1)[None, :], False),
    (lambda g: tf.where(tf.reduce_sum(g, 0) > 0, g, -g), False),
    (lambda g: g[::-1], False),
    (lambda g: g / tf.reduce_max(g), False),
]


@pytest.mark.parametrize("change, divided", CHANGES)
def test_rows_are_divided_where_only_sums_join_them(change, divided):
    """A square matrix, whose rows and columns no shape tells apart."""
    with capture() as graph:
        table = tf.get_variable("table", [128, 128], use_resource=True, initializer=tf.ones_initializer())
        Changed(change).minimize(tf.reduce_sum(tf.square(table - 1.0)))
    updates = compiled(graph, 2, 1, 0, zero__level="v1").plan.zero.updates
    assert len(updates) == 1 + divided


def test_what_would_be_no_smaller_stays_whole():
    """Two rows, and the state of nearly all is the same for both."""
    with capture() as graph:
        table = tf.get_variable("table", (2, 40000), use_resource=True, initializer=tf.ones_initializer())
        Adafactor(0.1).minimize(tf.reduce_sum(tf.square(table - 1.0)))
    updates = compiled(graph, 2, 1, 0, zero__level="v1").plan.zero.updates
    assert [update.variable for update in updates] == ["table"]


def test_the_plan_names_what_leaves_a_device_with_too_much():
    """Nothing where rows are divided, nor where all that is there is small."""

    def told(rows, optimizer):
        with capture() as graph:
            table = tf.get_variable("table", [rows, 8], use_resource=True, initializer=tf.zeros_initializer())
            small = tf.get_variable("small", [64, 8], use_resource=True, initializer=tf.zeros_initializer())
            optimizer.minimize(tf.reduce_sum(tf.square(table - 1.0)) + tf.reduce_sum(tf.square(small - 1.0)))
        lines = plan_table(compiled(graph, 2, 1, 0, zero__level="v1").plan).splitlines()
        return [line.split("zero.level")[1].strip() for line in lines if "WARNING" in line]

    want = "one device keeps 1.97 times its share, as 'table' (128.0 KiB) has one owner"
    assert told(4096, Normed(0.1, 0.9)) == [want]
    assert told(4096, tf.train.MomentumOptimizer(0.1, 0.9)) == told(1024, Normed(0.1, 0.9)) == []


def test_small_variables_stay_whole():
    with capture() as graph:
        table = tf.get_variable("table", [1000, 8], initializer=tf.zeros_initializer())
        tf.train.AdamOptimizer(0.1).minimize(tf.reduce_sum(tf.square(table)))
    found = compiled(graph, 2, 1, 0, zero__level="v1").plan.zero.updates
    assert [update.variable for update in found] == ["table"]
