"""The writer of every `--json`: its envelope, what JSON lacks, and that no command has a writer of its own."""

from __future__ import annotations

import json
import re
from pathlib import Path

import benchctl
from benchctl.reports.json_output import json_text


def test_a_document_says_what_it_is() -> None:
    document = json.loads(json_text("runs show", {"run": "a", "values": [1.5, None]}))
    assert document == {
        "benchctl": benchctl.__version__,
        "document": "runs show",
        "schema": 1,
        "run": "a",
        "values": [1.5, None],
    }


def test_a_list_and_a_file_stay_what_they_are() -> None:
    assert json.loads(json_text("runs list", [])) == []
    assert json.loads(json_text(None, {"name": "mine"})) == {"name": "mine"}
    assert json.loads(json_text("runs show", {"schema": 7}))["schema"] == 7


def test_what_json_lacks_is_null_and_text_is_ascii() -> None:
    text = json_text("inspect", {"rope": [float("nan"), {"base": float("inf")}], "name": "\u00e9\ud800"})
    assert text.isascii()
    assert json.loads(text)["rope"] == [None, {"base": None}]


def test_no_command_writes_json_itself() -> None:
    folder = Path(benchctl.__file__).parent
    commands = (folder / "cli").glob("*.py")
    pattern = re.compile(r"json\.dumps?\(")
    matches = {str(file.relative_to(folder)) for file in commands if pattern.search(file.read_text("utf-8"))}
    # The schema of recipes goes to a file, and a setting that tune makes is read as one that was typed.
    assert matches <= {"cli/recipes.py", "cli/tune.py"}
