"""The engine's own log against its counters: what was drafted must be the same in both."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchctl.data.cell import UNCHECKED_ACCEPTANCE
from benchctl.engines.base import Ledger
from benchctl.engines.llama_cpp.attest import attest, contradiction, read_counts
from benchctl.engines.llama_cpp.rounds import LoggedRounds
from tests.engines.llama_cpp.test_attest import DRAFT, ENGAGED, observed

LINE = (
    "0.1 I spec common_specu: statistics     {kind}: #calls(b,g,a) = 1 16 16, #gen drafts = 16, #acc drafts = 14, "
    "#gen tokens =     {drafted}, #acc tokens =    {accepted}, #mean acc len = 3.94"
)
CHECKPOINTS = "0.0 I srv load_model: speculative decoding will use checkpoints"


def log(drafted: int, accepted: int, *lines: str) -> tuple[str, ...]:
    earlier = LINE.format(kind="draft-simple", drafted=4, accepted=1)
    return (*ENGAGED, *lines, earlier, LINE.format(kind="draft-simple", drafted=drafted, accepted=accepted))


def test_the_last_counts_of_every_kind_of_draft_are_added_up() -> None:
    counts = read_counts((*log(61, 47), LINE.format(kind="ngram-mod", drafted=10, accepted=3)))
    assert counts is not None
    assert (counts.drafted, counts.accepted, counts.replays) == (71, 50, False)
    assert read_counts(ENGAGED) is None


@pytest.mark.parametrize(
    ("counters", "lines", "message"),
    [
        (Ledger(61, 47, 16), log(61, 47), None),
        (Ledger(61, 58, 16), log(61, 47), "58 tokens were counted as accepted, and its own log counts 47"),
        (Ledger(61, 46, 16), log(61, 47), "46 tokens were counted as accepted"),
        (Ledger(61, 61, 16), log(0, 0), "61 draft tokens were counted, and its own log counts 0"),
        (Ledger(61, 40, 16), log(61, 47, CHECKPOINTS), None),
        (Ledger(61, 30, 16), log(61, 47, CHECKPOINTS), "30 tokens were counted as accepted"),  # 17 in 16 rounds
        (Ledger(61, 48, 16), log(61, 47, CHECKPOINTS), "48 tokens were counted as accepted"),
        (Ledger(60, 40, 16), log(61, 47, CHECKPOINTS), "60 draft tokens were counted"),
        (Ledger(), log(61, 47), None),
        (Ledger(61, 47, 16), ENGAGED, None),
    ],
)
def test_counters_that_the_log_does_not_bear_out_fail_the_cell(
    counters: Ledger, lines: tuple[str, ...], message: str | None
) -> None:
    result = contradiction(read_counts(lines), counters, None)
    assert (result is None) == (message is None)
    assert message is None or message in str(result)
    attestation = attest(observed(DRAFT, drafted=61, longest_answer=64, log=lines, counters=counters))
    assert attestation.state == ("active" if message is None else "failed")
    assert message is None or message in str(attestation.reason)


def test_answers_with_more_drafts_than_the_log_contradict_it() -> None:
    counters = Ledger(61, 47, 16)
    assert contradiction(read_counts(log(61, 47)), counters, 61) is None
    assert "62 draft tokens" in str(contradiction(read_counts(log(61, 47)), counters, 62))


def test_where_the_target_replays_acceptance_is_called_unchecked() -> None:
    replaying = attest(observed(DRAFT, drafted=61, log=log(61, 47, CHECKPOINTS), counters=Ledger(61, 40, 16)))
    plain = attest(observed(DRAFT, drafted=61, log=log(61, 47), counters=Ledger(61, 47, 16)))
    assert any(UNCHECKED_ACCEPTANCE in line for line in replaying.evidence)
    assert not any(UNCHECKED_ACCEPTANCE in line for line in plain.evidence)
    assert any("61 drafted, 47 accepted" in line for line in plain.evidence)


def test_rounds_in_the_log_confirm_the_acceptance_of_a_target_that_replays() -> None:
    cell = observed(DRAFT, drafted=61, log=log(61, 47, CHECKPOINTS), counters=Ledger(61, 40, 16))

    def unchecked(rounds: LoggedRounds) -> bool:
        return any(UNCHECKED_ACCEPTANCE in line for line in attest(replace(cell, rounds=rounds)).evidence)

    assert not unchecked(LoggedRounds(answers=2, placed=1))
    assert unchecked(LoggedRounds())
    assert unchecked(LoggedRounds(answers=2, placed=1, contradiction="its steps have 3 rounds, and its counters 4"))
