"""The evaluation prompts of the bundled models are held out of their training text."""

import json
from itertools import islice
from pathlib import Path
from random import Random

import pytest

from training import check_heldout, corpus, heldout, suite
from training.generators import GENERATORS, KEYS

ROOT = Path(__file__).parents[2]
SUITE = ROOT / "prompts" / "tiny.json"


@pytest.fixture(scope="module")
def training_text() -> str:
    return check_heldout.synthetic_text(1.0)


def test_no_prompt_or_answer_stands_in_the_training_text(training_text: str) -> None:
    wanted = check_heldout.entries(SUITE)
    assert len(wanted) >= 2 * 4 * 3
    assert check_heldout.findings(wanted, training_text) == []


def test_the_check_finds_what_was_trained_on(training_text: str) -> None:
    user, assistant = next(corpus.synthetic("code", 1))
    wanted = [("code", "prompt", user), ("code", "answer", assistant)]
    assert len(check_heldout.findings(wanted, training_text)) == 2


def test_the_suite_is_the_one_drawn_from_held_out_slots() -> None:
    assert json.loads(SUITE.read_text("utf-8")) == suite.suite()


def test_the_list_names_existing_combinations_only() -> None:
    reserved = heldout.reserved()
    assert reserved == {task: frozenset(keys) for task, keys in heldout.choose().items()}
    for task, keys in reserved.items():
        assert keys < set(KEYS[task])


@pytest.mark.parametrize("task", sorted(GENERATORS))
def test_training_uses_no_reserved_combination(task: str) -> None:
    reserved_keys = heldout.reserved()[task]
    for example in islice(heldout.draw(task, Random(0), held_out=False), 500):
        assert reserved_keys.isdisjoint(example.keys)


@pytest.mark.parametrize("task", sorted(GENERATORS))
def test_evaluation_uses_reserved_combinations_only(task: str) -> None:
    reserved_keys = heldout.reserved()[task]
    for example in islice(heldout.draw(task, Random(0), held_out=True), 20):
        assert example.keys and reserved_keys.issuperset(example.keys)


@pytest.mark.parametrize("task", sorted(GENERATORS))
def test_every_part_of_a_reserved_combination_is_trained_in_other_combinations(task: str) -> None:
    reserved = heldout.reserved()[task]
    trained = {(index, part) for key in set(KEYS[task]) - reserved for index, part in enumerate(key.split("/"))}
    assert {(index, part) for key in reserved for index, part in enumerate(key.split("/"))} <= trained
