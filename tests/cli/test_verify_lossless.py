"""`benchctl verify-lossless` as a user runs it: exit codes, the table, the JSON document, hostile answers."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchctl.cli.app import app
from benchctl.data.record import sha256_text, sha256_tokens
from benchctl.data.store import open_run
from benchctl.errors import UsageError
from benchctl.lossless.score import session
from tests.benchctl_process import benchctl
from tests.cli.calls import call

Line = dict[str, Any]


def answer(label: str, idx: int = 0, block: int = 0, text: str = "fine", ids: tuple[int, ...] = (1, 2, 3)) -> Line:
    return {
        "label": label,
        "task": "code",
        "prompt_idx": idx,
        "rep": block,
        "tok_per_sec": 10.0,
        "n_predicted": len(ids),
        "content": text,
        "content_sha": sha256_text(text),
        "schema": 1,
        "block": block,
        "prompt_sha": sha256_text(str(idx)),
        "token_ids": list(ids),
        "token_sha": sha256_tokens(ids),
        "finish_reason": "stop",
    }


def write(file: Path, lines: list[Line]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="ascii")
    return file


verify = partial(benchctl, "verify-lossless")


@pytest.fixture
def equal(tmp_path: Path) -> Path:
    lines = [answer(label, idx, block) for label in ("baseline", "spec") for idx in range(2) for block in range(2)]
    return write(tmp_path / "equal.jsonl", lines)


@pytest.fixture
def forked(tmp_path: Path) -> Path:
    lines = [answer("baseline"), answer("spec", text="file", ids=(1, 9, 3)), answer("ngram")]
    return write(tmp_path / "forked.jsonl", lines)


def test_forged_answers_beside_the_measured_ones_are_undetermined_and_named(equal: Path) -> None:
    forged = [answer("spec", idx, block, text="forged") for idx in range(2) for block in range(2)]
    for position, first, second in (("before", forged, []), ("after", [], forged)):
        lines = [json.loads(line) for line in equal.read_text().splitlines()]
        shown = verify(write(equal.parent / f"{position}.jsonl", [*first, *lines, *second]), cwd=equal.parent)
        assert shown.returncode == 1, position
        assert "undetermined" in shown.stdout
        assert "disagree in their text" in " ".join(shown.stdout.split())


def test_lossless_is_zero(equal: Path) -> None:
    shown = verify(equal, cwd=equal.parent)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "identical" in shown.stdout
    assert "repeats itself: 2" in shown.stdout
    assert "Prompts by class." in shown.stdout


def test_every_arm_that_is_named_exists_before_anything_is_scored(
    forked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored: list[str] = []
    monkeypatch.setattr(session, "_scored", lambda *_, **__: scored.append("a prefix"))
    with pytest.raises(UsageError, match="There is no arm 'typo'"):
        session.verify(open_run(forked), session.Request(arms=["spec", "typo"], quiet=True))
    assert scored == []
    shown = verify(forked, "--arm", "spec", "--arm", "typo", cwd=forked.parent)
    assert shown.returncode == 2 and "The arms are: ngram, spec" in shown.stderr


def test_a_fork_is_one_and_shows_both_continuations(forked: Path) -> None:
    shown = verify(forked, cwd=forked.parent)
    assert shown.returncode == 1
    assert "undetermined" in shown.stdout
    assert "differs from token 1 on" in shown.stdout
    for part in ("ne (token 2)", "le (token 9)", "was not tested"):
        assert part in shown.stdout


def test_only_the_named_arm_is_judged(forked: Path) -> None:
    assert verify(forked, "--arm", "ngram", cwd=forked.parent).returncode == 0
    assert verify(forked, "--arm", "ngram", "--arm", "spec", cwd=forked.parent).returncode == 1
    unknown = verify(forked, "--arm", "spek", cwd=forked.parent)
    assert unknown.returncode == 2
    assert "spec" in unknown.stderr


def test_another_baseline(forked: Path) -> None:
    assert verify(forked, "--baseline", "spec", "--arm", "ngram", cwd=forked.parent).returncode == 1
    assert verify(forked, "--baseline", "nobody", cwd=forked.parent).returncode == 2


@pytest.mark.parametrize(
    "spoil",
    [
        lambda line: line.update(error={"kind": "timeout", "message": "no answer"}),
        lambda line: line.update(finish_reason=None),
        lambda line: line.update(content="fine?"),
        lambda line: line.update(block=1, rep=1),
    ],
    ids=["failed", "truncated", "damaged", "missing"],
)
def test_what_is_not_there_is_never_equal(tmp_path: Path, spoil: Any) -> None:
    lines = [answer("baseline"), answer("spec")]
    spoil(lines[1])
    shown = verify(write(tmp_path / "run.jsonl", lines), cwd=tmp_path)
    assert shown.returncode == 1
    assert "undetermined" in shown.stdout


def test_a_half_written_last_line_is_never_equal(equal: Path) -> None:
    complete = equal.read_text(encoding="ascii")
    equal.write_text(complete[:-40], encoding="ascii")
    shown = verify(equal, cwd=equal.parent)
    assert shown.returncode == 1
    assert "cut off" in shown.stdout


def test_the_document_has_stable_keys(forked: Path) -> None:
    shown = verify(forked, "--json", cwd=forked.parent)
    assert shown.returncode == 1
    document = json.loads(shown.stdout)
    assert list(document) == [
        "benchctl",
        "document",
        "schema",
        "run",
        "baseline",
        "blocks",
        "prompts",
        "lossless",
        "arms",
        "consistency",
        "failed_cells",
        "damaged",
        "integrity",
    ]
    assert (document["schema"], document["lossless"]) == (2, False)
    first = document["arms"][1]
    assert (first["arm"], first["verdict"], first["counts"]) == ("spec", "undetermined", {"differs": 1})
    assert first["comparisons"][0]["fork"]["index"] == 1


def test_quiet_prints_nothing(equal: Path, forked: Path) -> None:
    for file, code in ((equal, 0), (forked, 1)):
        shown = verify(file, "--quiet", cwd=file.parent)
        assert (shown.returncode, shown.stdout, shown.stderr) == (code, "", "")


def test_nothing_to_compare_is_a_wrong_command_line(tmp_path: Path) -> None:
    assert verify(cwd=tmp_path).returncode == 2
    assert verify("nowhere", cwd=tmp_path).returncode == 2
    baseline_alone = verify(write(tmp_path / "alone.jsonl", [answer("baseline")]), cwd=tmp_path)
    assert baseline_alone.returncode == 2
    assert "only its baseline" in baseline_alone.stderr


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_hostile_answers_do_nothing_to_the_terminal(tmp_path: Path, encoding: str) -> None:
    text = "\x1b[2J\x1b]0;owned\x07<script>[bold red]x[/]\r\n\u202e\ud800\x00"
    lines = [answer("baseline"), answer("sp\x1bec", text=text, ids=(7, 8, 9))]
    file = write(tmp_path / "hostile.jsonl", lines)
    shown = verify(file, cwd=tmp_path, PYTHONIOENCODING=encoding)
    assert shown.returncode == 1
    assert not set(shown.stdout) & {"\x1b", "\x07", "\x00", "\r", "\u202e"}
    assert "<script>[bold red]x[/]" in shown.stdout
    assert json.loads(verify(file, "--json", cwd=tmp_path).stdout)["lossless"] is False


def test_a_narrow_terminal_cuts_no_verdict(forked: Path) -> None:
    shown = verify(forked, cwd=forked.parent, FORCE_COLOR="1", COLUMNS="40", NO_COLOR="1")
    assert "\x1b[3" not in shown.stdout  # NO_COLOR: bold and dim stay, colours do not
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown.stdout)
    assert "spec   undetermined" in plain
    *lines, next_command = plain.rstrip().splitlines()
    assert "benchctl report" in next_command, "a command is never broken into lines: it is to be copied"
    assert max(map(len, lines)) <= 40


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--budget", "5m"), "no effect without --more"),
        (("--more", "--offline"), "--more would have no effect"),
        (("--more", "--baseline", "spec"), "--baseline would have no effect"),
        (("--more",), "it has none or several"),
        (("RUN", "--more"), "asked of one run"),
        (("RUN", "--offline"), "Records without a manifest"),
    ],
)
def test_options_that_do_not_fit_together_are_refused(equal: Path, words: tuple[str, ...], named: str) -> None:
    refused = call(app, "verify-lossless", str(equal), *(str(equal) if word == "RUN" else word for word in words))
    assert isinstance(refused.exception, UsageError)
    assert named in f"{refused.exception}"
