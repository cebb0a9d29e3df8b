"""The tables of docs/self-speculation.md say what the kept results say."""

from __future__ import annotations

from benchmarks.self_speculation_tables import PAGE, TABLES, written


def test_the_page_is_as_its_script_writes_it() -> None:
    page = PAGE.read_text("utf-8")
    assert all(f"<!-- from {name}.json -->" in page for name in TABLES)
    assert written(page) == page
