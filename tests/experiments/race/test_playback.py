"""What of an answer came together, and what stood there at a moment."""

from __future__ import annotations

import pytest

from benchctl.experiments.race.playback import Arrival, Playback, pieces_of, plain_step_s, rounds

WORD = "abcdefghij"
PREFIXES = [WORD[:count] for count in range(len(WORD) + 1)]


def test_tokens_of_one_round_are_all_grouped_but_the_last() -> None:
    # The first token; a round of four that arrives in two chunks; a round of one; a round of three.
    arrivals = [Arrival(1.0, 1), Arrival(1.2, 3), Arrival(1.201, 5), Arrival(1.4, 6), Arrival(1.6, 9)]
    assert list(rounds(arrivals, 0.1)) == [(1.0, 0, 1), (1.201, 1, 5), (1.4, 5, 6), (1.6, 6, 9)]
    pieces = pieces_of(arrivals, PREFIXES, 0.1, drafts=True)
    assert [(one.text, one.grouped) for one in pieces] == [
        ("a", False), ("bcd", True), ("e", False), ("f", False), ("gh", True), ("i", False)
    ]  # fmt: skip
    assert sum(one.tokens for one in pieces) == 9


def test_without_speculation_nothing_is_grouped_however_close_tokens_come() -> None:
    arrivals = [Arrival(0.1, 1), Arrival(0.2, 2), Arrival(0.2001, 3)]
    pieces = pieces_of(arrivals, PREFIXES, plain_step_s(arrivals), drafts=False)
    assert [(one.text, one.grouped) for one in pieces] == [("a", False), ("b", False), ("c", False)]


def test_a_first_chunk_with_a_whole_round_begins_with_the_token_of_the_prompt() -> None:
    pieces = pieces_of([Arrival(0.5, 4)], PREFIXES, 0.1, drafts=True)
    assert [(one.text, one.tokens, one.grouped) for one in pieces] == [
        ("a", 1, False),
        ("bc", 2, True),
        ("d", 1, False),
    ]


def test_the_status_counts_what_has_come_by_then() -> None:
    arrivals = [Arrival(1.0, 1), Arrival(2.0, 4), Arrival(3.0, 6)]
    lane = Playback(
        "spec", "draft", tuple(pieces_of(arrivals, PREFIXES, 0.1, drafts=True)), speculates=True, drafted=4, accepted=3
    )
    assert lane.status(0.5) == "reading the prompt"
    assert lane.status(1.0) == "1 token in 1.00 s"
    assert lane.status(2.5) == "4 tokens in 2.50 s, 2.0 tok/s"
    assert lane.status(9.0) == "6 tokens in 3.00 s, 2.5 tok/s"
    assert (lane.text, lane.tokens, lane.acceptance) == ("abcdef", 6, "3 of 4 drafted tokens accepted (75%)")
    assert plain_step_s(arrivals) == pytest.approx(1.0) and plain_step_s(arrivals[:1]) == 0.0


def test_acceptance_is_the_engines_own_count_however_the_tokens_arrived() -> None:
    pieces = tuple(pieces_of([Arrival(0.5, 4), Arrival(1.0, 5)], PREFIXES, 0.1, drafts=True))
    counted = Playback("spec", "draft", pieces, speculates=True, drafted=8, accepted=6, accepted_by_position=(3, 2, 1))
    assert "drafted" not in counted.status(9.0), "arrival times do not tell what was drafted"
    assert counted.acceptance == "6 of 8 drafted tokens accepted (75%; 3, 2, 1 at position 1, 2, 3)"
    positions = Playback("spec", "draft", pieces, speculates=True, drafted=None, accepted_by_position=(3, 2, 1))
    assert positions.acceptance == "6 drafted tokens accepted (3, 2, 1 at position 1, 2, 3), drafted: not reported"


def test_what_the_engine_does_not_count_is_not_reported() -> None:
    pieces = tuple(pieces_of([Arrival(0.5, 4)], PREFIXES, 0.1, drafts=True))
    assert Playback("spec", "draft", pieces, speculates=True).acceptance == "drafted and accepted: not reported"
    assert (
        Playback("spec", "draft", pieces, speculates=True, drafted=8).acceptance == "8 drafted, accepted: not reported"
    )
    assert Playback("spec", "draft", pieces, speculates=True, drafted=0, accepted=0).acceptance == "nothing drafted"
    assert Playback("baseline", "no speculation", pieces, speculates=False).acceptance == ""
