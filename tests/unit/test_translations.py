"""Pages in Chinese: those that are not behind have the headings and the code of the English ones."""

import os
import runpy

import pytest

from tests.helpers.processes import REPOSITORY

pytestmark = pytest.mark.once

T = runpy.run_path(os.path.join(REPOSITORY, "scripts", "translations.py"))
ENGLISH = """# Title

## First part [here](x.md)

```bash
# run it
epl-launch run.sh   # two workers
```

## Again

## Again
"""
CHINESE = """# 标题

## 第一部分 [在此](x.md)

```bash
# 运行
epl-launch run.sh   # 两个 worker
```

## 再次

## 再次
"""


def test_pages_have_the_form_of_the_english_ones():
    folder = os.path.join(REPOSITORY, "docs", "zh")
    there = [page for page in T["pages"]() if os.path.exists(os.path.join(folder, page)) and not T["is_behind"](page)]
    assert [line for page in there for line in T["problems"](page)] == []


def test_a_stamp_names_the_state_and_gives_headings_their_english_anchors():
    text = T["stamped"]("page.md", ENGLISH, CHINESE)
    assert text.startswith("<!-- page.md at %s -->\n# 标题\n" % T["digest"](ENGLISH))
    for name in ("first-part-here", "again", "again-1"):
        assert '<a id="%s"></a>\n\n## ' % name in text
    assert T["stamped"]("page.md", ENGLISH, text) == text
    assert "# 运行\nepl-launch" in text


def test_links_lead_to_the_english_page_as_long_as_there_is_no_other():
    text = T["stamped"]("page.md", ENGLISH, CHINESE + "[a](terms.md#x) [b](../missing.md) [c](concepts.md#losses)")
    there = os.path.exists(os.path.join(REPOSITORY, "docs", "zh", "concepts.md"))
    assert "[b](../missing.md)" in text and "[c](%sconcepts.md#losses)" % ("" if there else "../") in text


def test_what_differs_in_form_is_seen():
    assert T["code"](ENGLISH) == T["code"](CHINESE)
    assert T["code"](ENGLISH) != T["code"](CHINESE.replace("run.sh", "other.sh"))
    assert [level for level, _ in T["headings"](CHINESE)] == [1, 2, 2, 2]
    assert [words for _, words in T["headings"](ENGLISH)] == ["Title", "First part [here](x.md)", "Again", "Again"]
