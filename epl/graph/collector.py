"""Python's garbage collector while graphs are made."""

import contextlib
import gc


@contextlib.contextmanager
def paused():
    """Keeps it from going through all objects of a graph again and again while they are made; none of them are garbage.

    Does nothing where it is off already. What is freed when its last reference goes is freed as ever.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        if not gc.get_freeze_count():
            # To the oldest generation at once, or all that was made would be gone through as if it were short-lived.
            gc.freeze()
            gc.unfreeze()
        gc.enable()
