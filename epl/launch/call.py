"""What each worker of `epl.run` executes: takes a function from its standard input, calls it, leaves what it gave.

Started as a script by the launcher. The input comes from the process that has started the launcher, and the answers lie
in a folder that only this user may read: nothing that comes over a socket is ever unpickled.
"""

import os
import sys
import traceback

if __name__ == "__main__" and sys.path[0] == os.path.dirname(os.path.abspath(__file__)):
    sys.path[0] = ""  # modules here are no modules of the program's

import json
import pickle

import cloudpickle

VALUE, ERROR = "value", "error"


def main():
    """Runs it. Worker 0 leaves the value, whoever fails its error: `(pickled error or None, traceback as text)`."""
    folder, path, function = pickle.load(sys.stdin.buffer)
    sys.path[:] = path + [entry for entry in sys.path if entry not in path]
    index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    try:
        function, args, kwargs = pickle.loads(function)
        value = function(*args, **kwargs)
        if index == 0:
            _leave(folder, VALUE, _pickled(value))
    except Exception as error:
        text = traceback.format_exc()
        _leave(folder, "%s.%d" % (ERROR, index), pickle.dumps((_error(error), text)))
        raise


def _pickled(value):
    try:
        return cloudpickle.dumps(value)
    except Exception as error:
        raise TypeError(
            "what the function returns, a %s, cannot be sent to the process that has called epl.run: %s. Return "
            "numbers, arrays and what is made of these." % (type(value).__name__, error)
        ) from error


def _error(error):
    """An error as bytes; None where it cannot be sent. What it was caused by is in the text of its traceback."""
    try:
        error.__traceback__ = error.__cause__ = error.__context__ = None
        data = cloudpickle.dumps(error)
        pickle.loads(data)  # some errors cannot be made again
        return data
    except Exception:  # whatever it is, its text is told
        return None


def _leave(folder, name, data):
    path = os.path.join(folder, name)
    with open(path + ".part", "wb") as stream:
        stream.write(data)
    os.rename(path + ".part", path)


if __name__ == "__main__":
    main()
