"""What changes and reads variables, in parts against the whole: random shapes and places, all kernels there are.

And whether each rule of the table is among the cases, here or in test_partition_rules.
"""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import epl
from epl import tf_compat
from epl.partition import table
from epl.program.placement import WHOLE, sharded
from tests.helpers import planning, shards
from tests.helpers.checks import pairs
from tests.helpers.planning import capture
from tests.unit import test_partition_rules as rules

_RESOURCE = 20  # the DataType
_SCALARS = {"lr_power": -0.5, "logbase": 2.7, "epsilon": 1e-2}
_ROWS = ("grad", "updates", "delta", "value")
_ASSIGN = "Assign AssignAdd AssignSub AssignVariableOp AssignAddVariableOp AssignSubVariableOp".split()
# Rules that are tried with whole sessions alone: operations that only EPL makes.
ELSEWHERE = {table.ROWS_OF_COPY: "tests/multiproc/test_split_workers.py::test_copies_of_a_divided_model"}


def changes():
    """Operation type to how many cases of it one graph has: of each rule there are so many as make 100 in all runs."""
    names = [op for op in dir(tf.raw_ops) if any(pattern.match(op) for pattern, _ in table._FAMILIES)]
    found = {op: 2 if "Scatter" in op else 1 for op in names}
    return dict(found, **{op: 6 for op in _ASSIGN})


class Drawn(rules.Case):
    """Draws variables with changes of them."""

    def __init__(self, draw, name):
        super(Drawn, self).__init__(draw)
        self._name = name
        self._shape = [self.size(4, 7), self.size(2, 6)]
        self.variables = []
        self.places = {count: WHOLE for count in rules.COUNTS}
        for count in rules.COUNTS:
            dims = [dim for dim, size in enumerate(self._shape) if size >= count]
            self.places[count] = self.one_of(WHOLE, *[sharded(dim) for dim in dims])

    def variable(self, what, resource, low=1.0, high=1.5):
        values = self.draw.uniform(low, high, self._shape).astype(np.float32)
        made = tf.get_variable("%s/%s" % (self._name, what), initializer=values, use_resource=resource)
        self.variables.append(made)
        return made

    def change(self, op):
        """A change by an operation type, of all that its definition asks for."""
        given, count = {}, self.size(1, 4)
        args = tf_compat.op_def(op).input_arg
        few = any(arg.name == "indices" for arg in args)
        for arg in args:
            if arg.is_ref or arg.type == _RESOURCE:
                variable = self.variable(arg.name, not arg.is_ref, *((0.1, 0.5) if arg.name == "mg" else ()))
                given[arg.name] = variable if arg.is_ref else variable.handle
            elif arg.name == "indices":
                given[arg.name] = self._ids(count, "Update" in op)
            elif arg.name in _ROWS:
                shape = [count] + self._shape[1:] if few else self._shape
                given[arg.name] = self.x(shape, positive=True)
            elif arg.name == "global_step":
                given[arg.name] = tf.constant(3, tf.int64)
            else:
                given[arg.name] = tf.constant(_SCALARS.get(arg.name, self.draw.uniform(0.1, 0.9)), tf.float32)
        return getattr(tf.raw_ops, op)(**given)

    def _ids(self, count, once):
        if not once:
            return self.whole_numbers([count], self._shape[0])
        made = tf.identity(tf.constant(self.draw.permutation(self._shape[0])[:count], tf.int32))
        self._lies(made, ("whole", "sharded"))
        return made

    def changed_behind_a_branch(self):
        merged = self.variable("chosen", False)
        one, other = tf.raw_ops.RefSwitch(data=merged, pred=tf.constant(bool(self.draw.randint(2))))
        both = tf.raw_ops.RefMerge(inputs=[one, other]).output
        return tf.raw_ops.AssignAdd(ref=both, value=self.x(self._shape))

    def read_in_a_branch(self):
        """The value of a variable, or another one, as `initialized_value` of a reference makes it."""
        variable, given = self.variable("read", False), self.x(self._shape)
        condition = tf.constant(bool(self.draw.randint(2)))
        value = tf.identity(tf.raw_ops.RefSwitch(data=variable, pred=condition).output_true)
        other = tf.raw_ops.Switch(data=given, pred=condition).output_false
        return tf.raw_ops.Merge(inputs=[value, other]).output

    def asked(self):
        """What is asked of variables, other than their values."""
        reference, resource = self.variable("reference", False), self.variable("resource", True)
        known = tf.logical_and(
            tf.raw_ops.IsVariableInitialized(ref=reference), tf.raw_ops.VarIsInitializedOp(resource=resource.handle)
        )
        rows = tf.raw_ops.ResourceGather(resource=resource.handle, indices=self._ids(3, False), dtype=tf.float32)
        value = tf.raw_ops.ReadVariableOp(resource=resource.handle, dtype=tf.float32) * reference
        return [known, tf.raw_ops.VariableShape(input=resource.handle), rows, value]


def build(seed):
    """(list of Drawn, tensors to compare) in the default graph; its operation "changes" makes all changes."""
    draw = np.random.RandomState(seed)
    found, made, outputs = [], [], []
    for op, count in sorted(changes().items()):
        for number in range(count):
            found.append(Drawn(draw, "%s_%d" % (op, number)))
            made.append(found[-1].change(op))
    for number in range(17):
        found.append(Drawn(draw, "asked_%d" % number))
        outputs.extend(found[-1].asked())
        found.append(Drawn(draw, "branch_%d" % number))
        made.append(found[-1].changed_behind_a_branch())
        found.append(Drawn(draw, "merged_%d" % number))
        outputs.append(found[-1].read_in_a_branch())
    tf.group(*made, name="changes")
    tf.global_variables_initializer()
    return found, outputs


def _value_of(variable):
    return variable.op.name + ("/Read/ReadVariableOp:0" if variable.op.type == "VarHandleOp" else ":0")


def check(seed, count):
    with capture(1) as graph:
        found, outputs = build(seed)
    variables = {v.op.name: drawn.places[count] for drawn in found for v in drawn.variables[:1]}
    variables.update((v.op.name, d.places[count]) for d in found if "asked" in d.variables[0].name for v in d.variables)
    tensors = {name: place for drawn in found for name, place in drawn.marks[count].items()}
    done = shards.partitioned(graph, count, variables, tensors, variables)
    names = [tensor.name for tensor in outputs] + [_value_of(v) for drawn in found for v in drawn.variables]
    with shards.Shards(graph, done, wanted=names + ["init", "changes"]) as both:
        both.run_whole("init")
        both.run_operations(["init"])
        for _ in range(2):
            for name, got, want in pairs(names, both.run(names), both.run_whole(names)):
                what = "%s, seed %d, %d shards" % (name, seed, count)
                np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5, err_msg=what)
            both.run_whole("changes")
            both.run_operations(["changes"])


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("count", rules.COUNTS)
def test_variables_change_in_parts_as_they_do_whole(count, seed):
    check(seed, count)


@pytest.mark.exhaustive
@pytest.mark.parametrize("count", rules.COUNTS)
def test_many_changes_of_variables(count):
    for seed in np.random.RandomState().randint(0, 2**31 - 1, 10):
        check(int(seed), count)


def test_each_rule_of_the_table_is_among_the_cases():
    with capture(1) as graph:
        rules.build(rules.RULES, 0, lambda name: rules.CHOICES.get(name, 4))
        build(0)
    tried = {op.type for op in graph.get_operations()}
    there = {op for op in table.RULES if tf_compat.op_def(op) is not None or op in ELSEWHERE}
    assert sorted(there - tried - set(ELSEWHERE)) == []
    assert sorted(set(changes()) - tried) == []


def test_channels_that_are_computed_and_those_of_a_kernel():
    """As of a transposed convolution whose output has half of its input's channels: the kernel's size is known."""
    with planning.capture() as graph, epl.split(2):
        x = tf.placeholder(tf.float32, [None, 6, 6, 8])
        kernel = tf.get_variable("kernel", [2, 2, 4, 8])
        shape = tf.stack([tf.shape(x)[0], 12, 12, tf.shape(x)[3] // 2])
        y = tf.nn.conv2d_transpose(x, kernel, shape, strides=[1, 2, 2, 1], padding="VALID")
        planning.sgd(tf.reduce_mean(tf.square(y + tf.get_variable("bias", [4]))))
    program = planning.compiled(graph, 1, 2)
    assert program.partitioned.placements["kernel"].kind == "sharded"
