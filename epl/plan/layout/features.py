"""Which features a model, its configuration and its layout have, and that they go together."""

from epl.config import composes
from epl.plan.facts.user_collectives import user_collectives
from epl.plan.layout.layout import counts_of, weights_text


def check_features(model, config, mesh, role):
    """Raises UnsupportedError for the first pair of features that does not go together (epl.config.composes).

    Args:
      model: the Program.
      config: an epl.Config.
      mesh: the Mesh.
      role: what the graph is for where it does not train (epl.program.program), or None.
    """
    collectives = user_collectives(model.graph)
    wide = sorted(name for key, names in model.merges.items() if key.startswith("global_") for name in names)
    composes.check(
        _asked_for(model, config, mesh, role) | _laid_out(model, config, mesh, collectives, wide),
        counts=counts_of(mesh.stages),
        weights=weights_text(config.cluster.device_weights),
        node=collectives[0].name if collectives else "",
        op=collectives[0].op if collectives else "",
        tensor=wide[0] if wide else "",
    )


def _asked_for(model, config, mesh, role):
    """Those that keys ask for, without those that have nothing to do in this graph, or are asked for elsewhere."""
    found = set(composes.in_force(config.to_dict()))
    trains = mesh.copies.size > 1 and role is None and bool(model.apply_calls)
    has = {
        composes.LOCAL_SGD: trains and mesh.num_replicas > 1,
        composes.ZERO: trains,
        composes.ZERO_GRADIENTS: trains,
        composes.EQUAL_STEPS: mesh.copies.num_workers > 1 and bool(model.apply_calls),
        composes.DGC: bool(model.compressed),
        composes.WIRE: bool(model.coded) or trains,
        composes.FLOAT16: bool(model.scaled),
        composes.WEIGHTS: False,
        # Whether one has to be repeated for each micro-batch is seen when these are planned.
        composes.MICRO_BATCHES: False,
    }
    found.difference_update(feature for feature, is_so in has.items() if not is_so)
    return found | ({composes.FLOAT16} if model.scaled else set())


def _laid_out(model, config, mesh, collectives, wide):
    """Those that the program and its layout have."""
    has = {
        composes.STAGES: len(mesh.stages) > 1,
        composes.OVER_WORKERS: mesh.pipeline.num_workers > 1,
        composes.SEVERAL_DEVICES: mesh.num_shards > 1 and not mesh.split,
        composes.SPLIT: model.partitioned is not None,
        composes.UNEVEN: mesh.stacked and not mesh.split or not mesh.is_even,
        composes.SPREAD: mesh.is_spread,
        # Also equal ones: whether what is measured is equal, nobody knows before.
        composes.WEIGHTS: bool(config.cluster.device_weights) and mesh.num_shards > 1,
        composes.COLLECTIVES: bool(collectives),
        composes.GLOBAL_MERGES: bool(wide) and mesh.num_workers > 1,
    }
    return {feature for feature, is_so in has.items() if is_so}
