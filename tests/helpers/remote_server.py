"""The process behind `remote.Server`: python -m tests.helpers.remote_server {plain|epl}."""

import importlib
import os
import sys
import traceback

import tensorflow.compat.v1 as tf

from tests.helpers.remote import RemoteError, read_message, write_message


def answer(epl, name, args, kwargs):
    module, _, function = name.partition(":")
    try:
        with tf.Graph().as_default():
            return getattr(importlib.import_module(module), function)(epl, *args, **kwargs)
    except Exception as error:  # sent to the caller, who decides
        bases = [base.__name__ for base in type(error).__mro__]
        return RemoteError(type(error).__name__, bases, str(error), traceback.format_exc())


def main(mode):
    # Answers go through a duplicate of stdout; whatever prints to stdout itself goes to the log.
    pipe = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    tf.disable_v2_behavior()
    epl = importlib.import_module("epl") if mode == "epl" else None
    stdin = sys.stdin.buffer.raw
    while True:
        try:
            name, args, kwargs = read_message(stdin)
        except EOFError:
            return  # the caller has gone
        value = answer(epl, name, args, kwargs)
        assert (mode == "epl") == ("epl" in sys.modules)
        write_message(pipe, value)


if __name__ == "__main__":
    main(sys.argv[1])
