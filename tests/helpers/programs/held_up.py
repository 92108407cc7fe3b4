"""Trains for ever; worker 1 is held up in the way that a file says, until the file is gone: python held_up.py FOLDER.

The file `fault` has the name of one. When worker 1 has come to it, it writes it into the file `at`.
"""

import os
import re
import sys
import threading
import time

import numpy as np
import tensorflow.compat.v1 as tf

import epl

FOLDER = sys.argv[1]
FAULT, AT = os.path.join(FOLDER, "fault"), os.path.join(FOLDER, "at")


def fault():
    """The fault that is asked for, or None."""
    try:
        with open(FAULT) as stream:
            return stream.read().strip() or None
    except OSError:
        return None


def at(name):
    with open(AT, "w") as stream:
        stream.write(name)


def sleeps():
    while fault() == "sleeps":
        time.sleep(0.1)


def endless_loop():
    count = 0
    while count % 1000000 or fault() == "endless_loop":
        count += 1


def holds_the_interpreter():
    """A call of C code that gives no other thread of Python a turn for long."""
    while fault() == "holds_the_interpreter":
        re.match("(a+)+$", "a" * 25 + "b")


def endless_call(value):
    count = 0
    while INDEX and (count % 1000000 or fault() == "endless_call"):
        if count == 0:
            at("endless_call")
        count += 1
    return value


def rows():
    while True:
        while INDEX and fault() == "starved":
            at("starved")  # the thread that trains may have looked before there was a fault
            time.sleep(0.1)
        yield np.ones([4], np.float32)


def feed_queue():
    """Gives an element to the queue that only worker 1 takes from, when the fault is over."""
    while True:
        if INDEX and os.path.exists(AT) and open(AT).read() == "other_fetches" and fault() is None:
            QUEUE_SESSION[0].run(enqueue)
            os.remove(AT)
        time.sleep(0.05)


tf.disable_v2_behavior()
epl.init()
epl.set_default_strategy(epl.replicate(1))
INDEX = epl.Env.get().cluster.worker_index
data = tf.data.Dataset.from_generator(rows, tf.float32, [4]).batch(8)
x = tf.data.make_one_shot_iterator(data).get_next()
x = tf.py_func(endless_call, [x], tf.float32)
x.set_shape([None, 4])
queue = tf.FIFOQueue(10, [tf.float32], shapes=[[]], name="only_mine")
enqueue, dequeue = queue.enqueue(1.0), queue.dequeue(name="taken")
loss = tf.reduce_mean(tf.square(tf.layers.dense(x, 1)))
train = tf.train.GradientDescentOptimizer(0.01).minimize(loss)
QUEUE_SESSION = []
with tf.Session() as sess:
    QUEUE_SESSION.append(sess)
    sess.run(tf.global_variables_initializer())
    threading.Thread(target=feed_queue, daemon=True).start()
    step = 0
    while True:
        step += 1
        now = fault() if INDEX == 1 and step > 1 else None
        if now in ("endless_call", "starved", "stopped"):
            at(now)
        elif now == "slow":
            at(now)
            time.sleep(0.1)
        elif now == "sleeps":
            at(now)
            sleeps()
        elif now == "endless_loop":
            at(now)
            endless_loop()
        elif now == "holds_the_interpreter":
            at(now)
            holds_the_interpreter()
        elif now == "other_fetches":
            at(now)
            sess.run(dequeue)
        sess.run(train)
        time.sleep(0.01)
