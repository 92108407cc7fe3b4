"""Because of whom an error came: other workers, as far as the error, or those from which it followed, say so."""

import re

from epl.errors import WorkerError
from epl.session.endings.causes import from_communication
from epl.session.endings.peer_errors import FromPeer

# How the native library, and what waits for other workers, say for whom they waited in vain. All are texts of EPL's
# own; the native library's come through TensorFlow, which passes on nothing else.
_AWAITED = [
    re.compile(words)
    for words in (
        r"\bwaited \S+ s (?:in vain )?for workers? ((?:\d+(?: \([^)]*\))?(?:, )?)+)",
        r": ((?:worker \d+ \([^)]*\)(?:, )?)+) did not come within",
        r"\b[Ww]orker (\d+) (?:has not saved it within|at \S+ could not be reached)",
        r"\b[Ww]orker (\d+)(?: at \S+|, which leads this host,)? is gone\b",
        r"\bno sign of life from workers? ((?:\d+(?:, )?)+)",
        r"\bworkers? (\d+(?: and \d+(?! others))?)(?: and \d+ others)? (?:has|have) not started within",
        r"\bworker (\d+)(?: \(process \d+\))? has (?:ended|finished|closed communicator)\b",
        r"\bworker (\d+): the step was cancelled while",
        r"\bthe connection to worker (\d+) broke\b",
    )
]
_ASIDE = re.compile(r"\([^)]*\)")
_BECAUSE = "_epl_because"


def because_of(error, worker):
    """The error, marked as one that has come because of a worker, for classes that have no place for it."""
    setattr(error, _BECAUSE, worker)
    return error


def blamed(error, own):
    """(the other workers because of whom an error came, whether it can only have followed from something else).

    Args:
      error: an exception; those from which it followed, in a program that raises another one, count too.
      own: index of this worker.
    """
    for each in _chain(error):
        found, follows = _blamed(each)
        if found or follows:
            return sorted(set(found) - {own}), follows and own not in found
    return [], False


def _blamed(error):
    if getattr(error, _BECAUSE, None) is not None:
        return [getattr(error, _BECAUSE)], True
    if isinstance(error, WorkerError):
        return [error.worker] if error.worker >= 0 else [], True
    if from_communication(error):
        return awaited(str(error)), True
    return [], False


def awaited(text):
    """Indices of the workers of which a message says that somebody waited for them in vain, or has lost them."""
    found = (found for words in _AWAITED for found in words.findall(text))
    return [int(index) for each in found for index in re.findall(r"\d+", _ASIDE.sub("", each))]


def _chain(error):
    """The error and those from which it followed."""
    seen = []
    while error is not None and error not in seen:
        seen.append(error)
        yield error.error if isinstance(error, FromPeer) else error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
