"""What EPL does for GPUs, as far as it shows without one: where NCCL is found, when it is used, what moves to a GPU."""

import ctypes
import os

import pytest
import tensorflow.compat.v1 as tf

import epl
from epl import tf_compat
from epl.communicators import gpu, library, native
from epl.config import Config
from epl.errors import CommunicationError
from epl.graph.index import node_of
from epl.passes.sync.gpu_collectives import move_collectives_to_gpu
from epl.plan.facts.names import clone_tensor
from tests.helpers import planning
from tests.helpers.planning import capture, of_op

HOST = "/job:localhost/replica:0/task:0/device:CPU:0"
GPU = "/job:localhost/replica:0/task:0/device:GPU:%d"


def config(**values):
    return Config({"communication." + key: value for key, value in values.items()})


def wheel(folder, package, name):
    path = os.path.join(str(folder), package, "lib", name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    open(path, "w").close()
    return path


# ---------------------------------------------------------------------------------------------------------------------
# Libraries.


def test_libraries_come_from_settings_then_wheels_then_the_system(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    nccl = wheel(first, "nccl", "libnccl.so.2")
    wheel(second, "nccl", "libnccl.so.2")
    wheel(second, "cuda_runtime", "libcudart.so.9.2")
    cuda = wheel(second, "cuda_runtime", "libcudart.so.12")
    folders = [str(first), str(second)]
    assert gpu.library_paths(config(), folders) == (nccl, cuda)
    assert gpu.library_paths(config(nccl_library="/mine.so"), folders) == ("/mine.so", cuda)
    assert gpu.library_paths(config(cuda_library="/cuda.so"), folders) == (nccl, "/cuda.so")
    assert gpu.library_paths(config(), []) == ("", "")


def test_a_library_that_is_missing_is_named_with_what_to_install():
    error = ctypes.create_string_buffer(4096)
    code = native.comm().epl_find_nccl(b"/nowhere/libnccl.so.2", b"/nowhere/libcudart.so", error, len(error))
    assert code != native.OK
    text = error.value.decode()
    assert "the CUDA runtime cannot be loaded (/nowhere/libcudart.so" in text
    assert "pip install '.[gpu]'" in text and "communication.nccl_library" in text


def test_a_library_that_is_something_else_is_refused():
    error = ctypes.create_string_buffer(4096)
    other = native.library_path(native.COMM_LIBRARY).encode()
    assert native.comm().epl_find_nccl(other, other, error, len(error)) != native.OK
    assert "has no function cudaGetErrorString" in error.value.decode()


def test_nccl_is_for_gpus_of_several_workers():
    cpus, gpus = planning.cluster(2), planning.cluster(2, device_type="GPU")
    alone = planning.cluster(1, device_type="GPU")
    nowhere = {"nccl_library": "/nowhere.so", "cuda_library": "/nowhere.so"}
    for backend in ("auto", "shm", "tcp", "gloo"):
        assert not gpu.uses_nccl(cpus, config(backend=backend, **nowhere))
        assert not gpu.uses_nccl(gpus, config(backend=backend, **nowhere))
    assert not gpu.uses_nccl(alone, config(backend="nccl", **nowhere))
    with pytest.raises(CommunicationError, match="have CPU devices"):
        gpu.uses_nccl(cpus, config(backend="nccl", **nowhere))
    with pytest.raises(CommunicationError, match="cannot be loaded .*nowhere.*pip install"):
        gpu.uses_nccl(gpus, config(backend="nccl", **nowhere))


def test_options_of_a_communicator_between_gpus():
    cluster = planning.cluster(2, device_type="GPU")
    options = native.Options()
    gpu.set_options(options, cluster, config(nccl_library="/a.so", cuda_library="/b.so"), "flat")
    assert (options.backend, options.nccl_library, options.cuda_library) == (b"gpu/flat", b"/a.so", b"/b.so")
    assert options.device == 0


# ---------------------------------------------------------------------------------------------------------------------
# Kernels and the pass.


def test_kernels_for_gpus_are_registered_without_cuda():
    library.load()
    for op in ("AllGather", "AllReduce", "AllToAll", "Broadcast", "Parts", "Recv", "Reduce", "ReduceScatter", "Send"):
        assert tf_compat.has_kernel("Epl" + op, "GPU") and tf_compat.has_kernel("Epl" + op, "CPU"), op
    assert not tf_compat.has_kernel("EplBroadcastSend", "GPU")  # of strings and of values in host memory too


def on_gpus(build, copies=2, workers=2, on_gpu=True, **settings):
    """(graph, plan) of a model on workers with GPUs."""
    with capture() as graph:
        build()
    done = planning.compiled(graph, workers, copies, device_type="GPU", on_gpu=on_gpu, **settings)
    return done.whole, done.plan


def train():
    planning.sgd(planning.layers(1))


def gradient_reductions(graph):
    return [n for n in of_op(graph, "EplAllReduce") if n.attr["num_inputs"].i and n.attr["N"].i > 1]


def test_gradients_are_reduced_on_the_first_gpu():
    graph, plan = on_gpus(train)
    (reduction,) = gradient_reductions(graph)
    count = reduction.attr["N"].i
    assert reduction.device == GPU % 0
    assert (reduction.attr["R"].i, reduction.attr["num_inputs"].i, len(reduction.input)) == (1, count, count)
    for name in reduction.input:
        local = graph.nodes[name]
        assert (local.op, local.device, local.attr["N"].i) == ("AddN", GPU % 0, 2)
        # The same tensor of each copy, in the order of copies.
        first, second = local.input
        assert second == clone_tensor(first, 1) and graph.nodes[node_of(second)].device == GPU % 1
    assert reduction.attr["scale"].f == pytest.approx(plan.gradient_scale)


def test_one_copy_needs_no_sum():
    graph, _ = on_gpus(train, copies=1)
    (reduction,) = gradient_reductions(graph)
    assert reduction.device == GPU % 0 and not of_op(graph, "AddN")


def test_nothing_moves_between_workers_without_nccl():
    graph, _ = on_gpus(train, on_gpu=False)
    assert {n.device for n in gradient_reductions(graph)} == {HOST}


def test_a_single_worker_reduces_on_its_first_gpu():
    graph, plan = on_gpus(train, workers=1, on_gpu=False)
    assert not gradient_reductions(graph)
    (group,) = plan.aggregation.groups
    reduction = graph.nodes[group.name]
    assert (reduction.op, reduction.device) == ("IdentityN", GPU % 0)
    assert len(reduction.input) == len(group.tensors) == len(reduction.attr["T"].list.type)
    for name in reduction.input:
        scaled = graph.nodes[name]
        assert (scaled.op, graph.nodes[scaled.input[0]].op) == ("Mul", "AddN")


def test_short_floats_are_added_up_in_long_ones():
    def build():
        epl.ops.all_reduce(tf.cast(tf.square(planning.batch()), tf.float16), "sum", name="half")

    graph, _ = on_gpus(build)
    short = graph.nodes[graph.nodes["half"].input[0]]
    assert (short.op, short.attr["DstT"].type) == ("Cast", 19)
    assert (graph.nodes[short.input[0]].op, graph.nodes[short.input[0]].attr["T"].type) == ("AddN", 1)


def test_float16_on_the_wire_stays_on_the_host():
    graph, _ = on_gpus(train, communication__fp16=True)
    (reduction,) = gradient_reductions(graph)
    assert reduction.device == HOST and reduction.attr["R"].i == 2


@pytest.mark.parametrize("level", ["v1", "v3"])
def test_all_workers_gather_shares_in_the_same_place(level):
    """Also who has none of them."""
    with capture() as graph:
        tf.train.AdamOptimizer(0.1).minimize(planning.layers(1))
    devices, empty = [], 0
    for worker in range(3):
        done = planning.compiled(graph, 3, 1, worker, device_type="GPU", on_gpu=True, zero__level=level)
        gathers = {n.name: n for n in of_op(done.graph, "EplAllGather")}
        devices.append({name: node.device for name, node in gathers.items()})
        parts = of_op(done.graph, "EplParts")
        assert len(parts) >= len(gathers) and {node.device for node in parts} == {GPU % 0}
        empty += sum(done.graph.nodes[node_of(n.input[0])].op == "Empty" for n in gathers.values())
    assert empty and devices[0] == devices[1] == devices[2]
    assert set(devices[0].values()) == {GPU % 0}


@pytest.mark.parametrize("level", ["v1", "v3"])
def test_shares_that_the_user_keeps_on_the_host_are_gathered_there_by_all_workers(level):
    with capture() as graph:
        x = planning.batch()
        with tf.device("/cpu:0"):
            w = planning.variable("w", [4, 4])
        tf.train.AdamOptimizer(0.1).minimize(tf.reduce_mean(tf.square(tf.matmul(x, w))))
    for worker in range(2):
        done = planning.compiled(graph, 2, 1, worker, device_type="GPU", on_gpu=True, zero__level=level)
        gathers = of_op(done.graph, "EplAllGather")
        assert gathers and {node.device for node in gathers} == {HOST}


def user_collectives():
    x = tf.square(planning.batch())
    epl.ops.all_reduce(x, "mean", name="mean")
    epl.ops.all_reduce(x, "max", name="largest")
    epl.ops.all_gather(x, name="gathered")
    epl.ops.all_reduce(tf.cast(x, tf.int32), "sum", name="whole")


def test_users_collectives_move_too():
    graph, _ = on_gpus(user_collectives, copies=3)
    mean, largest, gathered, whole = (graph.nodes[name] for name in ("mean", "largest", "gathered", "whole"))
    assert mean.attr["reduce_op"].s == b"sum" and mean.attr["scale"].f == pytest.approx(1 / 6)
    assert graph.nodes[mean.input[0]].op == "AddN"
    assert largest.attr["reduce_op"].s == b"max" and graph.nodes[largest.input[0]].op == "Maximum"
    assert graph.nodes[graph.nodes[largest.input[0]].input[0]].op == "Maximum"
    assert gathered.device == GPU % 0 and len(gathered.input) == 3
    assert whole.device == HOST and whole.attr["R"].i == 3  # TensorFlow keeps int32 on the host


def test_the_pass_leaves_a_graph_of_cpus_alone():
    with capture() as graph:
        train()
    done = planning.compiled(graph, 2, 2, on_gpu=True)
    assert move_collectives_to_gpu(done, done.plan) is done
