"""What a plan costs, in words."""

from dataclasses import asdict

from epl.plan.cost.device_memory import KINDS
from epl.plan.report.timeline_page import seconds
from epl.plan.text import bytes_text, columns


def estimate_table(found):
    """An epl.plan.estimate.estimate.Estimate as text of a few lines."""
    slowest, fullest = found.slowest, found.fullest
    parts = [("computing", slowest.compute_s), ("waiting for exchanges", slowest.communication_s)]
    parts += [("waiting for other stages", slowest.bubble_s), ("sharing the host's cores", found.contention_s)]
    parts += [("bringing data to the device", found.input_s)]
    lines = [
        "Estimated for %s, a micro-batch of %d rows where the program leaves that open: %s a step"
        % (found.machine, found.batch, seconds(found.step_s)),
        "  %s" % ", ".join("%s %s" % (seconds(value), what) for what, value in parts if value),
        "  %s on the fullest device: %s"
        % (
            bytes_text(fullest.peak_bytes),
            ", ".join("%s %s" % (kind, bytes_text(fullest.bytes[kind])) for kind in KINDS if fullest.bytes.get(kind)),
        ),
    ]
    if len(found.stages) > 1:
        rows = [("device", "computing", "exchanges", "bubble", "memory")]
        for number, stage in enumerate(found.stages):
            times = [seconds(each) for each in (stage.compute_s, stage.communication_s, stage.bubble_s)]
            rows.append((str(number), *times, bytes_text(stage.peak_bytes)))
        lines += columns(rows)
    return "\n".join(lines)


def estimate_facts(found):
    """The same as a dict that can be saved as JSON."""
    return dict(asdict(found), peak_bytes=found.fullest.peak_bytes)
