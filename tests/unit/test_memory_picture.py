"""The picture of a step's memory, read back as XML."""

from xml.etree import ElementTree

import pytest

from epl.profiler.memory_profiler_hook import device_memory
from epl.profiler.picture import IDLE, memory_picture, ticks
from epl.profiler.trace import Execution


def ran(name, start, duration, memory, device="CPU:0"):
    return Execution(name, "MatMul", device, start, duration, [], [], None, memory)


class Named:
    """The phase of an operation is in its name."""

    def of(self, execution):
        return execution.name.partition("/")[0]


def test_a_device_that_does_nothing_is_pale():
    found = [
        ran("forward/a", 100, 10, [(101, 64)]),
        ran("forward/b", 105, 15, [(106, 32)]),
        ran("forward/c", 900, 100, [(950, -64)]),
    ]
    memory = device_memory(found, Named(), {"CPU:0": 8})["CPU:0"]
    assert memory["points"] == [
        [0, 8, "forward"],
        [1, 72, "forward"],
        [6, 104, "forward"],
        [20, 104, IDLE],
        [800, 104, "forward"],
        [850, 40, "forward"],
        [900, 40, IDLE],
    ]
    assert memory["peak"] == 104 and memory["largest"] == [["forward/a", 64], ["forward/b", 32]]
    svg = ElementTree.fromstring(memory_picture({"worker 0 CPU:0": memory}, "title"))
    fills = [(each.get("fill"), float(each.get("width"))) for each in svg if each.get("width", "0").count(".")]
    pale = max(fills, key=lambda fill: fill[1])
    assert pale == ("#e3e3e3", pytest.approx(780.5, abs=0.1))
    texts = [each.text for each in svg if each.text]
    assert IDLE in texts and ["0", "0.2", "0.4", "0.6", "0.8"] == [
        text for text in texts if text in "0 0.2 0.4 0.6 0.8"
    ]
    assert all(each.get("paint-order") == "stroke" for each in svg if each.text in ("peak", "variables"))


def test_the_colour_is_of_what_runs_not_of_whose_memory_changes():
    found = [
        ran("forward/a", 0, 10, [(0, 64), (25, -64)]),  # its tensor is given back while nothing runs
        ran("backward/b", 10, 10, [(10, 32), (45, -32)]),  # and this one's during the update
        ran("communication/c", 30, 60, []),
        ran("apply/d", 40, 10, [(40, 8)]),
    ]
    memory = device_memory(found, Named(), {"CPU:0": 0})["CPU:0"]
    assert memory["points"] == [
        [0, 64, "forward"],
        [10, 96, "backward"],
        [20, 96, IDLE],
        [25, 32, IDLE],
        [30, 32, "communication"],
        [40, 40, "apply"],
        [45, 8, "apply"],
        [50, 8, "communication"],
        [90, 8, IDLE],
    ]


def test_a_device_that_begins_later_has_its_variables_meanwhile():
    found = [ran("forward/a", 0, 400, [(0, 64)]), ran("forward/b", 400, 600, [(400, 64)], "CPU:1")]
    memory = device_memory(found, Named(), {"CPU:0": 8, "CPU:1": 8})
    assert memory["CPU:1"]["points"] == [[0, 8, IDLE], [400, 72, "forward"], [1000, 72, IDLE]]
    svg = ElementTree.fromstring(memory_picture(memory, "title"))
    assert [each.text for each in svg if each.text in ("0.4", "1")] == 2 * ["0.4", "1"]  # one axis for all devices


def test_words_of_near_lines_do_not_cover_each_other():
    memory = {"peak": 101 << 20, "variables": 100 << 20, "points": [[0, 100 << 20, IDLE], [10, 101 << 20, "forward"]]}
    svg = ElementTree.fromstring(memory_picture({"worker 0 CPU:0": memory}, "title"))
    for first, second in (("peak", "variables"), ("101.0 MiB", "100.0 MiB")):
        heights = {each.text: float(each.get("y")) for each in svg if each.text in (first, second)}
        assert heights[second] - heights[first] >= 12


@pytest.mark.parametrize(
    "last, wanted", [(8.0, list(range(9))), (0.849, [0, 0.2, 0.4, 0.6, 0.8]), (0.001, [n * 0.0002 for n in range(6)])]
)
def test_ticks(last, wanted):
    assert ticks(last) == pytest.approx(wanted)
