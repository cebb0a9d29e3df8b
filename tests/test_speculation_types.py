"""The table of docs/engines.md says what the kept runs say."""

from __future__ import annotations

import json

from benchmarks.keep import RESULTS
from benchmarks.speculation_types import NAME, PAGE, written


def test_the_page_is_as_its_script_writes_it() -> None:
    kept = json.loads((RESULTS / f"{NAME}.json").read_text("utf-8"))["found"]
    page = PAGE.read_text("utf-8")
    assert "<!-- types -->" in page
    assert written(page, kept) == page
