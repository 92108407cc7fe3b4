"""Weight decay that changes a variable before its update does, under ZeRO: owners alone let it decay."""

import pytest
import tensorflow.compat.v1 as tf

from epl import tf_compat
from epl.errors import UnsupportedError
from tests.helpers.planning import capture, compiled, of_op
from tests.helpers.programs.tables import DecayedAdam

KERAS = tf.keras.optimizers if tf_compat.line() == "tf1" else tf.keras.optimizers.legacy


class KerasDecay(KERAS.Adam):
    """As the AdamWeightDecay of BERTs in Keras: the update waits for what is read after the decay."""

    def _resource_apply_dense(self, grad, var, apply_state=None):
        with tf.control_dependencies([var.assign_sub(0.05 * var)]):
            return super(KerasDecay, self)._resource_apply_dense(grad, var, apply_state=apply_state)

    def _resource_apply_sparse(self, grad, var, indices, apply_state=None):
        with tf.control_dependencies([var.assign_sub(0.05 * var)]):
            return super(KerasDecay, self)._resource_apply_sparse(grad, var, indices, apply_state=apply_state)


def model(optimizer, rows):
    """A table of so many rows, a kernel and a bias; gradients are there before anything decays."""
    ids = tf.placeholder(tf.int32, [None], "ids")
    with tf.variable_scope("all", use_resource=True):
        table = tf.get_variable("table", [rows, 8])
        made = tf.matmul(tf.gather(table, ids), tf.get_variable("kernel", [8, 4])) + tf.get_variable("bias", [4])
    loss = tf.reduce_mean(tf.square(made))
    variables = tf.trainable_variables()
    gradients = tf.gradients(loss, variables)
    with tf.control_dependencies(gradients):
        optimizer().apply_gradients(list(zip(gradients, variables)))


@pytest.mark.parametrize("rows", [4, 4001])
@pytest.mark.parametrize("level", ["v0", "v1", "v2", "v3"])
@pytest.mark.parametrize("optimizer", [DecayedAdam, KerasDecay], ids=["tensorflow", "keras"])
def test_owners_alone_let_variables_decay(optimizer, level, rows):
    with capture() as graph:
        model(optimizer, rows)
    programs = [compiled(graph, 2, 1, index, zero__level=level) for index in range(2)]
    decays = [{node.name for node in of_op(program.graph, "AssignSubVariableOp")} for program in programs]
    assert not decays[0] & decays[1]
    # The kernel, the bias, and the table, whose Adam subtracts too; its rows, where they are many, have two owners.
    assert len(decays[0] | decays[1]) == (4 if rows == 4 else 6)
    for program, own in zip(programs, decays):
        updates = {n.name for op in ("ResourceApplyAdam", "ResourceScatterAdd") for n in of_op(program.graph, op)}
        assert own and all(program.graph.ancestors([update]) & own for update in updates)


def test_decay_for_which_updates_of_other_variables_wait_is_refused():
    class AllAtOnce(tf.train.AdamOptimizer):
        def _resource_apply_dense(self, grad, var):
            with tf.control_dependencies([self.decayed]):
                return super(AllAtOnce, self)._resource_apply_dense(grad, var)

        def _prepare(self):
            super(AllAtOnce, self)._prepare()
            self.decayed = tf.group(*[tf.assign_sub(v, 0.1 * v) for v in tf.trainable_variables()])

    with capture() as graph, tf.variable_scope("all", use_resource=True):
        x = tf.placeholder(tf.float32, [None, 4])
        made = tf.matmul(x, tf.get_variable("kernel", [4, 4])) + tf.get_variable("bias", [4])
        AllAtOnce(0.1).minimize(tf.reduce_mean(tf.square(made)))
    with pytest.raises(UnsupportedError, match="is part of those of several variables"):
        compiled(graph, 2, 1, zero__level="v1")
