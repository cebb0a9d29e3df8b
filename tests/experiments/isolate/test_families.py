"""Which families a quantization changes, and what llama-quantize is asked for to keep some of them."""

from __future__ import annotations

import re

from benchctl.experiments.isolate.source import families_of, spec_with
from benchctl.models.gguf_header import Tensor
from benchctl.recipes.quantization import tensor_regex
from benchctl.recipes.schema import QuantizeSpec

F32, F16, BF16 = 0, 1, 30


def tensor(name: str, rows: int = 4, kind: int = BF16) -> Tensor:
    return Tensor(name, (256, rows), kind, 0, 256 * rows * (4 if kind == F32 else 2))


TENSORS = [
    tensor("token_embd.weight", 4096),
    tensor("output_norm.weight", 1, F32),
    *(
        tensor(f"blk.{layer}.{name}.weight", rows)
        for layer in range(2)
        for name, rows in [("attn_q", 256), ("ffn_down", 512), ("ssm_out", 300)]
    ),
    tensor("blk.0.ssm_conv1d.weight"),
]


def test_families_are_what_the_quantization_changes_largest_first() -> None:
    result = families_of(TENSORS, QuantizeSpec(type="q8_0"))
    assert [family.name for family in result] == ["token_embd", "ffn_down", "ssm_out", "attn_q"]
    assert [family.tensors for family in result] == [1, 2, 2, 2]
    assert result[1].parameters == 2 * 512 * 256
    assert result[0].layers == []
    assert result[1].layers == ["blk.0.ffn_down", "blk.1.ffn_down"]
    assert {family.keep for family in result} == {"bf16"}


def test_what_the_recipe_keeps_is_not_hunted_in() -> None:
    spec = QuantizeSpec(type="q8_0", tensors={"ssm_out": "bf16", "blk.0.attn_q": "f16", "ffn_down": "q4_0"})
    result = families_of(TENSORS, spec)
    assert [family.name for family in result] == ["token_embd", "ffn_down", "attn_q"]
    assert result[2].tensors == 1
    assert result[2].layers == []  # a single tensor left: the family is the layer


def test_a_family_of_two_types_keeps_the_wider_one() -> None:
    tensors = [tensor("blk.0.attn_q.weight", kind=F16), tensor("blk.1.attn_q.weight", kind=F32)]
    assert families_of(tensors, QuantizeSpec(type="q8_0"))[0].keep == "f32"


def test_kept_families_and_layers_come_before_the_recipes_own_overrides() -> None:
    spec = QuantizeSpec(type="q8_0", tensors={"ffn_down": "q4_0", "blk.*.attn_q": "q6_k"})
    result = families_of(TENSORS, spec)
    tensors = spec_with(spec, result, {"ffn_down", "blk.1.attn_q"}, TENSORS).tensors
    assert list(tensors.items()) == [("blk.1.attn_q", "bf16"), ("ffn_down", "bf16"), ("blk.*.attn_q", "q6_k")]
    assert spec_with(spec, result, set(), TENSORS) == spec


def test_a_familys_pattern_matches_its_own_tensors_and_no_others() -> None:
    for family in families_of(TENSORS, QuantizeSpec(type="q8_0")):
        matching = [tensor.name for tensor in TENSORS if re.search(tensor_regex(family.name), tensor.name)]
        assert len(matching) == family.tensors
        for layer in family.layers:
            assert sum(bool(re.search(tensor_regex(layer), tensor.name)) for tensor in TENSORS) == 1
