from __future__ import annotations

from benchctl.engines.base import Ledger
from benchctl.engines.common.drafts import counted_since, read_counters, read_total

VLLM = """# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 66.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="m"} 4.0
vllm:spec_decode_num_drafts_created{engine="0",model_name="m"} 1.795e+09
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 2.64e+02
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 135.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 60.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="2"} 30.0 1795000000
vllm:generation_tokens_total{engine="0"} 480.0
vllm:generation_tokens_total{engine="1"} 20
"""


def test_series_of_all_labels_are_added_up() -> None:
    assert read_counters(VLLM, "vllm") == Ledger(264, 135, 70, accepted_by_position=(60, 0, 30))
    assert read_total(VLLM, "vllm:generation_tokens_total") == 500


def test_absent_counters_are_none() -> None:
    assert read_counters(VLLM, "llamacpp") == Ledger()
    assert read_total(VLLM, "vllm:other_total") is None
    assert read_counters("vllm:spec_decode_num_drafts_total NaN\nnonsense {\n", "vllm") == Ledger()


def test_between_two_readings() -> None:
    late = Ledger(9, 5, 3, accepted_by_position=(3, 2))
    assert counted_since(Ledger(4, 2, 1, accepted_by_position=(2,)), late) == Ledger(
        5, 3, 2, accepted_by_position=(1, 2)
    )
    assert counted_since(Ledger(), late) == Ledger(accepted_by_position=(3, 2))
    assert counted_since(Ledger(4, 2, 1, accepted_by_position=(2,)), Ledger()) == Ledger()


def test_no_position_is_deeper_than_a_draft_can_be() -> None:
    per = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    hostile = f'{per}{{position="99999999999"}} 1\n{per}{{position="10000"}} 1\n{per}{{position="1"}} 3\n'
    assert read_counters(hostile, "vllm") == Ledger()
    assert read_counters("vllm:spec_decode_num_drafts_total 1e30\n", "vllm") == Ledger()
