"""The plan that EPL chooses at the first run, where the configuration asks for that: worker 0 decides for all."""

import json
import logging

from epl.capture.record import make_program
from epl.errors import EplError, PlanError
from epl.graph import collector
from epl.search.search import asks, is_wanted, machine_for, search, values_of
from epl.search.shown import table
from epl.session.estimated_program import DEFAULT_BATCH

_LOG = logging.getLogger("epl")
_MOST_SHOWN = 10


def choose_plan(tf_graph, config, cluster, job):
    """Sets the keys of a configuration that make the best plan for a graph, if it is to be searched for.

    All workers come to it, for the same graph. What is set counts as given from then on, so that nothing is chosen
    again when the graph grows.

    Args:
      tf_graph: the user's tf.Graph.
      config, cluster, job: of the process; the epl.Config is changed.

    Raises:
      PlanError: no plan fits, or none can be made; the same on all workers.
    """
    if not asks(config):
        return
    with collector.paused():
        program = make_program(tf_graph)
        if not is_wanted(program, config, cluster):
            return
        told = job.decided("a plan", lambda: json.dumps(_decided(program, config, cluster)).encode())
    decided = json.loads(told.decode())
    if "error" in decided:
        raise PlanError(decided["error"])
    for name, value in sorted(decided["values"].items()):
        category, attribute = name.split(".")
        setattr(getattr(config, category), attribute, value)
    config.validate()


def _decided(program, config, cluster):
    """Worker 0's choice: dict of the keys' values, or of why there is none."""
    batch = config.auto.batch or DEFAULT_BATCH * cluster.total_gpu_num
    try:
        found = search(program, config, cluster, machine_for(config, cluster), batch)
    except EplError as error:
        return {"error": str(error)}
    _LOG.info("%s", table(found, _MOST_SHOWN))
    if found.total_rows is not None and not config.auto.batch:
        _LOG.warning(
            "this program is fed batches of any size; the plan was chosen for %d rows a step. auto.batch says how many "
            "there are.",
            batch,
        )
    values = dict(values_of(found.best, config), **{"auto.search": False})
    if config.auto.auto_parallel and found.best.choice.stages == 1:
        values.update({"auto.auto_parallel": False, "pipeline.num_stages": None})  # it has been followed
    return {"values": values}
