"""Trains for ever; worker 1 is held up in the way that a file says, until the file is gone: python held_up.py FOLDER.

The file `fault` has the name of one. When worker 1 has come to it, it writes it into the file `at`.
"""

import errno
import gc
import os
import queue as queues
import re
import signal
import socket
import subprocess
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


def when_over(name, end):
    """Calls `end` when the fault is over, from another thread."""

    def wait():
        while fault() == name:
            time.sleep(0.05)
        end()

    threading.Thread(target=wait, daemon=True).start()


def full_disk():
    while fault() == "full_disk":
        try:
            with open("/dev/full", "wb", buffering=0) as stream:
                stream.write(b"x")
        except OSError as error:
            assert error.errno == errno.ENOSPC
            time.sleep(0.1)


def waits_for_a_lock():
    lock = threading.Lock()
    lock.acquire()
    when_over("waits_for_a_lock", lock.release)
    lock.acquire()


def reads_a_pipe():
    reads, writes = os.pipe()
    when_over("reads_a_pipe", lambda: os.write(writes, b"x"))
    os.read(reads, 1)
    os.close(reads)
    os.close(writes)


def opens_a_fifo():
    path = os.path.join(FOLDER, "fifo")
    os.mkfifo(path)
    when_over("opens_a_fifo", lambda: open(path, "w").close())
    open(path).close()
    os.remove(path)


def reads_a_socket():
    here, there = socket.socketpair()
    when_over("reads_a_socket", lambda: there.send(b"x"))
    here.recv(1)
    here.close()


def takes_of_an_empty_queue():
    items = queues.Queue()
    when_over("takes_of_an_empty_queue", lambda: items.put(1))
    items.get()


def joins_a_thread():
    over = threading.Event()
    thread = threading.Thread(target=over.wait, daemon=True)
    thread.start()
    when_over("joins_a_thread", over.set)
    thread.join()


def waits_for_a_process():
    child = subprocess.Popen(["sleep", "600"])
    when_over("waits_for_a_process", child.kill)
    child.wait()


def collects_garbage():
    kept = [[] for _ in range(200000)]
    while fault() == "collects_garbage":
        gc.collect()
    del kept


def handles_a_signal(*_):
    while fault() == "handles_a_signal":
        time.sleep(0.1)


def in_a_signal():
    signal.signal(signal.SIGUSR1, handles_a_signal)
    os.kill(os.getpid(), signal.SIGUSR1)
    time.sleep(0.01)


# Those in which the thread that trains is between two steps.
BETWEEN = {
    "full_disk": full_disk,
    "waits_for_a_lock": waits_for_a_lock,
    "reads_a_pipe": reads_a_pipe,
    "opens_a_fifo": opens_a_fifo,
    "reads_a_socket": reads_a_socket,
    "takes_of_an_empty_queue": takes_of_an_empty_queue,
    "joins_a_thread": joins_a_thread,
    "waits_for_a_process": waits_for_a_process,
    "collects_garbage": collects_garbage,
    "handles_a_signal": in_a_signal,
}


def hung_call():
    """A py_func that does not come back."""
    at("hung_call")
    while fault() == "hung_call":
        time.sleep(0.1)


def dead_feeder():
    """A generator whose thread that makes its elements has ended with an exception."""
    items = queues.Queue()
    thread = threading.Thread(target=next, args=(iter(()),), daemon=True)
    thread.start()
    thread.join()
    at("dead_feeder")
    when_over("dead_feeder", lambda: items.put(1))
    items.get()


def endless_call(value):
    count = 0
    if INDEX and fault() == "hung_call":
        hung_call()
    while INDEX and (count % 1000000 or fault() == "endless_call"):
        if count == 0:
            at("endless_call")
        count += 1
    return value


def rows():
    while True:
        if INDEX and fault() == "dead_feeder":
            dead_feeder()
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
        if now in ("endless_call", "starved", "stopped", "hung_call", "dead_feeder"):
            at(now)
        elif now in BETWEEN:
            at(now)
            BETWEEN[now]()
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
