"""The noise of a state is how much the margin between the two likeliest tokens moves."""

from __future__ import annotations

import pytest

from benchctl.engines.in_use import ListedToken
from benchctl.experiments.stress.noise import moved


def listed(token: int, *values: float) -> ListedToken:
    return ListedToken(token, values[token], dict(enumerate(values)))


def test_margins_move_up_to_the_first_token_that_differs() -> None:
    before = [listed(0, -0.1, -2.0, -5.0), listed(1, -0.8, -0.7, -5.0), listed(0, -0.1, -3.0)]
    after = [listed(0, -0.1, -2.3, -5.0), listed(0, -0.7, -0.8, -5.0), listed(0, -0.1, -9.0)]
    assert moved(before, after) == pytest.approx([0.3, 0.2]), "the third token belongs to another prefix"


def test_a_token_that_is_not_listed_is_left_out() -> None:
    assert moved([listed(0, -0.1, -2.0)], [ListedToken(0, -0.1, {0: -0.1})]) == []
