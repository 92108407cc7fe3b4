"""Two hosts on one machine: network namespaces with a cable between them. Needs root (CAP_NET_ADMIN) and iproute2."""

import os
import shutil
import subprocess

_LIMIT_S = 30
_PREFIX = "10.213.77."


class Unavailable(Exception):
    """Namespaces cannot be made here; the text says why."""


def run(arguments):
    """Runs a command of iproute2; Unavailable carries what it said."""
    if shutil.which(arguments[0]) is None:
        raise Unavailable("%s is missing (Debian and Ubuntu: apt-get install iproute2)" % arguments[0])
    result = subprocess.run(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=_LIMIT_S)
    if result.returncode:
        raise Unavailable("%s: %s" % (" ".join(arguments), result.stdout.decode("utf-8", "replace").strip()))


class Hosts(object):
    """Two hosts, 0 and 1, that reach only each other. A context manager; everything is gone at its end.

    Raises:
      Unavailable: not permitted here, or tools are missing.
    """

    def __init__(self):
        self._names = ["epl%d%s" % (os.getpid(), letter) for letter in "ab"]
        self._made = []

    def __enter__(self):
        try:
            for name in self._names:
                run(["ip", "netns", "add", name])
                self._made.append(name)
            first, second = self._names
            ends = ["name", "cable", "netns", first, "type", "veth", "peer", "name", "cable", "netns", second]
            run(["ip", "link", "add"] + ends)
            for host, name in enumerate(self._names):
                run(["ip", "-n", name, "address", "add", self.address(host) + "/24", "dev", "cable"])
                run(["ip", "-n", name, "link", "set", "cable", "up"])
                run(["ip", "-n", name, "link", "set", "lo", "up"])
        except Exception:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        # The cable goes with its namespaces.
        while self._made:
            subprocess.run(["ip", "netns", "delete", self._made.pop()], stderr=subprocess.DEVNULL, timeout=_LIMIT_S)

    @staticmethod
    def address(host):
        return _PREFIX + str(host + 1)

    def inside(self, host, arguments):
        """The command that runs `arguments` on that host."""
        return ["ip", "netns", "exec", self._names[host]] + list(arguments)

    def cut(self):
        """Takes the cable away: nothing arrives any more, and nobody is told."""
        run(["ip", "-n", self._names[0], "link", "set", "cable", "down"])

    def shape(self, *discipline):
        """Sets the queueing discipline of both ends, in the words of tc."""
        for name in self._names:
            run(["tc", "-n", name, "qdisc", "replace", "dev", "cable", "root"] + list(discipline))

    def limit_rate(self, gbit_per_s):
        # What may pass at once, after a pause, is one of the largest packets (64 KiB and its heads, or the system would
        # cut each into small ones, which network cards do for it): a cable lets nothing pass any faster.
        self.shape("tbf", "rate", "%dmbit" % int(gbit_per_s * 1000), "burst", "70kb", "latency", "50ms")

    def lose_packets(self):
        """Loses some packets in each direction: at random where the kernel can do that, else when a short queue is
        full. Returns what it did."""
        try:
            self.shape("netem", "loss", "1%")
            return "1% of packets, at random"
        except Unavailable:
            self.shape("tbf", "rate", "200mbit", "burst", "64kb", "limit", "96kb")
            return "packets that find a queue of 96 KB full"

    def delay(self, milliseconds):
        """Every packet takes so much longer in each direction."""
        self.shape("netem", "delay", "%dms" % milliseconds)

    def dropped(self):
        """The number of packets that the discipline has dropped, both ends together."""
        total = 0
        for name in self._names:
            command = ["tc", "-s", "-n", name, "qdisc", "show", "dev", "cable"]
            text = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=_LIMIT_S).stdout.decode()
            total += int(text.split("dropped ")[1].split(",")[0])
        return total
