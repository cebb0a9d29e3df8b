"""One command from nothing: repositories of safetensors are downloaded, converted, quantized and measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchctl.engines.common.programs import program
from benchctl.engines.llama_cpp.installation import find_tool, search
from benchctl.engines.llama_cpp.source import converter_script
from benchctl.models.gguf_facts import read_facts
from benchctl.models.huggingface.folder import write_weights
from benchctl.models.sources import ModelSearch
from benchctl.paths import cache_folder
from benchctl.recipes.load import load_recipe, shipped_recipes
from tests.benchctl_process import benchctl
from tests.local_hub import serving

WIDTH, FEED_FORWARD, LAYERS, VOCABULARY = 64, 128, 4, 320
LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": WIDTH,
    "intermediate_size": FEED_FORWARD,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "vocab_size": VOCABULARY,
    "tie_word_embeddings": False,
    "dtype": "float32",
}
RECIPE = """\
name: hub
engine: {kind: llama.cpp, device: cpu, context: 512, threads: 1}
models:
  target: {source: "hf:org/target", quantize: {type: q8_0}}
  draft: {source: "hf:org/head"}
prompts: {suite: mine.txt}
sampling: {max_tokens: 12, ignore_eos: true}
blocks: 1
preflight: off
arms:
  - name: baseline
  - name: eagle
    speculation: {type: draft-eagle3, max: 2}
"""


def stored(folder: Path, shapes: dict[str, tuple[int, ...]], seed: int) -> None:
    random = np.random.default_rng(seed)
    write_weights(
        folder / "model.safetensors",
        {name: random.normal(0, 0.05, shape).astype(np.float32) for name, shape in shapes.items()},
    )


def layer(prefix: str, inputs: int) -> dict[str, tuple[int, ...]]:
    return {
        **{f"{prefix}.{norm}.weight": (WIDTH,) for norm in ("input_layernorm", "post_attention_layernorm")},
        f"{prefix}.self_attn.q_proj.weight": (WIDTH, inputs),
        **{f"{prefix}.self_attn.{part}_proj.weight": (WIDTH // 2, inputs) for part in "kv"},
        f"{prefix}.self_attn.o_proj.weight": (WIDTH, WIDTH),
        **{f"{prefix}.mlp.{part}_proj.weight": (FEED_FORWARD, WIDTH) for part in ("gate", "up")},
        f"{prefix}.mlp.down_proj.weight": (WIDTH, FEED_FORWARD),
    }


def make_target(folder: Path) -> None:
    """A llama with random weights and a SentencePiece vocabulary."""
    import sentencepiece

    folder.mkdir()
    text = folder.parent / "text.txt"
    text.write_text("\n".join(f"the {number} words of a line that says {number % 7}" for number in range(400)))
    sentencepiece.SentencePieceTrainer.train(
        input=str(text),
        model_prefix=str(folder / "tokenizer"),
        vocab_size=VOCABULARY,
        model_type="bpe",
        byte_fallback=True,
        minloglevel=2,
    )
    (folder / "tokenizer.vocab").unlink()
    (folder / "config.json").write_text(json.dumps({**LLAMA, "num_hidden_layers": LAYERS}))
    shapes: dict[str, tuple[int, ...]] = {
        **dict.fromkeys(("model.embed_tokens.weight", "lm_head.weight"), (VOCABULARY, WIDTH)),
        "model.norm.weight": (WIDTH,),
    }
    for number in range(LAYERS):
        shapes |= layer(f"model.layers.{number}", WIDTH)
    stored(folder, shapes, 1)


def make_head(folder: Path) -> None:
    """An EAGLE-3 head for it, without a tokenizer, as they are published."""
    folder.mkdir()
    config = {
        **LLAMA,
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": 1,
        "draft_vocab_size": VOCABULARY,
        "eagle_aux_hidden_state_layer_ids": [1, 2, 3],
    }
    (folder / "config.json").write_text(json.dumps(config))
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (WIDTH, 3 * WIDTH),
        "norm.weight": (WIDTH,),
        "midlayer.hidden_norm.weight": (WIDTH,),
        "lm_head.weight": (VOCABULARY, WIDTH),
        **layer("midlayer", 2 * WIDTH),
    }
    stored(folder, shapes, 2)


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.engine
@pytest.mark.torch
def test_a_target_and_its_head_are_one_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_target(tmp_path / "target")
    make_head(tmp_path / "head")
    (tmp_path / "r.yaml").write_text(RECIPE)
    (tmp_path / "mine.txt").write_text("the 12 words of a line\n")
    converter_script()  # the source distribution comes from the user's cache, and so does the engine
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "converters").symlink_to(cache_folder() / "converters")
    server = search().unnamed()[0].path
    repositories = {"org/target": files_of(tmp_path / "target"), "org/head": files_of(tmp_path / "head")}
    with serving(repositories, tmp_path / "hub", monkeypatch) as hub:
        address = f"http://127.0.0.1:{hub.server_port}"
        done = benchctl(
            *("run", "r.yaml", "--json"),
            cwd=tmp_path,
            BENCHCTL_LLAMA_SERVER=str(server),
            BENCHCTL_CACHE=str(cache),
            HF_HOME=str(tmp_path / "hub"),
            HF_ENDPOINT=address,
        )
    assert done.returncode == 0, done.stderr
    (run,) = json.loads(done.stdout)["analysis"]["acceptance"][:1] or [None]
    assert run is not None and run["arm"] == "eagle" and run["drafted"] > 0
    assert len(list((cache / "converted").glob("*.gguf"))) == 2
    assert len(list((cache / "quantized").glob("*.gguf"))) == 1


def make_plamo2(folder: Path) -> None:
    """PLaMo 2 of two layers, a Mamba one and one that attends, with random weights; its tokenizer is a .jsonl."""
    folder.mkdir()
    heads, head, states, ranks = 2, 32, 64, 64
    config = {
        "architectures": ["Plamo2ForCausalLM"],
        "model_type": "plamo2",
        "hidden_size": WIDTH,
        "hidden_size_per_head": head,
        "intermediate_size": FEED_FORWARD,
        "num_hidden_layers": 2,
        "num_attention_heads": heads,
        "num_key_value_heads": 1,
        "mamba_d_conv": 4,
        "mamba_d_state": states,
        "mamba_num_heads": heads,
        "mamba_step": 2,
        "mamba_enabled": True,
        "max_position_embeddings": 512,
        "attention_window_size": 512,
        "full_attention_idx": [],
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000,
        "rope_local_theta": 10000,
        "vocab_size": VOCABULARY,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 3,
    }
    (folder / "config.json").write_text(json.dumps(config))
    special = [["<|plamo:unk|>", 0.0, "UNKNOWN"], *([f"<|plamo:{x}|>", 0.0, "CONTROL"] for x in ("bos", "eos", "pad"))]
    tokens = [*special, *([f"<0x{byte:02X}>", -100.0, "BYTE"] for byte in range(256))]
    tokens += [[chr(0x4E00 + number), -float(number), "NORMAL"] for number in range(VOCABULARY - len(tokens))]
    (folder / "tokenizer.jsonl").write_text("".join(json.dumps([*token, "", "", ""]) + "\n" for token in tokens))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": special[1][0], "eos_token": special[2][0], "pad_token": special[3][0]})
    )
    inner = heads * head
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (VOCABULARY, WIDTH),
        "model.norm.weight": (WIDTH,),
    }
    for number in range(2):
        at = f"model.layers.layers.{number}"
        shapes |= {f"{at}.{norm}.weight": (WIDTH,) for norm in ("pre_mixer_norm", "post_mixer_norm")}
        shapes |= {f"{at}.{norm}.weight": (WIDTH,) for norm in ("pre_mlp_norm", "post_mlp_norm")}
        shapes |= {f"{at}.mlp.gate_up_proj.weight": (2 * FEED_FORWARD, WIDTH)}
        shapes |= {f"{at}.mlp.down_proj.weight": (WIDTH, FEED_FORWARD)}
    mamba, attention = "model.layers.layers.0.mixer", "model.layers.layers.1.mixer"
    shapes |= {
        f"{mamba}.in_proj.weight": (2 * inner, WIDTH),
        f"{mamba}.conv1d.weight": (inner, 1, 4),
        f"{mamba}.bcdt_proj.weight": (2 * states + ranks, inner),
        f"{mamba}.dt_proj.weight": (heads, ranks),
        f"{mamba}.dt_bias": (heads,),
        f"{mamba}.A_log": (heads,),
        f"{mamba}.D": (heads,),
        f"{mamba}.B_norm_weight": (states,),
        f"{mamba}.C_norm_weight": (states,),
        f"{mamba}.dt_norm_weight": (ranks,),
        f"{mamba}.out_proj.weight": (WIDTH, inner),
        f"{attention}.qkv_proj.weight": ((heads + 2) * head, WIDTH),
        f"{attention}.q_weight": (heads, head),
        f"{attention}.k_weight": (1, head),
        f"{attention}.o_proj.weight": (WIDTH, heads * head),
    }
    stored(folder, shapes, 3)


@pytest.mark.engine
@pytest.mark.torch
def test_the_models_of_the_plamo2_recipes_become_what_they_ask_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_plamo2(tmp_path / "plamo2")
    tools = {
        "convert_hf_to_gguf.py": converter_script(),
        "llama-quantize": find_tool("llama-quantize", search().unnamed()[0].path),
    }
    monkeypatch.setenv("BENCHCTL_CACHE", str(tmp_path / "cache"))
    files = files_of(tmp_path / "plamo2")
    recipe = load_recipe(shipped_recipes()["plamo2-8b-cuda"])
    with serving({"pfnet/plamo-2-8b": files, "pfnet/plamo-2-1b": files}, tmp_path / "hub", monkeypatch):
        pair = ModelSearch(tmp_path, find_tool=lambda name: program(tools[name])).pair(recipe.models)
    assert pair.draft is not None
    for model in (pair.target, pair.draft):
        facts = read_facts(model.path)
        assert (facts.architecture, facts.tokenizer_model) == ("plamo2", "plamo2")
    assert pair.target.path == pair.draft.path, "the same files were asked for in the same way"
