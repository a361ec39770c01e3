"""The glossary names modules that exist, and each word once."""

from __future__ import annotations

import re

from tests.docs.pages import ROOT

ROW = re.compile(r"^\| (?P<word>[^|`]+) \| (?P<meaning>[^|]+) \| `(?P<module>[^`]+)` \|$", re.MULTILINE)
ROWS = list(ROW.finditer((ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")))


def test_every_module_exists() -> None:
    missing = {row["module"] for row in ROWS if not (ROOT / "src" / "understudy" / row["module"]).is_file()}
    assert len(ROWS) > 50
    assert not missing


def test_every_word_has_one_meaning_in_one_sentence_or_two() -> None:
    words = [word for row in ROWS for word in row["word"].split(", ")]
    assert len(words) == len(set(words))
    assert not [row["word"] for row in ROWS if not row["meaning"].rstrip().endswith((".", "?"))]
