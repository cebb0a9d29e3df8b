"""`benchctl report race` on the real engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchctl_process import benchctl

pytestmark = pytest.mark.slow


@pytest.mark.engine
@pytest.mark.parametrize("prompt", ["code/1", "What helps against hiccups?"])
def test_both_answers_are_measured_and_draw_no_verdict(tmp_path: Path, prompt: str) -> None:
    done = benchctl("report", "race", "quickstart", "--prompt", prompt, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    arms = [line.split()[0] for line in done.stdout.splitlines() if "tok/s" in line]
    assert arms == ["baseline", "spec_d2"]
    assert "accepted" in done.stdout and "same text" in done.stdout and "no verdict" in done.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("quickstart", "--arm", "spec_d99"), "spec_d99"),
        (("quickstart", "--arm", "baseline"), "one arm"),
        (("nowhere",), "there is no recipe"),
        (("quickstart", "--prompt", "cod/1"), "There is no prompt"),
        (("concurrency", "--arm", "spec_d4-c2"), "one request at a time"),
    ],
)
def test_bad_options_are_one_message(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    done = benchctl("report", "race", *words, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr and "Traceback" not in done.stderr
