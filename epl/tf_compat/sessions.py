"""Sessions: where their calls are caught, and how a graph is run by names."""

from tensorflow.core.protobuf import config_pb2
from tensorflow.python.client import session as session_module

from epl.tf_compat.wrapping import ORIGINAL, wrap

CallableOptions = config_pb2.CallableOptions
BaseSession = session_module.BaseSession
_c_api_session = session_module.tf_session


def wrap_session(init, do_run, make_callable, callable_from_options, partial_run_setup, close):
    """Around the calls of BaseSession through which Session, MonitoredSession, Estimator and Keras run a graph."""
    wrap(BaseSession, "__init__", init)
    wrap(BaseSession, "_do_run", do_run)
    wrap(BaseSession, "make_callable", make_callable)
    wrap(BaseSession, "_make_callable_from_options", callable_from_options)
    wrap(BaseSession, "partial_run_setup", partial_run_setup)
    wrap(BaseSession, "close", close)


def never_opened(session):
    """Leaves a session that is refused before its constructor ran in a state that its destructor can deal with."""
    session._session = None
    session._closed = True


def fed_tensor_name(key):
    """The name of a tensor that keys the feeds of BaseSession._do_run (a reference object on both lines)."""
    tensor = key.deref() if hasattr(key, "deref") else key
    return tensor.name


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

    def __call__(self, values, metadata=None):
        """Runs. `values` are NumPy arrays in the order of the feeds; returns the fetches' values in their order.

        Args:
          metadata: a TF_Buffer that takes the RunMetadata, or None.
        """
        return _c_api_session.TF_SessionRunCallable(self._session._session, self._callable._handle, values, metadata)


def buffer_bytes(buffer):
    """The content of a TF_Buffer as bytes, or None for no buffer."""
    return _c_api_session.TF_GetBuffer(buffer) if buffer is not None else None
