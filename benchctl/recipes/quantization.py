"""The terms of `quantize:`: llama-quantize's types, tensor types, and tensor patterns.

From llama.cpp `tools/quantize/quantize.cpp` and `ggml/include/ggml.h`. A binary may have fewer, which probing shows.
"""

from __future__ import annotations

import re

from benchctl.recipes.problems import did_you_mean, quoted
from benchctl.recipes.schema import QuantizeSpec

UNQUANTIZED = ("f32", "f16", "bf16")
"""Base types for which llama-quantize ignores every tensor override, silently."""

TENSOR_TYPES = (
    *UNQUANTIZED,
    *("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k"),
    *("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "iq4_nl", "iq4_xs"),
    *("tq1_0", "tq2_0", "mxfp4", "q1_0", "q2_0"),
)
BASE_TYPES = (
    *UNQUANTIZED,
    *("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k", "q2_k_s", "q3_k", "q3_k_s", "q3_k_m", "q3_k_l", "q4_k"),
    *("q4_k_s", "q4_k_m", "q5_k", "q5_k_s", "q5_k_m", "q6_k", "iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s"),
    *("iq2_m", "iq3_xxs", "iq3_xs", "iq3_s", "iq3_m", "iq4_nl", "iq4_xs", "tq1_0", "tq2_0", "mxfp4_moe"),
    *("q1_0", "q2_0"),
)
_PATTERN = re.compile(r"[A-Za-z0-9_]+(?:\.(?:[A-Za-z0-9_]+|\*))*\Z")


def quantize_problems(spec: QuantizeSpec) -> list[tuple[tuple[str, ...], str]]:
    """Return (key path below `quantize`, message) for every name that llama-quantize does not have."""
    problems: list[tuple[tuple[str, ...], str]] = []
    if spec.type.lower() not in BASE_TYPES:
        near = did_you_mean(spec.type, BASE_TYPES) or f" Known: {', '.join(BASE_TYPES)}."
        problems.append((("type",), f"expected a llama-quantize type, got {quoted(spec.type)}.{near}"))
    elif spec.tensors and spec.type.lower() in UNQUANTIZED:
        message = f"llama-quantize ignores tensor types when the base type is {spec.type}; use a quantized base type."
        problems.append((("tensors",), message))
    for pattern, kind in spec.tensors.items():
        if not _PATTERN.match(pattern):
            message = "expected parts of a tensor name such as ssm_out, blk.0.ffn_down or blk.*.attn_q."
            problems.append((("tensors", pattern), message))
        if kind.lower() not in TENSOR_TYPES:
            near = did_you_mean(kind, TENSOR_TYPES) or f" Known: {', '.join(TENSOR_TYPES)}."
            problems.append((("tensors", pattern), f"expected a GGML type, got {quoted(kind)}.{near}"))
    return problems


def tensor_regex(pattern: str) -> str:
    """Return the regular expression (ECMAScript and Python) of a pattern: whole dotted parts, `*` for any part."""
    parts = [r"[^.]*" if part == "*" else part.lower() for part in pattern.split(".")]  # as llama-quantize does
    return r"(^|\.)" + r"\.".join(parts) + r"(\.|$)"
