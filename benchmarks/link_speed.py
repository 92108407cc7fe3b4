"""What workers measure of the network between them, against the rate that `tc` holds a cable to; needs root.

    python benchmarks/link_speed.py [--gbit 0.1 1]

Two hosts, which are network namespaces, with two ranks each. Prints what every rank has found, and ends with status 1
where one of them has found more than 1.5 times what the cable can keep up: each host sends as many bytes as a message
has, and what passes at once, as into any queue, should not count.
"""

import argparse
import os
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from tests.helpers.hosts import Hosts, Unavailable  # noqa: E402
from tests.multiproc.test_hosts import ranks  # noqa: E402

_ALLOWED = 1.5


def measured(gbit):
    """What each rank has found, where the cable has that rate in Gbit/s."""
    with tempfile.TemporaryDirectory() as folder, Hosts() as hosts:
        hosts.limit_rate(gbit)
        with ranks(hosts, folder, "speed") as job:
            return job.results("found")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gbit", nargs="+", type=float, default=[0.1, 1.0], help="rates of the cable, in Gbit/s")
    status = 0
    for gbit in parser.parse_args().gbit:
        limit = gbit * 1e9 / 8
        try:
            found = measured(gbit)
        except Unavailable as reason:
            sys.exit("two hosts cannot be simulated here: %s" % reason)
        for rank, each in enumerate(found):
            ratio = each["bytes_per_s"] / limit
            print(
                "%g Gbit/s, rank %d: %.1f MB/s, ratio %.2f; latency %.0f us"
                % (gbit, rank, each["bytes_per_s"] / 1e6, ratio, each["latency_s"] * 1e6)
            )
            status = max(status, int(ratio > _ALLOWED))
    return status


if __name__ == "__main__":
    sys.exit(main())
