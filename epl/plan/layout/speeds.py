"""Which weights the devices of a model replica get (cluster.device_weights="auto"), of how fast they are."""

from dataclasses import dataclass

# Speeds that differ by no more than this part of the faster one's count as the same: no measurement is more exact.
_ALIKE = 0.1
# Others are rounded to so many parts of the fastest one's.
_STEPS = 40
# Parts of a batch of which nobody knows how many rows it has, a device: the next power of two, which divides most.
_PARTS = 8
_NAMED = 8  # of devices, in words


@dataclass(frozen=True)
class Pace:
    """How fast a place is among those that divide a model replica's batch, and what holds it back.

    Attributes:
      worker, device: which of the devices at this place is the slowest: one for each replica and each stage.
      speed: its speed, of the fastest Pace's; rounded.
    """

    worker: int
    device: int
    speed: float


def paces(mesh, speeds):
    """The Paces on a Mesh's axis shard, a tuple. All replicas have the same weights, so the slowest device counts.

    Args:
      mesh: a Mesh.
      speeds: of each worker, a list of those of its devices, in any unit.
    """
    found = [None] * mesh.num_shards
    for group in range(mesh.num_pipelines):
        for instance in mesh.instances:
            shard = (group * len(mesh.instances) + instance.index) % mesh.num_shards
            for worker, device in zip(instance.workers, instance.devices):
                worker += group * mesh.pipeline_workers
                one = Pace(worker, device, speeds[worker][device])
                if found[shard] is None or one.speed < found[shard].speed:
                    found[shard] = one
    rounded = _rounded([place.speed for place in found])
    return tuple(Pace(p.worker, p.device, speed) for p, speed in zip(found, rounded))


def _rounded(speeds):
    """Each of the fastest one's; those that are nearly the same are the same."""
    fastest, found, leader = max(speeds), {}, None
    for speed in sorted(speeds, reverse=True):
        if leader is None or speed < leader * (1 - _ALIKE):
            leader = speed
            found[speed] = max(1, round(_STEPS * speed / fastest)) / float(_STEPS)
        else:
            found[speed] = found[leader]
    return [found[speed] for speed in speeds]


def weights_by_speed(speeds, rows=None):
    """Weights with which the slowest device is done first: a tuple of positive whole numbers.

    Args:
      speeds: of the devices that divide a batch.
      rows: that a batch has, which the sum of the weights divides; None: nobody knows.
    """
    count = len(speeds)
    if len(set(speeds)) == 1 or rows is not None and rows < count:
        return (1,) * count
    weights = [1] * count
    for _ in range((rows or parts_of(count)) - count):
        taker = min(range(count), key=lambda number: (weights[number] + 1) / speeds[number])
        weights[taker] += 1
    return tuple(weights)


def parts_of(count):
    """Into how many parts a batch of unknown size is divided for so many devices."""
    return 1 << (_PARTS * count - 1).bit_length()


def told(found, weights, rows, devices_per_worker):
    """What was measured and what comes of it, in words, a line for each device that is slower than the fastest.

    Args:
      found: the Paces; `weights`: theirs.
      rows: as for `weights_by_speed`.
      devices_per_worker: of each worker.
    """
    if len(set(weights)) == 1:
        alike = len({place.speed for place in found}) == 1
        why = "as fast as each other, within %.0f %%" % (100 * _ALIKE) if alike else "of different speed, but there are"
        why += "" if alike else " too few rows to divide by it"
        return "The devices that divide a batch are %s: they take equal parts of it (cluster.device_weights)." % why

    def name(place, after=""):
        if devices_per_worker > 1:
            return "device %d of worker %d" % (place.device, place.worker)
        return "worker %d's%s" % (place.worker, after)

    best = max(found, key=lambda place: place.speed)
    of = "%d rows" % rows if rows else "%d parts of a batch" % sum(weights)
    lines = [
        "%s has %.3g of the speed of %s: it takes %d of %s"
        % (name(place, " device"), place.speed, name(best), weight, of)
        for place, weight in zip(found, weights)
        if place.speed < best.speed
    ]
    if len(lines) > _NAMED:
        lines[_NAMED:] = ["… and %d others" % (len(lines) - _NAMED)]
    return "\n  ".join(["Batches are divided by the speed of the devices (cluster.device_weights):"] + lines)
