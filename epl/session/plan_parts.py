"""What worker 0 tells of its plan for the page of the run (`epl-launch --report`), as parts of a page."""

import html
import json
import logging

from epl.plan.input.batch_rows import data_set_rows
from epl.plan.report import placements_page
from epl.plan.report.plan_table import plan_table
from epl.plan.report.schedule_page import schedule_part
from epl.session.estimated_program import estimate_exchanges

_LOG = logging.getLogger("epl")


def plan_parts(program, pipeline):
    """(heading, HTML) of each part, of a compiled Program that trains.

    Args:
      program: the compiled Program.
      pipeline: the `pipeline` part of the configuration.
    """
    exchanges = estimate_exchanges(program, data_set_rows(program.source.graph))
    parts = [("Plan", "<pre>%s</pre>" % html.escape(plan_table(program.plan, program)))]
    heading, schedule = schedule_part(program, pipeline)
    parts.append(("Schedule, as planned: " + heading, schedule))
    if program.partitioned is not None:
        parts.append(("What is divided, and what is exchanged", placements_page.part(program, exchanges)))
    elif exchanges:
        parts.append(("What is exchanged", placements_page.exchanges_part(program, exchanges)))
    return parts


def leave_parts(program, pipeline, path):
    """Writes them into a file; a disk that is full costs the page its plan, not the training."""
    try:
        with open(path, "w", encoding="utf-8") as stream:
            json.dump(plan_parts(program, pipeline), stream)
    except OSError as error:
        _LOG.warning("what the page of the run says of the plan cannot be written to %s: %s", path, error.strerror)
