"""Where EPL's messages go: to the handlers that the program has, else to standard error."""

import logging
import os
import sys

from epl.errors import ConfigError

VARIABLE = "EPL_LOG_LEVEL"
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
_LOG = logging.getLogger("epl")
_TIMED = logging.Formatter("%(asctime)s %(levelname)s epl: %(message)s", "%Y-%m-%d %H:%M:%S")
_PLAIN = logging.Formatter("epl: %(message)s")


def level_of(environ):
    """The name of the level that `environ` asks for; default "INFO".

    Raises:
      ConfigError: it is none.
    """
    text = environ.get(VARIABLE, "").strip()
    if text and text.upper() not in LEVELS:
        raise ConfigError("EPL_LOG_LEVEL=%r is no level. Set it to one of %s, or unset it." % (text, ", ".join(LEVELS)))
    return text.upper() or "INFO"


class ToStandardError(logging.Handler):
    """Shows what nothing else does: on a terminal the message alone, in a file or a pipe with time and level.

    It is silent where the logger "epl" has other handlers, and where one of the root logger's shows the message.

    Attributes:
      level_set: the level that came with it; the logger has another one where the program has chosen.
    """

    level_set = logging.NOTSET

    def emit(self, record):
        if len(_LOG.handlers) > 1 or _LOG.propagate and any(_shows(each, record) for each in logging.root.handlers):
            return
        stream = sys.stderr  # a program may have set another since
        try:
            formatter = _PLAIN if stream.isatty() else _TIMED
            stream.write(formatter.format(record) + "\n")
            stream.flush()
        except Exception:  # as the handlers of `logging`: a message that cannot be shown ends no training
            self.handleError(record)


def _shows(handler, record):
    """Whether `handler`, which may be absl's with another one in it, shows `record` on the console."""
    if record.levelno < handler.level:
        return False
    stream = getattr(handler, "stream", getattr(getattr(handler, "python_handler", None), "stream", None))
    return stream is not None and stream in (sys.stderr, sys.stdout, sys.__stderr__, sys.__stdout__)


def install(environ=None):
    """Lets messages be seen unless the program has said how. Its level and its handlers stay as they are.

    Raises:
      ConfigError: EPL_LOG_LEVEL is no level; nothing has changed then.
    """
    level = getattr(logging, level_of(os.environ if environ is None else environ))
    own = next((handler for handler in _LOG.handlers if isinstance(handler, ToStandardError)), None)
    if own is None:
        own = ToStandardError()
        _LOG.addHandler(own)
    if _LOG.level in (logging.NOTSET, own.level_set):
        own.level_set = level
        _LOG.setLevel(level)
