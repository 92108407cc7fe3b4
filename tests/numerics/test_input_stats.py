"""io.stats tells how long steps waited for data; neither it nor io.autotune changes a number."""

import re

PROGRAM = "tests.helpers.programs.waits:train"


def test_a_line_for_every_hundred_steps(two_devices):
    losses, lines = two_devices(PROGRAM, {"io.stats": True, "io.autotune": True}, 205)
    want, none = two_devices(PROGRAM, {}, 205)
    assert losses == want and none == []
    found = [
        re.match(r"io.stats: steps (\d+) to (\d+) took ([0-9.]+) ms each, and waited ([0-9.]+) ms", n) for n in lines
    ]
    assert [match.group(1, 2) for match in found] == [("1", "100"), ("101", "200")]
    assert all(0 <= float(match.group(4)) <= float(match.group(3)) for match in found)
