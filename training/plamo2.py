"""A pair of models in PLaMo 2's published layout: config.json, safetensors, and a tokenizer.jsonl of our own.

    python -m training.plamo2 FOLDER

writes FOLDER/target and FOLDER/draft in a second. The weights are random (seeded), large enough in their output layer
that greedy answers do not repeat themselves; the draft is the target with noise on every matrix, so that it is right
sometimes. The pair shows how an engine handles the architecture, the layout and rejected drafts, not how PLaMo answers.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchctl.models.huggingface.folder import write_weights

LAYERS, WIDTH, FEED_FORWARD = 8, 128, 256
HEADS, KEY_HEADS, MAMBA_HEADS, HEAD_WIDTH = 4, 2, 8, 32
STATE, CONVOLUTION, MAMBA_STEP = 16, 4, 2
SPECIAL = ("unk", "bos", "eos", "pad")
LETTERS = "".join(map(chr, range(32, 127))) + "あいうえおかきくけこさしすせそたちつてと"
STEP_WIDTH = max(64, WIDTH // 16)
"""Of the projection to time steps, as llama.cpp's `src/models/plamo2.cpp` derives it."""


def tokenizer() -> list[list[Any]]:
    """Return the lines of tokenizer.jsonl: text, score, type; every byte, so that any text can be read."""
    special = [[f"<|plamo:{name}|>", 0.0, "UNKNOWN" if name == "unk" else "CONTROL"] for name in SPECIAL]
    return [
        *special,
        *([f"<0x{byte:02X}>", 0.0, "BYTE"] for byte in range(256)),
        *([text, -1.0, "NORMAL"] for text in LETTERS),
    ]


def config(vocabulary: int) -> dict[str, Any]:
    """Return config.json with the published models' keys."""
    return {
        "architectures": ["Plamo2ForCausalLM"],
        "model_type": "plamo2",
        "vocab_size": vocabulary,
        "hidden_size": WIDTH,
        "hidden_size_per_head": HEAD_WIDTH,
        "intermediate_size": FEED_FORWARD,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KEY_HEADS,
        "mamba_enabled": True,
        "mamba_step": MAMBA_STEP,
        "mamba_num_heads": MAMBA_HEADS,
        "mamba_d_state": STATE,
        "mamba_d_conv": CONVOLUTION,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000,
        "tie_word_embeddings": False,
        "dtype": "float32",
    }


def weights(vocabulary: int, noise: float) -> dict[str, np.ndarray[Any, np.dtype[np.float32]]]:
    """Return the tensors by their published names; `noise` is relative to a matrix's own standard deviation."""
    random, noise_random = np.random.default_rng(1), np.random.default_rng(2)

    def matrix(*shape: int, deviation: float | None = None) -> np.ndarray[Any, np.dtype[np.float32]]:
        scale = shape[-1] ** -0.5 if deviation is None else deviation
        return (random.normal(0, scale, shape) + noise * noise_random.normal(0, scale, shape)).astype(np.float32)

    def filled(value: float, *shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        return np.full(shape, value, np.float32)

    inner = MAMBA_HEADS * HEAD_WIDTH
    tensors = {
        "model.embed_tokens.weight": matrix(vocabulary, WIDTH, deviation=0.05),
        "lm_head.weight": matrix(vocabulary, WIDTH, deviation=0.3),
        "model.norm.weight": filled(0, WIDTH),
    }
    for number in range(LAYERS):
        layer, mixer = f"model.layers.layers.{number}", f"model.layers.layers.{number}.mixer"
        tensors |= {
            f"{layer}.{when}_{part}_norm.weight": filled(0, WIDTH)
            for when in ("pre", "post")
            for part in ("mixer", "mlp")
        }
        tensors |= {
            f"{layer}.mlp.gate_up_proj.weight": matrix(2 * FEED_FORWARD, WIDTH),
            f"{layer}.mlp.down_proj.weight": matrix(WIDTH, FEED_FORWARD),
        }
        if number % MAMBA_STEP == MAMBA_STEP // 2:
            tensors |= {
                f"{mixer}.qkv_proj.weight": matrix((HEADS + 2 * KEY_HEADS) * HEAD_WIDTH, WIDTH),
                f"{mixer}.q_weight": filled(1, HEADS, HEAD_WIDTH),
                f"{mixer}.k_weight": filled(1, KEY_HEADS, HEAD_WIDTH),
                f"{mixer}.o_proj.weight": matrix(WIDTH, HEADS * HEAD_WIDTH),
            }
            continue
        tensors |= {
            f"{mixer}.in_proj.weight": matrix(2 * inner, WIDTH),
            f"{mixer}.conv1d.weight": matrix(inner, 1, CONVOLUTION),
            f"{mixer}.bcdt_proj.weight": matrix(STEP_WIDTH + 2 * STATE, inner),
            f"{mixer}.dt_proj.weight": matrix(MAMBA_HEADS, STEP_WIDTH),
            f"{mixer}.dt_bias": filled(-2, MAMBA_HEADS),
            f"{mixer}.A_log": np.log(np.arange(1, MAMBA_HEADS + 1)).astype(np.float32),
            f"{mixer}.D": filled(1, MAMBA_HEADS),
            f"{mixer}.dt_norm_weight": filled(1, STEP_WIDTH),
            f"{mixer}.B_norm_weight": filled(1, STATE),
            f"{mixer}.C_norm_weight": filled(1, STATE),
            f"{mixer}.out_proj.weight": matrix(WIDTH, inner),
        }
    return tensors


def write_pair(folder: Path, noise: float = 0.02) -> tuple[Path, Path]:
    """Write FOLDER/target and FOLDER/draft, and return both."""
    lines = tokenizer()
    names = {f"{name}_token": f"<|plamo:{name}|>" for name in SPECIAL}
    for name, share in (("target", 0.0), ("draft", noise)):
        model = folder / name
        model.mkdir(parents=True, exist_ok=True)
        (model / "config.json").write_text(json.dumps(config(len(lines)), indent=1))
        (model / "tokenizer.jsonl").write_text(
            "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines), "utf-8"
        )
        (model / "tokenizer_config.json").write_text(json.dumps({**names, "add_bos_token": True}))
        write_weights(model / "model.safetensors", weights(len(lines), share))
    return folder / "target", folder / "draft"


if __name__ == "__main__":
    print(*write_pair(Path(sys.argv[1])), sep="\n")
