"""Hierarchical all-reduce against flat ones over TCP and Gloo, on two simulated hosts of two ranks, in one run.

`python benchmarks/hierarchical/run.py [--gbit 2] [--mb 1 16] [--rounds 15]`

The hosts are network namespaces of this machine (root and iproute2 are needed). The back ends take turns round by
round, so that other load meets both. Without --gbit the cable between the hosts is as fast as the CPUs copy, which no
real network is; with it, both directions are limited to that rate.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, ROOT)

from tests.helpers.hosts import Hosts, Unavailable  # noqa: E402

LIBRARY = os.path.join(ROOT, "epl", "communicators", "lib")
BACKENDS = ("hierarchical", "tcp", "gloo")
HOSTS, RANKS_A_HOST = 2, 2
LIMIT_S = 600


def build(folder):
    if not os.path.exists(os.path.join(LIBRARY, "libepl_comm.so")):
        sys.exit("epl/communicators/lib/libepl_comm.so is not built; run `make csrc`")
    program = os.path.join(folder, "rank")
    command = [os.environ.get("CXX", "g++"), "-O2", "-std=c++17", os.path.join(HERE, "all_reduce_rank.cc")]
    command += ["-I" + os.path.join(ROOT, "csrc", part) for part in ("comm", "tests")]
    command += ["-L" + LIBRARY, "-lepl_comm", "-Wl,-rpath," + LIBRARY, "-pthread", "-o", program]
    subprocess.run(command, check=True, timeout=LIMIT_S)
    return program


def measure(hosts, program, size_mb, rounds):
    """{back end: milliseconds of each round}"""
    with tempfile.TemporaryDirectory() as store:
        ranks = []
        try:
            for rank in range(HOSTS * RANKS_A_HOST):
                host = rank // RANKS_A_HOST
                arguments = [store, rank, HOSTS * RANKS_A_HOST, hosts.address(host), size_mb << 20, rounds]
                command = hosts.inside(host, [program] + [str(each) for each in arguments] + list(BACKENDS))
                ranks.append(subprocess.Popen(command, stdout=subprocess.PIPE))
            text = ranks[0].communicate(timeout=LIMIT_S)[0].decode()
            if any(rank.wait(LIMIT_S) for rank in ranks):
                sys.exit("a rank failed, see above")
        finally:
            for rank in ranks:
                if rank.poll() is None:
                    rank.kill()
                rank.stdout.close()
                rank.wait()
    lines = [line.split() for line in text.splitlines()]
    return {line[0]: [float(each) for each in line[1:]] for line in lines}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gbit", type=float, default=0, help="rate of the cable in Gbit/s; default: not limited")
    parser.add_argument("--mb", type=int, nargs="+", default=[1, 16], help="sizes of the message in MB")
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory() as folder, Hosts() as hosts:
            program = build(folder)
            if args.gbit:
                hosts.limit_rate(args.gbit)
            cable = "limited to %g Gbit/s each way" % args.gbit if args.gbit else "not limited: memory speed"
            print("%d hosts of %d ranks on %d CPUs; cable %s" % (HOSTS, RANKS_A_HOST, os.cpu_count(), cable))
            print(
                "%6s %16s %10s %10s %10s %10s"
                % ("MB", "hierarchical ms", "tcp ms", "gloo ms", "tcp/hier.", "gloo/hier.")
            )
            for size_mb in args.mb:
                found = measure(hosts, program, size_mb, args.rounds)
                ours, tcp, gloo = (statistics.median(found[backend]) for backend in BACKENDS)
                row = (size_mb, ours, tcp, gloo, tcp / ours, gloo / ours)
                print("%6d %16.2f %10.2f %10.2f %10.2f %10.2f" % row, flush=True)
    except Unavailable as reason:
        sys.exit("two hosts cannot be simulated here: %s" % reason)


if __name__ == "__main__":
    main()
