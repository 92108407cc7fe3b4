"""Runs at the start of each Python process below one that serves programs for TensorFlow 1 (epl.tf1.children)."""

import importlib
import importlib.machinery
import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _run_the_other():
    """Runs the `sitecustomize` that this one is found before, if there is one."""
    elsewhere = [folder for folder in sys.path if os.path.abspath(folder or ".") != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


_run_the_other()
# Only Pythons that have EPL: a program may start others, of another environment.
if os.environ.get("EPL_TF1") == "1" and importlib.util.find_spec("epl") is not None and sys.version_info >= (3, 9):
    importlib.import_module("epl.tf1")
