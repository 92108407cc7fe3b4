"""`python -m epl.plan --search`: the best plans of a script for a cluster, as a table, a page and a file of keys."""

import json
import os
import sys

from epl.capture.record import make_program
from epl.cluster.machine import machine
from epl.compiler import compile as compile_program
from epl.env import Env
from epl.errors import EplError, PlanError
from epl.graph import collector
from epl.search import shown
from epl.search.search import machine_for, search
from epl.session.front_ends.written import written

REFUSED = 2
_MIB = 1 << 20


def show_search(graph, options):
    """Searches for a tf.Graph, prints and writes what was found; returns the exit status.

    Args:
      graph: the tf.Graph.
      options: of the command line (epl.session.front_ends.preview).
    """
    env = Env.get()
    config, cluster = env.config, env.cluster
    try:
        with collector.paused():
            captured = make_program(graph)
            if not captured.apply_calls:
                raise PlanError("%s does not train, so there is no plan to choose." % options.script)
            if options.amp:
                config.auto.amp = True
            on = machine(options.machine) if options.machine else machine_for(config, cluster)
            limit = int(options.memory_limit_mb * _MIB) if options.memory_limit_mb else None
            found = search(captured, config, cluster, on, options.batch, limit)
            compile_program(captured, config.replaced(found.best.values), cluster)  # it is one that runs
    except EplError as error:
        print("%s: %s" % (type(error).__name__, error), file=sys.stderr)
        return REFUSED
    if options.json:
        print(json.dumps(shown.facts(found, config), indent=2, sort_keys=True))
    else:
        print(shown.table(found, options.rows))
    command = "epl-launch --num_workers %d --gpu_per_worker %d --config %s %s" % (
        cluster.worker_num,
        cluster.gpu_num_per_worker,
        options.run_file,
        " ".join([options.script] + options.arguments),
    )
    if not written("--run_file", options.run_file, shown.run_file(found, config, command)):
        return REFUSED
    if options.pareto:
        title = "Plans for %s on %s" % (os.path.basename(options.script), found.machine)
        if not written("--pareto", options.pareto, shown.page(found, title)):
            return REFUSED
    if not options.json:
        print("Written to %s: %s" % (options.run_file, command))
    return 0
