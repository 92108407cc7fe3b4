"""An all-reduce between worker processes, started as a job is started, over all machines of a list if one is given."""

import json
import os
import subprocess
import sys
import tempfile

from epl.doctor.findings import fine, warning, wrong

# Starting TensorFlow twice on a busy machine, and meeting; what takes longer is a fault of its own.
_JOB_S = 240
_CLOCK_S = 1.0
PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "trial.py")


def exchange(options, seconds=_JOB_S):
    """Starts two workers, or one on each machine, that add up numbers; a list of Findings.

    Args:
      options: those of epl-launch that say where workers run, such as ["--machine_list", "a,b"], a list.
      seconds: after which it is ended.
    """
    what = "all-reduce"
    with tempfile.TemporaryDirectory(prefix="epl-doctor-") as folder:
        command = [sys.executable, "-m", "epl.launch", "--progress", "off"] + options + [PROGRAM, folder]
        try:
            ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=seconds)
        except subprocess.TimeoutExpired:
            advice = "Start `epl-launch --doctor` on all machines at the same time; let no firewall stand between them."
            return [wrong(what, "the workers had not met after %d s" % seconds, advice)]
        results = []
        for name in sorted(os.listdir(folder)):
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                results.append(json.load(file))
    if ended.returncode or not results:
        last = ended.stdout.decode("utf-8", "replace").strip().splitlines()[-12:]
        return [wrong(what, "the job ended with status %d" % ended.returncode, "\n".join(["Its last lines:"] + last))]
    return judge(results[0])


def judge(result):
    """The Findings of what a worker has left: see trial.py."""
    text = "%d workers through %s: %d MiB in %.1f ms, %.2f GB/s" % (
        result["workers"],
        result["through"],
        result["bytes"] // 2**20,
        result["seconds"] * 1e3,
        result["bytes"] / result["seconds"] / 1e9,
    )
    if not result["right"]:
        return [
            wrong("all-reduce", "the sum of %d workers is wrong" % result["workers"], "Report it, with this output.")
        ]
    findings = [fine("all-reduce", text)]
    if result["clocks_apart_s"] > _CLOCK_S:
        advice = "Let all machines follow one time server (NTP): the causes of failures are ordered by time."
        findings.append(warning("clocks", "the workers' differ by %.1f s" % result["clocks_apart_s"], advice))
    else:
        findings.append(fine("clocks", "the workers' differ by less than %g s" % _CLOCK_S))
    return findings
