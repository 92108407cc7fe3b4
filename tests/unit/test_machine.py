"""What a cluster can do: named machines, files, and what is wrong in a file."""

import json

import pytest
import yaml

from epl.cluster.machine import BFLOAT16, FLOAT16, LINKS, NOMINAL, Device, Link, from_dict, machine, names, write
from epl.config import Config
from epl.env import Env
from epl.errors import ConfigError
from tests.helpers.machines import simple_machine

pytestmark = pytest.mark.once


def test_nominal_costs_of_a_partition():
    """Groups, stages and partitions of models without a machine go by these."""
    assert NOMINAL.flops_per_link_byte == 1000.0
    assert NOMINAL.link_bytes_per_computed_byte == 1.0 / 16
    assert NOMINAL.worker.start_bytes == 16 * 1024
    device = NOMINAL.device
    assert (device.most_flops_per_s, device.memory_bytes_per_s, device.start_s) == (15.7e12, 900e9, 5e-6)


def test_links_by_where_workers_are():
    assert NOMINAL.link_between(["a:1"]) == NOMINAL.link_between(["a:1", "a:2"]) == NOMINAL.host
    assert NOMINAL.link_between(["a:1", "b:1"]) == NOMINAL.network


def test_speed_of_products_by_size_and_dtype():
    device = Device((("float16", ((1.0, 50.0),)), ("float32", ((1e3, 10.0), (1e5, 30.0)))), 1.0, 1.0, 0.0)
    assert [device.flops_per_s(flops) for flops in (1, 1e3, 1e4, 1e5, 1e9)] == [10, 10, 20, 30, 30]
    assert device.flops_per_s(1e9, FLOAT16) == 50 and device.flops_per_s(1e9, BFLOAT16) == 30
    assert device.most_flops_per_s == 30


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("suffix", ["yaml", "json"])
def test_a_machine_is_read_as_it_was_written(tmp_path, name, suffix):
    made, path = machine(name.lower()), str(tmp_path / ("m." + suffix))
    write(made, path)
    assert machine(path) == made and [p.name for p in tmp_path.iterdir()] == ["m." + suffix]


def test_a_file_by_hand(tmp_path):
    path = tmp_path / "ours.yaml"
    path.write_text(
        "name: ours\n"
        "device: {products: {float32: 1e13, float16: {1e6: 2e12, 1e9: 9e13}}, memory_bytes_per_s: 9e11,\n"
        "  elementwise_bytes_per_s: 8e11, start_s: 5e-6, memory_bytes: 16e9}\n"
        "links:\n"
        "  worker: {latency_s: 1e-5, bytes_per_s: 5e10}\n"
        "  host: {latency_s: 2e-5, bytes_per_s: 1e10, source: by hand}\n"
        "  network: {latency_s: 3e-5, bytes_per_s: 1e9}\n"
    )
    made = machine(str(path))
    assert made.device.memory_bytes == 16 * 10**9 and made.device.cores == 0
    assert made.device.flops_per_s(1e9, FLOAT16) == 9e13 and made.device.flops_per_s(1.0, FLOAT16) == 2e12
    assert made.worker == Link(1e-5, 5e10, "given") and made.host.source == "by hand"


def _without(values, path):
    found = json.loads(json.dumps(values))
    *way, last = path.split(".")
    part = found
    for key in way:
        part = part[key]
    del part[last]
    return found


@pytest.mark.parametrize(
    "missing",
    ["name", "links", "device.start_s", "device.products.float32", "links.network", "links.host.latency_s"],
)
def test_a_missing_figure_is_named(missing):
    with pytest.raises(ConfigError, match=r"^The file lacks %s; it has to say " % missing.replace(".", r"\.")):
        from_dict(_without(NOMINAL.to_dict(), missing), "The file")


@pytest.mark.parametrize(
    "change, message",
    [
        ({"device": dict(NOMINAL.to_dict()["device"], start_s=0)}, r"device\.start_s=0 is no positive number"),
        ({"device": dict(NOMINAL.to_dict()["device"], start_s=True)}, r"device\.start_s=True is no positive number"),
        ({"device": dict(NOMINAL.to_dict()["device"], speed=1)}, r"device\.speed is not known; known are products"),
        ({"links": []}, r"links has to hold %s" % ", ".join(LINKS)),
    ],
)
def test_a_wrong_figure_is_named(change, message):
    with pytest.raises(ConfigError, match="^The file: " + message):
        from_dict(dict(NOMINAL.to_dict(), **change), "The file")


def test_machines_that_are_not_there(tmp_path):
    with pytest.raises(ConfigError, match="There is no machine 'A10'. Did you mean 'A100'?"):
        machine("A10")
    with pytest.raises(ConfigError, match="cannot be read: .*No such file"):
        machine(str(tmp_path / "none.yaml"))
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    with pytest.raises(ConfigError, match="broken.json cannot be read"):
        machine(str(broken))


def test_the_configured_machine_is_the_clusters(monkeypatch, tmp_path):
    monkeypatch.setenv("EPL_DEVICE", "cpu")
    path = str(tmp_path / "ours.yaml")
    write(simple_machine(1.0, 2.0, 3.0, 4.0, 5.0), path)
    with open(path) as file:
        assert yaml.safe_load(file)["name"] == "simple"
    try:
        Env.get().reset(Config({"cluster.machine": path}))
        assert Env.get().cluster.machine.name == "simple"
        with pytest.raises(ConfigError, match="There is no machine 'K80'"):
            Env.get().reset(Config({"cluster.machine": "K80"}))
        assert Env.get().cluster.machine.name == "simple"  # nothing has changed
    finally:
        Env.get().reset()
    assert Env.get().cluster.machine == NOMINAL
