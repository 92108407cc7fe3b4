"""Bars one below the other, each of several parts, on one scale."""

import html

from epl.plan.report import web


def stacked(kinds, rows, text):
    """The HTML of a picture with its legend.

    Args:
      kinds: (kind, colour, words), in the order in which they stand; the colour "" is that of what is idle.
      rows: (name, {kind: number}) of each bar.
      text: function that says a number in words.
    """
    longest = max(sum(parts.values()) for _, parts in rows) or 1.0
    bars = []
    for name, parts in rows:
        drawn = "".join(
            '<i%s title="%s: %s" style="width:%.2f%%%s"></i>'
            % (
                "" if colour else ' class="idle"',
                html.escape(words),
                html.escape(text(parts[kind])),
                100 * parts[kind] / longest,
                ";background:%s" % colour if colour else "",
            )
            for kind, colour, words in kinds
            if parts[kind]
        )
        bars.append("<span>%s</span><div>%s</div>" % (html.escape(name), drawn))
    shown = [(colour, words) for kind, colour, words in kinds if any(parts[kind] for _, parts in rows)]
    return '%s<div class="bars">%s</div>' % (web.legend(shown), "".join(bars))
