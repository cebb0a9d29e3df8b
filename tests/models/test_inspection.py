"""What `benchctl models inspect` tells, held against the engine's own log and gguf-py."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

from benchctl.engines.llama_cpp.adapter import LlamaCppSpec
from benchctl.engines.registry import make_engine
from benchctl.models.files import ModelFile, ResolvedModel, ResolvedPair
from benchctl.models.footprint import kv_cache_bytes, recurrent_state
from benchctl.models.gguf_header import read_header
from benchctl.models.inspection import compare_models, inspect_model
from benchctl.models.shipped import bundled_models
from benchctl.models.vocabulary import end_tokens, special_tokens
from benchctl.recipes.schema import Arm

MakeGguf = Callable[..., Path]
LOGGED = re.compile(r"llama_(memory_recurrent|kv_cache): size = +([\d.]+) MiB")


@pytest.mark.engine
@pytest.mark.parametrize("name", ["tiny-hybrid", "tiny-sequential"])
def test_state_and_cache_are_what_the_server_allocates(name: str, tmp_path: Path, llama_server: Path) -> None:
    model = next(bundled.path for bundled in bundled_models() if bundled.name == name)
    spec = LlamaCppSpec(device="cpu", context=4096, threads=1, args=["-lv", "4"])
    engine = make_engine(spec, binary=str(llama_server))
    pair = ResolvedPair(ResolvedModel(str(model), (ModelFile(model, model.stat().st_size, ""),)), None)
    engine.start(engine.launch(Arm(name="baseline"), pair), tmp_path / "log").stop()
    logged = {kind: float(size) for kind, size in LOGGED.findall((tmp_path / "log").read_text())}
    result = inspect_model(model)
    assert result.recurrent is not None
    assert result.kv_bytes_per_token is not None
    assert f"{result.recurrent.total / 2**20:.2f}" == f"{logged['memory_recurrent']:.2f}"
    assert f"{result.kv_bytes_per_token * 4096 / 2**20:.2f}" == f"{logged['kv_cache']:.2f}"


def test_everything_is_plain_json(tiny_target: Path) -> None:
    result = inspect_model(tiny_target).as_dict()
    assert json.loads(json.dumps(result)) == result
    assert result["recurrent_state"]["bytes_per_sequence"] == 4 * 4 * (3 * (256 + 2 * 128) + 128 * 256)
    assert [token["part"] for token in result["special_tokens"]] == ["bos", "eos", "padding"]


@pytest.mark.parametrize(
    ("architecture", "numbers", "expected"),
    [
        # Mamba 130M: conv 4, inner 1536, state 16 -> 3·1536 and 16·1536.
        ("mamba", {"ssm.conv_kernel": 4, "ssm.inner_size": 1536, "ssm.state_size": 16}, (4608, 24576)),
        ("rwkv6", {"embedding_length": 2048, "wkv.head_size": 64}, (4096, 131072)),
        ("rwkv7", {"embedding_length": 768, "wkv.head_size": 64, "token_shift_count": 1}, (768, 49152)),
        ("lfm2", {"embedding_length": 1024, "shortconv.l_cache": 3}, (2048, 0)),
        (
            "kimi-linear",
            {"embedding_length": 2304, "kda.head_dim": 128, "attention.head_count": 32, "ssm.conv_kernel": 4},
            (3 * 3 * 4096, 524288),
        ),
        ("plamo2", {"ssm.conv_kernel": 4}, None),
        ("minimax-01", {"ssm.conv_kernel": 4, "ssm.inner_size": 1536, "ssm.state_size": 16}, None),
    ],
)
def test_the_formula_of_every_family(
    make_gguf: MakeGguf, architecture: str, numbers: dict[str, int], expected: tuple[int, int] | None
) -> None:
    keys = {f"{architecture}.{name}": value for name, value in numbers.items()}
    result = recurrent_state(read_header(make_gguf(architecture=architecture, numbers=keys)), (0, 2))
    assert (result and (result.convolution, result.state)) == (expected and tuple(4 * 2 * n for n in expected))


def test_a_cache_that_cannot_be_told_is_not_guessed(make_gguf: MakeGguf) -> None:
    numbers = {"llama.embedding_length": 128, "llama.attention.head_count": 4, "llama.attention.head_count_kv": 2}
    header = read_header(make_gguf(numbers=numbers))
    assert kv_cache_bytes(header, (0, 1)) == 2 * 2 * 2 * (32 + 32)
    assert kv_cache_bytes(header, ()) == 0
    compressed = read_header(make_gguf("mla.gguf", numbers={**numbers, "llama.attention.kv_lora_rank": 512}))
    assert kv_cache_bytes(compressed, (0, 1)) is None
    narrow = read_header(make_gguf("swa.gguf", numbers={**numbers, "llama.attention.key_length_swa": 16}))
    assert kv_cache_bytes(narrow, (0, 1)) is None
    assert kv_cache_bytes(read_header(make_gguf("none.gguf")), (0,)) is None


def test_heads_that_differ_from_layer_to_layer(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "jamba")
    writer.add_embedding_length(128)
    writer.add_head_count(4)
    writer.add_head_count_kv([0, 2, 0, 1])
    writer.add_tensor("token_embd.weight", np.zeros((2, 128), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert kv_cache_bytes(read_header(path), (1, 3)) == 2 * (2 + 1) * (32 + 32)
    assert kv_cache_bytes(read_header(path), (1, 4)) is None


def test_ends_are_known_by_part_and_by_text(make_gguf: MakeGguf) -> None:
    tokens = ["a", "</s>", "b", "<|im_end|>", "c"]
    header = read_header(make_gguf(tokens=tokens, numbers={"tokenizer.ggml.eos_token_id": 4}))
    assert end_tokens(header) == {1, 3, 4}


def test_a_special_token_beyond_the_vocabulary_has_no_text(make_gguf: MakeGguf) -> None:
    (token,) = special_tokens(read_header(make_gguf(numbers={"tokenizer.ggml.bos_token_id": 999})))
    assert (token.part, token.id, token.text, token.added) == ("bos", 999, None, None)


def test_equal_models_have_no_difference(tiny_target: Path) -> None:
    result = compare_models(tiny_target, tiny_target)
    assert (result.metadata, result.tensors, result.vocabulary) == ({}, {}, ())


def test_a_difference_names_keys_tensors_and_tokens(make_gguf: MakeGguf) -> None:
    first = make_gguf("one.gguf", numbers={"llama.block_count": 1, "tokenizer.ggml.eos_token_id": 1})
    second = make_gguf(
        "other.gguf",
        tokens=["x", *[f"t{number}" for number in range(1, 20)]],
        tensors=("token_embd.weight", "blk.0.attn_k.weight"),
        numbers={"llama.block_count": 2},
    )
    result = compare_models(first, second)
    changes = result.metadata | result.tensors
    assert changes["llama.block_count"] == ("1", "2")
    assert changes["blk.0.attn_q.weight"] == ("f32 32 × 32", None)
    assert changes["blk.0.attn_k.weight"] == (None, "f32 32 × 32")
    assert str(changes["tokenizer.ggml.tokens"][0]).startswith("20 values, SHA-256 ")
    assert result.vocabulary == (
        "1 token ids mean different texts; the first is 0, 't0' and 'x'",
        "the other defines no eos token",
    )


def test_a_model_in_shards_is_one_model(make_gguf: MakeGguf) -> None:
    first = make_gguf("m-00001-of-00002.gguf", tensors=("blk.0.attn_q.weight",))
    second = make_gguf("m-00002-of-00002.gguf", tensors=("blk.1.ssm_in.weight",))
    result = inspect_model(second)
    assert (result.path, result.facts.files, result.facts.memory) == (first, 2, "hybrid")
    assert result.size == first.stat().st_size + second.stat().st_size
