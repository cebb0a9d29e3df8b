"""An engine's line as people keep it: what of it becomes which key of a recipe, and which lines are refused."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from benchctl.errors import UsageError
from benchctl.recipes.engine_line import known_option, read_engine_line
from benchctl.recipes.from_options import RecipeOptions, recipe_of_line
from benchctl.recipes.load import recipe_of_options
from benchctl.recipes.schema import Recipe

LINES: dict[str, tuple[str, dict[str, Any]]] = {
    "a pair": (
        "llama-server -m t.gguf -md d.gguf --draft-max 16 --draft-min 4 --draft-p-min 0.6 -ngl 99 -c 4096 -ctkd q8_0 "
        "--port 80",
        {
            "target": "t.gguf", "draft": "d.gguf", "context": 4096, "args": "-ngl 99 -ctkd q8_0",
            "arm": {"type": "draft-simple", "max": 16, "min": 4, "p_min": 0.6},
        },
    ),
    "slots share the context": (
        "./build/bin/llama-server --model t.gguf -np 4 --ctx-size 16384 --spec-type ngram-mod --threads 8 --temp 0.7",
        {
            "binary": str(Path("build/bin/llama-server").absolute()), "target": "t.gguf", "context": 4096, "threads": 8,
            "arm": {"type": "ngram-mod"},
        },
    ),
    "slots of a unified cache have the whole context": (
        "LLAMA_ARG_KV_UNIFIED=1 llama-server -m t.gguf -np 4 -c 16384",
        {"target": "t.gguf", "context": 16384, "args": "--kv-unified"},
    ),
    "the last of two opposites holds": (
        "llama-server -m t.gguf -c 16384 -kvu --parallel 4 --no-kv-unified",
        {"target": "t.gguf", "context": 4096, "args": "-kvu --no-kv-unified"},
    ),
    "a repository and its quantization": (
        "llama-server -hf org/model-GGUF:Q4_K_M -hfd org/small-GGUF -fa on",
        {"target": "hf:org/model-GGUF:Q4_K_M", "draft": "hf:org/small-GGUF", "args": "-fa on",
         "arm": {"type": "draft-simple"}},
    ),
    "a file of a repository": (
        "llama-server -hf org/model-GGUF --hf-file m-q8_0.gguf", {"target": "hf:org/model-GGUF/m-q8_0.gguf"}
    ),
    "older names of types": (
        "llama-server -m t.gguf -md d.gguf --spec-type eagle3 --spec-draft-n-max 3",
        {"target": "t.gguf", "draft": "d.gguf", "arm": {"type": "draft-eagle3", "max": 3}},
    ),
    "variables": (
        "CUDA_VISIBLE_DEVICES=0 LLAMA_ARG_MODEL=t.gguf LLAMA_ARG_CTX_SIZE=8192 LLAMA_ARG_N_GPU_LAYERS=1 "
        "LLAMA_ARG_CONT_BATCHING=1 LLAMA_ARG_MLOCK=0 llama-server",
        {
            "target": "t.gguf", "context": 8192, "args": "--n-gpu-layers 1 --cont-batching",
            "env": {"CUDA_VISIBLE_DEVICES": "0"},
        },
    ),
    "a container": (
        "docker run --gpus all -p 8080:8080 --name llama.cpp -v /data/models:/models -e LLAMA_ARG_CTX_SIZE=2048 "
        "ghcr.io/ggml-org/llama.cpp:server-cuda -m /models/t.gguf -md /models/d.gguf --host 0.0.0.0",
        {"target": "/data/models/t.gguf", "draft": "/data/models/d.gguf", "context": 2048,
         "arm": {"type": "draft-simple"}},
    ),
    "vLLM": (
        "vllm serve org/model --max-model-len 4096 --dtype bfloat16 --tensor-parallel-size=2 --speculative-config "
        """'{"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4, "model": null}' --task generate""",
        {
            "kind": "vllm", "target": "hf:org/model", "context": 4096, "args": "--tensor-parallel-size 2",
            "arm": {"type": "ngram-simple", "max": 5, "options": {"prompt_lookup_max": 4}},
        },
    ),
    "a head in vLLM's JSON": (
        "vllm serve org/model -tp 8 --speculative_config "
        """'{"method": "eagle", "model": "org/head", "num_speculative_tokens": 2}'""",
        {
            "kind": "vllm", "target": "hf:org/model", "draft": "hf:org/head", "args": "-tp 8",
            "arm": {"type": "eagle", "max": 2},
        },
    ),
    "vLLM's module and a draft": (
        "python3 -m vllm.entrypoints.openai.api_server --model org/model --speculative-model org/small "
        "--num-speculative-tokens 3",
        {"kind": "vllm", "target": "hf:org/model", "draft": "hf:org/small", "arm": {"type": "draft-simple", "max": 3}},
    ),
}  # fmt: skip


def read(text: str, **options: Any) -> Recipe:
    line = read_engine_line(shlex.split(text))
    assert line is not None
    return recipe_of_options(recipe_of_line(RecipeOptions(**options), line, Path.cwd()))


@pytest.mark.parametrize("case", LINES)
def test_a_line_is_a_recipe_of_the_same_setting_with_and_without_speculation(case: str) -> None:
    text, wanted = LINES[case]
    recipe, engine = read(text), read(text).engine
    draft, spoken = recipe.models.draft, recipe.arms[1].speculation
    assert spoken is not None
    read_values = {
        "kind": engine.kind, "target": recipe.models.target.source, "draft": draft and draft.source,
        "context": engine.context, "threads": getattr(engine, "threads", None),
        "binary": getattr(engine, "binary", None),
        "args": shlex.join(getattr(engine, "args", [])), "env": getattr(engine, "env", {}),
        "arm": spoken.model_dump(exclude_none=True),
    }  # fmt: skip
    absent: dict[str, Any] = {
        "kind": "llama.cpp",
        "draft": None,
        "threads": None,
        "binary": None,
        "args": "",
        "env": {},
        "context": 4096,
    }
    assert read_values == absent | {"arm": {"type": "ngram-mod"}} | wanted
    assert [arm.speculation is None for arm in recipe.arms] == [True, False]


def test_every_word_is_accounted_for() -> None:
    words = "llama-server -m t.gguf --port 80 --temp 0.7 -ngl 99"
    line = read_engine_line([words])
    assert line is not None
    assert line.destinations == [
        ("-m t.gguf", "models.target.source"),
        ("--port 80", "left out: benchctl sets it"),
        ("--temp 0.7", "left out: each request states it (sampling; greedy where --set does not change it)"),
        ("-ngl 99", "engine.args"),
    ]


@pytest.mark.parametrize("case", LINES)
def test_no_word_goes_where_no_recipe_has_a_place(case: str) -> None:
    line = read_engine_line(shlex.split(LINES[case][0]))
    assert line is not None
    places = ("engine.", "models.", "arms[].speculation", "left out")
    assert [key for _, key in line.destinations if not key.startswith(places)] == []


def test_depths_and_types_of_the_command_line_take_the_place_of_the_lines_own() -> None:
    text = LINES["a pair"][0]
    arms = [arm.speculation for arm in read(text, depth="4,8").arms if arm.speculation]
    assert [(arm.max, arm.min, arm.p_min) for arm in arms] == [(4, 4, 0.6), (8, 4, 0.6)]
    assert read(text, depth="2").arms[1].speculation.min is None, "a minimum above the depth would draft nothing"  # type: ignore[union-attr]
    (swept,) = (arm.speculation for arm in read(text, sweep=["p_min=0.9"]).arms if arm.speculation)
    assert (swept.max, swept.p_min) == (16, 0.9), "the line's own depth stays"
    lookups = [arm.speculation for arm in read(LINES["vLLM"][0], depth="2,4").arms if arm.speculation]
    assert [(arm.type, arm.max) for arm in lookups] == [("ngram-simple", 2), ("ngram-simple", 4)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("llama-server -m t.gguf --embedding", "generates no text"),
        ("llama-server -m t.gguf --api-key sk-1", "must not stand in a line"),
        ("llama-server -ngl 99", "names no model"),
        ("llama-server —model t.gguf", "begins with a typographic dash"),
        ("vllm serve m --speculative-config {method:ngram}", "Expected a JSON object"),
        ("vllm serve m", "no speculation, so nothing is compared"),
        ("vllm serve m --task embed", "generates no text"),
        ("""vllm serve m -sc '{"model": ["d"]}'""", "Unexpected 'model': a list"),
        ("""vllm serve m -sc '{"method": "ngram", "a": 1, "a.b": 2}'""", "Unexpected 'a.b': 2"),
    ],
)
def test_what_contradicts_a_benchmark_is_refused_in_a_sentence(text: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        read(text)
    assert said in str(refused.value)
    assert "sk-1" not in str(refused.value)


def test_depths_that_the_line_cannot_take_are_refused() -> None:
    with pytest.raises(UsageError, match="got 'two'"):
        read(LINES["a pair"][0], depth="two")
    with pytest.raises(UsageError, match="need a single type of speculation; the line has 2"):
        read("llama-server -m t.gguf -md d.gguf --spec-type ngram-mod,draft-simple", depth="2,4")


def test_other_words_are_no_line() -> None:
    assert read_engine_line(["recipe.yaml"]) is None
    assert read_engine_line(["t.gguf", "d.gguf"]) is None
    assert read_engine_line(["it's mine.gguf"]) is None
    assert read_engine_line(["results/vllm"]) is None, "a folder of runs"
    assert read_engine_line([]) is None
    assert known_option(["--blocks", "-ngl"]) == "-ngl"
    assert known_option(["--blocks", "--depth=2"]) is None
