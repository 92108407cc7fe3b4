"""Which workers have what, by a Plan: along the stages of a pipeline, and among the copies that share state."""

from epl.plan.zero.zero import sharing_group


class Holding(object):
    """Methods of a Plan."""

    @property
    def sharing(self):
        """The Group of the copies of the model among which `zero` divides the state of optimizers."""
        return sharing_group(self.mesh, self.zero.degree)

    @property
    def shares_among_workers(self):
        """Whether several workers divide the state of optimizers, so that one alone computes what `keepers` has."""
        return self.zero is not None and self.sharing.num_workers > 1

    @property
    def owning_group(self):
        """The Group of the workers over which `owners` and `keepers` divide what is computed: those of a row for each
        keeper, one after the other, with the places of a pipeline in each."""
        if not self.shares_among_workers:
            return self.mesh.pipeline
        return self.sharing if self.mesh.pipeline.num_workers == 1 else self.mesh.everyone

    def only_holder(self, variable):
        """The one worker that has a variable, or that of the first copy of a pipeline where each copy has it, or the
        first of those that have parts of the owner's copy of the model; None: all have it, or parts."""
        placed, first = self.placed(variable), 0
        if self.is_kept(variable):
            first = self.mesh.copies.workers[placed.data.rank // self.zero.local]
            first -= self.mesh.shard_group.index if self.shards_span_workers else 0
        elif placed.stage.kind != "owned":
            return None
        return first - first % self.mesh.block + max(0, placed.stage.rank) if self.mesh.block > 1 else first

    def is_kept(self, variable):
        """Whether one alone of the workers that share the optimizers' state has a variable."""
        return self.placed(variable).data.kind == "owned" and not self.zero.whole_workers

    def owner(self, name, instance):
        """The place in `mesh.pipeline` of the one worker that computes an instance's copy of a node; None: all do."""
        owner = self.owners.get(name)
        if owner is None or name in self.staying or not self.mesh.is_spread:
            return owner
        return self.mesh.worker_of(self.stage(name), instance)

    def instances_here(self, name):
        """The instances of which this worker computes the copy of a node, alone or as all workers of a pipeline do."""
        here = self.mesh.pipeline.index
        return [i for i in self.instances_with(name) if self.owner(name, i) in (None, here)]

    def is_here(self, name):
        """True for a node of the user's of which this worker computes a copy, alone or as all workers do."""
        return self.has_stage(name) and (name not in self.keepers or self.keepers[name] == self.sharing.index)

    def has_stage(self, name):
        """True for a node of a stage that this worker has, and for what all workers of a pipeline have."""
        owner = self.owners.get(name)
        if owner is None or owner == self.mesh.pipeline.index:
            return True
        return self.mesh.is_spread and bool(self.instances_here(name))

    @property
    def elsewhere(self):
        """Names of the nodes of which this worker computes no copy."""
        here, spread = self.mesh.pipeline.index, self.mesh.is_spread
        found = {name for name, owner in self.owners.items() if owner != here and not (spread and self.has_stage(name))}
        if self.keepers:
            own = self.sharing.index
            found.update(name for name, keeper in self.keepers.items() if keeper != own)
        return found

    def is_spread(self, name):
        """Whether copies of a node, of those that one worker of a pipeline would have, lie in several."""
        return name in self.owners and len({self.owner(name, i) for i in self.instances_with(name)}) > 1

    def group_of(self, name):
        """The Group of the copies that hold the same of a node, or of a tensor's node."""
        return self.mesh.holding(self.stage(name))
