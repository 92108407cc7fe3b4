"""Pages of the site that are made from what lies elsewhere, and links that lead out of docs/; a hook of mkdocs.yml."""

import ast
import os
import posixpath
import re
import runpy

from mkdocs.structure.files import File

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
BLOCK = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
# Sections of the navigation in Chinese.
SECTIONS = {"Begin": "入门", "Parallelism": "并行策略", "Running": "运行", "What works": "支持范围"}
TRANSLATIONS = runpy.run_path(os.path.join(ROOT, "scripts", "translations.py"))
# Public names that stand in modules of their own.
MODULES = ("epl.errors", "epl.optimizers", "epl.ops", "epl.profiler")


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as page:
        return page.read()


def copied():
    """Pages that are files of the repository outside of docs/: {path on the site: path in the repository}."""
    pages = {"index.md": "README.md", "contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}
    for name in sorted(os.listdir(os.path.join(ROOT, "examples"))):
        if os.path.exists(os.path.join(ROOT, "examples", name, "README.md")):
            pages["examples/%s.md" % name] = "examples/%s/README.md" % name
    return pages


def public_names():
    """What `import epl` offers, sorted, as full names; `epl.errors` too, whose classes programs catch."""
    for node in ast.parse(read("epl/__init__.py")).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            names = ["epl." + name for name in ast.literal_eval(node.value) if "version" not in name.lower()]
    return sorted(set(names) | set(MODULES), key=str.lower)


def reference():
    """{path on the site: text} of a page for each public name."""
    pages = {}
    for name in public_names():
        pages["reference/%s.md" % name] = "---\ntitle: %s\n---\n\n::: %s\n" % (name, name)
    return pages


def chinese(nav):
    """The same navigation for the pages of docs/zh/, as far as they are there."""
    found = []
    for entry in nav:
        if isinstance(entry, dict):
            ((name, inside),) = entry.items()
            below = chinese(inside if isinstance(inside, list) else [inside])
            found += below if len(below) < 2 or not isinstance(inside, list) else [{SECTIONS.get(name, name): below}]
        else:
            page = "zh/README.md" if entry == "index.md" else "zh/" + entry
            found += [page] if os.path.exists(os.path.join(ROOT, "docs", page)) else []
    return found


def on_config(config):
    """Adds to the navigation what is made here."""
    in_chinese = chinese(config["nav"]) + ["zh/terms.md"]
    examples = [page for page in copied() if page.startswith("examples/")]
    config["nav"] += [
        {"Examples": [{posixpath.basename(page)[:-3]: page} for page in examples]},
        {"Reference": [{name: "reference/%s.md" % name} for name in public_names()]},
        {"中文": in_chinese},
        {"The project": [{"Contributing": "contributing.md"}, {"Changes": "changelog.md"}]},
    ]
    return config


def on_files(files, config):
    """Adds the pages that are made here."""
    for page, source in copied().items():
        files.append(File.generated(config, page, content=read(source)))
    for page, text in reference().items():
        files.append(File.generated(config, page, content=text))
    return files


def relinked(markdown, page, source, pages):
    """A page's text with links to where things are on the site.

    Args:
      markdown: the text, with links as they are in the repository.
      page, source: its paths on the site and in the repository.
      pages: {path in the repository: path on the site}.

    Returns:
      The text. Of a link to what the site does not have, such as a source file, what it says is left.
    """

    def link(match):
        image, text, target = match.groups()
        path, hash_sign, anchor = target.partition("#")
        if not path or ":" in path:
            return match.group(0)
        there = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        if there not in pages:
            return text if not image and os.path.exists(os.path.join(ROOT, there)) else match.group(0)
        path = posixpath.relpath(pages[there], posixpath.dirname(page) or ".")
        return "%s[%s](%s%s%s)" % (image, text, path, hash_sign, anchor)

    kept, parts = 0, []
    for block in BLOCK.finditer(markdown):
        parts += [LINK.sub(link, markdown[kept : block.start()]), block.group(0)]
        kept = block.end()
    return "".join(parts) + LINK.sub(link, markdown[kept:])


def on_page_markdown(markdown, page, config, files):
    """Makes links fit the site; a page in Chinese that is behind the English one says so."""
    sources = copied()
    pages = {"docs/" + file.src_uri: file.src_uri for file in files if file.src_uri not in sources}
    pages.update({source: name for name, source in sources.items()})
    pages["examples"] = pages["docs"] = "index.md"
    name = page.file.src_uri
    if name.startswith("zh/") and name != "zh/terms.md" and TRANSLATIONS["is_behind"](name[len("zh/") :]):
        markdown = re.sub(
            r"^(# .*\n)", r"\1\n!!! note\n    本页译自较早的英文版本，以英文页面为准。\n", markdown, count=1, flags=re.M
        )
    markdown = re.sub(r"\A<!--.*-->\n", "", markdown)  # the title of a page is what it begins with
    return relinked(markdown, name, sources.get(name, "docs/" + name), pages)


def on_page_context(context, page, config, nav):
    """Chooses the language of what surrounds a page."""
    config["theme"]["language"] = "zh" if page.file.src_uri.startswith("zh/") else "en"
    return context
