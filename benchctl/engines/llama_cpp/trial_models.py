"""Tiny models of the common quantizations, written on the spot to try a llama-server with.

Their weights are random, so their answers mean nothing; what counts is that every kernel of the quantization runs. Rows
have 256 values, the block of the K-quants, and outputs are multiples of 32: what the kernels for AMX require.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

WIDTH = 256
VOCABULARY = 288
_HIDDEN = 512
_HEADS = 4
_ALIGNMENT = 32
_U32, _F32, _STRING, _ARRAY, _I32 = 4, 6, 8, 9, 5
"""Numbers of value types in a GGUF."""
_GGML_F32 = 0
_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6
"""Kinds of tokens."""

Blocks = NDArray[np.uint8]
"""Random bytes, a row a block of the quantization; a scale is then written into each."""


def _scale(value: float) -> NDArray[np.uint8]:
    return np.array([value], np.float16).view(np.uint8)


def _q4_0(blocks: Blocks) -> None:
    blocks[:, 0:2] = _scale(0.012)


def _q8_0(blocks: Blocks) -> None:
    blocks[:, 0:2] = _scale(0.0008)


def _q4_k(blocks: Blocks) -> None:
    blocks[:, 0:2] = _scale(0.0004)
    blocks[:, 2:4] = _scale(0.003)


def _q6_k(blocks: Blocks) -> None:
    blocks[:, 192:208] %= 16
    blocks[:, 208:210] = _scale(0.0004)


_TYPES: dict[str, tuple[int, int, int, int, Callable[[Blocks], None]]] = {
    "q4_0": (2, 2, 32, 18, _q4_0),
    "q4_k": (12, 15, 256, 144, _q4_k),
    "q6_k": (14, 18, 256, 210, _q6_k),
    "q8_0": (8, 7, 32, 34, _q8_0),
}
"""Number of the tensor type and of the file type in a GGUF, values and bytes a block, and what writes the scales (so
that weights are some 0.06 in size)."""
QUANTIZATIONS = tuple(_TYPES)


def write_trial_model(path: Path, quantization: str) -> None:
    """Write a model of one layer whose matrices are of `quantization`, one of `QUANTIZATIONS`. Raises OSError."""
    tensor_type, file_type, values, size, scale = _TYPES[quantization]
    generator = np.random.default_rng(1)
    infos, data = [], b""

    def add(name: str, shape: Sequence[int]) -> None:
        nonlocal data
        count = int(np.prod(shape))
        if len(shape) == 1:
            kind, content = _GGML_F32, np.ones(count, np.float32).tobytes()
        else:
            blocks = generator.integers(0, 256, (count // values, size), np.uint8)
            scale(blocks)
            kind, content = tensor_type, blocks.tobytes()
        info = struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, len(data))
        infos.append(_text(name) + info)
        data += content + bytes(-len(content) % _ALIGNMENT)

    add("token_embd.weight", (WIDTH, VOCABULARY))
    add("output_norm.weight", (WIDTH,))
    add("output.weight", (WIDTH, VOCABULARY))
    for name in ("attn_norm", "ffn_norm"):
        add(f"blk.0.{name}.weight", (WIDTH,))
    for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
        add(f"blk.0.{name}.weight", (WIDTH, WIDTH))
    for name in ("ffn_gate", "ffn_up"):
        add(f"blk.0.{name}.weight", (WIDTH, _HIDDEN))
    add("blk.0.ffn_down.weight", (_HIDDEN, WIDTH))
    facts = _facts(quantization, file_type)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(infos), len(facts)) + b"".join((*facts, *infos))
    path.write_bytes(head + bytes(-len(head) % _ALIGNMENT) + data)


def _facts(quantization: str, file_type: int) -> list[bytes]:
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    kinds = [_UNKNOWN, _CONTROL, _CONTROL, *[_BYTE] * 256]
    filler = VOCABULARY - len(tokens)
    tokens += [f"filler{index}" for index in range(filler)]
    kinds += [_NORMAL] * filler
    whole = {
        "general.file_type": file_type,
        "llama.block_count": 1,
        "llama.context_length": 512,
        "llama.embedding_length": WIDTH,
        "llama.feed_forward_length": _HIDDEN,
        "llama.attention.head_count": _HEADS,
        "llama.rope.dimension_count": WIDTH // _HEADS,
        "llama.vocab_size": VOCABULARY,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
    texts = {
        "general.architecture": "llama",
        "general.name": f"trial {quantization}",
        "tokenizer.ggml.model": "llama",
    }
    return [
        *(_text(name) + struct.pack("<I", _STRING) + _text(value) for name, value in texts.items()),
        *(_text(name) + struct.pack("<II", _U32, value) for name, value in whole.items()),
        _text("llama.attention.layer_norm_rms_epsilon") + struct.pack("<If", _F32, 1e-5),
        _array("tokenizer.ggml.tokens", _STRING, [_text(token) for token in tokens]),
        _array("tokenizer.ggml.scores", _F32, [struct.pack("<f", 0.0)] * VOCABULARY),
        _array("tokenizer.ggml.token_type", _I32, [struct.pack("<i", kind) for kind in kinds]),
    ]


def _text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode("ascii")


def _array(name: str, kind: int, items: Sequence[bytes]) -> bytes:
    return _text(name) + struct.pack("<IIQ", _ARRAY, kind, len(items)) + b"".join(items)
