"""Figures for people, beside those of epl.plan.text."""


def duration(seconds):
    """Time for people: "3.2 s", "4:05", "1:00:10"."""
    if seconds < 60:
        return "%.1f s" % seconds
    seconds = int(round(seconds))
    if seconds < 3600:
        return "%d:%02d" % (seconds // 60, seconds % 60)
    return "%d:%02d:%02d" % (seconds // 3600, seconds // 60 % 60, seconds % 60)
