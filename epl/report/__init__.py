"""The page of a run, as `epl-launch --report FILE` writes it: one file that loads nothing from elsewhere."""

from epl.report.page import page as page
