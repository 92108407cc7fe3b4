"""Cluster: who the workers are and which devices they have, from the variables of each launcher."""

import json
import os
import re
import subprocess

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from epl.cluster import Cluster, gpus
from epl.cluster import cluster as cluster_module
from epl.cluster.sources import expand_nodelist, for_programs, read_membership, split_address
from epl.errors import ClusterError
from tests.helpers.processes import REPOSITORY


@pytest.fixture(name="gpus_seen")
def gpus_seen_fixture(monkeypatch):
    """Call with a number: the machine then has that many GPUs. None until then."""

    def have(number, usable=True):
        monkeypatch.setattr(cluster_module, "tensorflow_knows_gpus", lambda: usable)
        monkeypatch.setattr(cluster_module, "visible_gpus", lambda environ: gpus.visible_gpus(environ, total=number))

    have(0)
    return have


@pytest.fixture(autouse=True)
def no_gpus(gpus_seen):
    del gpus_seen


def tf_config(cluster, task):
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})}


def worker_config(index, hosts=("a:1", "b:2")):
    return tf_config({"worker": list(hosts)}, {"type": "worker", "index": index})


# --- plain data ---


def test_defaults():
    cluster = Cluster()
    assert (cluster.worker_num, cluster.worker_index, cluster.gpu_num_per_worker, cluster.total_gpu_num) == (1, 0, 1, 1)
    assert cluster.local_devices == ["/job:localhost/replica:0/task:0/device:CPU:0"]
    assert (cluster.token, cluster.visible_device_list, cluster.bootstrap_address) == ("", "", "127.0.0.1:0")


def test_names_of_the_first_epl():
    cluster = Cluster(3, 2, 1, ["a:1", "b:2", "b:3"], "GPU", "secret")
    assert cluster.available_gpus == cluster.available_devices and len(cluster.available_gpus) == 3
    assert cluster.cluster_spec == {"worker": ["a:1", "b:2", "b:3"]}
    assert [cluster.with_index(worker).local_rank for worker in range(3)] == [0, 0, 1]
    (devices,) = cluster.virtual_devices
    assert (devices.all_devices, devices.local_devices) == (cluster.available_devices, cluster.local_devices)


def test_devices_of_all_workers():
    cluster = Cluster(2, 1, 2, ["a:1", "b:2"], "GPU", "secret")
    assert cluster.available_devices == [
        "/job:worker/replica:0/task:0/device:GPU:0",
        "/job:worker/replica:0/task:0/device:GPU:1",
        "/job:worker/replica:0/task:1/device:GPU:0",
        "/job:worker/replica:0/task:1/device:GPU:1",
    ]
    assert cluster.local_devices == ["/job:localhost/replica:0/task:0/device:GPU:%d" % i for i in range(2)]
    assert cluster.total_gpu_num == 4
    assert cluster.nodes == [0, 1]
    assert "secret" not in repr(cluster)


def test_large_cluster_from_one_host():
    cluster = Cluster(worker_num=64, gpu_num_per_worker=8)
    assert len(cluster.available_devices) == 512
    assert cluster.nodes == [0] * 64


@pytest.mark.parametrize(
    "arguments, message",
    [
        (dict(worker_num=0), "worker_num=0 must be an integer >= 1"),
        (dict(gpu_num_per_worker=True), "gpu_num_per_worker=True must be an integer"),
        (dict(worker_num=2, worker_index=2), "worker_index=2 does not fit worker_num=2: it must be from 0 to 1"),
        (dict(worker_num=3, hosts=["a:1", "b:1"]), "2 hosts are given for 3 workers"),
        (dict(device_type="TPU"), "device_type='TPU'"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ClusterError, match=message):
        Cluster(**arguments)


def test_hosts_cannot_be_changed_from_outside():
    cluster = Cluster()
    cluster.hosts.append("x:1")
    assert cluster.hosts == ["127.0.0.1:0"]
    with pytest.raises(AttributeError):
        cluster.worker_num = 3


# --- no launcher ---


@pytest.mark.parametrize("environ", [{}, {"TF_CONFIG": ""}, {"TF_CONFIG": "{}"}, {"TF_CONFIG": '{"cluster": {}}'}])
def test_single_worker(environ):
    cluster = Cluster.from_environment(environ)
    assert (cluster.worker_num, cluster.worker_index, cluster.total_gpu_num, cluster.device_type) == (1, 0, 1, "CPU")


# --- TF_CONFIG ---


def test_launcher_variables():
    environ = dict(worker_config(1), EPL_GPU_PER_WORKER="2", EPL_DEVICE="cpu", EPL_JOB_TOKEN="t")
    cluster = Cluster.from_environment(environ)
    assert (cluster.worker_num, cluster.worker_index, cluster.gpu_num_per_worker) == (2, 1, 2)
    assert (cluster.hosts, cluster.bootstrap_address, cluster.token) == (["a:1", "b:2"], "a:1", "t")
    assert cluster.device_type == "CPU"


def test_launcher_variables_with_gpus():
    environ = dict(worker_config(1), EPL_GPU_PER_WORKER="2", EPL_DEVICE="gpu", CUDA_VISIBLE_DEVICES="2,3")
    assert Cluster.from_environment(environ).local_devices[1].endswith("device:GPU:1")


@pytest.mark.parametrize("chief", ["chief", "master"])
def test_chief_counts_as_worker_0(chief):
    jobs = {"worker": ["w0:1", "w1:1"], chief: ["c:1"], "ps": []}
    as_chief = Cluster.from_environment(tf_config(jobs, {"type": chief, "index": 0}))
    as_worker = Cluster.from_environment(tf_config(jobs, {"type": "worker", "index": 1}))
    assert as_chief.hosts == as_worker.hosts == ["c:1", "w0:1", "w1:1"]
    assert (as_chief.worker_index, as_worker.worker_index) == (0, 2)
    assert as_chief.token == as_worker.token != ""


def test_chief_alone():
    cluster = Cluster.from_environment(tf_config({"chief": ["c:1"]}, {"type": "chief", "index": 0}))
    assert (cluster.worker_num, cluster.worker_index) == (1, 0)


def test_tokens_tell_jobs_apart():
    tokens = {
        Cluster.from_environment(worker_config(index, hosts)).token
        for hosts in (["a:1", "b:1"], ["a:1", "c:1"])
        for index in (0, 1)
    }
    assert len(tokens) == 2


@pytest.mark.parametrize(
    "text, message",
    [
        ("{", "not valid JSON"),
        ("[]", "not a JSON object"),
        ('{"cluster": []}', None),
        ('{"cluster": 3}', '"cluster" is not a JSON object'),
        ('{"cluster": {"worker": ["a:1"]}, "task": 3}', '"task" is not a JSON object'),
        ('{"cluster": {"worker": ["a:1"]}}', '"task" does not say which type'),
        ('{"cluster": {"worker": "a:1"}, "task": {"type": "worker"}}', '"worker" is not a list'),
        ('{"cluster": {"worker": ["a"]}, "task": {"type": "worker"}}', "'a' of job \"worker\" is not an address"),
        ('{"cluster": {"worker": ["a:0"]}, "task": {"type": "worker"}}', "port from 1 to 65535"),
        ('{"cluster": {"worker": [3]}, "task": {"type": "worker"}}', "3 of job"),
        ('{"cluster": {"worker": ["a:1", "a:1"]}, "task": {"type": "worker"}}', "two workers have the same address"),
        ('{"cluster": {"chief": ["a:1", "b:1"]}, "task": {"type": "chief"}}', '2 tasks of type "chief"'),
        (
            '{"cluster": {"worker": ["a:1"]}, "task": {"type": "chief"}}',
            'type \'chief\', but "cluster" has only "worker"',
        ),
        (
            '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 2}}',
            'is 2, but "worker" has 2 addresses, so it must be from 0 to 1',
        ),
        ('{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": -1}}', "from 0 to 0"),
        ('{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": true}}', "True is not an integer"),
        ('{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": "x"}}', "'x' is not an integer"),
        (
            '{"cluster": {"ps": ["p:1"], "worker": ["a:1"]}, "task": {"type": "worker"}}',
            "parameter servers.*without ps",
        ),
        ('{"cluster": {"worker": ["a:1"]}, "task": {"type": "ps"}}', "parameter servers"),
        ('{"cluster": {"worker": ["a:1"]}, "task": {"type": "evaluator"}}', "evaluator.*without epl.init"),
        ('{"cluster": {"tpu": ["a:1"]}, "task": {"type": "tpu"}}', 'does not know: "tpu"'),
    ],
)
def test_wrong_tf_config(text, message):
    if message is None:
        assert Cluster.from_environment({"TF_CONFIG": text}).worker_num == 1
        return
    with pytest.raises(ClusterError, match="(?s)" + message):
        Cluster.from_environment({"TF_CONFIG": text})


def test_a_long_tf_config_is_not_printed_in_full():
    with pytest.raises(ClusterError) as error:
        Cluster.from_environment(worker_config(5000, ["host-%d:1" % i for i in range(2000)]))
    assert len(str(error.value)) < 1000


@given(st.booleans(), st.integers(1, 5), st.data())
def test_what_programs_are_shown(chief, number, data):
    """Worker 0 is the chief, nobody has a cluster to start servers in, and EPL still finds the launcher's."""
    hosts = ["h%d:1" % worker for worker in range(number)]
    index = data.draw(st.integers(0, number - 1))
    jobs = {"chief": hosts[:1], "worker": hosts[1:]} if chief else {"worker": hosts}
    role = ("chief", 0) if chief and index == 0 else ("worker", index - chief)
    before = dict(
        TF_CONFIG=json.dumps({"cluster": jobs, "task": {"type": role[0], "index": role[1]}, "environment": "cloud"})
    )
    after = dict(before, **for_programs(before))
    assert json.loads(after["TF_CONFIG"]) == {
        "cluster": {},
        "task": {"type": "worker" if index else "chief", "index": index},
        "environment": "cloud",
    }
    assert read_membership(after) == read_membership(before)
    assert dict(after, **for_programs(after)) == after
    for new in (worker_config(1), {"TF_CONFIG": ""}):  # set by somebody since then
        assert read_membership(dict(after, **new)) == read_membership(new)
    del after["TF_CONFIG"]
    assert read_membership(after).source == "no launcher's variables"


@pytest.mark.parametrize("environ", [{}, {"TF_CONFIG": " "}, {"TF_CONFIG": '{"task": {"type": "worker"}}'}])
def test_programs_are_shown_what_there_is(environ):
    assert for_programs(environ) == {}


@given(st.text(max_size=20))
def test_any_text_is_a_cluster_error_or_a_single_worker(text):
    try:
        cluster = Cluster.from_environment({"TF_CONFIG": text})
    except ClusterError as error:
        assert "TF_CONFIG" in str(error)
    else:
        assert cluster.worker_num == 1


@pytest.mark.parametrize(
    "text, parts",
    [
        ("a:1", ("a", 1)),
        ("10.0.0.1:65535", ("10.0.0.1", 65535)),
        ("[::1]:22", ("[::1]", 22)),
        ("a.b-c:9", ("a.b-c", 9)),
        ("a", None),
        ("a:", None),
        (":1", None),
        ("::1:22", None),
        ("a:65536", None),
        ("a b:1", None),
        ("http://a:1", None),
        (None, None),
    ],
)
def test_addresses(text, parts):
    assert split_address(text) == parts


# --- Slurm ---


def slurm(rank, size, **more):
    environ = {
        "SLURM_PROCID": str(rank),
        "SLURM_NTASKS": str(size),
        "SLURM_JOB_ID": "123",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NODELIST": "gpu[01-02]",
        "SLURM_TASKS_PER_NODE": "2(x2)",
    }
    environ.update(more)
    return {name: value for name, value in environ.items() if value is not None}


def test_slurm():
    clusters = [Cluster.from_environment(slurm(rank, 4)) for rank in range(4)]
    assert [cluster.worker_index for cluster in clusters] == [0, 1, 2, 3]
    assert len({(cluster.bootstrap_address, cluster.token) for cluster in clusters}) == 1
    host, port = split_address(clusters[3].bootstrap_address)
    assert host == "gpu01" and 15000 <= port < 32000
    assert clusters[0].nodes == [0, 0, 1, 1]
    assert [address.split(":")[0] for address in clusters[0].hosts] == ["gpu01", "gpu01", "gpu02", "gpu02"]


def test_slurm_steps_of_a_job_do_not_meet():
    first, second = (Cluster.from_environment(slurm(0, 4, SLURM_STEP_ID=step)) for step in "01")
    assert first.bootstrap_address != second.bootstrap_address
    assert first.token != second.token


@pytest.mark.parametrize(
    "more, nodes",
    [
        ({"SLURM_TASKS_PER_NODE": "3,1"}, [0, 0, 0, 1]),
        ({"SLURM_STEP_TASKS_PER_NODE": "1,3"}, [0, 1, 1, 1]),
        ({"SLURM_DISTRIBUTION": "cyclic"}, [0, 1, 0, 1]),
        ({"SLURM_TASKS_PER_NODE": None}, [0, 1, 2, 3]),
        ({"SLURM_STEP_NODELIST": "one"}, [0, 0, 0, 0]),
        ({"SLURM_STEP_NODELIST": None, "SLURM_JOB_NODELIST": "x,y"}, [0, 0, 1, 1]),
    ],
)
def test_slurm_nodes(more, nodes):
    assert Cluster.from_environment(slurm(1, 4, **more)).nodes == nodes


def test_slurm_with_given_port_and_address():
    assert Cluster.from_environment(slurm(1, 4, EPL_BOOTSTRAP_PORT="77")).bootstrap_address == "gpu01:77"
    assert Cluster.from_environment(slurm(1, 4, EPL_BOOTSTRAP_ADDRESS="h:8")).bootstrap_address == "h:8"


def test_slurm_step_size_wins_over_job_size():
    assert Cluster.from_environment(slurm(1, 4, SLURM_STEP_NUM_TASKS="2")).worker_num == 2
    assert Cluster.from_environment(slurm(0, 1)).worker_num == 1


@pytest.mark.parametrize(
    "environ, message",
    [
        (slurm(4, 4), "SLURM_PROCID=4 does not fit SLURM_NTASKS=4: ranks are from 0 to 3"),
        (slurm("x", 4), "SLURM_PROCID='x' must be an integer >= 0"),
        (slurm(0, 4, SLURM_STEP_NODELIST=None), "Set EPL_BOOTSTRAP_ADDRESS"),
        (slurm(0, 4, SLURM_JOB_ID=None), "Set EPL_BOOTSTRAP_PORT"),
        (slurm(0, 4, EPL_BOOTSTRAP_PORT="70000"), "EPL_BOOTSTRAP_PORT=70000 is not a port"),
        (slurm(0, 4, EPL_BOOTSTRAP_ADDRESS="h"), "EPL_BOOTSTRAP_ADDRESS='h' must be of the form \"host:port\""),
        (slurm(0, 4, SLURM_STEP_NODELIST="a[1-"), "brackets that do not match"),
        (slurm(0, 4, SLURM_STEP_ID=None, SLURM_STEP_NODELIST=None, ENVIRONMENT="BATCH"), "Start it with `srun`"),
    ],
)
def test_wrong_slurm(environ, message):
    with pytest.raises(ClusterError, match=message):
        Cluster.from_environment(environ)


@pytest.mark.parametrize(
    "text, names",
    [
        ("a", ["a"]),
        ("a,b", ["a", "b"]),
        ("a[1-3]", ["a1", "a2", "a3"]),
        ("a[08-11,20]", ["a08", "a09", "a10", "a11", "a20"]),
        ("a[1-2]b[3-4],c", ["a1b3", "a1b4", "a2b3", "a2b4", "c"]),
        ("r[1,3]-ib, x-2.site", ["r1-ib", "r3-ib", "x-2.site"]),
    ],
)
def test_node_lists(text, names):
    assert expand_nodelist(text) == names


@pytest.mark.parametrize("text", ["a[1-", "a]1[", "a[[1]]", "a[x-y]", "a[1-2", "a,,b", "a[]", ""])
def test_wrong_node_lists(text):
    with pytest.raises(ClusterError):
        expand_nodelist(text)


# --- EPL's own variables ---


def own(index, number, **more):
    return dict({"EPL_WORKER_INDEX": str(index), "EPL_WORKER_NUM": str(number)}, **more)


def test_own_variables():
    assert (Cluster.from_environment(own(0, 1)).worker_num, Cluster.from_environment(own(0, 1)).worker_index) == (1, 0)
    cluster = Cluster.from_environment(own(2, 3, EPL_BOOTSTRAP_ADDRESS="train-0.train:21000"))
    assert (cluster.bootstrap_address, cluster.worker_num, cluster.worker_index) == ("train-0.train:21000", 3, 2)
    inside = dict(slurm(0, 4), **own(1, 2, EPL_BOOTSTRAP_ADDRESS="n1:5000"))
    assert Cluster.from_environment(inside).worker_index == 1


@pytest.mark.parametrize(
    "environ, message",
    [
        (own(0, 2), "EPL_WORKER_INDEX does not say on which machine worker 0 runs. Set EPL_BOOTSTRAP_ADDRESS"),
        (own(2, 2, EPL_BOOTSTRAP_ADDRESS="n1:5000"), "EPL_WORKER_INDEX=2 does not fit EPL_WORKER_NUM=2"),
        ({"EPL_WORKER_INDEX": "0"}, "EPL_WORKER_INDEX is set, but EPL_WORKER_NUM is not"),
        ({"EPL_WORKER_NUM": "2"}, "EPL_WORKER_NUM is set, but EPL_WORKER_INDEX is not"),
        (own("first", 2), "EPL_WORKER_INDEX='first' must be an integer >= 0"),
    ],
)
def test_wrong_own_variables(environ, message):
    with pytest.raises(ClusterError, match=re.escape(message)):
        Cluster.from_environment(environ)


# --- Kubernetes ---


def manifest(name):
    with open(os.path.join(REPOSITORY, "examples", "kubernetes", name), encoding="utf-8") as file:
        return list(yaml.safe_load_all(file))


def variables(container, annotations):
    """What Kubernetes makes of a container's `env`."""
    found = {}
    for each in container["env"]:
        if "value" in each:
            found[each["name"]] = each["value"]
        elif "fieldRef" in each["valueFrom"]:
            path = each["valueFrom"]["fieldRef"]["fieldPath"]
            found[each["name"]] = annotations[re.match(r"metadata\.annotations\['(.*)'\]$", path).group(1)]
        else:
            found[each["name"]] = "a secret"
    return found


def test_pods_of_an_indexed_job():
    job, service = manifest("job.yaml")
    spec = job["spec"]["template"]["spec"]
    assert spec["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    for index in range(job["spec"]["completions"]):
        annotations = {"batch.kubernetes.io/job-completion-index": str(index)}
        cluster = Cluster.from_environment(variables(spec["containers"][0], annotations))
        assert (cluster.worker_index, cluster.worker_num) == (index, job["spec"]["parallelism"])
        first = "%s-0.%s:21000" % (job["metadata"]["name"], spec["subdomain"])
        assert cluster.bootstrap_address == first


def test_pods_of_a_tfjob():
    (job,) = manifest("tfjob.yaml")
    worker = job["spec"]["tfReplicaSpecs"]["Worker"]
    hosts = ["train-worker-%d.default.svc:2222" % index for index in range(worker["replicas"])]
    for index in range(len(hosts)):
        environ = variables(worker["template"]["spec"]["containers"][0], {})
        environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": hosts}, "task": {"type": "worker", "index": index}})
        cluster = Cluster.from_environment(environ)
        assert (cluster.worker_index, cluster.worker_num, cluster.bootstrap_address) == (index, 4, hosts[0])


def test_slots_of_an_mpijob(tmp_path):
    (job,) = manifest("mpijob.yaml")
    launcher = job["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]
    hostfile = tmp_path / "hostfile"
    hostfile.write_text("train-worker-0.train.default.svc slots=2\ntrain-worker-1.train.default.svc slots=2\n")
    (tmp_path / "mpirun").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (tmp_path / "mpirun").chmod(0o755)
    script = launcher["args"][0].replace("/etc/mpi/hostfile", str(hostfile))
    environ = dict(os.environ, PATH="%s:%s" % (tmp_path, os.environ["PATH"]))
    words = subprocess.check_output(launcher["command"] + [script], env=environ).decode().split("\n")
    assert words[words.index("-np") + 1] == "8"
    handed = dict(word.split("=") for word in words if "=" in word)
    for rank in range(8):
        environ = dict(variables(launcher, {}), **dict(open_mpi(rank, 8, 2), **handed))
        cluster = Cluster.from_environment(environ)
        assert cluster.bootstrap_address == "train-worker-0.train.default.svc:21000"
        assert (cluster.worker_index, cluster.nodes) == (rank, [0, 0, 1, 1, 2, 2, 3, 3])


# --- Open MPI and Horovod ---


def open_mpi(rank, size, local_size, **more):
    return dict(
        {
            "OMPI_COMM_WORLD_RANK": str(rank),
            "OMPI_COMM_WORLD_SIZE": str(size),
            "OMPI_COMM_WORLD_LOCAL_SIZE": str(local_size),
            "OMPI_MCA_ess_base_jobid": "9",
        },
        **more,
    )


def test_open_mpi_on_one_machine():
    first, second = (Cluster.from_environment(open_mpi(rank, 2, 2)) for rank in (0, 1))
    assert first.bootstrap_address == second.bootstrap_address
    assert first.bootstrap_address.startswith("127.0.0.1:")
    assert (second.worker_num, second.worker_index, second.nodes) == (2, 1, [0, 0])
    other = Cluster.from_environment(open_mpi(0, 2, 2, OMPI_MCA_ess_base_jobid="10"))
    assert other.bootstrap_address != first.bootstrap_address


def test_open_mpi_on_several_machines():
    with pytest.raises(ClusterError, match="Open MPI does not say.*several machines.*Set EPL_BOOTSTRAP_ADDRESS"):
        Cluster.from_environment(open_mpi(3, 4, 2))
    cluster = Cluster.from_environment(open_mpi(3, 4, 2, EPL_BOOTSTRAP_ADDRESS="n1:5000"))
    assert (cluster.bootstrap_address, cluster.nodes) == ("n1:5000", [0, 0, 1, 1])


def test_open_mpi_inside_slurm_wins():
    assert Cluster.from_environment(dict(slurm(0, 1), **open_mpi(1, 2, 2))).worker_index == 1


def test_tf_config_wins_over_all():
    assert Cluster.from_environment(dict(open_mpi(1, 3, 3), **worker_config(0))).worker_num == 2


def horovod(rank, size, local_size, **more):
    return dict(
        {
            "HOROVOD_RANK": str(rank),
            "HOROVOD_SIZE": str(size),
            "HOROVOD_LOCAL_SIZE": str(local_size),
            "HOROVOD_HOSTNAME": "h%d" % (rank // local_size),
            "HOROVOD_GLOO_RENDEZVOUS_PORT": "4711",
        },
        **more,
    )


def test_horovod():
    one_machine = Cluster.from_environment(horovod(1, 2, 2))
    assert one_machine.bootstrap_address.startswith("127.0.0.1:")
    clusters = [
        Cluster.from_environment(horovod(rank, 4, 2, HOROVOD_GLOO_RENDEZVOUS_ADDR="10.0.0.7")) for rank in range(4)
    ]
    assert {cluster.bootstrap_address.split(":")[0] for cluster in clusters} == {"10.0.0.7"}
    assert len({(cluster.bootstrap_address, cluster.token) for cluster in clusters}) == 1
    assert clusters[0].nodes == [0, 0, 1, 1]
    with pytest.raises(ClusterError, match="HOROVOD_GLOO_RENDEZVOUS_ADDR is not set"):
        Cluster.from_environment(horovod(0, 4, 2))


# --- devices ---


def test_devices_without_gpus():
    assert Cluster.from_environment({"EPL_GPU_PER_WORKER": "4"}).device_type == "CPU"
    assert Cluster.from_environment({"EPL_GPU_PER_WORKER": "4"}).gpu_num_per_worker == 4
    assert Cluster.from_environment({}, run_visible_devices="0,1,2").gpu_num_per_worker == 3


@pytest.mark.parametrize(
    "environ, number, visible",
    [
        ({}, 4, ""),
        ({"CUDA_VISIBLE_DEVICES": "1,3"}, 2, ""),
        ({"EPL_GPU_PER_WORKER": "2"}, 2, "0,1"),
        (open_mpi(1, 2, 2), 2, "2,3"),
        (open_mpi(1, 2, 2, EPL_GPU_PER_WORKER="1"), 1, "1"),
        (open_mpi(1, 2, 2, CUDA_VISIBLE_DEVICES="3"), 1, ""),
        (open_mpi(2, 3, 3), 1, "2"),
        (worker_config(1), 4, ""),
        (worker_config(1, ("a:1", "a:2")), 2, "2,3"),
    ],
)
def test_shares_of_gpus(gpus_seen, environ, number, visible):
    gpus_seen(4)
    cluster = Cluster.from_environment(environ)
    assert (cluster.device_type, cluster.gpu_num_per_worker, cluster.visible_device_list) == ("GPU", number, visible)


def test_run_visible_devices(gpus_seen):
    gpus_seen(4)
    cluster = Cluster.from_environment({}, run_visible_devices="3,1")
    assert (cluster.gpu_num_per_worker, cluster.visible_device_list) == (2, "3,1")
    with pytest.raises(ClusterError, match="names device 4, but this worker sees 4 GPUs"):
        Cluster.from_environment({}, run_visible_devices="4")
    with pytest.raises(ClusterError, match="names 1 devices, but EPL_GPU_PER_WORKER=2"):
        Cluster.from_environment({"EPL_GPU_PER_WORKER": "2"}, run_visible_devices="1")


@pytest.mark.parametrize(
    "environ, message",
    [
        ({"EPL_GPU_PER_WORKER": "5"}, "EPL_GPU_PER_WORKER=5, but this worker sees only 4 GPUs"),
        ({"EPL_GPU_PER_WORKER": "0"}, "must be an integer >= 1"),
        ({"EPL_GPU_PER_WORKER": "two"}, "must be an integer >= 1"),
        (open_mpi(0, 8, 8), "8 workers run on this machine, which has only 4 GPUs"),
        ({"EPL_DEVICE": "tpu"}, 'EPL_DEVICE=\'tpu\' must be "cpu" or "gpu"'),
    ],
)
def test_wrong_devices(gpus_seen, environ, message):
    gpus_seen(4)
    with pytest.raises(ClusterError, match=message):
        Cluster.from_environment(environ)


def test_cpu_wanted_on_a_gpu_machine(gpus_seen):
    gpus_seen(4)
    cluster = Cluster.from_environment({"EPL_DEVICE": "cpu"})
    assert (cluster.device_type, cluster.gpu_num_per_worker) == ("CPU", 1)


def test_tensorflow_without_gpu_support_on_a_gpu_machine(gpus_seen):
    gpus_seen(4, usable=False)
    assert Cluster.from_environment({}).local_devices == ["/job:localhost/replica:0/task:0/device:CPU:0"]
    assert Cluster.from_environment({"EPL_DEVICE": "gpu"}).device_type == "GPU"
