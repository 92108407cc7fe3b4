"""Faults that are none: a list of those that change nothing that anybody could tell, each with why.

In the file a function, the line before and after, and the reason, with an empty line between two faults:

    epl/plan/exchange/order.py:settle
    - if len(names) > 1:
    + if len(names) >= 1:
    Of one name there is nothing to order.
"""

import collections

Entry = collections.namedtuple("Entry", "function before after reason")


def read(path):
    """The entries of a file.

    Raises:
      ValueError: an entry is not of the form above.
    """
    with open(path) as file:
        texts = [text.strip("\n").split("\n") for text in file.read().split("\n\n")]
    found = []
    for lines in texts:
        if lines[0].startswith("#") or lines == [""]:
            continue
        if len(lines) < 4 or lines[1][:2] != "- " or lines[2][:2] != "+ ":
            raise ValueError("%s: not a function, '- before', '+ after' and a reason: %r" % (path, lines))
        found.append(Entry(lines[0], lines[1][2:], lines[2][2:], " ".join(lines[3:])))
    return found


def faults_of(entries, faults, source_of):
    """(names of the faults that are listed, entries of which there is none any more).

    Args:
      entries: of `read`.
      faults: all Faults.
      source_of: function from a Fault to its file's bytes.
    """
    left, found = {entry[:3]: entry for entry in entries}, set()
    functions, seen = {entry.function for entry in entries}, set()
    for fault in faults:
        function = "%s:%s" % (fault.path, fault.function)
        if function in functions:
            key = (function,) + fault.change_in(source_of(fault))
            if key in left:
                found.add(fault.name)
                seen.add(key)
    return found, [entry for key, entry in sorted(left.items()) if key not in seen]
