"""GGML's tensor types and llama.cpp's file types, by number, as GGUF headers have them.

From `ggml/include/ggml.h`, `ggml/src/ggml-common.h` and `include/llama.h`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TensorType:
    """A way to store numbers: blocks of `block` elements in `size` bytes."""

    name: str
    block: int
    size: int
    quantized: bool


def _plain(name: str, size: int) -> TensorType:
    return TensorType(name, 1, size, quantized=False)


def _quant(name: str, block: int, size: int) -> TensorType:
    return TensorType(name, block, size, quantized=True)


TENSOR_TYPES: dict[int, TensorType] = {
    0: _plain("f32", 4),
    1: _plain("f16", 2),
    2: _quant("q4_0", 32, 18),
    3: _quant("q4_1", 32, 20),
    6: _quant("q5_0", 32, 22),
    7: _quant("q5_1", 32, 24),
    8: _quant("q8_0", 32, 34),
    9: _quant("q8_1", 32, 36),
    10: _quant("q2_k", 256, 84),
    11: _quant("q3_k", 256, 110),
    12: _quant("q4_k", 256, 144),
    13: _quant("q5_k", 256, 176),
    14: _quant("q6_k", 256, 210),
    15: _quant("q8_k", 256, 292),
    16: _quant("iq2_xxs", 256, 66),
    17: _quant("iq2_xs", 256, 74),
    18: _quant("iq3_xxs", 256, 98),
    19: _quant("iq1_s", 256, 50),
    20: _quant("iq4_nl", 32, 18),
    21: _quant("iq3_s", 256, 110),
    22: _quant("iq2_s", 256, 82),
    23: _quant("iq4_xs", 256, 136),
    24: _plain("i8", 1),
    25: _plain("i16", 2),
    26: _plain("i32", 4),
    27: _plain("i64", 8),
    28: _plain("f64", 8),
    29: _quant("iq1_m", 256, 56),
    30: _plain("bf16", 2),
    34: _quant("tq1_0", 256, 54),
    35: _quant("tq2_0", 256, 66),
    39: _quant("mxfp4", 32, 17),
    40: _quant("nvfp4", 64, 36),
    41: _quant("q1_0", 128, 18),
    42: _quant("q2_0", 64, 18),
}

FILE_TYPES: dict[int, str] = {
    **{0: "f32", 1: "f16", 2: "q4_0", 3: "q4_1", 7: "q8_0", 8: "q5_0", 9: "q5_1", 10: "q2_k"},
    **{11: "q3_k_s", 12: "q3_k_m", 13: "q3_k_l", 14: "q4_k_s", 15: "q4_k_m", 16: "q5_k_s", 17: "q5_k_m", 18: "q6_k"},
    **{19: "iq2_xxs", 20: "iq2_xs", 21: "q2_k_s", 22: "iq3_xs", 23: "iq3_xxs", 24: "iq1_s", 25: "iq4_nl", 26: "iq3_s"},
    **{27: "iq3_m", 28: "iq2_s", 29: "iq2_m", 30: "iq4_xs", 31: "iq1_m", 32: "bf16", 36: "tq1_0", 37: "tq2_0"},
    **{38: "mxfp4_moe", 39: "nvfp4", 40: "q1_0", 41: "q2_0"},
}
