"""The section of docs/troubleshooting.md that an error's message is about."""

import os
import re

import pytest

from epl.launch import advice
from epl.launch.main import main
from tests.helpers.processes import REPOSITORY

pytestmark = pytest.mark.once

PAGE = """\
## Errors

#### `… is not valid: it must be …`
#### `the step of worker … is not valid: it must be …`, `another one that is long`
#### `too short`
"""


@pytest.mark.parametrize(
    "message, found",
    [
        ("a.b=3 is not valid: it must be 4", "-is-not-valid-it-must-be-"),
        (
            "the step of worker 1\nis not valid: it must be 4",
            "the-step-of-worker--is-not-valid-it-must-be--another-one-that-is-long",
        ),
        ("here is another one that is long", "the-step-of-worker--is-not-valid-it-must-be--another-one-that-is-long"),
        ("it is too short", None),
        ("it must be so: is not valid", None),
    ],
)
def test_the_longest_quotation_counts(message, found):
    assert advice.address_of(message, PAGE) == (found and "docs/troubleshooting.md#" + found)


def test_the_page_of_this_checkout():
    address = advice.address_of("ConfigError: environment variable EPL_X belongs to no configuration key. Did you mean")
    assert address == "docs/troubleshooting.md#environment-variable--belongs-to-no-configuration-key"


def test_every_quotation_that_is_long_enough_leads_to_its_section():
    with open(os.path.join(REPOSITORY, "docs", "troubleshooting.md"), encoding="utf-8") as stream:
        page = stream.read()
    headings = re.findall(r"(?m)^####\s+(.*)$", page)
    anchors = [advice.anchor(heading) for heading in headings]
    assert len(set(anchors)) == len(anchors) > 50  # addresses are those of one section each
    for heading, anchor in zip(headings, anchors):
        quoted = max(re.findall("`([^`]+)`", heading), key=len)
        if len(quoted.replace("…", "").strip()) >= 20:
            assert advice.address_of(quoted.replace("…", "x")) == "docs/troubleshooting.md#" + anchor


def test_the_launcher_names_the_section(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.txt").write_text("")
    assert main(["--num_workers", "2", "train.txt"]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith(
        "epl-launch: error: script train.txt must be a shell script (.sh) or a Python program (.py)"
    )
    assert second.startswith("epl-launch: more about this error: docs/troubleshooting.md#script-")
