"""Each architecture's layout: names and numbers come back as they were."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
import pytest

from benchctl.errors import UsageError
from benchctl.models.huggingface.architectures import (
    COLUMN,
    CONVOLUTION,
    LAYOUTS,
    NEGATIVE_EXPONENTIAL,
    ONE_ADDED,
    SAME,
    Transform,
    in_turn,
)
from benchctl.models.huggingface.folder import from_bfloat16, huggingface_folder, to_bfloat16
from tests.models.huggingface.conftest import CONFIGS, MakeModel, floats
from training.export import read_weights
from training.gguf_metadata import layout_of_class, metadata_of


@pytest.mark.parametrize("architecture", sorted(CONFIGS))
def test_weights_come_back_rounded_once(make_model: MakeModel, architecture: str) -> None:
    weights, file = make_model(architecture)
    result = read_weights(huggingface_folder(file, config=CONFIGS[architecture]) / "model.safetensors")
    assert floats(result) == floats({name: from_bfloat16(to_bfloat16(array)) for name, array in weights.items()})


def test_llama_cpp_knows_every_tensor_name() -> None:
    """By gguf's own table of names, which its converters and llama.cpp share."""
    numbers = {name: number for number, name in gguf.MODEL_ARCH_NAMES.items()}
    for architecture, config in CONFIGS.items():
        tensor_names = gguf.get_tensor_name_map(numbers[architecture], 2)
        for pair in LAYOUTS[architecture].tensors(config):
            if not pair.huggingface.endswith("dt_bias"):  # the converter renames it before it looks
                expected = tensor_names.get_name(pair.huggingface, try_suffixes=(".weight", ".bias"))
                assert expected is not None
                assert pair.gguf in {expected, f"{expected}.weight"}


@pytest.mark.parametrize(
    ("architecture", "change", "message"),
    [
        ("falcon-h1", {"key_multiplier": 0.5}, "key_multiplier is 0.5; only 1.0 can be written"),
        ("falcon-h1", {"mamba_rms_norm": True}, "mamba_rms_norm is True; only False can be written"),
        ("falcon-h1", {"rope_parameters": {"rope_type": "yarn"}}, "a rotary embedding of type yarn cannot be written"),
        ("qwen3", {"attention_bias": True}, "attention with biases"),
    ],
)
def test_what_gguf_cannot_say_is_refused(architecture: str, change: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        metadata_of(architecture, CONFIGS[architecture] | change)


def test_an_unknown_class_is_refused() -> None:
    with pytest.raises(UsageError, match="MambaForCausalLM"):
        layout_of_class("MambaForCausalLM")


@pytest.mark.parametrize(
    ("transform", "shape"),
    [
        (SAME, (3, 4)),
        (ONE_ADDED, (500,)),
        (COLUMN, (6,)),
        (CONVOLUTION, (5, 1, 4)),
        (NEGATIVE_EXPONENTIAL, (500,)),
        (in_turn(NEGATIVE_EXPONENTIAL, COLUMN), (6,)),
    ],
)
def test_transforms_are_undone_exactly_on_bfloat16(transform: Transform, shape: tuple[int, ...]) -> None:
    numbers = np.random.default_rng(2).normal(0.0, 1.5, shape).astype(np.float32)
    short = from_bfloat16(to_bfloat16(np.where(np.abs(numbers) < 2**-12, 0.5, numbers).astype(np.float32)))
    back = transform.backward(transform.forward(short))
    assert back.shape == short.shape
    assert to_bfloat16(back).tolist() == to_bfloat16(short).tolist()


def test_a_tiny_norm_weight_is_stored_the_same_again() -> None:
    """What 1 + w loses of w below 2^-16 is lost once, not at every conversion."""
    stored = np.float32(1) + np.ldexp(np.float32(1.7), np.arange(-40, 1)).astype(np.float32)
    weight = from_bfloat16(to_bfloat16(ONE_ADDED.backward(stored)))
    first = ONE_ADDED.forward(weight)
    assert ONE_ADDED.forward(from_bfloat16(to_bfloat16(ONE_ADDED.backward(first)))).tolist() == first.tolist()


def test_bfloat16_is_rounded_as_gguf_rounds_it() -> None:
    random = np.random.default_rng(3)
    bits = random.integers(0, 2**32, 100_000, dtype=np.uint32)
    special = np.array([0.0, -0.0, np.inf, -np.inf, 1.00390625, 1.01171875, 3.4e38, 1e-45], np.float32)
    numbers = np.concatenate([special, bits.view(np.float32)])
    numbers = numbers[: len(numbers) // 32 * 32]
    ours = to_bfloat16(numbers)
    theirs = gguf.quants.quantize(numbers, gguf.GGMLQuantizationType.BF16).view(np.uint16)
    plain = ~np.isnan(numbers)
    assert (ours[plain] == theirs[plain]).all()
    assert np.isnan(from_bfloat16(ours[~plain])).all()
