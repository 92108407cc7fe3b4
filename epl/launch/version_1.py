"""Python processes that run programs for TensorFlow 1 on TensorFlow 2.15, as `epl.tf1` does in one.

Python runs the module `sitecustomize` at its start, before a program. The one of `epl/tf1/site` goes by a variable, and
runs the other `sitecustomize` first that there may be.
"""

import os

from epl.version import __file__ as _beside

VARIABLE = "EPL_TF1"
_FOLDER = os.path.join(os.path.dirname(os.path.abspath(_beside)), "tf1", "site")


def inherit(environment):
    """Makes Python processes that are started with an environment serve programs for TensorFlow 1.

    Args:
      environment: a mapping of variables, which is changed.
    """
    environment[VARIABLE] = "1"
    folders = [folder for folder in environment.get("PYTHONPATH", "").split(os.pathsep) if folder]
    if _FOLDER not in folders:
        environment["PYTHONPATH"] = os.pathsep.join([_FOLDER] + folders)
