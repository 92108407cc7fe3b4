"""The C interface of the communicators (`csrc/comm/epl_comm.h`) for Python, through ctypes. No TensorFlow in it."""

import ctypes
import os
import sys

from epl.communicators import interface
from epl.communicators.build import COMM_LIBRARY
from epl.errors import CommunicationError

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib")
OK = 0
CODES = {
    1: "TIMEOUT",
    2: "ABORTED",
    3: "PEER_LOST",
    4: "MISMATCH",
    5: "INVALID",
    6: "INTERNAL",
}

STORE_SET = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.POINTER(ctypes.c_uint8), ctypes.c_size_t
)
STORE_GET = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_char_p,
    ctypes.POINTER(ctypes.c_uint8),
    ctypes.c_size_t,
    ctypes.POINTER(ctypes.c_size_t),
    ctypes.c_double,
)
# Called with bytes: what it is given may hold zeros, and is only read.
STORE_TAKE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t)
STORE_GATHER = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_char_p,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.POINTER(ctypes.c_uint8),
    ctypes.c_size_t,
    ctypes.c_double,
    STORE_TAKE,
    ctypes.c_void_p,
)
DONE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)
REFUSAL = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
ALLOCATE = ctypes.CFUNCTYPE(
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.POINTER(ctypes.c_size_t),
    ctypes.c_int,
    ctypes.POINTER(ctypes.c_uint8),
    ctypes.c_size_t,
)


class Store(ctypes.Structure):
    """epl_store"""

    _fields_ = [("context", ctypes.c_void_p), ("set", STORE_SET), ("get", STORE_GET), ("gather", STORE_GATHER)]


class Options(ctypes.Structure):
    """epl_comm_options"""

    _fields_ = [
        ("backend", ctypes.c_char_p),
        ("name", ctypes.c_char_p),
        ("rank", ctypes.c_int),
        ("size", ctypes.c_int),
        ("timeout_s", ctypes.c_double),
        ("stall_warning_s", ctypes.c_double),
        ("host", ctypes.c_char_p),
        ("token", ctypes.c_char_p),
        ("device", ctypes.c_int),
        ("nccl_library", ctypes.c_char_p),
        ("cuda_library", ctypes.c_char_p),
        ("workers", ctypes.POINTER(ctypes.c_int)),
    ]


class NativeSegment(ctypes.Structure):
    """epl_segment"""

    _fields_ = [("data_in", ctypes.c_void_p), ("data_out", ctypes.c_void_p), ("count", ctypes.c_size_t)]


class Request(ctypes.Structure):
    """epl_request"""

    _fields_ = [
        ("tag", ctypes.c_int64),
        ("name", ctypes.c_char_p),
        ("collective", ctypes.c_int),
        ("dtype", ctypes.c_int),
        ("reduce_op", ctypes.c_int),
        ("peer", ctypes.c_int),
        ("segments", ctypes.POINTER(NativeSegment)),
        ("num_segments", ctypes.c_size_t),
        ("scale", ctypes.c_double),
        ("send_counts", ctypes.POINTER(ctypes.c_size_t)),
        ("header", ctypes.c_char_p),
        ("header_length", ctypes.c_size_t),
        ("allocate", ALLOCATE),
        ("refusal", REFUSAL),
        ("done", DONE),
        ("arg", ctypes.c_void_p),
        ("stream", ctypes.c_void_p),
    ]


# name -> (result, arguments)
_FUNCTIONS = {
    "epl_comm_create": (
        ctypes.c_void_p,
        [ctypes.POINTER(Options), ctypes.POINTER(Store), ctypes.c_char_p, ctypes.c_size_t],
    ),
    "epl_comm_destroy": (None, [ctypes.c_void_p]),
    "epl_comm_abort": (None, [ctypes.c_void_p, ctypes.c_char_p]),
    "epl_comm_expect": (ctypes.c_int, [ctypes.c_void_p, ctypes.POINTER(ctypes.c_int64), ctypes.c_size_t]),
    "epl_comm_backend": (ctypes.c_char_p, [ctypes.c_void_p]),
    "epl_comm_run": (
        ctypes.c_int,
        [ctypes.c_void_p, ctypes.POINTER(Request), ctypes.c_char_p, ctypes.c_size_t],
    ),
    "epl_comm_exchange": (
        ctypes.c_int,
        [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t],
    ),
    "epl_comm_measure": (
        ctypes.c_int,
        [
            ctypes.c_void_p,
            ctypes.POINTER(ctypes.c_double),
            ctypes.POINTER(ctypes.c_double),
            ctypes.c_char_p,
            ctypes.c_size_t,
        ],
    ),
    "epl_pool_set": (None, [ctypes.c_int, ctypes.c_void_p]),
    "epl_find_nccl": (ctypes.c_int, [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t]),
    "epl_flight_set": (None, [ctypes.c_void_p]),
    "epl_has_gloo": (ctypes.c_int, []),
    "epl_comm_interface": (ctypes.c_int, []),
}

_LOADED = {}


def library_path(name):
    """The path of a library of this installation.

    In the folder of the sources Python finds ./epl before the installed epl. Where nothing is built there, the
    installed epl's library serves; one of other sources is refused when it is loaded.

    Raises:
      CommunicationError: it was not built.
    """
    path = os.path.join(FOLDER, name)
    if not os.path.exists(path):
        for folder in sys.path:
            installed = os.path.join(folder, "epl", "communicators", "lib", name)
            if os.path.exists(installed):
                return installed
        raise CommunicationError(
            "The native part of epl is not built: there is no %s. Run `pip install .` in the source folder, or "
            "`make csrc` to build it in place." % path
        )
    return path


def comm():
    """The communicator library, loaded once.

    Raises:
      CommunicationError: it is not built or cannot be loaded.
    """
    if COMM_LIBRARY not in _LOADED:
        path = library_path(COMM_LIBRARY)
        try:
            library = ctypes.CDLL(path)
            for name, (result, arguments) in _FUNCTIONS.items():
                function = getattr(library, name)
                function.restype, function.argtypes = result, arguments
        except (OSError, AttributeError) as error:
            raise unfit(path, error)
        problem = interface.comm_problem(library.epl_comm_interface())
        if problem is not None:
            raise unfit(path, problem)
        _LOADED[COMM_LIBRARY] = library
    return _LOADED[COMM_LIBRARY]


def unfit(path, problem):
    """The error for a library that does not fit this Python code."""
    return CommunicationError(
        "%s cannot be used: %s. It was built on another system or from other sources than this epl, of an earlier "
        "state of the checkout, say. Build it again with `make csrc` (in a checkout) or `pip install .`."
        % (path, problem)
    )
