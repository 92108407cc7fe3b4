"""What the profilers' results of tests.helpers.programs.profiles must be."""

import collections

from epl.plan.cost.device_memory import ACTIVATIONS, KINDS
from tests.helpers.programs import common
from tests.helpers.programs.profiles import HIDDEN, INPUTS, OUTPUTS

ROWS = 4 * common.BATCH
# Forward, and the gradients of the kernels; the input of the first layer needs none.
PRODUCTS = 2 * ROWS * (2 * INPUTS * HIDDEN + 3 * HIDDEN * OUTPUTS)
_VARIABLES = (INPUTS + 1) * HIDDEN + (HIDDEN + 1) * OUTPUTS


def check(results, devices):
    """Of all workers' results, with that many devices each."""
    chief = results[0]
    names = ["worker %d CPU:%d" % (worker, device) for worker in range(len(results)) for device in range(devices)]
    for worker, got in enumerate(results):
        assert got["by_op"]["MatMul"] * len(results) == PRODUCTS
        assert got["by_op"]["MatMul"] < got["flops"] < 2 * got["by_op"]["MatMul"]
        assert got["rate"] > 0
        own = names if worker == 0 else [name for name in names if name.startswith("worker %d " % worker)]
        assert sorted(got["peaks"]) == sorted(own)
        assert worker == 0 or (got["picture"] is None and got["trace"] is None)
    assert [name for name in chief["files"] if "memory" in name or "timeline" in name] == [
        "memory-1.html",
        "memory-1.json",
        "timeline-1.json",
    ]
    _check_memory(chief, names)
    _check_trace(chief["trace"], names)


def _check_memory(chief, names):
    # Values and both moments of Adam; on the first device besides the step and the powers.
    floor = 3 * 4 * _VARIABLES
    for name in names:
        each = chief["memory"][name]
        assert each["peak"] == chief["peaks"][name] > each["variables"] >= floor
        # One page for both, which tells each by time or by operation, and where it is at its highest.
        measured, estimated = each["charts"]["measured"], each["charts"]["estimated"]
        assert measured["timed"] and not estimated["timed"]
        assert each["peak"] == measured["peak_bytes"] == max(point["total"] for point in measured["points"])
        assert each["estimated"] == estimated["peak_bytes"]
        # At least the activations of a device's share of the rows live until the backward pass.
        assert each["peak"] - each["variables"] >= 4 * HIDDEN * ROWS // len(names)
        assert "<h2>%s</h2>" % name in chief["picture"]
        # What optimizers keep, and what lives from the forward to the backward pass, is the same in both.
        assert measured["points"][0]["sizes"][:3] == estimated["points"][0]["sizes"][:3]
        # On a busy machine threads come in another order than the plan's, and free what they took at other times.
        most = _most(measured, ACTIVATIONS)
        assert 4 * HIDDEN * ROWS // len(names) <= most <= each["peak"] - each["variables"], (most, each["peak"])
    assert chief["picture"].count("<h3>measured: peak") == chief["picture"].count("<h3>estimated: peak") == len(names)


def _most(chart, kind):
    return max(point["sizes"][KINDS.index(kind)] for point in chart["points"])


def _check_trace(trace, names):
    processes = {e["pid"]: e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"}
    assert sorted(processes.values()) == sorted(names)
    rows = {(e["pid"], e["tid"]): e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"}
    bars = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    ragged, phases = collections.defaultdict(list), collections.defaultdict(set)
    for bar in bars:
        assert rows[bar["pid"], bar["tid"]].split(" (")[0] == bar["cat"]
        assert bar["ts"] >= 0 and bar["dur"] > 0
        ragged[bar["pid"], bar["tid"]].append((bar["ts"], bar["ts"] + bar["dur"]))
        phases[processes[bar["pid"]]].add(bar["cat"])
    for spans in ragged.values():
        spans.sort()
        assert all(one[1] <= other[0] for one, other in zip(spans, spans[1:]))
    for name in names:
        assert {"forward", "backward", "apply"} <= phases[name]
        # One collective operation takes the tensors of all devices of a worker; it runs on the first.
        assert ("communication" in phases[name]) >= name.endswith(":0")
    ops = {phase: {bar["args"]["op"] for bar in bars if bar["cat"] == phase} for phase in ("communication", "apply")}
    assert "EplAllReduce" in ops["communication"] and any("ApplyAdam" in op for op in ops["apply"])
    products = [bar for bar in bars if "MatMul" in bar["args"]["op"]]
    assert {bar["cat"] for bar in products} == {"forward", "backward"}
