"""Tensor patterns hit whole parts of names, never pieces of words."""

from __future__ import annotations

import re

import pytest

from benchctl.recipes.quantization import tensor_regex


@pytest.mark.parametrize(
    ("pattern", "name", "hit"),
    [
        ("ssm_out", "blk.0.ssm_out.weight", True),
        ("ssm_out", "blk.0.ssm_out_norm.weight", False),
        ("output", "output.weight", True),
        ("output", "blk.3.attn_output.weight", False),
        ("blk.0.ffn_down", "blk.0.ffn_down.weight", True),
        ("blk.0.ffn_down", "blk.10.ffn_down.weight", False),
        ("blk.*.attn_q", "blk.12.attn_q.weight", True),
        ("blk.*.attn_q", "blk.12.attn_q_norm.weight", False),
        ("token_embd.weight", "token_embd.weight", True),
    ],
)
def test_a_pattern_hits_whole_parts(pattern: str, name: str, hit: bool) -> None:
    assert bool(re.search(tensor_regex(pattern), name)) is hit
