"""epl-launch before any process starts: command line, machines, devices, cores, variables."""

import json
import os
import socket
import subprocess
import sys

import pytest

from epl.config import Config
from epl.errors import ConfigError, LaunchError
from epl.launch import environment, machines
from epl.launch.main import USAGE_STATUS, main
from epl.launch.options import parse, script_command
from epl.version import __version__

pytestmark = pytest.mark.once


@pytest.fixture(name="folder")
def folder_fixture(tmp_path, monkeypatch):
    """Current directory with run.sh and train.py."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.sh").write_text("true\n")
    (tmp_path / "train.py").write_text("")
    return tmp_path


# --- command line ---


def test_defaults(folder):
    options = parse(["run.sh"])
    assert (options.num_workers, options.gpu_per_worker, options.device, options.bind) == (1, 1, "auto", "auto")
    assert (options.machine_list, options.machine_rank, options.log_dir, options.debug) == (None, None, None, False)
    assert (options.script, options.script_arguments) == ("run.sh", [])


def test_all_options(folder):
    options = parse(
        [
            "--num_workers",
            "4",
            "--gpu_per_worker=2",
            "--machine_list",
            "a,b",
            "--machine_rank",
            "1",
            "--log_dir",
            "d",
            "--debug",
            "--device",
            "cpu",
            "--bind",
            "none",
            "train.py",
        ]
    )
    assert (options.num_workers, options.gpu_per_worker, options.machine_list, options.machine_rank) == (4, 2, "a,b", 1)
    assert (options.log_dir, options.debug, options.device, options.bind) == ("d", True, "cpu", "none")


@pytest.mark.parametrize(
    "rest",
    [
        ["--num_workers", "9"],
        ["--unknown", "-x"],
        ["a", "--", "b"],
        ["--", "a"],
        ["--help"],
        ["", "a b", "--device=gpu"],
    ],
)
def test_arguments_of_the_script_are_left_alone(folder, rest):
    options = parse(["--num_workers", "2", "run.sh"] + rest)
    assert (options.num_workers, options.script_arguments) == (2, rest)


def test_dashes_may_separate_the_script(folder):
    assert parse(["--debug", "--", "run.sh", "--", "x"]).script_arguments == ["--", "x"]


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([], "no script is given"),
        (["--num_workers", "2"], "no script is given"),
        (["--num_worker", "2", "run.sh"], "unknown option --num_worker. Did you mean --num_workers"),
        (["--num-workers", "2", "run.sh"], "Did you mean --num_workers"),
        (["-n", "2", "run.sh"], "unknown option -n"),
        (["--num_workers", "0", "run.sh"], "'0' must be an integer >= 1"),
        (["--num_workers", "two", "run.sh"], "'two' must be an integer >= 1"),
        (["--gpu_per_worker", "-1", "run.sh"], "gpu_per_worker"),
        (["--device", "tpu", "run.sh"], "--device.*'tpu'"),
        (["--machine_rank", "1", "run.sh"], "--machine_rank needs --machine_list"),
        (["rum.sh"], "script rum.sh does not exist. Did you mean run.sh"),
        (["trian.py"], "Did you mean train.py"),
        (["sub/run.sh"], "There is no directory sub"),
        (["zzz"], "script zzz does not exist.$"),
        (["."], "script . is a directory"),
        (["notes.txt"], "must be a shell script"),
        (["gone.py"], "script gone.py is a link to nothing.py, which does not exist."),
        (["--gpus", "0,a", "run.sh"], "'0,a' must be different numbers of GPUs"),
        (["--gpus", "0,0", "run.sh"], "'0,0' must be different numbers of GPUs"),
        (["--gpus", "0", "--device", "cpu", "run.sh"], "--gpus names GPUs, but --device cpu asks for none"),
        (["--gpus", "0,1,2", "--num_workers", "2", "run.sh"], "--gpus names 3 GPUs, but 2 workers with 1 each use 2"),
        (["--ips", "nofile.txt", "run.sh"], "no file of that name, and no machine either"),
    ],
)
def test_wrong_command_line(folder, arguments, message):
    (folder / "notes.txt").write_text("")
    (folder / "gone.py").symlink_to("nothing.py")
    with pytest.raises(LaunchError, match=message):
        parse(arguments)


@pytest.mark.parametrize(
    "arguments, workers, devices",
    [
        ("--gpus 0,1", 2, 1),
        ("--gpus 0,1,2,3 --num_workers 2", 2, 2),
        ("--gpus 4,5,6,7 --gpu_per_worker 2", 2, 2),
        ("--gpus 0,1 --ips 127.0.0.1,127.0.0.2", 4, 1),
        ("--ips 127.0.0.1,127.0.0.2", 2, 1),
        ("--gpu_per_worker 3", 1, 3),
    ],
)
def test_numbers_that_are_left_open(folder, arguments, workers, devices):
    options = parse(arguments.split() + ["run.sh"])
    assert (options.num_workers, options.gpu_per_worker) == (workers, devices)
    assert options.device == ("gpu" if "--gpus" in arguments else "auto")


def test_version(capsys):
    with pytest.raises(SystemExit) as end:
        parse(["--version"])
    assert end.value.code == 0 and capsys.readouterr().out == "epl-launch %s\n" % __version__


def test_configuration_from_a_file(folder):
    config = Config({"communication.max_splits": 3, "communication.sparse_as_dense": True}, {})
    config.to_yaml("run.yaml")
    found, overruled = environment.config_variables("run.yaml", {"EPL_COMMUNICATION_MAX_SPLITS": "4"})
    assert Config(environ=found) == config and overruled == ["EPL_COMMUNICATION_MAX_SPLITS"]
    assert environment.config_variables(None, {}) == ({}, [])
    with pytest.raises(ConfigError, match="run.yaml.*max_splits"):
        (folder / "run.yaml").write_text("communication.max_split: 3")
        environment.config_variables("run.yaml", {})


def test_only_these_gpus():
    assert environment.only_these_gpus(None, {"A": "b"}) == {"A": "b"}
    assert environment.only_these_gpus(["1"], {})["CUDA_VISIBLE_DEVICES"] == "1"
    assert environment.only_these_gpus(["5"], {"CUDA_VISIBLE_DEVICES": "4,5"})["CUDA_VISIBLE_DEVICES"] == "5"
    with pytest.raises(LaunchError, match="--gpus names 0, which CUDA_VISIBLE_DEVICES=4,5 hides"):
        environment.only_these_gpus(["0", "4"], {"CUDA_VISIBLE_DEVICES": "4,5"})


def test_main_prints_errors_and_gives_status_2(folder, capsys):
    assert main(["--num_worker", "2", "run.sh"]) == USAGE_STATUS == 2
    assert capsys.readouterr().err.startswith("epl-launch: error: unknown option --num_worker. Did you mean")


def test_commands(folder, monkeypatch):
    assert script_command("train.py") == [sys.executable, "train.py"]
    program, script = script_command("run.sh")
    assert (os.path.basename(program), script) == ("bash", "run.sh")
    monkeypatch.setenv("PATH", str(folder))
    with pytest.raises(LaunchError, match="no bash on PATH"):
        script_command("run.sh")


def test_help_loads_no_tensorflow():
    code = (
        "import sys\nfrom epl.launch.main import main\n"
        "try: main(['--help'])\nexcept SystemExit as end: status = end.code\n"
        "sys.exit(status or any(name.split('.')[0] in ('tensorflow', 'numpy') for name in sys.modules))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=60,
        universal_newlines=True,
    )
    assert result.returncode == 0, result.stdout
    assert "--machine_list" in result.stdout


# --- machines ---


def test_this_machine_alone():
    addresses, local = machines.place_workers(3)
    assert len(set(addresses)) == 3 and local == range(3)
    assert all(address.startswith("127.0.0.1:") for address in addresses)


def test_free_ports_are_free():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        ports = machines.free_ports(20)
        assert len(set(ports)) == 20 and taken.getsockname()[1] not in ports
        for port in ports:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))


@pytest.mark.parametrize(
    "listed, workers, rank, addresses, local",
    [
        ("10.0.0.1,10.0.0.2", 4, 1, ["10.0.0.1:21000", "10.0.0.1:21001", "10.0.0.2:21000", "10.0.0.2:21001"], [2, 3]),
        ("a:5, b:7", 2, 0, ["a:5", "b:7"], [0]),
        ("[::1]:5,b", 2, 1, ["[::1]:5", "b:21000"], [1]),
        ("10.0.0.1", 2, None, ["10.0.0.1:21000", "10.0.0.1:21001"], [0, 1]),
        ("198.51.100.1,127.0.0.1:9", 2, None, ["198.51.100.1:21000", "127.0.0.1:9"], [1]),
    ],
)
def test_several_machines(listed, workers, rank, addresses, local):
    found, here = machines.place_workers(workers, listed, rank)
    assert (found, list(here)) == (addresses, local)


def test_machine_file(tmp_path):
    path = tmp_path / "machines"
    path.write_text("# two\n10.0.0.1:5000\n\n10.0.0.2  # the other\n")
    assert machines.read_machines(str(path)) == [("10.0.0.1", 5000), ("10.0.0.2", machines.DEFAULT_PORT)]
    path.write_text("10.0.0.1 slots=2\n")
    with pytest.raises(LaunchError, match="file .*machines: '10.0.0.1 slots=2' is not of the form"):
        machines.read_machines(str(path))
    path.write_text("# none\n")
    with pytest.raises(LaunchError, match="names no machine"):
        machines.read_machines(str(path))


@pytest.mark.parametrize(
    "listed, workers, rank, message",
    [
        ("a,b", 3, 0, "--num_workers 3 cannot be divided evenly over the 2 machines.*2 x 1 = 2. Use a multiple of 2"),
        ("a,b,c", 2, 0, "3 x 0 = 0. Use a multiple of 3"),
        ("a,a", 2, 0, "gives a:21000 to two workers"),
        ("a:5,a:6", 4, 0, "gives a:6 to two workers.*ports at least 2 apart"),
        ("a,b", 2, 2, "--machine_rank 2 does not fit.*2 machines: it must be from 0 to 1"),
        ("a,,b", 2, 0, "'' is not of the form"),
        ("a:0,b", 2, 0, "'a:0' is not of the form"),
        ("a:65535,b", 4, 0, "ports end at 65535"),
        ("no/such/file", 1, 0, "There is no file of that name either"),
        (
            "198.51.100.1,198.51.100.2",
            2,
            None,
            "no address of --machine_list is this machine.*--machine_rank, from 0 to 1",
        ),
        ("127.0.0.1:5,127.0.0.1:9", 2, None, "several addresses of --machine_list are this machine"),
    ],
)
def test_wrong_machines(listed, workers, rank, message):
    with pytest.raises(LaunchError, match=message):
        machines.place_workers(workers, listed, rank)


# --- devices ---


@pytest.fixture(name="gpu_tensorflow")
def gpu_tensorflow_fixture(monkeypatch):
    monkeypatch.setattr(environment, "tensorflow_knows_gpus", lambda: True)
    return monkeypatch


def test_gpus_are_divided(gpu_tensorflow):
    assert environment.choose_gpus("auto", 2, 2, {}, total=8) == ([["0", "1"], ["2", "3"]], "")
    some = {"CUDA_VISIBLE_DEVICES": "5,3,1"}
    assert environment.choose_gpus("gpu", 3, 1, some, total=8) == ([["5"], ["3"], ["1"]], "")


def test_too_few_gpus(gpu_tensorflow):
    assert environment.choose_gpus("auto", 2, 2, {}, total=3) == (None, "3 GPUs here, 4 needed")
    assert environment.choose_gpus("auto", 1, 1, {}, total=0) == (None, "no GPU here, 1 needed")
    assert environment.choose_gpus("cpu", 1, 1, {}, total=8) == (None, "")
    with pytest.raises(LaunchError, match="2 workers on this machine with 2 GPUs each need 4, but there are 3 GPUs"):
        environment.choose_gpus("gpu", 2, 2, {}, total=3)
    with pytest.raises(LaunchError, match="but there is no GPU here with CUDA_VISIBLE_DEVICES=-1"):
        environment.choose_gpus("gpu", 1, 1, {"CUDA_VISIBLE_DEVICES": "-1"}, total=3)


def test_tensorflow_without_gpu_support(monkeypatch):
    monkeypatch.setattr(environment, "tensorflow_knows_gpus", lambda: False)
    assert environment.choose_gpus("auto", 1, 1, {}, total=1) == (None, "this TensorFlow was built without GPU support")
    assert environment.choose_gpus("gpu", 1, 1, {}, total=1) == ([["0"]], "")


# --- cores and threads ---


@pytest.mark.parametrize(
    "cores, workers, shares",
    [
        ([0, 1], 2, [[0], [1]]),
        ([0, 1, 2, 3, 8], 2, [[0, 1], [2, 3, 8]]),
        ([4, 5], 1, [[4, 5]]),
        ([0], 2, None),
    ],
)
def test_cores_are_shared_without_overlap(cores, workers, shares):
    assert environment.share_cores(cores, workers) == shares


@pytest.mark.parametrize(
    "cores, workers, quota, threads",
    [(8, 2, None, 4), (8, 3, None, 2), (1, 4, None, 1), (64, 2, 4.0, 2), (64, 1, 1.5, 2), (2, 1, 8.0, 2)],
)
def test_threads(cores, workers, quota, threads):
    assert environment.threads_per_worker(cores, workers, quota) == threads


@pytest.mark.parametrize("text, quota", [("150000 100000\n", 1.5), ("max 100000\n", None), ("", None)])
def test_container_quota(tmp_path, text, quota):
    (tmp_path / "cpu.max").write_text(text)
    assert environment.container_quota(str(tmp_path / "cpu.max")) == quota
    assert environment.container_quota(str(tmp_path / "none")) is None


# --- variables ---


def variables(environ, gpus=None, token="t", index=1, threads=3):
    return environment.worker_environment(environ, ["a:1", "b:2"], index, 2, gpus, threads, token)


def test_variables_of_a_worker():
    result = variables({"PATH": "/x:/y", "HOME": "/h", "TF_CONFIG": "old", "EPL_DEVICE": "gpu"})
    assert json.loads(result["TF_CONFIG"]) == {
        "cluster": {"worker": ["a:1", "b:2"]},
        "task": {"type": "worker", "index": 1},
    }
    assert (result["EPL_GPU_PER_WORKER"], result["EPL_DEVICE"], result["EPL_JOB_TOKEN"]) == ("2", "cpu", "t")
    assert (result["CUDA_VISIBLE_DEVICES"], result["PYTHONUNBUFFERED"], result["HOME"]) == ("", "1", "/h")
    assert [result[name] for name in ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")] == [
        "3"
    ] * 3
    assert result["PATH"] == os.path.dirname(sys.executable) + ":/x:/y"


def test_variables_with_gpus():
    result = variables({}, gpus=["2", "3"])
    assert (result["EPL_DEVICE"], result["CUDA_VISIBLE_DEVICES"]) == ("gpu", "2,3")


def malloc(result):
    return {name: value for name, value in result.items() if name.startswith("MALLOC_")}


def test_memory_of_freed_tensors_is_kept():
    every = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "-1"}
    most = {
        "MALLOC_MMAP_THRESHOLD_": "33554432",
        "MALLOC_TRIM_THRESHOLD_": "1073741824",
        "MALLOC_TOP_PAD_": "67108864",
    }
    assert malloc(variables({}, threads=8)) == every
    assert malloc(variables({}, threads=9)) == most
    assert malloc(variables({}, gpus=["2", "3"])) == most


def test_what_the_user_has_set_stays():
    assert variables({"OMP_NUM_THREADS": "7"})["OMP_NUM_THREADS"] == "7"
    assert malloc(variables({"MALLOC_ARENA_MAX": "4"})) == {"MALLOC_ARENA_MAX": "4"}


def test_this_python_comes_first_on_the_path_once():
    own = os.path.dirname(sys.executable)
    assert variables({"PATH": "/x:" + own})["PATH"] == own + ":/x"


def test_tokens():
    assert len(environment.job_token({}, False)) == 32
    assert environment.job_token({}, False) != environment.job_token({}, False)
    assert environment.job_token({}, True) == ""
    assert environment.job_token({"EPL_JOB_TOKEN": "mine"}, True) == "mine"
    assert "EPL_JOB_TOKEN" not in variables({}, token="")
