"""What of a plan is logged, and what of that is shown."""

import logging

from epl.launch.output import OWN
from epl.session.show_plan import show_plan
from tests.helpers import planning
from tests.unit.test_launch_output import shown


def test_the_launcher_shows_the_first_line_of_a_plan_with_strategies(caplog):
    with planning.capture() as graph:
        planning.sgd(planning.layers(x=planning.batch()))
        program = planning.compiled(graph, 2, 1, communication__wire_dtype="int8")
    with caplog.at_level(logging.INFO, "epl"):
        show_plan(program, planning.cluster(2, 1))
    (text,) = [each.getMessage() for each in caplog.records if each.getMessage().startswith("Plan: ")]
    assert "communication.wire_dtype=int8" in text
    logged = "2026-03-01 12:00:00 INFO epl: %s\nstep 1\n" % text
    assert shown(OWN, logged.encode()) == ["[worker 1] epl: %s" % text.split("\n")[0], "[worker 1] step 1"]
