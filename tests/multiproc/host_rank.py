"""A rank of test_hosts.py at the C interface: host_rank.py FOLDER RANK SIZE ADDRESS TIMEOUT_S {cases|loop|speed}

cases: all collectives against NumPy. loop: all-reduces without end; tells the error that ends them. speed: what the
ranks measure of the way between them.
"""

import ctypes
import json
import os
import sys

import numpy as np

from epl.communicators import native
from tests.multiproc import test_comm_native as cases_of


def cases(me):
    assert me.library.epl_comm_backend(me.handle) == b"hierarchical"
    for _, function in cases_of.CASES:
        function(me)
    return {}


def loop(me):
    data = np.ones(300000, np.float32)
    segment = (native.NativeSegment * 1)(native.NativeSegment(data.ctypes.data, data.ctypes.data, data.size))
    request = native.Request(-1, b"grads/7", cases_of.ALL_REDUCE, cases_of.FLOAT32, cases_of.MAX, 0, segment, 1, 1.0)
    error = ctypes.create_string_buffer(4096)
    for count in range(1000000):
        if count == 10:
            print("running", flush=True)
        code = me.library.epl_comm_run(me.handle, ctypes.byref(request), error, ctypes.c_size_t(len(error)))
        if code:
            return {"code": code, "message": error.value.decode()}
    return {"code": 0, "message": "nothing ended it"}


def speed(me):
    latency, bandwidth = ctypes.c_double(), ctypes.c_double()
    error = ctypes.create_string_buffer(4096)
    code = me.library.epl_comm_measure(
        me.handle, ctypes.byref(latency), ctypes.byref(bandwidth), error, ctypes.c_size_t(len(error))
    )
    assert code == 0, error.value
    return {"latency_s": latency.value, "bytes_per_s": bandwidth.value}


def main(folder, rank, size, address, timeout_s, what):
    me = cases_of.Rank(int(rank), int(size), "auto", folder, address, float(timeout_s))
    found = {"cases": cases, "loop": loop, "speed": speed}[what](me)
    with open(os.path.join(folder, "found.%s" % rank), "w") as file:
        json.dump(found, file)
    me.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
