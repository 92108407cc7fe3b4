"""Figures and rows of cells as text, for everything that is printed for people."""


def columns(rows):
    """Lines of text of rows of cells, the first of them the headings."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
    lines.insert(1, "  " + "  ".join("-" * width for width in widths))
    return lines


def bytes_text(count):
    """A number of bytes for people: "1.5 KiB"."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return "%d %s" % (count, unit) if unit == "bytes" else "%.1f %s" % (count, unit)
        count /= 1024.0
    return ""
