"""Packages by others, in a folder of their own beside the environment of the line tf1: scripts/setup_others.sh."""

import importlib
import os
import sys

from tests.helpers import processes

PACKAGES = os.path.join(processes.REPOSITORY, ".venv", "others")


def module(name):
    """A module of the folder, which comes last on the path: what the environment has stays what is used."""
    if PACKAGES not in sys.path:
        sys.path.append(PACKAGES)
    return importlib.import_module(name)
