"""python -m tests.mutants.compared: plants faults in compiled graphs, runs them on two devices, compares with one.

Which faults are found, and of how many is the operation named, or a neighbour of it?
"""

import argparse
import collections
import contextlib
import os
import shutil
import sys
import tempfile

import numpy as np
import tensorflow.compat.v1 as tf

from epl import compiler, tf_compat
from epl.config import Config
from epl.env import Env
from epl.graph.index import canonical_tensor, node_of
from epl.plan.facts.names import clone_name, micro_batch_name
from epl.session import recorded
from epl.session import rewritten as rewritten_module
from epl.verify.comparison import DIFFERENT, compare_steps
from epl.verify.first_operation import first_operation
from epl.verify.joined import read_steps
from epl.verify.one_device import OneDevice
from epl.verify.report import first_difference
from tests.mutants import graphs

STEPS, ROWS = 10, 16
OPTIMIZERS = {
    "sgd": lambda: tf.train.GradientDescentOptimizer(0.1),
    "momentum": lambda: tf.train.MomentumOptimizer(0.1, 0.9),
    "adam": lambda: tf.train.AdamOptimizer(0.01),
}
# name: (keys of the configuration, whether the model has two stages)
STRATEGIES = collections.OrderedDict(
    [
        ("data parallelism", ({}, False)),
        ("micro-batches", ({"pipeline.num_micro_batch": 2}, False)),
        ("pipeline", ({"pipeline.num_micro_batch": 2}, True)),
        ("ZeRO v0", ({"zero.level": "v0"}, False)),
        ("ZeRO v1", ({"zero.level": "v1"}, False)),
        ("recomputation", ({"gradient_checkpoint.type": "auto"}, False)),
        ("offload", ({"offload.level": "v0"}, False)),
    ]
)


class Job(object):
    """A small model that trains on two devices of this process, whatever is done to its graph.

    Args:
      epl: the package.
      strategy: one of STRATEGIES.
      optimizer: one of OPTIMIZERS.
    """

    def __init__(self, epl, strategy, optimizer="adam"):
        keys, has_stages = STRATEGIES[strategy]
        epl.init(Config(keys))
        if not has_stages:
            epl.set_default_strategy(epl.replicate(1))
        self._x = tf.placeholder(tf.float32, [None, 4], name="x")
        hidden = self._x
        for stage in range(2):
            with epl.replicate(1, name="stage_%d" % stage) if has_stages else contextlib.suppress():
                for layer in (2 * stage, 2 * stage + 1):
                    kernel = tf.get_variable(
                        "w%d" % layer, [4, 4], initializer=tf.random_normal_initializer(seed=layer)
                    )
                    hidden = tf.tanh(tf.matmul(hidden, kernel))  # all of one shape, so that gradients can be swapped
                if stage == 1:
                    self._loss = tf.reduce_mean(tf.square(hidden - 0.5), name="loss")
        self._train = OPTIMIZERS[optimizer]().minimize(self._loss, global_step=tf.train.get_or_create_global_step())
        self._init = tf.global_variables_initializer()
        self.graph = None  # the compiled Graph of the last run, with the fault

    def run(self, folder, steps, mutation=None, traced=-1):
        """(RecordedSteps, GraphDef of the program) of a run with a fault, or without."""
        recorded.Recorder._recording = None
        environ = {recorded.FOLDER: folder, recorded.STEPS: str(STEPS + 9), recorded.TRACED: str(traced)}
        random, before = np.random.RandomState(5), dict(os.environ)
        os.environ.update(environ)
        try:
            with self._planted(mutation), tf.Session() as session:
                session.run(self._init)
                for _ in range(steps):
                    session.run([self._train, self._loss], {self._x: random.normal(size=(ROWS, 4))})
        finally:
            os.environ.clear()
            os.environ.update(before)
        graph_def = tf_compat.GraphDef()
        with open(os.path.join(folder, "graph"), "rb") as stream:
            graph_def.ParseFromString(stream.read())
        return read_steps(folder, 1), graph_def

    @contextlib.contextmanager
    def _planted(self, mutation):
        compile_ = compiler.compile

        def planting(*args, **kwargs):
            program = compile_(*args, **kwargs)
            if mutation is not None:
                program = program.with_graph(mutation.apply(program.graph))
            self.graph = program.graph
            return program

        rewritten_module.compiler.compile = planting
        try:
            yield
        finally:
            rewritten_module.compiler.compile = compile_


def compared(job, mutation=None, steps=STEPS):
    """(verdict, FirstOperation or None) of a run with a fault, or without."""
    folder = tempfile.mkdtemp(prefix="epl-compared-")
    try:
        # Most faults show in the first step, so that one run serves.
        found, graph_def = job.run(folder, 2, mutation, traced=0)
        comparison = compare_steps(OneDevice(graph_def, found), found)
        if comparison.verdict != DIFFERENT and steps > 2:
            found, graph_def = job.run(folder, steps, mutation, traced=0)
            comparison = compare_steps(OneDevice(graph_def, found), found)
        number, _ = first_difference(comparison)
        if number is None:
            return comparison.verdict, None
        if found[number].trace is None:
            found, graph_def = job.run(folder, number + 1, mutation, traced=number)
        return comparison.verdict, first_operation(OneDevice(graph_def, [found[number]]), found[number], number)
    finally:
        shutil.rmtree(folder)


def is_named(graph, mutation, first):
    """Whether a FirstOperation names the operation of a fault, or one that takes from it or gives to it."""
    texts = [text for text, _ in first.there] + [first.guess]
    named = {name for text in texts for name in text.split("'")[1::2]}
    key = first.difference.key
    if first.part in ("forward pass", "backward pass"):
        replica, micro_batch = key[1]
        named.add(clone_name(micro_batch_name(first.operation, micro_batch), replica))
        named.update([clone_name(name, replica) for name in named])
    elif first.part == "update":
        named.add(clone_name(first.operation, first.difference.copy))
    named = {node_of(canonical_tensor(name)) for name in named} & set(graph.nodes)
    near = set(named)
    for name in named:
        near.update(each.node for each in graph.inputs[name])
        near.update(consumer for consumer, _ in graph.consumers.get(name, ()))
    return mutation.node in near


def scores(epl, strategies, count, seed=1, optimizer="adam", kinds=None, out=None):
    """[(strategy, Mutation, verdict, FirstOperation or None, whether it is named)] of so many faults of each."""
    found = []
    for strategy in strategies:
        with tf.Graph().as_default():
            job = Job(epl, strategy, optimizer)
            verdict, first = compared(job, steps=2)
            assert verdict != DIFFERENT, (strategy, first)
            planted = graphs.mutations(job.graph, seed)
            if kinds is not None:
                planted = [each for each in planted if each.kind in kinds]
            for mutation in planted[:count]:
                try:
                    verdict, first = compared(job, mutation)
                except Exception as error:  # TensorFlow, or EPL, refuses the graph: it does not train
                    verdict, first = "refused: %s" % str(error).splitlines()[0], None
                named = first is not None and is_named(job.graph, mutation, first)
                found.append((strategy, mutation, verdict, first, named))
                if out is not None:
                    out(found[-1])
    return found


def found_by_kind(epl, strategy, count, kinds=None):
    """[(kind, node, verdict, named, part, guess)] as plain data."""
    return [
        (mutation.kind, mutation.node, verdict, named, first and first.part, first and first.guess)
        for _, mutation, verdict, first, named in scores(epl, [strategy], count, kinds=kinds)
    ]


def main(arguments):
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.compared", description=__doc__.splitlines()[2])
    parser.add_argument("--count", type=int, default=30, help="faults of each strategy (default 30)")
    parser.add_argument("--kinds", nargs="*", help="of faults; default all (tests.mutants.graphs.KINDS)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--optimizer", default="adam", choices=sorted(OPTIMIZERS))
    parser.add_argument("strategies", nargs="*", metavar="STRATEGY", default=[])
    options = parser.parse_args(arguments)
    os.environ.update({"EPL_GPU_PER_WORKER": "2", "EPL_DEVICE": "cpu"})
    tf.disable_v2_behavior()
    import epl

    Env.get().reset(Config())

    def out(each):
        strategy, mutation, verdict, first, named = each
        missed = "no run" if verdict.startswith("refused") else "MISSED"
        state = "named" if named else "found" if verdict == DIFFERENT else missed
        told = "%s %s: %s" % (first.part, first.operation, first.guess) if first is not None else verdict
        print("%-7s %-16s %-20s %s <- %s" % (state, strategy, mutation.kind, mutation.node, told), flush=True)

    chosen = options.strategies or list(STRATEGIES)
    found = scores(epl, chosen, options.count, options.seed, options.optimizer, options.kinds, out)
    ran = [each for each in found if not each[2].startswith("refused")]
    different = [each for each in ran if each[2] == DIFFERENT]
    named = [each for each in different if each[4]]
    print(
        "%d faults, %d of which do not run; of %d that do, %d are found, %d with the operation or its neighbour"
        % (len(found), len(found) - len(ran), len(ran), len(different), len(named))
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
