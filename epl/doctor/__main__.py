"""python -m epl.doctor [FOLDER ...] [-- OPTIONS]: what `epl-launch --doctor` runs."""

import sys

from epl.doctor import exchange, folder, machine
from epl.doctor.findings import WRONG, lines, verdict


def checks(folders, options):
    """Findings, one after the other, as each is made.

    Args:
      folders: for checkpoints.
      options: of epl-launch, for the exchange between workers.
    """
    yield machine.python()
    found = machine.ask_tensorflow()
    yield machine.tensorflow(found)
    native = machine.native_part(found)
    yield native
    yield machine.compiler()
    yield machine.gpus(found)
    yield machine.cores()
    yield machine.shared_memory()
    yield machine.descriptors()
    yield machine.ports()
    yield machine.host_name()
    for path in folders:
        yield from folder.folder(path)
    if native.state != WRONG and "failure" not in found:
        yield from exchange.exchange(options)


def main(arguments):
    """Prints all findings; returns the exit status, 0 where nothing is wrong."""
    at = arguments.index("--") if "--" in arguments else len(arguments)
    findings = []
    for finding in checks(arguments[:at] or ["."], arguments[at + 1 :] or ["--num_workers", "2"]):
        findings.append(finding)
        print("\n".join(lines(finding)), flush=True)
    text, status = verdict(findings)
    print(text)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
