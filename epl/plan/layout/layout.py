"""Lays the stages of a model out over the devices of a cluster."""

from dataclasses import replace
from functools import reduce
from math import gcd

from epl.config import composes
from epl.errors import PlanError, UnsupportedError
from epl.plan.layout.mesh import Instance, Mesh, Stage
from epl.plan.layout.stages import used_taskgraphs

# The kind of a TaskGraph of `epl.replicate` whose devices divide each operation by rows (epl.plan.layout.fixed_batch).
ROWS = "rows"
# cluster.device_weights: they follow from speeds that workers measure at their first run, and are equal until then.
BY_SPEED = "auto"


def make_mesh(
    taskgraphs,
    cluster,
    colocate=False,
    worker_index=None,
    num_chunks=1,
    prefer_intra_node=True,
    num_communicators=1,
    weights=(),
    stacked=False,
):
    """Lays the TaskGraphs out over the cluster's devices.

    Args:
      taskgraphs: list of epl.program.program.TaskGraph; empty = the whole model is one replicate(1).
      cluster: has worker_num, worker_index, gpu_num_per_worker, device_type.
      colocate: all TaskGraphs share the same devices (cluster.colocate_split_and_replicate).
      worker_index: as which worker sees it; default the cluster's own.
      num_chunks: stages on each device of a pipeline: stage s lies on its device s modulo their number.
      prefer_intra_node: the stages of a copy lie in as few workers as possible; else in as many.
      num_communicators: of each group (communication.num_communicators).
      weights: of the devices of a model replica (cluster.device_weights); empty: all the same, as BY_SPEED is too.
      stacked: of scopes with different device counts, in one worker, a device of one with fewer has several instances.

    Raises:
      PlanError: the device counts do not divide; the message has the arithmetic.
      UnsupportedError: a layout that this version cannot run.
    """
    stages = tuple(Stage(i, t.name or "taskgraph_%d" % t.index, t.device_count) for i, t in enumerate(taskgraphs))
    stages = stages or (Stage(0, "model", 1),)
    _check_stages(stages, num_chunks)
    shards = shards_of(stages)
    depth = 1 if colocate else len(stages) // num_chunks
    per_worker = cluster.gpu_num_per_worker
    split = is_split(taskgraphs)
    uneven = len({stage.device_count for stage in stages}) > 1
    of_split = split and any(t.kind == "split" for t in taskgraphs)
    if uneven:
        has = ((composes.COLOCATE, colocate), (composes.CHUNKS, num_chunks > 1), (composes.SPLIT, of_split))
        composes.check([composes.UNEVEN] + [each for each, is_set in has if is_set], counts=counts_of(stages))
    _check_devices(stages, depth, cluster, split)
    if weights:
        _check_weights(weights, stages, shards, split)
    if uneven:
        places = _stage_by_stage(stages, per_worker)
    else:
        places = (_close if prefer_intra_node else _spread)(depth, cluster.worker_num, per_worker)
    if places is None:
        raise UnsupportedError(
            "the %d stages of a copy of the model do not lie evenly on %d workers with %d devices each: a copy would "
            "end in the middle of a worker. Start workers whose number of devices is a divisor or a multiple of %d, or "
            "use another number of scopes."
            % (depth, cluster.worker_num, per_worker, _devices_of_copy(stages, depth) // shards)
        )
    pipeline_workers = 1 + max(worker for column in places for worker, _ in column)
    stacked = stacked and uneven and pipeline_workers == 1
    if stacked:
        stages = tuple(replace(stage, device_count=shards) for stage in stages)
    if split:
        _check_split(shards, len(places), depth, per_worker, pipeline_workers)
    worker = cluster.worker_index if worker_index is None else worker_index
    instances = []
    for index, column in enumerate(places):
        rank = worker // pipeline_workers * len(places) + index
        workers, devices = zip(*[column[s.index % depth] for s in stages])
        instances.append(Instance(index, rank, rank // shards, rank % shards, devices, workers))
    return Mesh(
        num_workers=cluster.worker_num,
        worker_index=worker,
        devices_per_worker=per_worker,
        device_type=cluster.device_type,
        stages=stages,
        num_shards=shards,
        instances=tuple(instances),
        pipeline_workers=pipeline_workers,
        num_communicators=num_communicators,
        split=split,
        weights=()
        if weights == BY_SPEED or len(set(weights)) < 2
        else tuple(w // reduce(gcd, weights) for w in weights),
        stacked=stacked,
    )


def mesh_as_marked(taskgraphs, config, cluster):
    """The Mesh of TaskGraphs as a configuration has it; raises as `make_mesh`."""
    return make_mesh(
        taskgraphs,
        cluster,
        config.cluster.colocate_split_and_replicate,
        num_chunks=config.pipeline.num_chunks,
        prefer_intra_node=config.cluster.device_place_prefer_intra_node,
        num_communicators=config.communication.num_communicators,
        weights=config.cluster.device_weights,
        stacked=_is_stacked(taskgraphs, config),
    )


def _is_stacked(taskgraphs, config):
    """Whether scopes of different device counts have as many instances, for what asks for as many copies of all that
    there is."""
    asks = set(composes.STACKED) & set(composes.in_force(config.to_dict()))
    may_scale = bool(config.amp.level) and config.amp.dtype != "bfloat16"
    return bool(asks) or may_scale or any(t.kind == ROWS for t in taskgraphs)


def mesh_of(taskgraphs, config, cluster, trains=True):
    """The Mesh of a model that has these TaskGraphs as its stages.

    What does not train is laid out on what there is, as if it were marked with nothing, if it does not fit otherwise.
    """
    try:
        mesh = mesh_as_marked(taskgraphs, config, cluster)
    except (PlanError, UnsupportedError):
        if trains:
            raise
        mesh = make_mesh([], cluster, num_communicators=config.communication.num_communicators)
    # Without GPUs the host, as which the first CPU device serves, does not compute too what is moved away from it.
    offloads = config.offload.level or config.gradient_checkpoint.offload
    return replace(mesh, first_device=1) if offloads and mesh.device_type == "CPU" else mesh


def num_copies(program, target, trains=True):
    """How many copies of a Program's model there are on the cluster of an epl.program.target.Target."""
    return mesh_of(used_taskgraphs(program), target.config, target.cluster, trains).copies.size


def shards_of(taskgraphs):
    """Parts of a tensor that the devices of a copy of the model divide."""
    return reduce(_multiple, (t.device_count for t in taskgraphs))


def is_split(taskgraphs):
    """Whether any of some TaskGraphs divides tensors over several devices."""
    return any(t.kind in ("split", ROWS) and t.device_count > 1 for t in taskgraphs)


def _check_stages(stages, num_chunks):
    """Raises PlanError where stages do not divide into chunks."""
    if len(stages) % num_chunks:
        raise PlanError(
            "pipeline.num_chunks=%d does not divide the %d scopes of this model (%d = %d x %d + %d): each device of a "
            "pipeline holds the same number of stages. Use a multiple of %d scopes, or another pipeline.num_chunks."
            % (
                num_chunks,
                len(stages),
                len(stages),
                len(stages) // num_chunks,
                num_chunks,
                len(stages) % num_chunks,
                num_chunks,
            )
        )


def counts_of(stages):
    """How messages name stages with how many devices each has."""
    return ", ".join("%s: %d" % (s.name, s.device_count) for s in stages)


def _check_weights(weights, stages, shards, split):
    """Raises where devices cannot have these parts of a batch (cluster.device_weights)."""
    given = "cluster.device_weights=(%s)" % weights_text(weights)
    lies = ((composes.SPLIT, split), (composes.UNEVEN, len({stage.device_count for stage in stages}) > 1))
    composes.check([composes.WEIGHTS] + [each for each, is_so in lies if is_so], weights=weights_text(weights))
    if weights == BY_SPEED:
        if shards == 1:
            raise PlanError(
                'cluster.device_weights="auto" divides the batch of a model replica by the speed of its devices, but '
                "here each replica has one device and a batch of its own. Mark the model with epl.replicate(k), k "
                "devices for one batch, or leave the key out."
            )
        return
    if len(weights) != shards:
        raise PlanError(
            "%s has %d weights, but the batch of a model replica is divided over %d (epl.replicate(%d)). Give one "
            "weight for each of these devices, or leave the key out." % (given, len(weights), shards, shards)
        )


def weights_text(weights):
    """How messages name the value of cluster.device_weights."""
    return weights if weights == BY_SPEED else ", ".join(map(str, weights))


def _check_split(shards, columns, depth, per_worker, pipeline_workers):
    """Raises UnsupportedError where tensors cannot be divided over devices in the way that is asked for.

    Args:
      shards: devices that divide a tensor.
      columns: of a pipeline group of workers, for each stage of a pipeline.
      depth: stages with devices of their own.
      per_worker: devices of a worker.
      pipeline_workers: workers of a pipeline group.
    """
    if shards % columns and columns % shards:
        each = ", %d for each of %d stages" % (columns, depth) if depth > 1 else ""
        raise UnsupportedError(
            "epl.split(%d) does not fit workers with %d devices each%s: %d is neither a divisor nor a multiple of %d, "
            "so that a copy of the model would end in the middle of %s. Start workers whose number of devices is "
            "one of these, or use another device_count."
            % (
                shards,
                per_worker,
                each if pipeline_workers == 1 else each + " in %d neighbours" % pipeline_workers,
                shards,
                columns,
                "a worker" if pipeline_workers == 1 else "them",
            )
        )


def _check_devices(stages, depth, cluster, split):
    """Raises PlanError when copies of `depth` stages, side by side, do not fill the devices of the cluster."""
    share = split and depth > 1 and len({stage.device_count for stage in stages}) == 1
    shards, per_worker = stages[0].device_count, cluster.gpu_num_per_worker
    per_replica = _devices_of_copy(stages, depth)
    total = cluster.worker_num * per_worker
    if total % per_replica:
        what = (
            " + ".join("%s: %d" % (s.name, s.device_count) for s in stages) if depth > 1 else "device_count %d" % shards
        )
        raise PlanError(
            "one copy of the model needs %d devices (%s), but there are %d workers x %d devices = %d devices, and %d "
            "does not divide %d (%d = %d x %d + %d). Use a number of devices that is a multiple of %d, or another "
            "device_count%s."
            % (
                per_replica,
                what,
                cluster.worker_num,
                per_worker,
                total,
                per_replica,
                total,
                total,
                total // per_replica,
                per_replica,
                total % per_replica,
                per_replica,
                ", or set cluster.colocate_split_and_replicate to let all scopes share the same devices" * share,
            )
        )


def _devices_of_copy(stages, depth):
    """Devices of a copy of the model, of `depth` stages side by side."""
    counts = [stage.device_count for stage in stages]
    return depth * counts[0] if len(set(counts)) == 1 else sum(counts)


def _stage_by_stage(stages, per_worker):
    """As `_close` for stages with different numbers of devices: those of a copy stage by stage, one copy after the
    other, in as few workers as hold whole copies."""
    counts = [stage.device_count for stage in stages]
    needs, shards = sum(counts), reduce(_multiple, counts)
    firsts = [sum(counts[:index]) for index in range(len(counts))]
    devices = needs * per_worker // gcd(needs, per_worker)
    return [
        [divmod(copy + first + shard * count // shards, per_worker) for first, count in zip(firsts, counts)]
        for copy in range(0, devices, needs)
        for shard in range(shards)
    ]


def _multiple(one, other):
    """The least common multiple."""
    return one * other // gcd(one, other)


def _close(depth, workers, per_worker):
    """For each copy of the model in a pipeline group, the (worker of the pipeline group, device) of each of its `depth`
    devices; copies in as few workers as possible. None if they do not fit evenly."""
    del workers
    if per_worker % depth == 0:
        return [[(0, first + i) for i in range(depth)] for first in range(0, per_worker, depth)]
    if depth % per_worker == 0:
        return [[divmod(i, per_worker) for i in range(depth)]]
    return None


def _spread(depth, workers, per_worker):
    """The same with neighbouring devices of a copy in different workers."""
    if workers % depth == 0:
        return [[(i, device) for i in range(depth)] for device in range(per_worker)]
    if depth % workers == 0:
        rows = depth // workers
        return [[(i % workers, first + i // workers) for i in range(depth)] for first in range(0, per_worker, rows)]
    return None
