"""A program to which a pass adds two variables: a count of its steps that is the same everywhere, and a sum for each
rank of the means of its own rows."""

import contextlib
import os
from dataclasses import replace

import tensorflow.compat.v1 as tf

from epl import compiler
from epl.graph import tags
from epl.graph.node_defs import Type, constant, make_node, set_attr
from epl.passes.nodes import add_variable, assign_node, read_node
from epl.plan.facts.names import clone_name
from epl.program import placement
from epl.program.program import Added
from epl.session.hooks import driver_of
from tests.helpers.programs import added, common

COUNT, OWN = "added/count", "added/own"
INT32, FLOAT = 3, 1


def plan_two(program, target):
    """Beside which variable they come, or None."""
    del target
    return program.apply_calls[0].gradients[0][1] if program.apply_calls else None


def add_two(program, beside):
    """The pass."""
    edit = program.graph.editor()
    found = [
        add_variable(edit, COUNT, 5, INT32, Added(beside)),
        add_variable(edit, OWN, [0.5, 1.5], FLOAT, Added(beside, data=placement.OWN, is_saved=False)),
    ]
    edit.add(constant("added/axes", [0, 1], INT32))
    mean = make_node("Mean", "added/mean", ["x", "added/axes"], T=Type(FLOAT), Tidx=Type(INT32), keep_dims=False)
    more = {COUNT: COUNT + "/one", OWN: edit.add(mean).name}
    for variable in found:
        name, dtype = variable.name, variable.dtype
        nodes = [
            read_node(edit.peek(name), name + "/read", dtype),
            constant(name + "/one", 1, dtype),
            make_node("AddV2", name + "/more", [name + "/read", more[name]], T=Type(dtype)),
            assign_node(edit.peek(name), name + "/grow", name + "/more", dtype),
        ]
        for node in nodes:
            set_attr(node, tags.PHASE, tags.APPLY)
            edit.add(node)
        edit.node("train").input.append("^%s/grow" % name)
    variables = dict(program.variables, **{v.name: v for v in found})
    return replace(program, graph=edit.finish(), variables=variables)


@contextlib.contextmanager
def _with_the_pass():
    before = compiler.FEATURES
    compiler.FEATURES = before + (compiler.Feature(plan_two, add_two),)
    try:
        yield
    finally:
        compiler.FEATURES = before


def _values(sess):
    """{variable: its value in each copy of this worker}."""
    driver = driver_of(sess)
    copies = len(driver.rewritten.plan.mesh.instances)
    names = tuple(clone_name(v + "/read", i) + ":0" for v in (COUNT, OWN) for i in range(copies))
    values = [value.tolist() for value in driver.read(names)]
    return {COUNT: values[:copies], OWN: values[copies:]}


def train(epl, folder, foreign):
    """What the variables are after each of: first values and 3 steps; another step; the checkpoint that was saved
    before that, and a step; `foreign`, a checkpoint without them, and a step; first values and 2 steps."""
    with _with_the_pass():
        feeds, train_op = added.build(epl)
        init, saver, found = tf.global_variables_initializer(), tf.train.Saver(), []
        number = iter(range(100))
        with common.session() as sess:

            def steps(count):
                for _ in range(count):
                    sess.run(train_op, feeds.of(next(number)))
                found.append(_values(sess))

            sess.run(init)
            steps(3)
            path = saver.save(sess, os.path.join(folder, "model"))
            steps(1)
            saver.restore(sess, path)
            steps(1)
            saver.restore(sess, foreign)
            steps(1)
            sess.run(init)
            steps(2)
        return path, [v.op.name for v in tf.global_variables()], found


def assigned(epl):
    """What the variables are after a step in a program that gives the weights values by assignments alone, and that
    has no other worker do so."""
    with _with_the_pass():
        feeds, train_op = added.build(epl)
        weights = tf.global_variables()
        values = [tf.assign(v, 0.25 * tf.ones(v.shape)) for v in weights]
        with common.session() as sess:
            sess.run(values)
            sess.run(train_op, feeds.of(0))
            return _values(sess)
