"""python -m epl.doctor [FOLDER ...] [-- OPTIONS]: what `epl-launch --doctor` runs."""

import sys

from epl.doctor import exchange, folder, this_machine
from epl.doctor.findings import WRONG, lines, verdict


def checks(folders, options):
    """Findings, one after the other, as each is made.

    Args:
      folders: for checkpoints.
      options: of epl-launch, for the exchange between workers.
    """
    yield this_machine.python()
    found = this_machine.ask_tensorflow()
    yield this_machine.tensorflow(found)
    native = this_machine.native_part(found)
    yield native
    yield this_machine.compiler()
    yield this_machine.gpus(found)
    yield this_machine.cores()
    yield this_machine.shared_memory()
    yield this_machine.descriptors()
    yield this_machine.ports()
    yield this_machine.host_name()
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
