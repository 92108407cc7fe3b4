"""Which collectives a job makes in some steps, counted where it hands them to the library that carries them out."""

import os
import tempfile

import numpy as np
import tensorflow.compat.v1 as tf

from tests.helpers import exchanging
from tests.helpers.programs import common

STEPS = 8
ROWS = 32  # what a batch of unknown size counts as
_KEPT = []  # boards, into whose memory the library writes as long as the process lives


def counted(epl, case):
    """What this worker does in STEPS steps of a case of tests/helpers/exchanging.py.

    Returns:
      (the plan's Collectives, as dicts; tags of messages between stages; [kind, name, bytes, tag] of each call.)
    """
    common.init(epl, exchanging.config_of(case))
    exchanging.CASES[case][0]()
    graph = tf.get_default_graph()
    operations = graph.get_operations()
    train = [
        o for o in operations if o.type == "NoOp" and o.name in ("GradientDescent", "Adam", "Momentum", "LambOptimizer")
    ]
    (train,) = train or [graph.get_collection(tf.GraphKeys.TRAIN_OP)[0]]
    feeds = {o.outputs[0]: _zeros(o.outputs[0]) for o in operations if o.type == "Placeholder"}
    folder = tempfile.mkdtemp()
    board = epl.launch.board.Board(os.path.join(folder, "board"))
    _KEPT.append(board)
    with common.session() as session:
        session.run(tf.global_variables_initializer())
        session.run(tf.local_variables_initializer())
        session.run([o for o in operations if o.type == "MakeIterator"])
        epl.communicators.native.comm().epl_flight_set(board.collectives)
        for _ in range(STEPS):
            session.run(train, feeds)
        program = epl.session.hooks.driver_of(session).rewritten.program
    events = epl.launch.board.read_events(os.path.join(folder, "board"))[1]  # once what was on its way has come
    messages = [message.tag for message in program.part.messages] if program.part is not None else []
    found = [[epl.launch.board.KINDS[event.kind], event.name, event.bytes, event.number] for event in events]
    return [vars(each) for each in program.plan.collectives], messages, found


def _zeros(tensor):
    return np.zeros([ROWS if size is None else size for size in tensor.shape.as_list()], tensor.dtype.as_numpy_dtype)
