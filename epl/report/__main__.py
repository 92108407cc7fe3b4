"""python -m epl.report FILE: writes the page of a run, whose facts come as JSON from standard input."""

import json
import os
import sys

from epl.report.page import page


def main(path):
    """Writes the page whole, or leaves what there was."""
    text = page(json.load(sys.stdin))
    temporary = "%s.%d.tmp" % (path, os.getpid())
    try:
        with open(temporary, "w", encoding="utf-8") as stream:
            stream.write(text)
        os.replace(temporary, path)
    except OSError as error:
        if os.path.exists(temporary):
            os.unlink(temporary)
        return "%s cannot be written: %s" % (path, error.strerror)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
