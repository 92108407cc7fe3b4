"""Sessions: where their calls are caught, and how a graph is run by names."""

import os
import weakref

from tensorflow.core.protobuf import config_pb2
from tensorflow.python.client import session as session_module

from epl.tf_compat.wrapping import ORIGINAL, wrap

CallableOptions = config_pb2.CallableOptions
BaseSession = session_module.BaseSession
_c_api_session = session_module.tf_session


def wrap_session_init(wrapper):
    """`wrapper(original, session, ...)` around the constructor of all sessions."""
    wrap(BaseSession, "__init__", wrapper)


def wrap_session(init, do_run, make_callable, callable_from_options, partial_run_setup, close):
    """Around the calls of BaseSession through which Session, MonitoredSession, Estimator and Keras run a graph."""
    wrap_session_init(init)
    wrap(BaseSession, "_do_run", do_run)
    wrap(BaseSession, "make_callable", make_callable)
    wrap(BaseSession, "_make_callable_from_options", callable_from_options)
    wrap(BaseSession, "partial_run_setup", partial_run_setup)
    wrap(BaseSession, "close", close)


def wrap_session_runs(wrapper):
    """`wrapper(original, session, ...)` around all calls with which a session runs something for the first time."""
    for name in ("_do_run", "_make_callable_from_options", "partial_run_setup"):
        wrap(BaseSession, name, wrapper)


def never_opened(session):
    """Leaves a session that is refused before its constructor ran in a state that its destructor can deal with."""
    session._session = None
    session._closed = True


def fed_tensor_name(key):
    """The name of a tensor that keys the feeds of BaseSession._do_run (a reference object on both lines)."""
    tensor = key.deref() if hasattr(key, "deref") else key
    return tensor.name


def cluster_with_xla(proto):
    """Switches XLA's automatic clustering on in a ConfigProto, for the operations on CPUs too."""
    options = proto.graph_options.optimizer_options
    options.global_jit_level = config_pb2.OptimizerOptions.ON_1
    if _has_cpu_option():
        options.cpu_global_jit = True


def allow_xla_on_cpus():
    """Before the process has its first session: lets its sessions have clusters on CPUs.

    TensorFlow 1.15 has an environment variable for it, which changes nothing for sessions without clustering.
    """
    flags = os.environ.get(_XLA_FLAGS, "")
    if not _has_cpu_option() and _XLA_ON_CPU not in flags:
        os.environ[_XLA_FLAGS] = (flags + " " + _XLA_ON_CPU).strip()


def _has_cpu_option():
    return "cpu_global_jit" in config_pb2.OptimizerOptions.DESCRIPTOR.fields_by_name


_XLA_FLAGS, _XLA_ON_CPU = "TF_XLA_FLAGS", "--tf_xla_cpu_global_jit"


def on_calling_thread():
    """Serialized RunOptions with which operations run on the thread that calls the session, one after the other.

    No other thread is woken for a step. TensorFlow has it for simple graphs: of large ones its version 1.15 goes ever
    deeper into the stack.
    """
    return config_pb2.RunOptions(inter_op_thread_pool=-1).SerializeToString()


class NamedRunner(object):
    """Runs fixed feeds, fetches and targets of a session, all given by name; needs no Python objects for operations.

    Args:
      session: a tf.Session.
      feeds, fetches: tensor names.
      targets: operation names.
      run_options: serialized RunOptions, or None.
    """

    def __init__(self, session, feeds, fetches, targets, run_options=None):
        options = CallableOptions(feed=feeds, fetch=fetches, target=targets)
        if run_options:
            options.run_options.ParseFromString(run_options)
        self._session = session
        make = session_module.BaseSession.__dict__["_make_callable_from_options"]
        self._callable = getattr(make, ORIGINAL, make)(session, options)
        # As Python ends, the callable's own __del__ may come when TensorFlow's modules are gone, and complains.
        weakref.finalize(self, _release, self._callable)

    def __call__(self, values, metadata=None):
        """Runs. `values` are NumPy arrays in the order of the feeds; returns the fetches' values in their order.

        Args:
          metadata: a TF_Buffer that takes the RunMetadata, or None.
        """
        return _c_api_session.TF_SessionRunCallable(self._session._session, self._callable._handle, values, metadata)


def _release(made):
    """Gives up a session's callable once."""
    made.__del__()
    made._handle = None


class TracedCall(object):
    """What a call takes to be traced: `options`, serialized RunOptions, and `buffer`, a TF_Buffer for the RunMetadata.

    Args:
      kernels: whether the kernels of GPUs are traced, beside what the host does.
    """

    def __init__(self, kernels):
        level = config_pb2.RunOptions.FULL_TRACE if kernels else config_pb2.RunOptions.SOFTWARE_TRACE
        self.options = config_pb2.RunOptions(trace_level=level).SerializeToString()
        self.buffer = _c_api_session.TF_NewBuffer()
        weakref.finalize(self, _c_api_session.TF_DeleteBuffer, self.buffer)

    def metadata(self):
        """The RunMetadata after the call."""
        return config_pb2.RunMetadata.FromString(buffer_bytes(self.buffer))


def buffer_bytes(buffer):
    """The content of a TF_Buffer as bytes, or None for no buffer."""
    return _c_api_session.TF_GetBuffer(buffer) if buffer is not None else None
