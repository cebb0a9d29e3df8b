"""Which types tensors can take, without the tool."""

from __future__ import annotations

from benchctl.models.gguf_header import Tensor
from benchctl.models.tensor_types import fallback_sentence, families, takes_other_type

F32, Q5_0, Q4_K, Q8_0 = 0, 6, 12, 8


def tensor(name: str, shape: tuple[int, ...], kind: int = F32) -> Tensor:
    return Tensor(name, shape, kind, 0, None)


def test_rows_that_do_not_fit_the_base_type_are_told_with_what_they_became() -> None:
    records = [
        tensor("blk.0.attn_q.weight", (896, 896), Q5_0),
        tensor("blk.0.ffn_down.weight", (4864, 896), Q4_K),
        tensor("blk.0.ffn_up.weight", (896, 4864), Q8_0),
        tensor("blk.0.attn_norm.weight", (896,)),
    ]
    sentence = fallback_sentence(records, "q4_k_m", {"ffn_up": "q8_0"})
    assert sentence == (
        "the rows of 1 of 3 tensors do not fit q4_k_m, such as blk.0.attn_q.weight with 896 numbers; "
        "llama-quantize made them q5_0"
    )
    assert fallback_sentence(records, "q8_0", {}) is None


def test_what_keeps_its_type() -> None:
    unchanged = [
        "blk.0.attn_q.bias",
        "blk.0.attn_q_norm.weight",
        "blk.0.ffn_gate_inp.weight",
        "blk.0.ssm_conv1d.weight",
    ]
    assert not any(takes_other_type(tensor(name, (64, 64))) for name in unchanged)
    assert not takes_other_type(tensor("blk.0.attn_q.weight", (64, 1)))
    assert takes_other_type(tensor("blk.0.ffn_up_exps.weight", (64, 1, 8)))


def test_families_are_named_without_block_numbers() -> None:
    names = ["token_embd.weight", "blk.0.ssm_out.weight", "blk.11.ssm_out.weight", "output_norm.weight"]
    assert families([tensor(name, (64, 64)) for name in names]) == ["token_embd", "ssm_out"]
