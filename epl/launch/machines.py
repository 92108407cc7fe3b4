"""Which machines run which workers, and at which addresses."""

import os
import random
import re
import socket

from epl.errors import LaunchError

# First port on a machine of the list that names none; worker k of that machine has this port + k.
DEFAULT_PORT = 21000
# Where free ports are looked for: below those that Linux gives to outgoing connections, which come and go.
_PORT_RANGE = (15000, 32000)

_MACHINE = re.compile(r"^(\[[0-9A-Fa-f:.%]+\]|[^\s:\[\]/,]+)(?::(\d{1,5}))?$")


def place_workers(num_workers, machine_list=None, machine_rank=None):
    """Addresses of all workers and the indices of those that this machine runs.

    Args:
      num_workers: workers on all machines together.
      machine_list: value of `--machine_list`, or None for this machine alone.
      machine_rank: this machine's place in the list; None: found by its address.

    Returns:
      (addresses: "host:port" by worker, local: range of worker indices).

    Raises:
      LaunchError: the list is wrong, workers cannot be divided evenly, or this machine is not in the list.
    """
    if machine_list is None:
        return ["127.0.0.1:%d" % port for port in free_ports(num_workers)], range(num_workers)
    machines = read_machines(machine_list)
    if num_workers % len(machines):
        raise LaunchError(
            "--num_workers %d cannot be divided evenly over the %d machines of --machine_list: %d x %d = "
            "%d. Use a multiple of %d."
            % (
                num_workers,
                len(machines),
                len(machines),
                num_workers // len(machines),
                num_workers // len(machines) * len(machines),
                len(machines),
            )
        )
    each = num_workers // len(machines)
    addresses = ["%s:%d" % (host, port + worker) for host, port in machines for worker in range(each)]
    doubles = sorted({address for address in addresses if addresses.count(address) > 1})
    if doubles:
        raise LaunchError(
            "--machine_list gives %s to two workers. Name each machine once, or with ports at least %d "
            "apart." % (doubles[0], each)
        )
    if max(port for _, port in machines) + each - 1 > 65535:
        raise LaunchError("--machine_list: ports end at 65535, and each machine needs %d from its port on." % each)
    rank = _rank_of_this_machine(machines) if machine_rank is None else machine_rank
    if rank >= len(machines):
        raise LaunchError(
            "--machine_rank %d does not fit --machine_list, which has %d machine%s: it must be from 0 to "
            "%d." % (rank, len(machines), "" if len(machines) == 1 else "s", len(machines) - 1)
        )
    return addresses, range(rank * each, (rank + 1) * each)


def read_machines(machine_list):
    """[(host, port)] from "ip[:port],ip[:port]" or from a file with one a line, where # begins a comment."""
    if os.path.isfile(machine_list):
        with open(machine_list, encoding="utf-8", errors="replace") as stream:
            entries = [line.split("#")[0].strip() for line in stream]
        entries = [entry for entry in entries if entry]
        where = "file %s" % machine_list
    else:
        entries = [entry.strip() for entry in machine_list.split(",")]
        where = "--machine_list"
    if not entries:
        raise LaunchError("%s names no machine." % where)
    machines = []
    for entry in entries:
        match = _MACHINE.match(entry)
        port = int(match.group(2) or DEFAULT_PORT) if match else 0
        if not 0 < port < 65536:
            hint = "" if machine_list != entry else " There is no file of that name either."
            raise LaunchError(
                '%s: %r is not of the form "ip" or "ip:port" with a port from 1 to 65535.%s' % (where, entry, hint)
            )
        machines.append((match.group(1), port))
    if len(machines) == 1 and machines[0][0] == machine_list and not _resolves(machine_list):
        raise LaunchError(
            "--machine_list %s: there is no file of that name, and no machine either. Give addresses as in "
            '"10.0.0.1,10.0.0.2", or a file with one a line.' % machine_list
        )
    return machines


def _resolves(host):
    try:
        return bool(socket.getaddrinfo(host.strip("[]"), None))
    except OSError:
        return False


def _rank_of_this_machine(machines):
    if len(machines) == 1:
        return 0
    own = [rank for rank, (host, _) in enumerate(machines) if _is_here(host)]
    if len(own) != 1:
        raise LaunchError(
            "%s of --machine_list %s this machine. Say which one it is with --machine_rank, from 0 to %d."
            % ("no address" if not own else "several addresses", "is" if not own else "are", len(machines) - 1)
        )
    return own[0]


def _is_here(host):
    """Whether `host` is an address of this machine: only those can be bound."""
    try:
        found = socket.getaddrinfo(host.strip("[]"), 0, type=socket.SOCK_STREAM)
    except OSError:
        return False
    for family, kind, protocol, _, address in found:
        with socket.socket(family, kind, protocol) as probe:
            try:
                probe.bind(address)
                return True
            except OSError:
                continue
    return False


def free_ports(count):
    """`count` different TCP ports of the loopback interface on which nobody listens now.

    Raises:
      LaunchError: there are not enough.
    """
    ports = []
    for port in random.SystemRandom().sample(range(*_PORT_RANGE), 4000):
        if len(ports) == count:
            break
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        ports.append(port)
    if len(ports) < count:
        raise LaunchError("found only %d free TCP ports for %d workers." % (len(ports), count))
    return ports
