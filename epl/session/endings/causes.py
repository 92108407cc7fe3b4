"""What an error says, also where several operations of a step have failed at once, and whether it is of our making."""

import re

import tensorflow.compat.v1 as tf

from epl.errors import CommunicationError

# How the operations of csrc/ops begin what a communicator says.
_MARK = "epl communication:"
# What follows from the end of a step.
_CANCELLED = re.compile(r"(?i)\bcancel")
_SEVERAL = re.compile(r"\d+ root error\(s\) found\.")
# Data that ends here too while another worker's has ended is no news.
_DATA_ENDED = re.compile(r"(?m)^\s*\(\d+\) (?:Out of range|OUT_OF_RANGE):")
# "  (0) Invalid argument: why", with the code in words or, by TensorFlow 2, in capitals.
_ONE = re.compile(r"\s*\(\d+\) (?:[A-Z][A-Za-z_ ]*: *)?(.*)")


def first_line(error):
    """What an error says; of several causes one that is not of the communicators, which only follow from others."""
    found = _causes(error)
    return next((text for text in found if not _follows(text)), found[0])


def from_communication(error):
    """True for errors that say only that talking to other workers failed."""
    if isinstance(error, CommunicationError):
        return True
    if not isinstance(error, tf.errors.OpError) or _MARK not in str(error.message):
        return False
    found = _causes(error)
    return len(found) == 1 or all(map(_follows, found)) or _DATA_ENDED.search(str(error.message)) is not None


def _follows(text):
    return _MARK in text or _CANCELLED.search(text) is not None


def _causes(error):
    """The first line of what it says, or of each of its causes where it lists several; a list of texts."""
    lines = str(getattr(error, "message", None) or error).strip().splitlines() or [type(error).__name__]
    several = [found.group(1) for found in map(_ONE.match, lines) if found] if _SEVERAL.match(lines[0]) else []
    return several or lines[:1]
