from __future__ import annotations

from benchctl.engines.common.drafts import Counters, read_counters, read_total, since

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
    assert read_counters(VLLM, "vllm") == Counters(70, 264, 135, (60, 0, 30))
    assert read_total(VLLM, "vllm:generation_tokens_total") == 500


def test_absent_counters_are_none() -> None:
    assert read_counters(VLLM, "llamacpp") == Counters()
    assert read_total(VLLM, "vllm:other_total") is None
    assert read_counters("vllm:spec_decode_num_drafts_total NaN\nnonsense {\n", "vllm") == Counters()


def test_between_two_readings() -> None:
    assert since(Counters(1, 4, 2, (2,)), Counters(3, 9, 5, (3, 2))) == Counters(2, 5, 3, (1, 2))
    assert since(Counters(), Counters(3, 9, 5, (3, 2))) == Counters(None, None, None, (3, 2))
    assert since(Counters(1, 4, 2, (2,)), Counters()) == Counters()


def test_no_position_is_deeper_than_a_draft_can_be() -> None:
    per = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    hostile = f'{per}{{position="99999999999"}} 1\n{per}{{position="10000"}} 1\n{per}{{position="1"}} 3\n'
    assert read_counters(hostile, "vllm") == Counters()
    assert read_counters("vllm:spec_decode_num_drafts_total 1e30\n", "vllm") == Counters()
