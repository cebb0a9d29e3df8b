"""What of an answer came together, and what stood there at a moment."""

from __future__ import annotations

import pytest

from benchctl.engines.base import Ledger
from benchctl.experiments.race.playback import Arrival, Playback, acceptance_of, pieces_of, plain_step_s

WORD = "abcdefghij"
PREFIXES = [WORD[:count] for count in range(len(WORD) + 1)]


def test_tokens_of_one_round_are_all_grouped_but_the_last() -> None:
    # The first token; a round of four that arrives in two chunks; a round of one; a round of three.
    arrivals = [Arrival(1.0, 1), Arrival(1.2, 3), Arrival(1.201, 5), Arrival(1.4, 6), Arrival(1.6, 9)]
    pieces = pieces_of(arrivals, PREFIXES, 0.1, drafts=True)
    assert [(piece.text, piece.grouped) for piece in pieces] == [
        ("a", False), ("bcd", True), ("e", False), ("f", False), ("gh", True), ("i", False)
    ]  # fmt: skip
    assert sum(piece.tokens for piece in pieces) == 9


def test_without_speculation_nothing_is_grouped_however_close_tokens_come() -> None:
    arrivals = [Arrival(0.1, 1), Arrival(0.2, 2), Arrival(0.2001, 3)]
    pieces = pieces_of(arrivals, PREFIXES, plain_step_s(arrivals), drafts=False)
    assert [(piece.text, piece.grouped) for piece in pieces] == [("a", False), ("b", False), ("c", False)]


def test_a_first_chunk_with_a_whole_round_begins_with_the_token_of_the_prompt() -> None:
    pieces = pieces_of([Arrival(0.5, 4)], PREFIXES, 0.1, drafts=True)
    assert [(piece.text, piece.tokens, piece.grouped) for piece in pieces] == [
        ("a", 1, False),
        ("bc", 2, True),
        ("d", 1, False),
    ]


def test_the_status_counts_what_has_come_by_then() -> None:
    arrivals = [Arrival(1.0, 1), Arrival(2.0, 4), Arrival(3.0, 6)]
    playback = Playback("spec", "draft", tuple(pieces_of(arrivals, PREFIXES, 0.1, drafts=True)))
    assert playback.status(0.5) == "reading the prompt"
    assert playback.status(1.0) == "1 token in 1.00 s"
    assert playback.status(2.5) == "4 tokens in 2.50 s, 2.0 tok/s"
    assert playback.status(9.0) == "6 tokens in 3.00 s, 2.5 tok/s"
    assert playback.text == "abcdef"
    assert plain_step_s(arrivals) == pytest.approx(1.0) and plain_step_s(arrivals[:1]) == 0.0


def test_acceptance_is_the_engines_own_count() -> None:
    assert acceptance_of(Ledger(drafted=8, accepted=6)) == "drafted 8, accepted 6 (75%)"
    by_position = Ledger(drafted=None, accepted=None, accepted_by_position=(3, 2, 1))
    assert acceptance_of(by_position) == "drafted not reported, accepted 6"
    assert acceptance_of(Ledger(drafted=8)) == "drafted 8, accepted not reported"
    assert acceptance_of(Ledger(drafted=0, accepted=0)) == "drafted 0, accepted 0"
