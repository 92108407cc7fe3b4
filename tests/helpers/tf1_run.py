"""Runs a program that was written for TensorFlow 1 in this process and writes what it told as JSON.

    python [-m epl.tf1] -m tests.helpers.tf1_run MODULE:FUNCTION FILE

Programs by others (tests/helpers/programs) run without EPL. Their variables are given values that follow from names and
shapes, as first values are drawn otherwise where a layer is made of other operations.
"""

import importlib
import inspect
import json
import sys
import tempfile

import numpy as np
import tensorflow.compat.v1 as tf

from tests.helpers.programs import common
from tests.helpers.programs.contrib import value_of

OF_CONTRIB = "contrib"


def main(program, path):
    module, name = program.split(":")
    function = getattr(importlib.import_module("tests.helpers.programs." + module), name)
    told = function() if module == OF_CONTRIB else {"training": _of_others(function)}
    told = {key: dict(each, numbers=[summary(numbers) for numbers in each["numbers"]]) for key, each in told.items()}
    with open(path, "w") as out:
        json.dump(told, out, sort_keys=True)


def summary(numbers):
    """A few numbers that tell an array from others: its shape, sums, and what is at some places."""
    values = np.asarray(numbers, float)
    flat = values.ravel()
    waves = np.cos(np.arange(flat.size))
    finite = np.where(np.isfinite(flat), flat, 0.0)
    places = sorted({0, flat.size // 3, flat.size - 1} - {-1})
    sums = [float(np.sum(np.abs(finite))), float(np.dot(finite, waves)), float(np.sum(~np.isfinite(flat)))]
    return [list(values.shape), sums + [float(finite[place]) for place in places]]


def _of_others(function):
    common.initialize = _initialize
    arguments = {"units": (1, 1, 1, 1)} if function.__name__ == "resnet" else {}
    with tempfile.TemporaryDirectory() as folder:
        if "folder" in inspect.signature(function).parameters:
            arguments["folder"] = folder
        found = function(None, **arguments)
    names = {name: list(np.shape(value)) for name, value in (found.get("states") or [{}])[-1].items()}
    return {"numbers": [np.asarray(found["losses"], float).ravel().tolist()], "names": names}


def _initialize(sess):
    sess.run([tf.global_variables_initializer(), tf.local_variables_initializer(), tf.tables_initializer()])
    for variable in tf.trainable_variables():
        if variable.dtype.base_dtype.is_floating and len(variable.shape) > 1:
            scale = 2.0 / np.sqrt(float(np.prod(variable.shape.as_list()[:-1])))
            variable.load((value_of(variable) * scale).astype(variable.dtype.base_dtype.as_numpy_dtype), sess)


if __name__ == "__main__":
    main(*sys.argv[1:])
