"""Where the documentation has more about an error: the section of docs/troubleshooting.md that quotes its words."""

import os
import re

PAGE = "troubleshooting.md"
_HERE = os.path.dirname(os.path.abspath(__file__))
# The page of the checkout, or the copy that an installed package has.
_PLACES = (os.path.join(os.path.dirname(os.path.dirname(_HERE)), "docs", PAGE), os.path.join(_HERE, PAGE))
_HEADING = re.compile(r"^####\s+(.*)$", re.MULTILINE)
_QUOTED = re.compile(r"`([^`]+)`")
_OPEN = "…"  # what differs from case to case
_LEAST = 12  # characters that a quotation must have to tell one error from others


def address_of(message, page=None):
    """The section's address, "docs/troubleshooting.md#…"; None where the page has nothing about such a message.

    Args:
      message: the text of an error.
      page: text of the page; default: that of this installation.
    """
    flat, best = " ".join(message.split()), (0, None)
    for heading in _HEADING.findall(_page() if page is None else page):
        for quoted in _QUOTED.findall(heading):
            length = _matched(quoted, flat)
            if length > best[0]:
                best = length, "docs/%s#%s" % (PAGE, anchor(heading))
    return best[1]


def _matched(quoted, message):
    """How many characters of a quotation occur in a message, all of them and in their order; 0: not so."""
    parts = [part.strip() for part in quoted.split(_OPEN)]
    found = re.search(".*?".join(map(re.escape, parts)), message)
    length = sum(map(len, parts))
    return length if found and length >= _LEAST else 0


def anchor(heading):
    """What a heading is called in addresses, as GitHub and others make it."""
    text = re.sub(r"[^\w\- ]", "", heading.strip().lower())
    return text.replace(" ", "-")


def _page():
    for path in _PLACES:
        if os.path.isfile(path):
            with open(path, encoding="utf-8") as stream:
                return stream.read()
    return ""
