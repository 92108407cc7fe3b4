"""The mesh: which copy of the model runs on which devices, and who communicates."""

import itertools
import math
from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace

import hypothesis
import pytest
from hypothesis import strategies as st

from epl.errors import PlanError, UnsupportedError
from epl.plan.layout.layout import make_mesh
from epl.plan.layout.mesh import AXES, DATA, SHARD, STAGE, in_one_piece
from epl.plan.layout.rows import computing_for, mean_factors, rows_of, weights_of
from epl.program.program import TaskGraph
from tests.helpers.planning import cluster


def scopes(*device_counts):
    return [TaskGraph(i, "replicate", count) for i, count in enumerate(device_counts)]


def everyone(mesh):
    return mesh.group(*AXES)


def of_all_workers(taskgraphs, workers, devices, colocate=False, together=True, **options):
    return [
        make_mesh(taskgraphs, cluster(workers, devices), colocate, worker, prefer_intra_node=together, **options)
        for worker in range(workers)
    ]


def even(depth, workers, devices, together):
    """Whether copies of `depth` devices lie evenly on the workers."""
    count = devices if together else workers
    return count % depth == 0 or depth % count == 0


@hypothesis.settings(max_examples=300, deadline=None)
@hypothesis.given(
    workers=st.integers(1, 12),
    devices=st.integers(1, 8),
    device_count=st.integers(1, 6),
    num_scopes=st.integers(0, 4),
    colocate=st.booleans(),
    together=st.booleans(),
)
def test_every_device_has_its_place(workers, devices, device_count, num_scopes, colocate, together):
    taskgraphs = scopes(*[device_count] * num_scopes)
    shards = device_count if num_scopes else 1
    depth = 1 if colocate or not num_scopes else num_scopes
    total = workers * devices
    if total % (depth * shards):
        with pytest.raises(PlanError) as caught:
            make_mesh(taskgraphs, cluster(workers, devices), colocate)
        needs, left = depth * shards, total % (depth * shards)
        assert "%d = %d x %d + %d" % (total, total // needs, needs, left) in str(caught.value)
        assert "%d workers x %d devices = %d devices" % (workers, devices, total) in str(caught.value)
        return
    if not even(depth, workers, devices, together):
        with pytest.raises(UnsupportedError, match="in the middle of a worker"):
            of_all_workers(taskgraphs, workers, devices, colocate, together)
        return
    meshes = of_all_workers(taskgraphs, workers, devices, colocate, together)
    used = set()
    for worker, mesh in enumerate(meshes):
        assert (mesh.worker_index, mesh.num_workers, mesh.num_shards) == (worker, workers, shards)
        assert all(len(instance.devices) == max(1, num_scopes) for instance in mesh.instances)
        assert [instance.index for instance in mesh.instances] == list(range(len(mesh.instances)))
        assert mesh.shape == {"data": total // depth // shards, "stage": max(1, num_scopes), "shard": shards}
        assert all(meshes[other].instances == mesh.instances for other in mesh.pipeline.workers)
        for instance in mesh.instances:
            for stage, device in zip(mesh.stages, instance.devices):
                if mesh.worker_of(stage.index) == mesh.pipeline.index:
                    used.add((worker, device, instance.rank, stage.index if not colocate else 0))
    # Every device once, by one stage of one instance.
    assert sorted(place[:2] for place in used) == [(w, d) for w in range(workers) for d in range(devices)]
    every = [instance for mesh in meshes if mesh.pipeline.index == 0 for instance in mesh.instances]
    assert [instance.rank for instance in every] == list(range(meshes[0].copies.size))
    assert [(each.data, each.shard) for each in every] == list(
        itertools.product(range(len(every) // shards), range(shards))
    )


@hypothesis.settings(max_examples=100, deadline=None)
@hypothesis.given(
    workers=st.integers(1, 12), devices=st.integers(1, 4), num_scopes=st.integers(1, 4), together=st.booleans()
)
def test_groups(workers, devices, num_scopes, together):
    """Whoever is in a group knows the same group; along data and shard, and along the stages, they cross once."""
    hypothesis.assume(workers * devices % num_scopes == 0 and even(num_scopes, workers, devices, together))
    meshes = of_all_workers(scopes(*[1] * num_scopes), workers, devices, together=together)
    for worker, mesh in enumerate(meshes):
        assert list(everyone(mesh).workers) == list(range(workers)) and everyone(mesh).size == workers * devices
        for group in (everyone, lambda mesh: mesh.copies, lambda mesh: mesh.pipeline):
            own = group(mesh)
            assert own.workers[own.index] == worker
            for other in own.workers:
                theirs = group(meshes[other])
                assert (theirs.workers, theirs.first_communicator) == (own.workers, own.first_communicator)
        assert set(mesh.copies.workers) & set(mesh.pipeline.workers) == {worker}
        assert mesh.copies.num_workers * mesh.pipeline.num_workers == workers
        assert mesh.copies.size * num_scopes == workers * devices
        numbers = {g.communicator(1) for g in (everyone(mesh), mesh.copies, mesh.pipeline)}
        assert len(numbers) == (3 if mesh.pipeline.num_workers > 1 else 1)
    with pytest.raises(PlanError, match="along data$"):
        meshes[0].group(DATA)


@hypothesis.settings(max_examples=100, deadline=None)
@hypothesis.given(
    workers=st.integers(1, 8), devices=st.integers(1, 6), degree=st.integers(1, 48), communicators=st.integers(1, 3)
)
def test_state_is_held_once_in_each_shard_group(workers, devices, degree, communicators):
    """Neighbouring copies divide it; those at the same place in each of these groups have the same part of it."""
    size = workers * devices
    hypothesis.assume(size % degree == 0 and (devices % degree == 0 or degree % devices == 0))
    meshes = of_all_workers([], workers, devices, num_communicators=communicators)
    for worker, mesh in enumerate(meshes):
        shards, replicas = replace(mesh, degree=degree).state_groups
        own = range(worker * devices, (worker + 1) * devices)
        near = {rank // devices for rank in range(size) if rank // degree == own[0] // degree}
        apart = {rank // devices for rank in range(size) if rank % degree == own[0] % degree}
        assert set(shards.workers) == near and set(replicas.workers) == apart
        assert (shards.size, replicas.size) == (degree, size // degree)
        assert shards.workers[shards.index] == replicas.workers[replicas.index] == worker
        slots = {group.communicator(0) for group in (mesh.copies, shards, replicas) if group.num_workers > 1}
        assert len(slots) == len({tuple(g.workers) for g in (mesh.copies, shards, replicas) if g.num_workers > 1})
        for group in (shards, replicas):
            if 1 < group.num_workers < workers:
                assert replace(mesh, degree=degree).joined(group.communicator(0)).workers == group.workers


@hypothesis.settings(max_examples=200, deadline=None)
@hypothesis.given(
    workers=st.integers(1, 12),
    devices=st.integers(1, 4),
    count=st.integers(1, 4),
    num_scopes=st.integers(1, 3),
    together=st.booleans(),
    kind=st.sampled_from(["replicate", "split"]),
)
def test_a_group_has_the_workers_that_differ_along_its_axes_alone(workers, devices, count, num_scopes, together, kind):
    taskgraphs = [TaskGraph(i, kind, count) for i in range(num_scopes)]
    try:
        meshes = of_all_workers(taskgraphs, workers, devices, together=together)
    except (PlanError, UnsupportedError):
        hypothesis.assume(False)
    # Along the data, the shards and the stages: which of each a worker has.
    places = [(frozenset(i.data for i in m.instances), frozenset(i.shard for i in m.instances)) for m in meshes]
    places = [place + (index % meshes[0].pipeline_workers,) for index, place in enumerate(places)]
    groups = {(STAGE,): (0, 1), (DATA, SHARD): (2,), AXES: ()}
    groups.update({(DATA,): (1, 2), (SHARD,): (0, 2), (DATA, STAGE): (1,)} if meshes[0].split else {})
    for axes, others in groups.items():
        for worker, mesh in enumerate(meshes):
            group = mesh.group(*axes)
            same = [w for w in range(workers) if all(places[w][k] == places[worker][k] for k in others)]
            assert list(group.workers) == same and group.workers[group.index] == worker, axes


# (workers, devices a worker, shards) where the shards take whole workers, or divide one.
DIVIDED = [
    (workers, devices, shards)
    for workers, devices, shards in itertools.product(range(1, 13), range(1, 9), range(2, 13))
    if workers * devices % shards == 0 and not (shards % devices and devices % shards)
]


@hypothesis.settings(max_examples=100, deadline=None)
@hypothesis.given(st.sampled_from(DIVIDED))
def test_groups_of_what_is_split(divided):
    """Every two devices with the same part are in one shard rank or one group `copies`; those of one copy in
    `parts`."""
    workers, devices, shards = divided
    meshes = of_all_workers([TaskGraph(0, "split", shards)], workers, devices)
    ranks = [
        (mesh, i, shard_rank)
        for mesh in meshes
        for shard_rank in range(mesh.shard_ranks)
        for i in mesh.givers(shard_rank)
    ]
    assert len(ranks) == workers * devices
    for mesh, instance, shard_rank in ranks:
        assert mesh.shape == {"data": workers * devices // shards, "stage": 1, "shard": shards}
        assert mesh.copies.size == mesh.shape["data"] and mesh.tensor_group.size == shards
        assert (
            mesh.copies.workers[mesh.copies.index]
            == mesh.tensor_group.workers[mesh.tensor_group.index]
            == mesh.worker_index
        )
        assert {i.shard for i in mesh.givers(shard_rank)} == {instance.shard}
        assert {i.data for i in mesh.givers()} == {i.data for i in mesh.instances}
        same = {(m.worker_index, i.index) for m, i, _ in ranks if i.shard == instance.shard}
        assert same == {(w, i.index) for w in mesh.copies.workers for i in meshes[w].givers(shard_rank)}
        together = {m.worker_index for m, i, _ in ranks if i.data == instance.data}
        assert together == set(mesh.tensor_group.workers)
        groups = [g for g in (mesh.copies, mesh.tensor_group) if g.num_workers > 1]
        assert len({g.communicator(0) for g in groups}) == len(groups)
        for group in groups:
            assert mesh.joined(group.communicator(0)) == (None if group.num_workers == workers else group)


# (workers, devices a worker, stages, shards, together) where the stages of a copy lie in several workers.
OVER_WORKERS = [
    case
    for case in itertools.product((2, 4, 6, 8, 12), (1, 2, 4), (2, 3, 4), (2, 3, 4), (True, False))
    if case[0] * case[1] % (case[2] * case[3]) == 0
    and even(case[2], case[0], case[1], case[4])
    and (case[1] % case[2] or not case[4])
]


@hypothesis.settings(max_examples=100, deadline=None)
@hypothesis.given(st.sampled_from(OVER_WORKERS))
def test_groups_of_stages_that_are_split(case):
    """Of those that have a stage, `copies` have the same part of it, `tensor_group` the parts of one copy."""
    workers, devices, num_scopes, shards, together = case
    taskgraphs = [TaskGraph(i, "split", shards) for i in range(num_scopes)]
    columns = len(of_all_workers(scopes(*[1] * num_scopes), workers, devices, together=together)[0].instances)
    if shards % columns and columns % shards:
        with pytest.raises(UnsupportedError, match="would end in the middle of"):
            of_all_workers(taskgraphs, workers, devices, together=together)
        return
    meshes = of_all_workers(taskgraphs, workers, devices, together=together)
    has = [{(i.data, i.shard) for i in mesh.instances} for mesh in meshes]
    for worker, mesh in enumerate(meshes):
        own, place = has[worker], worker % mesh.pipeline_workers
        alike = [w for w in range(workers) if w % mesh.pipeline_workers == place]
        datas, parts = [{each[axis] for each in own} for axis in (0, 1)]
        groups = {
            "copies": [w for w in alike if {shard for _, shard in has[w]} == parts],
            "tensor_group": [w for w in alike if {data for data, _ in has[w]} == datas],
            "everywhere": alike,
            "pipeline": [w for w in range(workers) if has[w] == own],
        }
        for name, members in groups.items():
            group = getattr(mesh, name)
            assert list(group.workers) == members and group.workers[group.index] == worker
        assert mesh.copies.size == mesh.shape["data"] and mesh.tensor_group.size == shards
        owning = mesh.group(DATA, STAGE)
        assert list(owning.workers) == [w for w in range(workers) if {shard for _, shard in has[w]} == parts]
        assert owning.index == mesh.copies.index * mesh.pipeline_workers + place
        numbers = [getattr(mesh, name).communicator(1) for name in groups]
        assert len(set(numbers)) == len(numbers) and everyone(mesh).communicator(1) not in numbers
        for name in groups:
            group = getattr(mesh, name)
            assert mesh.joined(group.communicator(0)) == group


def places(workers, devices, num_scopes, together, worker=0):
    """For each copy of a worker's block where its stages are: "worker:device"."""
    mesh = of_all_workers(scopes(*[1] * num_scopes), workers, devices, together=together)[worker]
    return [
        ["%d:%d" % (mesh.pipeline.workers[mesh.worker_of(s)], device) for s, device in enumerate(instance.devices)]
        for instance in mesh.instances
    ]


def test_a_copy_in_few_workers_or_in_many():
    assert places(2, 2, 2, True) == [["0:0", "0:1"]]
    assert places(2, 2, 2, False) == [["0:0", "1:0"], ["0:1", "1:1"]]
    assert places(2, 2, 4, True) == [["0:0", "0:1", "1:0", "1:1"]]
    assert places(2, 2, 4, False) == [["0:0", "1:0", "0:1", "1:1"]]
    assert places(4, 1, 2, True, worker=3) == [["2:0", "3:0"]]


def devices_of(mesh, stage):
    """(model replica, device) of each copy of a stage in a worker."""
    return [(i.data, i.devices[stage]) for i in mesh.computing(stage)]


@pytest.mark.parametrize("workers", [1, 2])
def test_stages_of_different_device_counts(workers):
    """Two replicas in each worker, whose devices are those of one stage after the other."""
    for mesh in of_all_workers(scopes(4, 1, 2), workers, 14):
        assert mesh.shape == {"data": 2 * workers, "stage": 3, "shard": 4} and not mesh.is_even
        replica = 2 * mesh.worker_index
        places = [[(replica + r, 7 * r + d) for r in (0, 1) for d in own] for own in ((0, 1, 2, 3), (4,), (5, 6))]
        assert [devices_of(mesh, stage) for stage in range(3)] == places
        assert [mesh.copies.size // mesh.span(stage) for stage in range(3)] == [8 * workers, 2 * workers, 4 * workers]


@pytest.mark.once
@hypothesis.settings(max_examples=20, deadline=None)
@hypothesis.given(
    counts=st.lists(st.integers(1, 4), min_size=2, max_size=4),
    devices=st.integers(1, 8),
    blocks=st.integers(1, 2),
)
def test_copies_over_workers_with_different_device_counts(counts, devices, blocks):
    """Every device has its place, those with copies of a stage form a group, and each row of a batch has one giver."""
    hypothesis.assume(len(set(counts)) > 1)
    workers = blocks * sum(counts) // math.gcd(sum(counts), devices)
    meshes = of_all_workers(scopes(*counts), workers, devices)
    used = []
    for worker, mesh in enumerate(meshes):
        assert mesh.num_pipelines * mesh.pipeline_workers == workers and mesh.shape["data"] == workers * devices // sum(
            counts
        )
        assert (
            list(mesh.pipeline.workers)
            == list(range(worker - worker % mesh.pipeline_workers, worker + mesh.pipeline_workers))[
                : mesh.pipeline_workers
            ]
        )
        for stage in range(len(counts)):
            copies = mesh.computing(stage)
            here = [i.devices[stage] for i in copies if mesh.worker_of(stage, i) == worker % mesh.pipeline_workers]
            used += [(worker, device) for device in here]
            group = mesh.holding(stage)
            assert group.size == mesh.shape["data"] * counts[stage]
            assert (group.index is not None) == bool(here)
            assert [w for w in range(workers) if meshes[w].holding(stage).index is not None] == list(group.workers)
            assert not here or group.workers[group.index] == worker
            if mesh.is_spread and here and group.num_workers < workers:
                joined = mesh.joined(group.communicator(0))
                assert joined.workers == group.workers
            for instance in copies:
                for other in range(len(counts)):
                    rows = rows_of(mesh, instance, stage)
                    givers = computing_for(mesh, instance, stage, other)
                    parts = [(max(rows[0], b), min(rows[1], e)) for b, e in (rows_of(mesh, g, other) for g in givers)]
                    assert (parts[0][0], parts[-1][1]) == rows and all(i.data == instance.data for i in givers)
                    assert all(one[1] == next_[0] for one, next_ in zip(parts, parts[1:]))
    assert sorted(used) == [(w, d) for w in range(workers) for d in range(devices)]


def test_whose_rows_a_stage_takes():
    mesh = make_mesh(scopes(4, 1, 2), cluster(1, 14))

    def takes(stage, other):
        return [[i.index for i in computing_for(mesh, own, stage, other)] for own in mesh.computing(stage)]

    assert takes(1, 0) == [[0, 1, 2, 3], [4, 5, 6, 7]] and takes(2, 0) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert takes(0, 1) == [[0]] * 4 + [[4]] * 4 and takes(2, 1) == [[0], [0], [4], [4]]
    assert takes(1, 2) == [[0, 2], [4, 6]] and takes(0, 2) == [[0], [0], [2], [2], [4], [4], [6], [6]]


def test_scopes_of_different_device_counts():
    mesh = make_mesh(scopes(2, 3), cluster(1, 5))
    assert mesh.num_shards == 6 and devices_of(mesh, 0) == [(0, 0), (0, 1)] and len(devices_of(mesh, 1)) == 3
    middle = mesh.computing(1)[1]
    assert [i.devices[0] for i in computing_for(mesh, middle, 1, 0)] == [0, 1]
    with pytest.raises(UnsupportedError, match="does not go together with cluster.colocate_split_and_replicate"):
        make_mesh(scopes(1, 2), cluster(1, 2), colocate=True)
    with pytest.raises(UnsupportedError, match="does not go together with pipeline.num_chunks"):
        make_mesh(scopes(1, 2), cluster(1, 3), num_chunks=2)
    with pytest.raises(
        PlanError, match="needs 3 devices .taskgraph_0: 1 . taskgraph_1: 2., but there are 1 workers x 4"
    ):
        make_mesh(scopes(1, 2), cluster(1, 4))


def test_a_mesh_of_512_workers():
    meshes = [make_mesh([], cluster(512, 8, worker)) for worker in (0, 511)]
    assert [mesh.shape["data"] for mesh in meshes] == [4096, 4096]
    assert [instance.rank for instance in meshes[1].instances] == list(range(4088, 4096))
    assert meshes[0].device(3) == "/job:localhost/replica:0/task:0/device:CPU:3"
    assert make_mesh([], cluster(2, 2, device_type="GPU")).device(1).endswith("GPU:1")


def test_a_mesh_needs_no_tensorflow():
    """It can be made of anything that has the numbers."""
    numbers = SimpleNamespace(worker_num=2, worker_index=1, gpu_num_per_worker=2, device_type="GPU")
    assert [i.rank for i in make_mesh([], numbers).instances] == [2, 3]


def test_weights():
    """Devices have as many parts as they weigh; the factors of means make up for it."""
    for worker in range(2):
        mesh = make_mesh(scopes(2), cluster(2, 2, worker), weights=(6, 2))
        assert mesh.weights == (3, 1) and weights_of(mesh, 0) == (3, 1)
        assert [rows_of(mesh, i, 0) for i in mesh.instances] == [(0, Fraction(3, 4)), (Fraction(3, 4), 1)]
        assert mean_factors(mesh, mesh.instances) == mean_factors(mesh, mesh.instances, False) == [1.5, 0.5]
    alone = make_mesh(scopes(2), cluster(2, 1, 1), weights=(3, 1))
    assert mean_factors(alone, alone.instances) == [0.5] and mean_factors(
        alone, alone.instances, over_workers=False
    ) == [1.0]
    assert make_mesh(scopes(2), cluster(1, 4), weights=(2, 2)) == make_mesh(scopes(2), cluster(1, 4))
    with pytest.raises(
        PlanError, match=r"device_weights=\(3, 1\) has 2 weights, but .* divided over 4 .*replicate\(4\)"
    ):
        make_mesh(scopes(4), cluster(1, 4), weights=(3, 1))
    with pytest.raises(UnsupportedError, match="does not go together with scopes of different device counts"):
        make_mesh(scopes(1, 2), cluster(1, 3), weights=(3, 1))
    with pytest.raises(UnsupportedError, match="a model that devices divide .*leave the number of rows open"):
        make_mesh([TaskGraph(0, "split", 2)], cluster(1, 2), weights=(3, 1))


@hypothesis.settings(max_examples=50, deadline=None)
@hypothesis.given(
    weights=st.lists(st.integers(1, 5), min_size=2, max_size=4), replicas=st.integers(1, 3), apart=st.booleans()
)
def test_the_mean_over_copies_of_different_weights(weights, replicas, apart):
    """Of what each copy has a mean of, it is the mean over all rows."""
    shards = len(weights)
    workers, devices = (shards * replicas, 1) if apart else (1, shards * replicas)
    hypothesis.assume(len(set(weights)) > 1)
    meshes = of_all_workers(scopes(shards), workers, devices, weights=weights)
    rows = [Fraction(n * n) for n in range(sum(weights) * replicas)]
    products = []
    for mesh in meshes:
        for instance, factor in zip(mesh.instances, mean_factors(mesh, mesh.instances)):
            begin, end = (int(bound * sum(weights)) for bound in rows_of(mesh, instance, 0))
            own = rows[instance.data * sum(weights) :][begin:end]
            products.append(float(sum(own) / len(own)) * factor)
    assert sum(products) / len(products) == pytest.approx(float(sum(rows) / len(rows)))


def test_one_copy_in_each_worker_computes_whole_batches():
    for scopes_of, shard_ranks in (([], 1), ([TaskGraph(0, "split", 2)], 2)):
        mesh = make_mesh(scopes_of, cluster(2, 4))
        whole = in_one_piece(mesh)
        assert whole.instances == mesh.instances and whole.takers(0) == mesh.takers(0)
        assert whole.active == mesh.instances[:shard_ranks] and mesh.active == mesh.instances
        assert whole.givers(0) == mesh.instances[:1] and len(mesh.givers(0)) == 4 // shard_ranks
        assert whole.num_merged() == 2 and mesh.num_merged() == 8 // shard_ranks
        assert whole.served(0) == mesh.instances[1:shard_ranks]
