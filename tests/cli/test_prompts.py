"""`benchctl models prompts` as a user meets it."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from benchctl.cli.prompts import app
from benchctl.paths import shipped_folder
from benchctl.prompts.load import load_suite, prompt_sha256
from tests.cli.calls import answer, call

DATA = Path(__file__).parents[1] / "prompts" / "data"

pytestmark = pytest.mark.usefixtures("empty_folder")

run = partial(call, app)
good = partial(answer, app)


@pytest.mark.parametrize("command", ["list", "show", "import"])
def test_every_command_explains_itself(command: str) -> None:
    assert "--help" in good(command, "--help")


def test_list_names_every_shipped_suite_with_its_licence() -> None:
    rows = [line.split() for line in good("list").splitlines()]
    assert rows[0] == ["suite", "kind", "licence", "prompts", "tasks"]
    names = [path.stem for path in sorted(shipped_folder("prompts").glob("*.json"))]
    assert [row[0] for row in rows[1:]] == names
    assert ["health", "raw", "Apache-2.0"] in [row[:3] for row in rows]
    listed = json.loads(good("list", "--json"))
    assert [suite["name"] for suite in listed] == names
    assert listed[names.index("plamo2-study")]["tasks"] == {"ja_chat": 4, "translation_en_ja": 4, "code": 4}


def test_show_says_how_every_prompt_begins() -> None:
    lines = good("show", "plamo2-study").splitlines()
    assert lines[0].split() == ["name", "plamo2-study"]
    rows = [line.split() for line in lines]
    assert ["task", "prompt", "turns", "the", "last", "turn", "begins"] in rows
    assert ["code", "3", "1"] in [row[:3] for row in rows]
    assert "⏎" in good("show", "health.json")  # line breaks are visible, not obeyed


def test_show_as_json_is_the_whole_suite_with_hashes() -> None:
    suite = load_suite("tiny", recipe_folder=Path.cwd())
    shown = json.loads(good("show", "tiny", "--json"))
    assert (shown["name"], shown["sha256"], list(shown["tasks"])) == ("tiny", suite.sha256, list(suite.tasks))
    first = shown["tasks"]["ja_chat"][0]
    assert (first["prompt_idx"], first["sha256"]) == (0, prompt_sha256(suite.tasks["ja_chat"][0]))


def test_show_and_import_say_what_is_not_asked_of_a_conversation() -> None:
    turns = [{"role": role, "content": "x"} for role in ("user", "assistant", "user", "assistant")]
    Path("mt.jsonl").write_text(json.dumps({"messages": turns, "temperature": 1}) + "\n")
    notes = ["only the last turn of the user is asked", "what follows", "keys are not sent (temperature)"]
    imported = good("import", "mt.jsonl", "--format", "jsonl", "--licence", "CC0-1.0", "-o", "mt.json")
    for printed in (good("show", "mt.jsonl"), imported):
        assert [note for note in notes if note in printed] == notes
    assert (
        load_suite("mt.json", recipe_folder=Path.cwd()).tasks["prompts"]
        == (load_suite("mt.jsonl", recipe_folder=Path.cwd()).tasks["mt"])
    )


def test_text_of_a_suite_does_nothing_to_the_terminal() -> None:
    suite = {"schema": 1, "name": "x", "kind": "raw", "licence": "[red]\x1b[31m", "source": "\x1b]0;x\x07"}
    text = json.dumps({**suite, "tasks": {"t": [{"prompt": "[bold]\x1b[2J"}]}})
    Path("x.json").write_text(text)
    shown = good("show", "x.json")
    assert "\x1b" not in shown
    assert "[bold]␛[2J" in shown


def test_import_writes_a_suite_and_says_what_is_not_asked() -> None:
    source = str(DATA / "mt_bench_question.jsonl")
    assert good("import", source, "--format", "mt-bench", "-o", "mt.json", "--tasks", "math,coding").splitlines() == [
        "Wrote mt.json: chat, licence Apache-2.0, 2 prompts",
        "  math       1",
        "  coding     1",
        "In 2 of 2 prompts later turns, which depend on the model's own answers, are not asked: "
        "only the first turn is.",
    ]
    suite = load_suite("mt.json", recipe_folder=Path.cwd())
    assert (suite.name, suite.licence, list(suite.tasks)) == ("mt", "Apache-2.0", ["math", "coding"])
    assert str(DATA) not in Path("mt.json").read_text("utf-8")


def test_import_never_invents_a_licence() -> None:
    words = ("import", str(DATA / "spec_bench_question.jsonl"), "--format", "spec-bench", "-o", "s.json")
    result = run(*words)
    assert str(result.exception) == (
        "--licence: the licence of these prompts is not known: the format spec-bench does not define it\n"
        "Name it as their owner does, for example: --licence CC-BY-4.0"
    )
    assert not Path("s.json").exists()
    good(*words, "--licence", "various", "--name", "spec", "--limit", "1")
    suite = load_suite("s.json", recipe_folder=Path.cwd())
    assert (suite.name, suite.licence, len(suite.select(None, None))) == ("spec", "various", 7)


def test_import_overwrites_only_when_forced() -> None:
    words = ("import", str(DATA / "HumanEval.jsonl"), "--format", "humaneval", "-o", "h.json")
    Path("h.json").write_text("mine")
    assert str(run(*words).exception) == "h.json: this file exists already\nOverwrite it with --force."
    assert Path("h.json").read_text() == "mine"
    good(*words, "--force", "--kind", "chat")
    assert load_suite("h.json", recipe_folder=Path.cwd()).kind == "chat"


def test_import_suggests_a_name_that_is_one() -> None:
    words = ("import", str(DATA / "plain_raw.jsonl"), "--format", "jsonl", "--licence", "CC0-1.0", "-o", "a b.json")
    good(*words)
    assert load_suite("a b.json", recipe_folder=Path.cwd()).name == "a_b"
    result = run(*words, "--name", "a b", "--force")
    assert str(result.exception).endswith("For example: --name a_b")


def test_import_into_a_folder_that_is_not_there_says_so() -> None:
    result = run("import", str(DATA / "HumanEval.jsonl"), "--format", "humaneval", "-o", "none/h.json")
    assert str(result.exception) == "none/h.json: the file cannot be written: No such file or directory"


def test_asking_for_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; import benchctl.cli.prompts; "
        "print([m for m in ('pydantic', 'yaml', 'rich.table', 'huggingface_hub', 'pyarrow') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_show_and_import_skip_bad_rows_where_that_is_asked() -> None:
    Path("a.jsonl").write_text('{"prompt": "good"}\n{"messages": []}\n')
    refused = run("show", "a.jsonl")
    assert str(refused.exception).startswith("a.jsonl:2: `messages` is an empty list")
    note = "1 of 2 rows were skipped: a.jsonl:2: `messages` is an empty list: there is nothing to ask."
    assert note in good("show", "a.jsonl", "--skip-bad").splitlines()
    assert json.loads(good("show", "a.jsonl", "--skip-bad", "--json"))["notes"] == [note]
    words = ("import", "a.jsonl", "--format", "jsonl", "--licence", "MIT", "-o", "s.json")
    assert str(run(*words).exception).startswith("a.jsonl:2: ")
    assert note in good(*words, "--skip-bad").splitlines()
    assert len(load_suite("s.json", recipe_folder=Path.cwd()).select(None, None)) == 1
    assert "for rows" in str(run("show", "tiny", "--skip-bad").exception)
