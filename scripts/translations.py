"""Which pages of docs/zh/ are behind the English ones, and which do not have their form.

    python scripts/translations.py                   one line for each page that is missing or behind
    python scripts/translations.py --check           ends with 1 where a page that is not behind has another form
    python scripts/translations.py --stamp PAGE ...  docs/zh/PAGE is of the English page as it is now

A translated page has the headings of the English one, in the same order, and the same blocks of code. Its first line
says of which state of the English page it is. Before each heading stands an anchor with the English one's name, so that
links are the same in all languages; --stamp writes both, and lets links lead to the English page as long as there is no
other.
"""

import hashlib
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ZH = os.path.join("docs", "zh")
_FIRST = re.compile(r"\A<!-- (\S+) at ([0-9a-f]{12}) -->\n")
_ANCHOR = re.compile(r'^<a id="[^"]*"></a>\n\n?(?=#)', re.MULTILINE)
_HEADING = re.compile(r"^(#{1,6}) +(.*?) *$", re.MULTILINE)
_BLOCK = re.compile(r"^```[^\n]*\n.*?^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\((?:\.\./)?(\w+\.md)(#[^)\s]+)?\)")
_COMMENT = re.compile(r"(?<=\s)#.*$", re.MULTILINE)


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as page:
        return page.read()


def source_of(page):
    """The English page of docs/zh/PAGE, by its path in the repository."""
    return page if page == "README.md" else os.path.join("docs", page)


def pages():
    """The names of all pages that are to be translated: those of docs/, and the README."""
    return ["README.md"] + sorted(name for name in os.listdir(os.path.join(ROOT, "docs")) if name.endswith(".md"))


def digest(text):
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:12]


def is_behind(page):
    """Whether the English page has changed since docs/zh/PAGE was stamped."""
    first = _FIRST.match(read(os.path.join(ZH, page)))
    return first is None or first.group(2) != digest(read(source_of(page)))


def without_code(text):
    return _BLOCK.sub("", text)


def headings(text):
    """(level, words) of each heading outside of blocks of code."""
    return [(len(marks), words) for marks, words in _HEADING.findall(without_code(text))]


def code(text):
    """The blocks of code, without what may be translated in them: comments."""
    return [re.sub(r"[ \t]+$", "", _COMMENT.sub("", block), flags=re.MULTILINE) for block in _BLOCK.findall(text)]


def slug(words, taken):
    """The anchor that sites make of a heading; `taken` counts those before, as the second one gets a number."""
    words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", words)
    name = re.sub(r"[^\w\- ]", "", words.lower()).strip().replace(" ", "-")
    taken[name] = taken.get(name, -1) + 1
    return "%s-%d" % (name, taken[name]) if taken[name] else name


def problems(page):
    """In what docs/zh/PAGE differs in form from the English page, a list of lines."""
    source, text = read(source_of(page)), read(os.path.join(ZH, page))
    found = []
    ours, theirs = [level for level, _ in headings(text)], [level for level, _ in headings(source)]
    if ours != theirs:
        found.append(
            "%s: %d headings, the English page has %d, or their levels differ" % (page, len(ours), len(theirs))
        )
    here, there = code(text), code(source)
    if len(here) != len(there):
        found.append("%s: %d blocks of code, the English page has %d" % (page, len(here), len(there)))
    for number, (own, other) in enumerate(zip(here, there), 1):
        if own != other:
            found.append("%s: block of code %d is not that of the English page" % (page, number))
    return found


def stamped(page, source, text):
    """A translated page with its first line, and an anchor before each heading below the title."""
    text = _ANCHOR.sub("", _FIRST.sub("", text))
    names, taken = [], {}
    for _, words in headings(source):
        names.append(slug(words, taken))
    parts, kept, left = [], 0, iter(names)
    blocks = [match.span() for match in _BLOCK.finditer(text)]
    for match in _HEADING.finditer(text):
        if any(begin <= match.start() < end for begin, end in blocks):
            continue
        name = next(left, None)
        parts.append(text[kept : match.start()])
        if len(match.group(1)) > 1 and name:
            parts.append('<a id="%s"></a>\n\n' % name)
        kept = match.start()
    text = _LINK.sub(_here_or_above, "".join(parts) + text[kept:])
    return "<!-- %s at %s -->\n%s" % (page, digest(source), text)


def _here_or_above(link):
    page, anchor = link.group(1), link.group(2) or ""
    if not os.path.exists(os.path.join(ROOT, "docs", page)):  # the README's, and others of the root
        return link.group(0)
    here = os.path.exists(os.path.join(ROOT, ZH, page))
    return "](%s%s%s)" % ("" if here else "../", page, anchor)


def main(arguments):
    if arguments[:1] == ["--stamp"]:
        for page in arguments[1:]:
            path = os.path.join(ROOT, ZH, page)
            text = stamped(page, read(source_of(page)), read(path))
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
        return 0
    found = []
    for page in pages():
        if not os.path.exists(os.path.join(ROOT, ZH, page)):
            print("%s: not translated" % page)
        elif is_behind(page):
            print("%s: behind" % page)
        else:
            found += problems(page)
    print("".join(line + "\n" for line in found), end="")
    return 1 if found and arguments == ["--check"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
