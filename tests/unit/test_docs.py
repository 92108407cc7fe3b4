"""The pages say what the code does: messages that the troubleshooting page quotes exist, links lead somewhere."""

import ast
import os
import re

import pytest

pytestmark = pytest.mark.once

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
HEADING = re.compile(r"^#### `(.+)`$", re.MULTILINE)
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)")
CPP_STRING = re.compile(r'"((?:[^"\\\n]|\\.)*)"')


def read(*names):
    with open(os.path.join(ROOT, *names), encoding="utf-8") as page:
        return page.read()


def files(folder, *endings):
    for base, _, names in os.walk(os.path.join(ROOT, folder)):
        for name in sorted(names):
            if name.endswith(endings):
                yield os.path.relpath(os.path.join(base, name), ROOT)


def python_strings(source):
    """All string constants; strings that stand side by side are one."""
    return [node.s for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Str)]


def source_texts():
    """Every text in the sources that a message may be made of. C++ and shell: a file's strings in a row."""
    texts = []
    for name in files("epl", ".py"):
        texts.extend(python_strings(read(name)))
    for folder in ("csrc", "scripts"):
        for name in files(folder, ".cc", ".h", ".sh"):
            source = read(name)
            texts.append(re.sub(r'"\s*"', "", source))
            texts.append(" ".join(CPP_STRING.findall(source)))
    return texts


def occurs(message, texts):
    """Whether the fixed parts of `message`, which "…" separates, follow each other in one of the texts."""
    parts = [part.strip() for part in message.split("…")]
    return any(_follow_each_other(parts, text) for text in texts)


def _follow_each_other(parts, text):
    end = 0
    for part in parts:
        begin = text.find(part, end)
        if begin < 0:
            return False
        end = begin + len(part)
    return True


def test_troubleshooting_quotes_messages_that_exist():
    messages = HEADING.findall(read("docs", "troubleshooting.md"))
    assert len(messages) > 20
    texts = source_texts()
    assert [message for message in messages if not occurs(message, texts)] == []


def test_a_message_that_does_not_exist_is_noticed():
    texts = python_strings('raise E("port %d of " "host %s is taken" % (p, h))')
    assert occurs("port … of host … is taken", texts)
    assert not occurs("host … of port … is taken", texts)


@pytest.mark.parametrize("page", sorted(list(files("docs", ".md")) + ["README.md", "CONTRIBUTING.md"]))
def test_links_lead_somewhere(page):
    targets = [target for target in LINK.findall(read(page)) if "://" not in target]
    lost = [name for name in targets if not os.path.exists(os.path.join(ROOT, os.path.dirname(page), name))]
    assert lost == []


def faulty_tables(text):
    """(line number, what is wrong) of the tables of a page, outside of blocks of code."""
    inside, rows, before = False, [], ""
    for number, line in enumerate(text.splitlines() + [""], 1):
        if line.startswith("```"):
            inside = not inside
        is_row = not inside and line.startswith("|")
        if is_row and not rows and before.strip() and not before.startswith("#"):
            yield number, "no empty line before the table"
        if is_row:
            rows.append((number, len(re.findall(r"(?<!\\)\|", line)), line))
        elif rows:
            if len(rows) < 2 or not re.fullmatch(r"(\|[ :-]*-[ :-]*)+\|", rows[1][2].strip()):
                yield rows[0][0], "no line of dashes below the heads"
            for at, pipes, row in rows:
                if pipes != rows[0][1] or not row.rstrip().endswith("|"):
                    yield at, "%d cells, not %d as the heads" % (pipes - 1, rows[0][1] - 1)
            if line.strip() and not inside:
                yield number, "the table is not followed by an empty line"
            rows = []
        before = line


PAGES = sorted(list(files("docs", ".md")) + list(files("examples", ".md")) + ["README.md", "CONTRIBUTING.md"])


@pytest.mark.parametrize("page", PAGES)
def test_tables_are_whole(page):
    assert list(faulty_tables(read(page))) == []


@pytest.mark.parametrize(
    "text, wrong",
    [
        ("| a | b |\n|---|---|\n| 1 | `x \\| y` |\n\nmore", []),
        ("| a | b |\n|---|---|\n| 1 | `x | y` |\n", [(3, "3 cells, not 2 as the heads")]),
        (
            "| a | b |\n|---|---|\n| 1 |\n| 2 | 3\n",
            [(3, "1 cells, not 2 as the heads"), (4, "1 cells, not 2 as the heads")],
        ),
        ("| a | b |\n| 1 | 2 |\n", [(1, "no line of dashes below the heads")]),
        (
            "text\n| a |\n|---|\nmore",
            [(2, "no empty line before the table"), (4, "the table is not followed by an empty line")],
        ),
        ("```\n| a | b |\n```\n", []),
    ],
)
def test_a_broken_table_is_noticed(text, wrong):
    assert list(faulty_tables(text)) == wrong


def test_getting_started_shows_the_quick_start():
    def statements(source):
        module = ast.parse(source)
        return [ast.dump(node) for node in module.body if not isinstance(getattr(node, "value", None), ast.Str)]

    shown = re.search(r"```python\n(# local_model\.py\n.*?)```", read("docs", "getting_started.md"), re.DOTALL).group(1)
    assert statements(shown) == statements(read("examples", "quickstart", "local_model.py"))
