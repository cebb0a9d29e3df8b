"""What somebody at a terminal sees: questions, and a run that is never silent."""

from __future__ import annotations

import os
import pty
import select
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from benchctl.recipes.load import load_recipe
from tests.benchctl_process import benchctl
from tests.waiting import LIMIT_S

RECIPE = """\
name: seen
engine: {kind: llama.cpp, device: cpu, context: 1024, threads: 1}
models:
  target: {source: "bundled:tiny-hybrid"}
  draft: {source: "bundled:tiny-hybrid-draft"}
prompts: {suite: tiny.json, tasks: [code], limit: 1}
sampling: {max_tokens: 64}  # so many do not arrive in one piece on a busy machine
blocks: 3
arms:
  - name: baseline
  - name: spec
    speculation: {type: draft-simple, max: 2}
"""


def at_a_terminal(folder: Path, *words: str, answers: Mapping[str, str] | None = None) -> tuple[int, str, float]:
    """Run benchctl on a terminal of 120 columns; return its exit code, what it wrote, and its longest silence in s.

    `answers`: what is typed once the terminal shows a text.
    """
    child, terminal = pty.fork()  # what it takes Python to start is not counted
    if child == 0:
        os.chdir(folder)
        os.environ.update(TERM="xterm-256color", COLUMNS="120", LINES="40")
        os.execv(sys.executable, [sys.executable, "-m", "benchctl", *words])
    screen, silence, last = b"", 0.0, time.monotonic()
    unanswered = dict(answers or {})
    try:
        while True:
            if not select.select([terminal], [], [], LIMIT_S)[0]:
                raise AssertionError(f"silent for {LIMIT_S:g} s after {screen[-500:]!r}")
            try:
                chunk = os.read(terminal, 65536)
            except OSError:  # Linux: the child is gone
                break
            if not chunk:
                break
            now = time.monotonic()
            silence, last = max(silence, now - last if screen else 0.0), now
            screen += chunk
            for question in [question for question in unanswered if question.encode() in screen]:
                os.write(terminal, unanswered.pop(question).encode() + b"\n")
    finally:
        os.close(terminal)
        try:
            _, status = os.waitpid(child, 0)
        except BaseException:
            os.kill(child, signal.SIGKILL)
            raise
    return os.waitstatus_to_exitcode(status), screen.decode("utf-8", "replace"), silence


@pytest.fixture
def pair(tmp_path: Path, tiny_target: Path, tiny_draft: Path) -> None:
    """Two models in the working folder: `recipes new` checks each when it is named."""
    (tmp_path / "t.gguf").symlink_to(tiny_target)
    (tmp_path / "d.gguf").symlink_to(tiny_draft)


@pytest.mark.usefixtures("pair")
def test_a_new_recipe_asks(tmp_path: Path) -> None:
    answers = {
        "Target model": "t.gguf",
        "Draft model": "d.gguf",
        "Engine": "",
        "Speculation types": "draft-simple",
        "Draft depths": "3,5",
        "Prompts": "mine.txt",
        "Name of the recipe": "asked",
    }
    (tmp_path / "mine.txt").write_text("What is a harbour?\n")
    status, screen, _ = at_a_terminal(tmp_path, "recipes", "new", answers=answers)
    assert status == 0, screen
    recipe = load_recipe(tmp_path / "asked.yaml")
    assert (recipe.models.target.source, recipe.prompts.suite) == ("t.gguf", "mine.txt")
    assert [arm.name for arm in recipe.arms] == ["baseline", "draft_simple_d3", "draft_simple_d5"]


@pytest.mark.usefixtures("pair")
def test_a_new_recipe_asks_again_for_what_does_not_fit(tmp_path: Path) -> None:
    answers = {
        "Target model": "http://somewhere/t",
        "models.target.source": "tt.gguf",
        "Did you mean 't.gguf'": "t.gguf",
        "Draft model": "none",
        "Engine": "lama",
        "no engine 'lama'": "",
        "Speculation types": "draft-simple",
        "needs a draft model": "ngram-mod",
        "Prompts": "nothing.txt",
        "no prompts file": "default",
        "Name of the recipe": "taken",
        "exists already": "free",
    }
    (tmp_path / "taken.yaml").write_text("")
    status, screen, _ = at_a_terminal(tmp_path, "recipes", "new", answers=answers)
    assert status == 0, screen
    recipe = load_recipe(tmp_path / "free.yaml")
    assert (recipe.models.target.source, [arm.name for arm in recipe.arms]) == ("t.gguf", ["baseline", "ngram_mod"])


MANY = """\
name: many
engine: {kind: llama.cpp, device: cpu, context: 1024}
models:
  target: {source: "bundled:tiny-hybrid"}
  draft: {source: "bundled:tiny-hybrid-draft"}
prompts: {suite: tiny.json, tasks: [code], limit: 1}
blocks: 20
matrix:
  engine.threads: THREADS
arms:
  - name: baseline
  - name: spec_d{depth}
    speculation: {type: draft-simple, max: "{depth}"}
    matrix: {depth: [1, 2, 3, 4]}
""".replace("THREADS", str(list(range(1, 101))))
QUESTION = "This is 10,000 cells: 500 arms in 20 blocks"


@pytest.mark.parametrize(
    ("typed", "status", "message"),
    [
        ("n", 2, "Nothing was started."),
        ("", 2, "Nothing was started."),
        ("\x03", 130, "Aborted"),
        ("\x04", 130, "Aborted"),
    ],
    ids=["no", "return", "Ctrl-C", "Ctrl-D"],
)
def test_ten_thousand_cells_are_asked_about(tmp_path: Path, typed: str, status: int, message: str) -> None:
    (tmp_path / "many.yaml").write_text(MANY)
    code, screen, _ = at_a_terminal(tmp_path, "run", "many.yaml", answers={"Start? [y/N]": typed})
    assert (code, QUESTION in screen) == (status, True), screen
    assert message in screen
    assert "Traceback" not in screen
    assert list(tmp_path.iterdir()) == [tmp_path / "many.yaml"], "nothing was started"


def test_ten_thousand_cells_in_a_pipe_need_a_word(tmp_path: Path) -> None:
    (tmp_path / "many.yaml").write_text(MANY)
    for words in ((), ("--json",), ("--quiet",)):
        done = benchctl("run", "many.yaml", *words, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        assert QUESTION in done.stderr
        assert "Confirm it with --yes" in done.stderr
        assert len(done.stderr.splitlines()) == 2
    assert list(tmp_path.iterdir()) == [tmp_path / "many.yaml"], "nothing was started"


@pytest.mark.engine
def test_a_run_above_half_an_hour_is_asked_about(tmp_path: Path) -> None:
    words = ("bundled:tiny-hybrid", "bundled:tiny-hybrid-draft", "--prompts", "many", "--blocks", "100")
    long_answers = ("--set", "sampling.max_tokens=1500", "--set", "engine.context=2048")
    code, screen, _ = at_a_terminal(tmp_path, "run", *words, *long_answers, answers={"Start? [y/N]": "n"})
    assert (code, "Nothing was started" in screen, "100 repetitions: in the order of" in screen) == (2, True, True), (
        screen
    )
    assert not (tmp_path / "results").exists()


@pytest.mark.engine
def test_a_run_is_never_silent_and_says_the_speed_up_so_far(tmp_path: Path) -> None:
    (tmp_path / "seen.yaml").write_text(RECIPE)
    began = time.monotonic()
    status, screen, silence = at_a_terminal(tmp_path, "run", "seen.yaml", "-v")
    complete_s = time.monotonic() - began
    assert status == 0, screen
    # 2 of 10 s on a machine with nothing else to do.
    assert silence < max(5, complete_s / 3), f"nothing was shown for {silence:.1f} of {complete_s:.1f} s"
    for expected in ("preflight: ", "launching the engine", "spec: ", "× so far (", ", 3 repetitions)", "tok/s"):
        assert expected in screen, expected
    assert "code/0: 64 tokens" in screen


def test_a_page_of_the_documentation_has_styles_that_the_pager_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without -R less shows them as codes."""
    pager = tmp_path / "pager"
    pager.write_text('#!/bin/sh\necho "LESS is $LESS"\nexec cat\n')
    pager.chmod(0o755)
    monkeypatch.setenv("PAGER", str(pager))
    monkeypatch.delenv("LESS", raising=False)
    status, screen, _ = at_a_terminal(tmp_path, "docs", "tune")
    assert status == 0 and "LESS is FRX" in screen and "\x1b[1" in screen
