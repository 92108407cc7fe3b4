"""Runs the code cells of a notebook in their order: python -m tests.helpers.notebook FILE [CELL...]

The numbers of further CELLs, counted from 0 among those with code, are run again at the end. A kernel and a client of
Jupyter would be some thirty packages more; what they add to this are displays, which the tour has none of.
"""

import json
import sys


def code_cells(path):
    with open(path, encoding="utf-8") as stream:
        cells = json.load(stream)["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def main(path, *again):
    cells = code_cells(path)
    for number in list(range(len(cells))) + [int(each) for each in again]:
        print("In [%d]" % number)
        sys.stdout.flush()
        # Functions of a notebook's cells belong to the module __main__, of which this is one.
        exec(compile(cells[number], "<cell %d>" % number, "exec"), sys.modules["__main__"].__dict__)


if __name__ == "__main__":
    main(*sys.argv[1:])
