"""What all web pages of EPL have in common: one style, light and dark, in which nothing is loaded from elsewhere."""

import html

# Where colours stand for kinds of things. They can be told apart by people who do not see red and green as others do,
# and stand out from light and dark pages alike.
BLUE, TEAL, GREY, YELLOW = "#4c78a8", "#58a6a0", "#9d9d9d", "#e0b93a"
RED, ORANGE, GREEN, PURPLE, PINK = "#e45756", "#f58518", "#54a24b", "#8f6fd0", "#d67195"

_STYLE = """
:root { color-scheme: light dark; --page: #fff; --text: #1b1f24; --rule: #d0d7de; --idle: #eceff2; --number: #0b0e11; }
@media (prefers-color-scheme: dark) { :root { --page: #14181d; --text: #e2e6ea; --rule: #3a424b; --idle: #252b32; } }
body { background: var(--page); color: var(--text); font: 15px/1.45 system-ui, sans-serif; margin: 1.5em auto;
  max-width: 1240px; padding: 0 1em; }
h1 { font-size: 1.35em; overflow-wrap: anywhere; } h2 { font-size: 1.15em; margin-top: 1.8em; }
h2.part { font-size: 1.25em; border-bottom: 2px solid var(--rule); }
h3 { font-size: 1em; margin: 1.1em 0 .4em; }
nav a { margin-right: 1.2em; color: inherit; }
pre { font: 13px/1.4 ui-monospace, monospace; }
.wide, pre { overflow-x: auto; }
.legend { list-style: none; padding: 0; display: flex; flex-wrap: wrap; gap: .3em 1.6em; }
.legend i { display: inline-block; width: .9em; height: .9em; margin-right: .4em; vertical-align: -1px; }
.bars { display: grid; grid-template-columns: max-content 1fr; gap: .3em .9em; align-items: center; }
.bars div { display: flex; height: 1.35em; } .bars i { box-sizing: border-box; border-right: 1px solid var(--page); }
.wide > svg[width="100%"] { min-width: 750px; }
table { border-collapse: collapse; margin-top: .6em; }
th, td { border-bottom: 1px solid var(--rule); padding: .25em .9em .25em 0; text-align: left; vertical-align: top; }
td:not(:last-child), th { white-space: nowrap; }
svg { font: 12px system-ui, sans-serif; } svg text { fill: var(--text); }
svg .number { fill: var(--number); text-anchor: middle; }
svg .tick { text-anchor: middle; }
svg .axis { stroke: var(--text); stroke-width: 1; }
svg .grid { stroke: var(--text); stroke-width: .5; opacity: .25; }
svg .idle, i.idle { fill: var(--idle); background: var(--idle); }
svg .label-on { paint-order: stroke; stroke: var(--page); stroke-width: 4px; stroke-linejoin: round; }
svg g rect { stroke: var(--page); stroke-width: 1; }
"""


def document(title, body, script="", style=""):
    """A whole page.

    Args:
      title: heading, as plain text.
      body: HTML below it.
      script, style: what this page needs besides what all have.
    """
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            "<title>%s</title><style>%s</style></head><body>" % (html.escape(title), _STYLE + style),
            "<h1>%s</h1>" % html.escape(title),
            body,
            "<script>%s</script></body></html>" % script if script else "</body></html>",
            "",
        ]
    )


def report(title, parts, script="", style=""):
    """A page of several parts, with links to each of them at its top.

    Args:
      title: as of `document`, like `script` and `style`.
      parts: (heading, HTML) of each part.
    """
    links = "".join('<a href="#part-%d">%s</a>' % (i, html.escape(name)) for i, (name, _) in enumerate(parts))
    shown = [
        '<section class="part" id="part-%d"><h2 class="part">%s</h2>%s</section>' % (i, html.escape(name), body)
        for i, (name, body) in enumerate(parts)
    ]
    return document(title, "\n".join(["<nav>%s</nav>" % links] + shown), script, style)


def legend(items):
    """The list of what colours stand for.

    Args:
      items: (colour, words); the colour "" is that of what is idle.
    """
    shown = (
        "<li><i%s></i>%s</li>" % (' style="background:%s"' % colour if colour else ' class="idle"', html.escape(words))
        for colour, words in items
    )
    return '<ul class="legend">%s</ul>' % "".join(shown)


def table(head, rows):
    """A table of cells of plain text."""
    lines = ["<tr>%s</tr>" % "".join("<th>%s</th>" % html.escape(text) for text in head)]
    lines += ["<tr>%s</tr>" % "".join("<td>%s</td>" % html.escape(text) for text in row) for row in rows]
    return '<div class="wide"><table>%s</table></div>' % "\n".join(lines)
