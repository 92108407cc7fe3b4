"""The process behind `remote.Server`: python -m tests.helpers.remote_server {plain|epl} ADDRESS."""

import importlib
import socket
import sys
import traceback

import tensorflow.compat.v1 as tf

from tests.helpers import on_gpus
from tests.helpers.remote import RemoteError, read_message, write_message


def answer(epl, name, args, kwargs):
    module, _, function = name.partition(":")
    try:
        with tf.Graph().as_default():
            return getattr(importlib.import_module(module), function)(epl, *args, **kwargs)
    except Exception as error:  # sent to the caller, who decides
        bases = [base.__name__ for base in type(error).__mro__]
        return RemoteError(type(error).__name__, bases, str(error), traceback.format_exc())


def main(mode, address):
    connection = socket.socket(socket.AF_UNIX)
    connection.connect("\0" + address)
    tf.disable_v2_behavior()
    epl = importlib.import_module("epl") if mode == "epl" else None
    if epl and on_gpus.wanted():
        on_gpus.divide()
    while True:
        try:
            name, args, kwargs = read_message(connection)
        except EOFError:
            return  # the caller has gone
        value = answer(epl, name, args, kwargs)
        assert (mode == "epl") == ("epl" in sys.modules)
        write_message(connection, value)


if __name__ == "__main__":
    main(*sys.argv[1:])
