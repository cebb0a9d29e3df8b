"""`benchctl report race` on the real engine."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tests.benchctl_process import benchctl

pytestmark = pytest.mark.slow


@pytest.mark.engine
def test_a_race_is_measured_recorded_and_draws_no_verdict(tmp_path: Path) -> None:
    words = ("--prompt", "code/1", "--set", "sampling.max_tokens=24")
    done = benchctl("report", "race", "quickstart", *words, "-o", "out/race.svg", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "baseline (no speculation): 24 tokens in" in done.stdout
    assert "accepted" in done.stdout and "no verdict" in done.stdout
    assert "Both answers are the same text." in done.stdout
    root = ET.fromstring((tmp_path / "out" / "race.svg").read_text())
    spans = root.findall(".//{http://www.w3.org/2000/svg}tspan")
    assert any(span.get("class") == "g" for span in spans), "what arrived in a group is coloured"
    texts = ["".join(span.text or "" for span in spans)]
    assert len(texts[0]) > 40
    own = benchctl(
        "report", "race", "quickstart", "--prompt", "What helps against hiccups?", "-o", "own.svg", cwd=tmp_path
    )
    assert own.returncode == 0, own.stderr
    assert (tmp_path / "own.svg").is_file()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("quickstart", "-o", "race.gif"), "is an SVG"),
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
