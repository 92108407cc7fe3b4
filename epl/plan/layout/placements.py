"""Where each variable of a model is, along each axis of the mesh.

First values, broadcasts, checkpoints and the checks that copies stay the same go by this alone.

    variable of                            data                      stage              shard
    any model                              whole                     whole              whole
    a stage, the stages in several workers whole                     owned(worker)      whole
    a split model, if it is divided        whole                     whole              sharded(dim)
    zero.level: state, and parameters      owned(copy of the model)  whole              whole
    local_sgd, if it is averaged           partial(mean)             whole              whole
    a generator of random numbers          own(turned)               whole              whole
    what each copy sets by its own data    own(as first)             whole              whole
    what is left over, the filling of      own                       whole              whole
      queues
"""

from epl.program.placement import AS_FIRST, EVERYWHERE, MEAN, OWN, TURNED, WHOLE, Placed, own, owned, partial


def place_variables(model, analysis, mesh, stage_owners, generators, drifting, averaged, zero):
    """The variables that are not the same everywhere.

    Args:
      model: an epl.program.program.Program.
      analysis: its Analysis.
      mesh: a Mesh.
      stage_owners: node to the place in `mesh.pipeline` of the worker that alone computes it.
      generators: variables from which random numbers are drawn.
      drifting: those that each copy of the model comes to set by its own data.
      averaged: those of local_sgd.
      zero: the epl.plan.zero.zero.Zero, or None.

    Returns:
      dict of variable to its Placed; the others are EVERYWHERE.
    """
    among = 0 if zero is None else len(zero.state_bytes)
    divided = {} if model.partitioned is None else model.partitioned.placements
    trained = {variable for _, variable in model.computed}
    found = {}
    for name, variable in model.variables.items():
        if variable.rows_of is not None:
            continue  # there is none of it but in an update
        data = WHOLE
        if variable.is_own or name in analysis.of_queues:
            data = OWN
        elif zero is not None and name in zero.owners:
            data = owned(zero.owners[name], among)
        elif name in generators:
            data = own(TURNED)
        elif name in averaged:
            data = partial(MEAN)
        elif name in drifting and name not in trained:
            data = own(AS_FIRST)
        stage = owned(stage_owners[name], mesh.pipeline.num_workers) if name in stage_owners else WHOLE
        placed = Placed(data, stage, divided.get(name, WHOLE))
        if placed != EVERYWHERE:
            found[name] = placed
    return found
