"""Modules `*_pb2` that protoc before 3.19 has written, for a protobuf that refuses to run them.

Such a module creates each descriptor by itself. All that it says is in one literal too, the serialized file; of that
the messages are built as newer modules do it.
"""

import ast

from google.protobuf import descriptor_pool
from google.protobuf.internal import builder


def run(loader, module):
    """Runs a module of messages by its loader, or builds these where protobuf refuses the module.

    Raises:
      TypeError: it is refused, and has no serialized file.
    """
    try:
        loader.exec_module(module)
    except TypeError as refused:
        serialized = _serialized_file(loader.get_source(module.__name__) or "")
        if "Descriptors cannot be created directly" not in str(refused) or serialized is None:
            raise
        names = module.__dict__
        names["DESCRIPTOR"] = descriptor_pool.Default().AddSerializedFile(serialized)
        builder.BuildMessageAndEnumDescriptors(names["DESCRIPTOR"], names)
        builder.BuildTopDescriptorsAndMessages(names["DESCRIPTOR"], module.__name__, names)


def _serialized_file(source):
    """The bytes of the argument `serialized_pb` of a module's FileDescriptor; None where there is none."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.keyword) and node.arg == "serialized_pb":
            literal = node.value
            if isinstance(literal, ast.Call):  # _b('...'), which turns text into bytes
                literal = literal.args[0]
            value = ast.literal_eval(literal)
            return value if isinstance(value, bytes) else value.encode("latin1")
    return None
