from __future__ import annotations

from dataclasses import replace

from benchctl.engines.base import Ledger
from benchctl.engines.common.drafts import read_counters
from benchctl.engines.llama_cpp.attest import make_ledger, with_rounds

METRICS = """# HELP llamacpp:spec_decode_num_drafts_total Speculative: Total speculative decoding verification steps
# TYPE llamacpp:spec_decode_num_drafts_total counter
llamacpp:n_decode_total 17
llamacpp:spec_decode_num_draft_tokens_total 61
llamacpp:spec_decode_num_accepted_tokens_total 47
llamacpp:spec_decode_num_drafts_total 16
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 14
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="2"} 1.1e+01
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="1"} 12
"""
ZERO = Ledger(0, 0, 0)


def test_metrics_are_read() -> None:
    assert read_counters(METRICS, "llamacpp") == Ledger(61, 47, 16, accepted_by_position=(14, 12, 11))


def test_older_metrics_have_no_counters() -> None:
    assert read_counters("llamacpp:n_decode_total 17\n", "llamacpp") == Ledger()


def test_the_difference_is_the_requests() -> None:
    before = Ledger(40, 20, 10, accepted_by_position=(9, 8))
    after = Ledger(61, 47, 16, accepted_by_position=(14, 12, 11))
    timings = {"draft_n": 21, "draft_n_accepted": 27}
    ledger = make_ledger(before, after, timings, speculating=True)
    assert ledger == Ledger(drafted=21, accepted=27, rounds=6, accepted_by_position=(5, 4, 11))


def test_nothing_drafted_is_zero_only_when_the_engine_counts_it() -> None:
    assert make_ledger(ZERO, ZERO, {}, speculating=True) == Ledger(drafted=0, accepted=0, rounds=0)
    assert make_ledger(Ledger(), Ledger(), {}, speculating=True) == Ledger()


def test_without_counters_the_timings_speak() -> None:
    ledger = make_ledger(Ledger(), Ledger(), {"draft_n": 8, "draft_n_accepted": 3}, speculating=True)
    assert ledger == Ledger(drafted=8, accepted=3)


def test_the_target_alone_has_no_ledger_unless_it_drafted() -> None:
    assert make_ledger(ZERO, ZERO, {}, speculating=False) == Ledger()
    assert make_ledger(ZERO, Ledger(4, 2, 1, accepted_by_position=(2,)), {}, speculating=False).drafted == 4


def test_a_contradiction_stays_visible() -> None:
    after = Ledger(20, 9, 5, accepted_by_position=(5, 4))
    ledger = make_ledger(ZERO, after, {"draft_n": 20, "draft_n_accepted": 12}, speculating=True)
    assert ledger.accepted == 12
    assert ledger.accepted_by_position == (5, 4)


def test_drafts_are_told_by_position_and_length_where_the_log_has_every_round() -> None:
    log = "\n".join(
        f"0.00.276.195 I slot   operator(): id  0 | task 3 | accepted {line}"
        for line in (
            " 1/ 1 draft tokens",
            " 1/ 3 draft tokens (restore checkpoint)",
            " 2/ 2 draft tokens",
            " 0/ 2 draft tokens",
        )
    )
    ledger = Ledger(drafted=6, accepted=2, rounds=3)
    with_positions = with_rounds(ledger, log)
    assert with_positions == replace(ledger, drafted_by_position=(3, 2, 1), accepted_by_length=(1, 0, 1))
    assert with_rounds(Ledger(drafted=6, accepted=3, rounds=3), log) is None
    assert with_rounds(ledger, "") is None
