"""The generators write clean text."""

import re
from itertools import islice
from random import Random

import pytest

from training import heldout
from training.generators import GENERATORS

WRONG_ARTICLE = re.compile(r"\ba [aeiou]\w*|\ban [b-df-hj-np-tv-z]\w*", re.IGNORECASE)


@pytest.mark.parametrize("held_out", [False, True])
@pytest.mark.parametrize("task", sorted(GENERATORS))
def test_articles_suit_the_next_word(task: str, held_out: bool) -> None:
    examples = islice(heldout.draw(task, Random(0), held_out=held_out), 1000)
    matches = [WRONG_ARTICLE.findall(f"{example.user}\n{example.assistant}") for example in examples]
    assert len(matches) == 1000
    assert not any(matches), [slip for slips in matches for slip in slips][:5]


def test_the_check_of_articles_finds_a_slip() -> None:
    assert WRONG_ARTICLE.findall("A album, an old album, an box") == ["A album", "an box"]
