"""What is measured of a machine: from times to figures, where they are kept, and what is said of times that spread."""

import os

import pytest
import tensorflow.compat.v1 as tf

from epl.calibrate import __main__ as command
from epl.calibrate import calibration, device, link_speed, timing
from epl.cluster import fingerprint
from epl.cluster.machine import FLOAT32, NOMINAL, Device, Link, flat, machine, measured
from epl.errors import ConfigError, WorkerError


@pytest.fixture(name="cache")
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("EPL_DEVICE", "cpu")
    return tmp_path


def test_hardware_is_told_apart(tmp_path):
    assert fingerprint.hardware(str(tmp_path))[2] == "0 GiB"
    for path, text in (
        ("proc/cpuinfo", "processor : 0\nmodel name\t: Some CPU @ 2 GHz\nmodel name\t: Some CPU @ 2 GHz\n"),
        ("proc/meminfo", "MemTotal:       16777216 kB\n"),
        ("proc/driver/nvidia/gpus/0000:01:00.0/information", "Model: \t\t Some GPU\nIRQ: 7\n"),
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    cores = "%d cores" % len(os.sched_getaffinity(0))
    assert fingerprint.hardware(str(tmp_path)) == ["Some CPU @ 2 GHz", cores, "16 GiB", "Some GPU"]


def test_the_file_follows_from_the_hardware(monkeypatch):
    first = fingerprint.machine_file({"XDG_CACHE_HOME": "/cache"})
    assert first.startswith("/cache/epl/machines/") and first.endswith(".yaml")
    assert fingerprint.machine_file({"XDG_CACHE_HOME": "/cache"}) == first
    assert fingerprint.machine_file({"HOME": "/else"}).startswith(os.path.expanduser("~/.cache/epl/machines/"))
    monkeypatch.setattr(fingerprint, "cores", lambda: 1024)
    assert fingerprint.machine_file({"XDG_CACHE_HOME": "/cache"}) != first


def test_what_was_measured_is_found_by_name(cache, monkeypatch, capsys):
    assert measured() is None
    with pytest.raises(ConfigError, match=r"nothing has been measured on this machine .* Run python -m epl.calibrate"):
        machine("measured")
    monkeypatch.setattr(command, "calibrate", lambda with_links: NOMINAL)
    assert command.main([]) == 0
    assert machine("Measured") == measured() == NOMINAL
    told = capsys.readouterr().out
    assert fingerprint.machine_file() in told and "memory 900 GB/s" in told and str(cache) in told


def test_what_cannot_be_measured_or_written_is_said(cache, monkeypatch, capsys):
    def fails(with_links):
        raise WorkerError("the workers of epl.run did not end well" if with_links else "no")

    with pytest.raises(SystemExit):
        command.main(["--output", str(cache / "ours.txt")])
    assert "has to end in .yaml or .json" in capsys.readouterr().err
    (cache / "file").write_text("")
    monkeypatch.setattr(command, "calibrate", lambda with_links: NOMINAL)
    assert command.main(["--output", str(cache / "file" / "ours.yaml")]) == 2
    assert "ours.yaml cannot be written" in capsys.readouterr().err
    monkeypatch.setattr(command, "calibrate", fails)
    assert command.main([]) == 2 and "WorkerError: the workers of epl.run" in capsys.readouterr().err


def test_times_that_spread_are_measured_again_and_warned_of(caplog):
    tries = [[1.0, 2.0, 3.0, 4.0, 5.0], [2.0, 2.1, 2.2, 2.1, 2.0]]
    assert timing.steady(lambda: tries.pop(0), "products") == pytest.approx(2.1)
    assert not tries and not caplog.text
    tries = [[1.0, 2.0, 3.0, 4.0, 5.0], [1.0, 3.0, 5.0, 7.0, 9.0], [0.0]]
    assert timing.steady(lambda: tries.pop(0), "copies in memory") == 3.0  # the try that spreads less
    assert len(tries) == 1  # twice, no more
    assert "times of copies in memory lie 67 % apart" in caplog.text and "Calibrate again" in caplog.text
    assert timing.steady(lambda: [-1.0, -1.0], "nothing") > 0


def test_a_link_is_what_explains_all_reduces():
    """Latency for each doubling of the ranks, and what a ring sends."""
    latency, speed = 1e-5, 4e9
    found = {}
    for ranks, doublings in ((2, 1), (4, 2)):
        for size in link_speed.SIZES:
            found[ranks, size] = doublings * latency + 2.0 * (ranks - 1) / ranks * size / speed
    link = link_speed.fitted(found)
    assert link.latency_s == pytest.approx(latency, rel=1e-3) and link.bytes_per_s == pytest.approx(speed, rel=1e-3)
    assert link.source == "measured by 4 workers"
    assert link_speed.fitted({(2, 4): 1.0, (2, 1 << 20): 1.0}).bytes_per_s == (1 << 20) / 0.5  # noise, not infinity


def test_what_an_operation_takes_is_without_the_sessions_own_time(monkeypatch):
    """Ten products take longer than one, whatever it is that a run takes besides."""
    monkeypatch.setattr(timing, "_MOST", 5)

    def products(count):
        def build(x):
            for _ in range(count):
                x = tf.matmul(x, x)
            return x

        return timing.times_of(build, [64, 64], most_s=0.01)

    assert len(products(1)) == 5
    with tf.Graph().as_default() as graph:
        assert products(3) and not graph.get_operations()  # of graphs of its own


def test_figures_of_a_device(monkeypatch):
    """Every run takes a second: the figures are what was moved and computed in it."""
    monkeypatch.setattr(device, "steady", lambda times, what: 1.0)
    found = device.measure_device(gpu=False)
    assert found.start_s == 1e-3 and found.cores == fingerprint.cores()
    # Eight products and their sum, of 4 MiB each; eight matrices of 4 MiB.
    assert found.elementwise_bytes_per_s == 25 * (4 << 20) and found.memory_bytes_per_s == 8 * (4 << 20)
    sizes = [flops for flops, _ in dict(found.products)[FLOAT32]]
    assert sizes == [2.0 * 64**3, 2.0 * 256**3, 2.0 * 1024**3]
    assert found.flops_per_s(sizes[-1]) == pytest.approx(sizes[-1] / (1 - 1e-3))


def test_links_of_a_machine(monkeypatch, cache):
    del cache
    mine = Device(flat(1e9), 2e9, 3e9, 1e-6, None, cores=2)
    monkeypatch.setattr(calibration, "measure_device", lambda gpu: mine)
    monkeypatch.setattr(calibration, "measure_link", lambda ranks: (Link(5.0, 6.0), {}))
    found = calibration.calibrate()
    assert found.device is mine and found.host == Link(5.0, 6.0) and found.network == NOMINAL.network
    assert found.worker.bytes_per_s == pytest.approx(2e9 / 3) and found.worker.latency_s == 1e-6  # sums in memory
    assert calibration.calibrate(links=False).host == NOMINAL.host
    assert found.name == ", ".join(fingerprint.hardware())
