"""What was found out about one thing that a job needs, and how it is shown."""

import collections

OK, WARNING, WRONG = "ok", "warning", "wrong"

Finding = collections.namedtuple("Finding", "state what text advice")
Finding.__doc__ = """What is the matter with one thing.

Attributes:
  state: OK; WARNING: jobs run, but slower, or not all of them; WRONG: they do not.
  what: its name, a word or two.
  text: what was found.
  advice: how to mend it; "" where nothing is the matter.
"""


def fine(what, text):
    return Finding(OK, what, text, "")


def warning(what, text, advice):
    return Finding(WARNING, what, text, advice)


def wrong(what, text, advice):
    return Finding(WRONG, what, text, advice)


def lines(finding):
    """What is printed of a finding, a list of lines."""
    shown = ["%-8s %-16s %s" % (finding.state, finding.what, finding.text)]
    if finding.advice:
        shown.append("%-8s %-16s %s" % ("", "", finding.advice))
    return shown


def verdict(findings):
    """The last line, and the exit status: 0 where nothing is wrong."""
    bad = [finding.what for finding in findings if finding.state == WRONG]
    doubtful = [finding.what for finding in findings if finding.state == WARNING]
    if bad:
        return "jobs will not run here: see %s" % ", ".join(bad), 1
    if doubtful:
        return "jobs will run here; see the warning%s on %s" % (
            "" if len(doubtful) == 1 else "s",
            ", ".join(doubtful),
        ), 0
    return "all is well", 0
