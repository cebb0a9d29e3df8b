"""Facts of models: the bundled ones, and small files that differ in one thing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from benchctl.errors import UsageError
from benchctl.models.gguf_facts import TensorGroup, read_facts

MakeGguf = Callable[..., Path]


def test_the_bundled_target_is_a_hybrid(tiny_target: Path) -> None:
    facts = read_facts(tiny_target)
    assert (facts.architecture, facts.memory, facts.recurrent_layers) == ("falcon-h1", "hybrid", (0, 1, 2, 3))
    assert (facts.layers, facts.vocab_size, facts.tokenizer_model, facts.has_chat_template) == (4, 4096, "gpt2", True)
    assert facts.parameters > 4_000_000
    assert sum(group.bytes for group in facts.tensor_types.values()) == facts.tensor_bytes < tiny_target.stat().st_size
    assert facts.bits_per_weight == round(8 * facts.tensor_bytes / facts.parameters, 3)


def test_facts_are_plain_json(tiny_target: Path) -> None:
    facts = read_facts(tiny_target).as_dict()
    assert json.loads(json.dumps(facts)) == facts


@pytest.mark.parametrize(
    ("tensors", "memory", "recurrent"),
    [
        (("blk.0.attn_q.weight", "blk.1.attn_q.weight"), "attention", ()),
        (("blk.0.ssm_in.weight", "blk.1.ssm_in.weight"), "recurrent", (0, 1)),
        (("blk.0.time_mix_key.weight",), "recurrent", (0,)),
        (("blk.0.ssm_in.weight", "blk.1.attn_q.weight", "blk.2.ssm_a"), "hybrid", (0, 2)),
        (("blk.0.shortconv.conv.weight", "blk.1.attn_k.weight"), "hybrid", (0,)),
        (("blk.0.attn_kv_a_mqa.weight",), "attention", ()),
        (("output.weight",), "attention", ()),
    ],
)
def test_memory_is_told_from_tensor_names(
    make_gguf: MakeGguf, tensors: tuple[str, ...], memory: str, recurrent: tuple[int, ...]
) -> None:
    facts = read_facts(make_gguf(tensors=tensors))
    assert (facts.memory, facts.recurrent_layers) == (memory, recurrent)


@pytest.mark.parametrize(
    ("architecture", "attending"),
    [("qwen35", (1,)), ("falcon-h1", (0, 1))],
    ids=["a delta net projects by attn_qkv", "attention beside the state"],
)
def test_a_recurrent_layer_attends_in_parallel_hybrids_alone(
    make_gguf: MakeGguf, architecture: str, attending: tuple[int, ...]
) -> None:
    names = ("blk.0.attn_qkv.weight", "blk.0.ssm_out.weight", "blk.1.attn_q.weight")
    facts = read_facts(make_gguf(architecture=architecture, tensors=names))
    assert (facts.memory, facts.recurrent_layers, facts.attention_layers) == ("hybrid", (0,), attending)


def test_a_block_number_beyond_all_sense_is_no_layer(make_gguf: MakeGguf) -> None:
    for name in ("blk.4000000000.attn_q.weight", f"blk.{'9' * 50}.attn_q.weight"):
        assert read_facts(make_gguf(tensors=(name,))).attention_layers == ()


def test_what_the_header_does_not_say_is_none(make_gguf: MakeGguf) -> None:
    facts = read_facts(make_gguf())
    assert (facts.context_length, facts.layers, facts.bos_token_id, facts.file_type) == (None, None, None, None)
    assert facts.tensor_types == {"f32": TensorGroup(2, 8192)}
    assert (facts.parameters, facts.bits_per_weight, facts.mtp_layers) == (2048, 32.0, 0)


def test_numbers_of_the_header_are_read(make_gguf: MakeGguf) -> None:
    numbers = {
        "llama.context_length": 2048,
        "llama.block_count": 7,
        "llama.nextn_predict_layers": 1,
        "general.file_type": 15,
        "tokenizer.ggml.eos_token_id": 3,
    }
    facts = read_facts(make_gguf(numbers=numbers))
    assert (facts.context_length, facts.layers, facts.mtp_layers) == (2048, 7, 1)
    assert (facts.file_type, facts.eos_token_id) == ("q4_k_m", 3)


def test_shards_are_counted_together(make_gguf: MakeGguf) -> None:
    first = make_gguf("m-00001-of-00002.gguf", tensors=("blk.0.attn_q.weight",))
    second = make_gguf("m-00002-of-00002.gguf", tensors=("blk.1.ssm_in.weight",))
    for path in (first, second):
        facts = read_facts(path)
        assert (facts.files, facts.parameters, facts.memory) == (2, 2048, "hybrid")


def test_a_missing_shard_is_named(make_gguf: MakeGguf) -> None:
    first = make_gguf("m-00001-of-00003.gguf")
    make_gguf("m-00003-of-00003.gguf")
    with pytest.raises(UsageError, match=r"m-00002-of-00003"):
        read_facts(first)
