"""Files that commands write."""

import os
import sys


def written(option, path, text):
    """Writes a file, which has all of it or what it had before; whether that was possible, else says why not.

    Args:
      option: of the command line, for the message.
      path: of the file.
      text: all of it.
    """
    folder, name = os.path.split(os.path.realpath(path))
    temporary = os.path.join(folder, ".%s.%d.tmp" % (name, os.getpid()))
    try:
        try:
            with open(temporary, "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(temporary, os.path.join(folder, name))
        finally:
            if os.path.exists(temporary):
                os.unlink(temporary)
    except OSError as error:
        print("%s %s cannot be written: %s" % (option, path, error.strerror), file=sys.stderr)
        return False
    return True
