"""Checks what static tools see of `import epl`: a program's right calls, and the wrong ones that an editor marks."""

import json
import os
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Lines that end with a mark are to be found, by the rule that it names; the others are right.
PROGRAM = """\
import epl

config = epl.Config({"pipeline.num_micro_batch": 4}, {})
config.to_yaml("run.yaml")
epl.init(config)
epl.init()
epl.set_default_strategy(epl.replicate(1))
with epl.replicate(device_count=2, name="bottom"), epl.recompute():
    index: int = epl.Env.get().cluster.worker_index
with epl.split():
    part: str = epl.shard("value", 0)
epl.add_to_collection([part], epl.GraphKeys.GLOBAL_MEAN_OBJECTS)
hook = epl.profiler.flops.FlopsProfilerHook()
optimizer = epl.optimizers.LambOptimizer(0.1)
text: str = epl.VERSION + epl.__version__
epl.replicat(1)  # reportAttributeAccessIssue
epl.ops.all_reduced(1)  # reportAttributeAccessIssue
epl.replicate("a")  # reportArgumentType
epl.split(2, 3)  # reportArgumentType
epl.replicate(1, count=2)  # reportCallIssue
epl.init({"pipeline.num_micro_batch": 4})  # reportArgumentType
epl.set_default_strategy(1)  # reportArgumentType
number: int = epl.Env.get().cluster.device_type  # reportAssignmentType
"""
SETTINGS = {"include": ["program.py"], "extraPaths": [ROOT], "pythonVersion": "3.9", "reportMissingModuleSource": False}


def found(program):
    """(line, rule) of the errors that pyright finds in a program."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in (("program.py", program), ("pyrightconfig.json", json.dumps(SETTINGS))):
            with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                file.write(text)
        environ = dict(os.environ, PYRIGHT_PYTHON_IGNORE_WARNINGS="1")
        command = [sys.executable, "-m", "pyright", "--outputjson", "-p", folder]
        ended = subprocess.run(command, stdout=subprocess.PIPE, env=environ, timeout=300)
    told = json.loads(ended.stdout.decode("utf-8"))["generalDiagnostics"]
    return sorted((each["range"]["start"]["line"] + 1, each["rule"]) for each in told if each["severity"] == "error")


def wanted(program):
    """What the program's marks say, in the same form."""
    lines = enumerate(program.splitlines(), 1)
    return [(number, line.partition("  # ")[2]) for number, line in lines if "  # " in line]


def main():
    seen, marked = found(PROGRAM), wanted(PROGRAM)
    lines = PROGRAM.splitlines()
    for number, rule in seen:
        if (number, rule) not in marked:
            print("marked, though it is right, or by another rule: %s (%s)" % (lines[number - 1], rule))
    for number, rule in marked:
        if (number, rule) not in seen:
            print("not found: %s" % lines[number - 1])
    sys.exit(seen != marked)


if __name__ == "__main__":
    main()
