"""The pages that messages refer to are there, and are shown."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

import benchctl
from benchctl.cli.app import app
from benchctl.cli.docs import page_names
from benchctl.errors import UsageError

PACKAGE = Path(benchctl.__file__).parent


def test_every_page_that_a_message_names_exists() -> None:
    named = {
        page
        for file in PACKAGE.rglob("*.py")
        for page in re.findall(r"`benchctl docs ([a-z-]+)`", file.read_text("utf-8"))
    }
    assert named and named <= set(page_names())


def test_messages_name_no_file_of_the_checkout() -> None:
    for file in PACKAGE.rglob("*.py"):
        assert not re.search(r"[Ss]ee docs/[a-z-]+\.md[^\n]*\",", file.read_text("utf-8")), file


@pytest.mark.parametrize("page", ["engines", "docs/engines.md"])
def test_a_page_is_printed(page: str) -> None:
    shown = CliRunner().invoke(app, ["docs", page])
    assert shown.exit_code == 0 and shown.stdout.startswith("# ")


def test_pages_are_listed_and_another_is_refused() -> None:
    assert "method" in CliRunner().invoke(app, ["docs"]).stdout.split()
    refused = CliRunner().invoke(app, ["docs", "../README"])
    assert isinstance(refused.exception, UsageError) and "method" in (refused.exception.fix or "")
