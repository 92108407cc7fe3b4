"""What a trace says of a step's memory, from Executions made by hand."""

import json
import re

import pytest
import tensorflow.compat.v1 as tf

from epl.graph import tags
from epl.graph.index import Graph
from epl.graph.node_defs import make_node
from epl.plan.cost.device_memory import ACTIVATIONS, AGAIN, COMMUNICATION, GRADIENTS, KINDS, UPDATE, VARIABLES
from epl.plan.input.batch_rows import batch_rows
from epl.plan.report.memory_page import drawn, memory_page
from epl.profiler.memory_profiler_hook import device_memory, told
from epl.session.executions import Execution, Phases


def ran(name, start, duration, memory, device="CPU:0", op="MatMul"):
    return Execution(name, op, device, start, duration, [], [], None, memory)


class Named:
    """The phase of an operation is in its name."""

    def of(self, execution):
        return execution.name.partition("/")[0]


def measured(*found, lasting=None):
    return device_memory(list(found), Named(), lasting or {})["CPU:0"]


def totals(memory):
    return [(when, memory.at(place)) for place, when in enumerate(memory.times)]


def test_what_is_there_over_time():
    memory = measured(
        ran("forward/a", 100, 10, [(101, 64), (950, -64)]),
        ran("forward/b", 105, 15, [(106, 32)]),
        ran("backward/c", 900, 100, []),
        lasting={"CPU:0": {VARIABLES: 8}},
    )
    assert totals(memory) == [(0, 8), (1, 72), (6, 104), (850, 40), (900, 40)]
    assert memory.peak_bytes == 104
    assert memory.largest == (("forward/a", ACTIVATIONS, 64), ("forward/b", ACTIVATIONS, 32))
    assert memory.tensors == (("forward/a", ACTIVATIONS, 64, 1, 3), ("forward/b", ACTIVATIONS, 32, 2, 5))


def test_memory_is_of_the_kind_of_the_operation_that_took_it():
    memory = measured(
        ran("forward/a", 0, 1, [(0, 1)]),
        ran("backward/b", 1, 1, [(1, 2)]),
        ran("backward/epl_recompute/b", 2, 1, [(2, 4)]),
        ran("communication/c", 3, 1, [(3, 8)]),
        ran("apply/d", 4, 1, [(4, 16)]),
        ran("other/e", 5, 1, [(5, 32)]),
    )
    wanted = {ACTIVATIONS: 33, GRADIENTS: 2, AGAIN: 4, COMMUNICATION: 8, UPDATE: 16}
    assert {kind: memory.peak_of(kind) for kind in wanted} == wanted


def test_what_comes_and_goes_in_one_microsecond_is_not_added_up():
    memory = measured(ran("forward/a", 0, 9, [(0, 64), (5, -64)]), ran("forward/b", 5, 4, [(5, 64)]))
    assert totals(memory) == [(0, 64), (5, 64), (9, 64)] and memory.peak_bytes == 64


def test_a_device_that_begins_later_has_its_variables_meanwhile():
    found = [ran("forward/a", 0, 400, [(0, 64)]), ran("forward/b", 400, 600, [(400, 64)], "CPU:1")]
    memory = device_memory(found, Named(), {"CPU:0": {VARIABLES: 8}, "CPU:1": {VARIABLES: 8}})["CPU:1"]
    assert totals(memory) == [(0, 8), (400, 72), (1000, 72)]


def test_the_page_draws_both_with_one_scale():
    high = measured(ran("forward/a", 0, 10, [(0, 4 << 20), (5, -4 << 20)]))
    low = measured(ran("forward/a", 0, 10, [(0, 1 << 20)]))
    page = memory_page({"worker 0 CPU:0": told(low, high)["charts"]}, "title")
    assert "<h3>estimated: peak 4.0 MiB</h3>" in page and "<h3>measured: peak 1.0 MiB</h3>" in page
    first, second = re.findall(r'<polygon fill="#e0b93a" points="(.*?)"', page)
    tops = [min(float(corner.split(",")[1]) for corner in each.split()) for each in (first, second)]
    assert 260 - tops[1] == pytest.approx((260 - tops[0]) / 4, abs=0.2)
    # A tensor stays until it is given back: the area is a step, not a slope.
    assert first.split()[:4] == ["100.0,12.4", "570.0,12.4", "570.0,260.0", "1040.0,260.0"]
    data = [json.loads(text) for text in re.findall(r'<script type="application/json">(.*?)</script>', page, re.S)]
    assert [each["timed"] for each in data] == [True, True] and data[0]["end"] == 10


def test_a_page_of_a_small_model_has_numbers_and_a_legend_of_what_is_there():
    small = measured(ran("forward/a", 0, 10, [(0, 512)]))
    page = memory_page({"worker 0 CPU:0": {"measured": drawn(small)}}, "title")
    assert "<h3>measured: peak 512 bytes</h3>" in page and ">400 bytes</text>" in page and ">peak 512 bytes<" in page
    assert re.findall(r"</i>(.*?)</li>", page) == [ACTIVATIONS]


def test_all_devices_of_a_page_have_one_scale_and_a_line_for_what_they_have():
    high = {"measured": drawn(measured(ran("forward/a", 0, 10, [(0, 4 << 20)])))}
    low = {"measured": drawn(measured(ran("forward/a", 0, 10, [(0, 1 << 20)])))}
    devices = {"worker 0 CPU:0": high, "worker 1 CPU:0": low}
    pages = [memory_page(devices, "title", capacity) for capacity in (None, 8 << 20, 1 << 40)]
    for page, top in zip(pages, (4, 8, 4)):
        corners = [each.split()[0] for each in re.findall(r'<polygon fill="#e0b93a" points="(.*?)"', page)]
        heights = [260 - float(corner.split(",")[1]) for corner in corners]
        assert heights == pytest.approx([260 / 1.05 * 4 / top, 260 / 1.05 / top], abs=0.2)
    assert [page.count("the device has 8.0 MiB") for page in pages] == [0, 2, 0]
    assert "Each device has 1024.0 GiB, which is above the charts." in pages[2]


def test_the_rows_of_a_batch_are_those_of_data_that_is_left_open():
    nodes = [make_node("Placeholder", name, []) for name in ("open", "fixed", "any")] + [make_node("MatMul", "y", [])]
    for node, sizes in zip(nodes, ([-1, 4], [1000, 4])):
        for size in sizes:
            node.attr["shape"].shape.dim.add(size=size)
    nodes[2].attr["shape"].shape.unknown_rank = True
    graph = Graph.from_graph_def(tf.GraphDef(node=nodes))
    shapes = {"open": [(16, 4)], "fixed": [(1000, 4)], "y": [(2000, 4)], "elsewhere": [(3000,)]}
    assert batch_rows(graph, shapes) == 16
    assert batch_rows(graph, {"open": [()], "any": [(8,)]}) == 8
    assert batch_rows(graph, {"fixed": [(1000, 4)], "open": [None]}) is None


def test_phases_come_from_tags():
    node = make_node("MatMul", "a", [])
    node.attr[tags.PHASE].s = tags.BACKWARD.encode()
    phases = Phases(Graph.from_graph_def(tf.GraphDef(node=[node])))
    memory = device_memory([ran("a/_1", 0, 1, [(0, 5)])], phases, {})["CPU:0"]
    assert memory.peak_of(GRADIENTS) == memory.peak_bytes == 5
    assert memory.points[0][1][KINDS.index(GRADIENTS)] == 5
