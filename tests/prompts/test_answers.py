"""Whether a text gives a prompt's right answer: what counts as the answer, by kind, and what is refused."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from benchctl.errors import UsageError
from benchctl.prompts.answers import MOST_COPIES, READ, Answer
from benchctl.prompts.load import load_suite, prompt_sha256
from tests.prompts.test_load import GOOD

RIGHT = [
    ("numeric", "18", "9 * 2 = $18 a day.\n#### 18"),
    ("numeric", "1234", r"The answer is \boxed{1{,}234}."),
    ("numeric", "1234", "In the end 1,234.00 are left."),
    ("numeric", "-3", "so x = −3."),
    ("numeric", "3", "10-7=3"),
    ("numeric", "3", "that leaves 10-7 or 9-3"),
    ("numeric", "8", "The answer is 5 + 3 = 8."),
    ("numeric", "18", "The answer is 18 dollars for 3 days."),
    ("numeric", "18", "**Answer:**\n\n$18$"),
    ("numeric", "073", r"\boxed{73}"),
    ("numeric", "0.5", "That is .5"),
    ("numeric", "7", "<think>The answer is 9.</think>7"),
    ("numeric", "12", "So the answer is correct: twelve, or 12"),
    ("numeric", "18", "答えは18です。"),
    ("choice", "B", "B"),
    ("choice", "B", "答えはBです。"),
    ("choice", "B", "B。Cではない。"),
    ("choice", "B", "B. Vitamin C"),
    ("choice", "B", "(B) because A is wrong"),
    ("choice", "B", "The answer is (B)."),
    ("choice", "A", "The answer is A because it is"),
    ("choice", "B", r"so \boxed{\text{B}}"),
    ("choice", "B", "the answer is b"),
    ("choice", "C", "The correct answer is: **C. Paris**"),
    ("choice", "C", "A dog is C"),
    ("choice", "D", "I think it's D."),
    ("choice", "D", "Answer: I believe D"),
    ("exact", "Paris", "The answer is **paris**."),
    ("exact", "New York", " new\nyork. "),
    ("exact", "f(x)", "F(x)"),
    ("regex", r"(?i)^paris\b", "Paris, \ud800 of course"),
]
WRONG = [
    ("numeric", "18", "18 days, or 19"),
    ("numeric", "18", "The answer is twelve."),
    ("numeric", "2", "x2"),
    ("choice", "A", "A dog"),
    ("choice", "I", "I don’t know"),
    ("choice", "B", "C. Vitamin B"),
    ("exact", "Paris", "Paris or London"),
    ("regex", r"^paris$", "Paris"),
]


def judged(kind: str, value: str, text: str, **how: bool) -> bool:
    return Answer.model_validate({"kind": kind, "value": value}).is_given_by(text, **how)


@pytest.mark.parametrize(("kind", "value", "text"), RIGHT)
def test_an_answer_is_found_where_people_would_read_it(kind: str, value: str, text: str) -> None:
    assert judged(kind, value, text)


@pytest.mark.parametrize(("kind", "value", "text"), WRONG)
def test_another_answer_is_wrong(kind: str, value: str, text: str) -> None:
    assert not judged(kind, value, text)


def test_an_answer_that_was_cut_off_needs_a_mark() -> None:
    assert judged("numeric", "18", "The answer is 18. To see", cut=True)
    assert not judged("numeric", "18", "First, 18", cut=True)
    assert judged("choice", "B", "B. It", cut=True)
    assert not judged("choice", "B", "It may be B", cut=True)


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|a)*b", "(x+x+)+y", "(?:a?){1000}b", "[ab]*a[ab]{999}c"])
def test_an_expression_made_to_take_forever_takes_a_moment(pattern: str) -> None:
    started = time.process_time()
    judged("regex", pattern, "ax" * READ)
    assert time.process_time() - started < 5, "a backtracking engine would need years"


@pytest.mark.parametrize(
    ("answer", "word"),
    [
        ({"kind": "code", "value": "assert f(1) == 2"}, "exact"),
        ({"kind": "regexp", "value": "a"}, "regex"),
        ({"kind": "regex", "value": "("}, "unclosed"),
        ({"kind": "regex", "value": "(?=a)b"}, "look-around"),
        ({"kind": "regex", "value": "(?:a{100}){100}"}, str(MOST_COPIES)),
        ({"kind": "regex", "value": "a" * 600}, "500"),
        ({"kind": "numeric", "value": "about 3"}, "decimal number"),
        ({"kind": "numeric", "value": 3}, "quotes"),
        ({"kind": "choice", "value": "K"}, "A to J"),
        ({"kind": "exact", "value": "..."}, "letter or digit"),
        ({"kind": "exact"}, "value"),
    ],
)
def test_an_answer_that_cannot_be_judged_is_refused_with_its_place(
    answer: dict[str, Any], word: str, tmp_path: Path
) -> None:
    prompt = {**GOOD["tasks"]["chat"][0], "answer": answer}
    (tmp_path / "suite.json").write_text(json.dumps({**GOOD, "tasks": {"chat": [prompt]}}))
    with pytest.raises(UsageError, match=rf"tasks\.chat\[0\]\.answer.*{word}"):
        load_suite("suite.json", recipe_folder=tmp_path)


def test_an_answer_changes_nothing_of_what_is_sent() -> None:
    plain, judgeable = (load_suite("answers", recipe_folder=Path()).tasks["choice"][0] for _ in range(2))
    assert judgeable.answer is not None
    assert prompt_sha256(plain.model_copy(update={"answer": None})) == prompt_sha256(judgeable)
    assert "answer" not in judgeable.request


def test_the_shipped_suite_judges_every_prompt() -> None:
    suite = load_suite("answers", recipe_folder=Path())
    prompts = [prompt for prompts in suite.tasks.values() for prompt in prompts]
    assert len(prompts) == 24
    assert all(prompt.answer is not None for prompt in prompts)
