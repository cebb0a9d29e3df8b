"""What was asked after a run, in words."""

from __future__ import annotations

import pytest

from benchctl.analysis.asked import Asked
from benchctl.words.asked import asked_sentence


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        (Asked(arms=["d4", "d8"], suites={"many": 40, "mixed.json": 8}, stopped="budget"),
         "Asked 48 further prompts (40 of many and 8 of mixed.json), untimed: the baseline, d4 and d8. The time was "
         "over; the same command goes on where it stopped."),
        (Asked(arms=["d4"], suites={"\x1b[31m": 1}, stopped="prompts"),
         "Asked 1 further prompt (1 of \u241b[31m), untimed: the baseline and d4. There are no further prompts of "
         "these tasks; name a file: --prompts FILE."),
        (Asked(stopped="useless"), "No further prompt was asked. No further prompt decides what is undetermined."),
    ],
)  # fmt: skip
def test_how_many_prompts_of_which_suites_were_asked_and_why_no_more(asked: Asked, sentence: str) -> None:
    assert asked_sentence(asked) == sentence
