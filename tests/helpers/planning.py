"""Models that are captured, planned and rewritten in the test's own process, without sessions and without devices."""

import contextlib
import functools

import numpy as np
import tensorflow.compat.v1 as tf

from epl import compiler
from epl.capture import caught
from epl.capture.record import make_program
from epl.cluster import Cluster
from epl.communicators import library
from epl.config import Config
from epl.env import Env
from epl.graph.index import Graph
from epl.graph.node_defs import make_node
from tests.helpers import audited
from tests.helpers.control_flow import control_flow  # noqa: F401  for tests that plan

audited.audit_compiles()

ROWS = 32  # of the data that `trained` feeds


@contextlib.contextmanager
def capture(seed=None):
    """A new default graph in which EPL sees what is built."""
    caught.install()
    Env.get().reset(Config())
    with tf.Graph().as_default() as graph:
        if seed is not None:
            tf.set_random_seed(seed)
        yield graph


def cluster(workers=1, devices=2, index=0, device_type="CPU"):
    hosts = ["127.0.0.1:%d" % (20000 + i) for i in range(workers)]
    return Cluster(workers, index, devices, hosts, device_type, "token")


def plan_of(graph, workers=1, devices=2, index=0, **config):
    """(Program, Plan) of a tf.Graph, with the one copy of the model that the plan is for; `config` with "__" for the
    dot."""
    values = {key.replace("__", "."): value for key, value in config.items()}
    program = compiler.planned(make_program(graph), Config(values), cluster(workers, devices, index))
    return program, program.plan


def compiled(graph, workers=1, devices=2, index=0, job_seed=0, device_type="CPU", on_gpu=False, **config):
    """The Program of a worker for a tf.Graph, or for a Program that was captured."""
    library.load()  # so that the types of EPL's own operations are checked too
    values = Config({key.replace("__", "."): value for key, value in config.items()})
    place = cluster(workers, devices, index, device_type)
    program = make_program(graph) if isinstance(graph, tf.Graph) else graph
    return compiler.compile(program, values, place, job_seed, on_gpu)


def rewritten(graph, workers=1, devices=2, index=0, job_seed=0, **config):
    """(captured Program, Plan, rewritten Graph) of a tf.Graph."""
    program = make_program(graph)
    done = compiled(program, workers, devices, index, job_seed, **config)
    return program, done.plan, done.whole


def variable(name, shape=(4, 4), use_resource=False, **kwargs):
    return tf.get_variable(name, shape, initializer=tf.constant_initializer(0.5), use_resource=use_resource, **kwargs)


def batch(rows=8, features=4):
    """Data that differs from copy to copy."""
    data = tf.data.Dataset.from_tensors(tf.ones([rows, features])).repeat()
    return tf.data.make_initializable_iterator(data).get_next()


def layers(count=2, resource=False, x=None):
    """The loss of some dense layers over a batch."""
    x = batch() if x is None else x
    for i in range(count):
        x = tf.tanh(
            tf.matmul(x, variable("w%d" % i, use_resource=resource)) + variable("b%d" % i, [4], use_resource=resource)
        )
    return tf.reduce_mean(tf.square(x), name="loss")


def sgd(loss, **kwargs):
    return tf.train.GradientDescentOptimizer(0.1).minimize(loss, **kwargs)


def of_op(graph, op):
    """The nodes of an operation type in a Graph."""
    return [node for node in graph.nodes.values() if node.op == op]


def by_hand(*nodes):
    """A Graph of (name, inputs) pairs."""
    return Graph.from_graph_def(tf.GraphDef(node=[make_node("NoOp", name, inputs) for name, inputs in nodes]))


def trained(graph, init, train, loss, steps=3):
    """Losses and variables after some steps of plain TensorFlow over a Graph, whose data is the placeholder "x"."""
    width = next(n.attr["shape"].shape.dim[1].size for n in graph.nodes.values() if n.name == "x")
    rng = np.random.RandomState(7)
    with tf.Graph().as_default() as imported:
        tf.import_graph_def(graph.to_graph_def(tf.GraphDef), name="")
        threads = tf.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=2)
        threads.graph_options.rewrite_options.disable_meta_optimizer = True  # takes longer than the steps
        with tf.Session(config=threads) as session:
            session.run(init)
            values = [
                session.run([loss, train], {"x:0": rng.normal(size=(ROWS, width)).astype(np.float32)})[0]
                for _ in range(steps)
            ]
            names = [n.name for n in graph.nodes.values() if n.op in ("VariableV2", "VarHandleOp")]
            read = [
                imported.get_tensor_by_name(n + ":0")
                if graph.nodes[n].op == "VariableV2"
                else tf.raw_ops.ReadVariableOp(
                    resource=imported.get_tensor_by_name(n + ":0"), dtype=graph.nodes[n].attr["dtype"].type
                )
                for n in names
            ]
            return [np.array(values)] + session.run(read)


def wide(layers=12, width=256):
    """A model whose gradients are worth several groups: 256 KiB for each matrix."""
    x = batch(features=width)
    for i in range(layers):
        x = tf.tanh(tf.matmul(x, variable("w%d" % i, [width, width])))
    return tf.reduce_mean(x)


@functools.lru_cache(maxsize=1)
def wide_graph():
    """The same as a graph that is trained, made once."""
    with capture() as graph:
        sgd(wide())
    return graph
