"""What each pass promises of the graph that it leaves, beyond that it is well formed. The runner checks it, always.

A promise has two parts. The footprint says what the pass may do at all: one that computes gradients again never writes
a variable, one that only adds nodes leaves all others as they were. What is kept says that the work is done, for passes
of which a plan tells what they have to leave.
"""

from dataclasses import dataclass
from typing import Callable, Optional

from epl.passes.promises import kept
from epl.passes.promises.footprint import (
    DATA_SET,
    EFFECT,
    EXCHANGE,
    FED,
    FILE_WRITE,
    IMPURE,
    PLAIN,
    READ,
    RUN,
    SEEDED,
    SOURCE,
    VARIABLE,
    WRITE,
    Footprint,
    allows,
    trespasses,
)


@dataclass(frozen=True)
class Promise:
    """Of one pass.

    Attributes:
      footprint: the Footprint.
      kept: function from a Graph and what the pass was given, the Plan or its decision, to a list of problems; or None.
    """

    footprint: Footprint
    kept: Optional[Callable] = None

    def broken(self, before, after, plan):
        """Problems of the Graph `after`, which the pass has made of the Graph `before`."""
        problems = trespasses(self.footprint, before, after)
        return problems or (self.kept(after, plan) if self.kept is not None else [])


# A pass that is to do what is not said here says it first. What copies operations of the user's may copy any: a program
# that is refused without need is worse than a copy that is not noticed.
# Of what makes variants of a worker's program, by what is fetched.
VARIANTS = {
    "with_messages": Promise(allows([EXCHANGE])),
    "with_wholes": Promise(allows([PLAIN, EXCHANGE])),
}
PROMISES = {
    # On the one copy of the model.
    "add_stages": Promise(allows(sets=True)),
    "divide_rows": Promise(allows()),
    "weigh_losses": Promise(allows([PLAIN, READ], copies=True, rewires=True)),
    "mixed_precision": Promise(allows([PLAIN], ["Cast"], copies=True, rewires=True, sets=True)),
    "scale_loss": Promise(
        allows(
            [PLAIN, VARIABLE, READ, WRITE], "IdentityN Mul NoOp RefMerge".split(), copies=True, rewires=True, sets=True
        )
    ),
    "recompute": Promise(allows([PLAIN, READ], copies=True, rewires=True, sets=True)),
    "check_gradients": Promise(allows([PLAIN], copies=True, waits=True)),
    "shorten_gradients": Promise(allows([PLAIN], rewires=True)),
    "add_residuals": Promise(allows([PLAIN, VARIABLE, WRITE])),
    "mark_merges": Promise(allows([PLAIN], rewires=True)),
    "order_products": Promise(allows(rewires=True, sets=True)),
    "place_hints": Promise(allows([PLAIN], rewires=True)),
    "partition_shards": Promise(allows([PLAIN, READ], "Identity IdentityN".split(), rewires=True, sets=True)),
    "transpose_operands": Promise(allows([PLAIN], ["EplTranspose"], rewires=True, sets=True)),
    "offload": Promise(allows([PLAIN], rewires=True, sets=True)),
    "offload_kept": Promise(allows([PLAIN], rewires=True)),
    "take_values": Promise(allows([PLAIN, READ], "Const GatherV2".split(), rewires=True)),
    "divide_clipping": Promise(allows([PLAIN], "AddN NoOp".split(), rewires=True, sets=True)),
    "divide_variables": Promise(
        allows(
            [PLAIN, VARIABLE, READ, WRITE],
            "All AddN ConcatV2 Identity NoOp".split(),
            copies=True,
            rewires=True,
            sets=True,
        )
    ),
    "divide_parameters": Promise(allows([PLAIN], rewires=True)),
    # Still on one copy, by the plan.
    "share_data": Promise(allows([PLAIN, DATA_SET, SEEDED], rewires=True, sets=True)),
    "repeat_data": Promise(allows([PLAIN, DATA_SET], rewires=True, sets=True)),
    "autotune_data": Promise(allows([PLAIN], rewires=True)),
    "order_reads": Promise(allows(waits=True)),
    "place": Promise(allows(sets=True), kept.every_node_is_placed),
    # Copies.
    "copy_micro_batches": Promise(allows([PLAIN, EXCHANGE], copies=True, rewires=True)),
    "clone_instances": Promise(allows(copies=True), kept.every_instance_is_whole),
    "cross_borders": Promise(allows([PLAIN], rewires=True)),
    "own_copies": Promise(allows(rewires=True)),
    "reseed": Promise(allows([PLAIN], rewires=True, sets=True)),
    "reseed_functions": Promise(allows(becomes=None, sets=True)),
    "share_batches": Promise(allows([PLAIN], rewires=True)),
    "fill_shards": Promise(allows([PLAIN], rewires=True, sets=True)),
    # These join the copies again.
    "weigh_copies": Promise(allows([PLAIN], sets=True)),
    "gather_batches": Promise(allows([PLAIN, EXCHANGE, SOURCE], ["IdentityN"])),
    "check_batches": Promise(allows([PLAIN, EXCHANGE], rewires=True)),
    "end_together": Promise(allows([PLAIN, EXCHANGE, SOURCE], ["IdentityN"])),
    "join_shards": Promise(allows([PLAIN, EXCHANGE], "Identity IdentityN".split())),
    "save_shards": Promise(allows([PLAIN, EXCHANGE], rewires=True, sets=True)),
    "sync_batch_norm": Promise(allows([PLAIN, EXCHANGE], ["IdentityN"], rewires=True)),
    "compress_gradients": Promise(allows([PLAIN, EXCHANGE, READ, WRITE], rewires=True)),
    "encode_gradients": Promise(allows([PLAIN, EXCHANGE, READ, WRITE], rewires=True)),
    "aggregate_gradients": Promise(allows([PLAIN, EXCHANGE], rewires=True), kept.gradients_are_aggregated),
    "join_found_infs": Promise(allows([PLAIN, EXCHANGE], rewires=True, sets=True)),
    "join_sums": Promise(allows([PLAIN, EXCHANGE], ["Identity"], rewires=True)),
    "merge_state": Promise(allows([PLAIN, EXCHANGE], rewires=True), kept.state_is_merged),
    "group_updates": Promise(allows([PLAIN, READ], copies=True, rewires=True)),
    "divide_updates": Promise(allows([PLAIN, EXCHANGE, READ, WRITE], rewires=True)),
    "gather_parameters": Promise(allows([PLAIN, EXCHANGE, READ], ["Identity"], rewires=True)),
    "average_variables": Promise(allows([PLAIN, EXCHANGE, VARIABLE, READ, WRITE]), kept.averages_are_made),
    "join_user_collectives": Promise(allows([PLAIN], ["Identity"], rewires=True, sets=True)),
    "merge_outputs": Promise(allows([PLAIN, EXCHANGE]), kept.outputs_are_merged),
    "move_collectives_to_gpu": Promise(allows([PLAIN], "Identity IdentityN".split(), rewires=True, sets=True)),
    "show_merged": Promise(allows([], ["NoOp"], rewires=True)),
    # This worker's part.
    "added_variables": Promise(allows([PLAIN, EXCHANGE, FED, READ, WRITE], rewires=True, sets=True)),
    "broadcast_variables": Promise(allows([PLAIN, EXCHANGE, READ, WRITE]), kept.variables_can_be_broadcast),
    "cut": Promise(allows([PLAIN, EXCHANGE], rewires=True, sets=True, removes=True)),
    "share_queues": Promise(allows([], ["PyFunc"], rewires=True), kept.queues_are_shared),
    "write_once": Promise(allows([], ["NoOp"])),
    "restore_own": Promise(allows([PLAIN], rewires=True, sets=True)),
    "read_copies": Promise(allows([PLAIN, READ]), kept.copies_can_be_read),
    "save_averages": Promise(allows([PLAIN, FED, READ], rewires=True), kept.averages_are_saved),
    "keep_positions": Promise(
        allows([PLAIN, FED, READ, EFFECT, SOURCE, DATA_SET], rewires=True), kept.positions_are_kept
    ),
    "read_ahead": Promise(allows([PLAIN, EFFECT, SOURCE], ["Unstage"])),
    "time_reads": Promise(allows([IMPURE], waits=True)),
    "save_by_file": Promise(allows([PLAIN, FILE_WRITE], ["MergeV2Checkpoints"], waits=True, rewires=True, sets=True)),
    "update_on_host": Promise(
        allows(
            [PLAIN, VARIABLE, READ, WRITE, RUN], "Assign AssignVariableOp".split(), copies=True, rewires=True, sets=True
        ),
        kept.updates_are_in_one_place,
    ),
    "number_collectives": Promise(allows()),  # and the order that it makes is checked, see kept.in_order
    "bound_clusters": Promise(allows(sets=True)),
}
