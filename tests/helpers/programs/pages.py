"""Programs that stand on a page of docs/."""

import os
import re

from tests.helpers import processes

BLOCK = re.compile(r"```python\n# (\w+\.py)\n(.*?)```", re.DOTALL)


def on(page):
    """dict of file name to text: the whole programs of a page."""
    return dict(BLOCK.findall(text_of("docs/" + page)))


def text_of(page):
    """The text of a page, by its path in the repository."""
    with open(os.path.join(processes.REPOSITORY, page), encoding="utf-8") as text:
        return text.read()


def run(epl, page, name, folder):
    """Runs a program of a page in a folder; what it has called `result`."""
    del epl  # the program imports it
    here, names = os.getcwd(), {"__name__": "__main__"}
    os.chdir(folder)
    try:
        exec(compile(on(page)[name], name, "exec"), names)
    finally:
        os.chdir(here)
    return names["result"]
