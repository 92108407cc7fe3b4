"""The picture of a step's memory, read back as XML."""

from xml.etree import ElementTree

import pytest

from epl.profiler.memory_profiler_hook import device_memory
from epl.profiler.picture import IDLE, memory_picture, ticks
from epl.profiler.trace import Execution


def ran(name, start, duration, memory):
    return Execution(name, "MatMul", "CPU:0", start, duration, [], [], None, memory)


class Forward:
    def of(self, execution):
        return "forward"


def test_a_device_that_does_nothing_is_pale():
    found = [ran("a", 100, 10, [(101, 64)]), ran("b", 105, 15, [(106, 32)]), ran("c", 900, 100, [(950, -64)])]
    memory = device_memory(found, Forward(), {"CPU:0": 8})["CPU:0"]
    assert memory["points"] == [
        [0, 72, "forward"],
        [5, 104, "forward"],
        [19, 104, IDLE],
        [799, 104, "forward"],
        [849, 40, "forward"],
    ]
    assert memory["peak"] == 104 and memory["largest"] == [["a", 64], ["b", 32]]
    svg = ElementTree.fromstring(memory_picture({"worker 0 CPU:0": memory}, "title"))
    fills = [(each.get("fill"), float(each.get("width"))) for each in svg if each.get("width", "0").count(".")]
    pale = max(fills, key=lambda fill: fill[1])
    assert pale == ("#e3e3e3", pytest.approx(900 * 780 / 849.0, abs=0.1))
    texts = [each.text for each in svg if each.text]
    assert IDLE in texts and ["0", "0.2", "0.4", "0.6", "0.8"] == [
        text for text in texts if text in "0 0.2 0.4 0.6 0.8"
    ]
    assert all(each.get("paint-order") == "stroke" for each in svg if each.text in ("peak", "variables"))


@pytest.mark.parametrize(
    "last, wanted", [(8.0, list(range(9))), (0.849, [0, 0.2, 0.4, 0.6, 0.8]), (0.001, [n * 0.0002 for n in range(6)])]
)
def test_ticks(last, wanted):
    assert ticks(last) == pytest.approx(wanted)
