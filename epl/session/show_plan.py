"""What a session tells people about its plan when there is something to train."""

import logging
import os

from epl.env import Env
from epl.launch.run_record import PARTS
from epl.plan.report.plan_table import plan_table
from epl.plan.sync.loss_notes import loss_guesses, loss_notes
from epl.session.devices import passed_over
from epl.session.plan_parts import leave_parts

_LOG = logging.getLogger("epl")


def show_plan(program, cluster):
    """Logs the plan of a compiled Program, on worker 0."""
    if cluster.worker_index != 0:
        return
    # Below its first line all is indented, empty lines too: so the launcher knows what of the output belongs to it.
    _LOG.info("%s", plan_table(program.plan, program).replace("\n\n", "\n  \n"))
    if os.environ.get(PARTS):
        leave_parts(program, Env.get().config.pipeline, os.environ[PARTS])
    for note in loss_notes(program.losses, program.plan.reduce_method):
        _LOG.warning("%s", note)
    for note in loss_guesses(program.losses):
        _LOG.info("%s", note)
    if program.automatic is not None:
        _LOG.info("%s", program.automatic.table())
    named = passed_over(program.source.graph)
    if named:
        _LOG.warning(
            "the program distributes its operations itself (%s). EPL computes all of a copy of the model on that "
            "copy's own device: build the model once, without a loop over devices and without "
            "tf.train.replica_device_setter.",
            ", ".join(named),
        )
