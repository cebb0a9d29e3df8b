from __future__ import annotations

from benchctl.engines.base import Ledger
from benchctl.engines.common.drafts import read_counters
from benchctl.engines.llama_cpp.attest import make_ledger

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
    assert ledger == Ledger(drafted=21, accepted=27, rounds=6, accepted_by_position=(5, 4, 11), verified=21)


def test_nothing_drafted_is_zero_only_when_the_engine_counts_it() -> None:
    assert make_ledger(ZERO, ZERO, {}, speculating=True) == Ledger(drafted=0, accepted=0, rounds=0, verified=0)
    assert make_ledger(Ledger(), Ledger(), {}, speculating=True) == Ledger()


def test_without_counters_the_timings_speak() -> None:
    ledger = make_ledger(Ledger(), Ledger(), {"draft_n": 8, "draft_n_accepted": 3}, speculating=True)
    assert ledger == Ledger(drafted=8, accepted=3, verified=8)


def test_the_target_alone_has_no_ledger_unless_it_drafted() -> None:
    assert make_ledger(ZERO, ZERO, {}, speculating=False) == Ledger()
    assert make_ledger(ZERO, Ledger(4, 2, 1, accepted_by_position=(2,)), {}, speculating=False).drafted == 4


def test_a_contradiction_stays_visible() -> None:
    after = Ledger(20, 9, 5, accepted_by_position=(5, 4))
    ledger = make_ledger(ZERO, after, {"draft_n": 20, "draft_n_accepted": 12}, speculating=True)
    assert ledger.accepted == 12
    assert ledger.accepted_by_position == (5, 4)
