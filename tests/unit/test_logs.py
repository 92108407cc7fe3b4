"""Where EPL's messages go, and what a program that has set up logging itself keeps of that."""

import io
import logging
import re
import sys

import pytest

from epl import logs
from epl.errors import ConfigError
from epl.launch import output

pytestmark = pytest.mark.once

LOG = logging.getLogger("epl")
TIMED = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d %s epl: %s\n"


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self):
        return True


class Console:
    """What has come to standard error, which is a pipe."""

    def __init__(self, capsys):
        self._capsys, self._text = capsys, ""

    def getvalue(self):
        """All of it so far."""
        self._text += self._capsys.readouterr().err
        return self._text


@pytest.fixture(name="console")
def console_fixture(monkeypatch, capsys):
    """Loggers as a fresh program has them."""
    monkeypatch.setattr(LOG, "handlers", [])
    monkeypatch.setattr(LOG, "propagate", True)
    handlers, level = list(logging.root.handlers), LOG.level
    LOG.setLevel(logging.NOTSET)
    yield Console(capsys)
    LOG.setLevel(level)
    logging.root.handlers[:] = [handler for handler in logging.root.handlers if handler in handlers]


def test_messages_in_a_file_have_time_and_level(console):
    logs.install({})
    LOG.info("a plan")
    LOG.warning("a warning")
    LOG.debug("a detail")
    assert re.fullmatch(TIMED % ("INFO", "a plan") + TIMED % ("WARNING", "a warning"), console.getvalue())


def test_messages_on_a_terminal_are_short(console, monkeypatch):
    logs.install({})
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    LOG.info("a plan")
    assert terminal.getvalue() == "epl: a plan\n" and console.getvalue() == ""


def test_the_launcher_keeps_times_in_the_log_alone(console):
    logs.install({})
    LOG.info("a plan\n  worker  device")
    said = console.getvalue().encode()
    kept, short, whole = io.BytesIO(), output.Console(-1), output.Console(-1)
    output.Stream(0, short, kept).feed(said, 0)
    output.Stream(0, whole, everything=True).feed(said, 0)
    assert re.fullmatch(TIMED % ("INFO", "a plan\n  worker  device"), kept.getvalue().decode())
    assert short._pending == b"[worker 0] epl: a plan\n[worker 0]   worker  device\n"
    assert re.match(r"\[worker 0\] \d{4}-.* INFO epl: a plan\n", whole._pending.decode())


def test_the_level_of_the_environment(console):
    logs.install({logs.VARIABLE: "warning"})
    LOG.info("a plan")
    assert console.getvalue() == ""
    logs.install({logs.VARIABLE: "DEBUG"})  # another one at the next epl.init()
    LOG.debug("a detail")
    assert "a detail" in console.getvalue()


def test_a_level_that_is_none(console):
    with pytest.raises(ConfigError, match="EPL_LOG_LEVEL='LOUD' is no level. Set it to one of DEBUG, INFO, WARNING"):
        logs.install({logs.VARIABLE: "LOUD"})
    assert (LOG.handlers, LOG.level) == ([], logging.NOTSET)


@pytest.mark.parametrize("first", [True, False])
def test_the_programs_level_is_kept(console, first):
    if not first:
        logs.install({})
    LOG.setLevel(logging.ERROR)
    logs.install({})
    logs.install({logs.VARIABLE: "DEBUG"})
    LOG.warning("a warning")
    assert LOG.level == logging.ERROR and console.getvalue() == ""


@pytest.mark.parametrize("first", [True, False])
def test_the_programs_handlers_are_the_only_ones(console, first):
    kept = io.StringIO()
    if not first:
        logs.install({})
    handler = logging.StreamHandler(kept)
    LOG.addHandler(handler)
    logs.install({})
    logs.install({})
    LOG.info("a plan")
    assert kept.getvalue() == "a plan\n" and console.getvalue() == ""
    assert handler in LOG.handlers and LOG.propagate


def test_a_handler_of_the_root_logger_gets_messages_too(console):
    kept = io.StringIO()
    logging.root.addHandler(logging.StreamHandler(kept))  # as of a file
    logs.install({})
    LOG.info("a plan")
    assert kept.getvalue() == "a plan\n" and "epl: a plan" in console.getvalue()


def test_messages_are_shown_once(console):
    logs.install({})
    handler = logging.StreamHandler()  # as logging.basicConfig makes one
    handler.setFormatter(logging.Formatter("%(name)s says %(message)s"))
    logging.root.addHandler(handler)
    LOG.info("a plan")
    assert console.getvalue() == "epl says a plan\n"
    handler.setLevel(logging.WARNING)  # what that one leaves out is shown all the same
    LOG.info("another")
    assert re.fullmatch("epl says a plan\n" + TIMED % ("INFO", "another"), console.getvalue())


def test_absl_shows_them_once_too(console):
    absl = pytest.importorskip("absl.logging")
    handler = absl.get_absl_handler()
    before = handler.python_handler.stream
    handler.python_handler.stream = sys.stderr
    try:
        logging.root.addHandler(handler)
        logs.install({})
        LOG.info("a plan")
    finally:
        handler.python_handler.stream = before
    assert re.findall(r".*a plan\n", console.getvalue()) == re.findall(
        r"I\d+ .* test_logs.py:\d+\] a plan\n", console.getvalue()
    )
    assert console.getvalue().count("a plan") == 1
