"""Puts a fault into what is imported already: functions that there are get the code of the changed file."""

import collections
import gc
import os
import types


class NotAlive(Exception):
    """What the fault changes cannot be exchanged in a function that there is; it has to be imported anew."""


def functions_under(root, folders):
    """{code: [functions that have it]} of all functions that there are and whose files lie in these folders."""
    places = tuple(os.path.join(root, folder) + os.sep for folder in folders)
    gc.unfreeze()
    found = collections.defaultdict(list)
    for each in gc.get_objects():
        if isinstance(each, types.FunctionType) and each.__code__.co_filename.startswith(places):
            found[each.__code__].append(each)
    gc.freeze()
    return found


def plant(path, source, planted, functions):
    """Gives functions of a file the code that they have in another state of it.

    Args:
      path: as in the code of the functions.
      source, planted: bytes of the file as it is imported, and of the other state.
      functions: of `functions_under`.

    Raises:
      NotAlive: no function has code that is another one now, or one of them takes other variables from outside.
    """
    pairs = [pair for pair in _pairs(*(compile(text, path, "exec", dont_inherit=True) for text in (source, planted)))]
    exchanged = [(function, new) for old, new in pairs for function in functions.get(old, ())]
    if not exchanged or any(function.__code__.co_freevars != new.co_freevars for function, new in exchanged):
        raise NotAlive(path)
    for function, new in exchanged:
        function.__code__ = new


def _pairs(old, new):
    """(code, code in its place) of all functions inside one that differ, lines included."""
    inside = [[each for each in code.co_consts if isinstance(each, types.CodeType)] for code in (old, new)]
    if [each.co_name for each in inside[0]] != [each.co_name for each in inside[1]]:
        return
    for one, other in zip(*inside):
        if one != other:
            yield one, other
            for pair in _pairs(one, other):
                yield pair
