"""Writes docs/composes.md, and the pairs of docs/not_supported.md, from the table of epl/config/composes.py.

python scripts/composes.py          write them
python scripts/composes.py --check  end with 1 if a page is not what would be written
"""

import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, ROOT)

from epl.config import composes  # noqa: E402 (the path has to be there first)

MATRIX = os.path.join(ROOT, "docs", "composes.md")
PAIRS = os.path.join(ROOT, "docs", "not_supported.md")
BEGIN = "<!-- Written by scripts/composes.py from epl/config/composes.py; change it there. -->\n"
END = "<!-- End of what is written. -->\n"
TEST = "`tests/unit/test_pairs.py::test_refused`"
HEAD = """\
# What composes

Every pair of features goes together unless this table says **no**: then it ends with an error before anything is
trained, and [the list of refusals](not_supported.md#features-that-do-not-go-together) has its words and what to do
instead. Numbers above are those of the rows. A feature is refused with whatever refuses what it needs:
`local_sgd.adaptive`, say, with what `local_sgd.k_steps` does not go together with. Of the features that save memory
[another table](memory.md#what-composes) has each with several layouts. That two of them go together is tested with a
small model; with three and more, each pair has to.

"""


def matrix():
    """The page with a line for each feature."""
    names = composes.FEATURES
    lines = [
        "| | %s |" % " | ".join(str(number) for number in range(1, len(names))),
        "|---|%s" % ("---|" * (len(names) - 1)),
    ]
    for number, one in enumerate(names[1:], 2):
        cells = ["**no**" if composes.refusal(one, other) else "yes" for other in names[: number - 1]]
        cells += [""] * (len(names) - number)
        lines.append("| %d %s | %s |" % (number, one.name, " | ".join(cells)))
    return BEGIN + HEAD + "1 is %s.\n\n" % names[0].name + "\n".join(lines) + "\n"


def pairs():
    """The rows of the page of refusals: what has one text has one row."""
    rows = {}
    for each in composes.REFUSALS:
        rows.setdefault((each.one, each.text, each.instead, each.when), []).append(each.other.name)
    lines = ["| you use | it is refused | do this instead | message, test |", "|---|---|---|---|"]
    for (one, text, instead, when), others in rows.items():
        others = sorted(set(others), key=others.index)
        said = ", ".join(others[:-1]) + " or " + others[-1] if len(others) > 1 else others[0]
        lines.append("| %s, and %s | %s | %s | `%s`, %s |" % (one.name, said, when, instead, _quote(text), TEST))
    return BEGIN + "\n" + "\n".join(lines) + "\n\n" + END


def _quote(text):
    """The longest piece of a text that no fact is in, up to the end of its sentence."""
    pieces = [piece for part in re.split(r"%\(\w+\)[srd]", text) for piece in re.split(r"(?<=\.) ", part)]
    return max(pieces, key=len).strip()


def _with_pairs(page):
    begin, end = page.index(BEGIN), page.index(END) + len(END)
    return page[:begin] + pairs() + page[end:]


def main(arguments):
    with open(PAIRS, encoding="utf-8") as source:
        wanted = {MATRIX: matrix(), PAIRS: _with_pairs(source.read())}
    stale = []
    for path, text in wanted.items():
        have = open(path, encoding="utf-8").read() if os.path.exists(path) else ""
        if have != text:
            stale.append(os.path.relpath(path, ROOT))
            if "--check" not in arguments:
                with open(path, "w", encoding="utf-8") as out:
                    out.write(text)
    if stale and "--check" in arguments:
        print("not in step with epl/config/composes.py: %s; run scripts/composes.py" % ", ".join(stale))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
