"""Every kind of wrong recipe, and the line and key that its message names; refusals.json has the texts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchctl.recipes.problems import RecipeError, path_text

Refusal = Callable[[str], str]
Refused = Callable[[str], RecipeError]

HEAD = """\
name: demo
models:
  target: {source: bundled:tiny-hybrid}
  draft: {source: bundled:tiny-hybrid-draft}
prompts: {suite: tiny.json}
"""
ARMS = "arms: [{name: baseline}]\n"


def assert_names(error: RecipeError, line: int, key: str) -> None:
    assert [(problem.line, path_text(problem.path)) for problem in error.problems] == [(line, key)]


def arm(speculation: str) -> str:
    return f"{HEAD}arms:\n  - name: baseline\n  - name: a\n    speculation: {speculation}\n"


NOT_A_RECIPE = {
    "empty": ("", 0, ""),
    "comments only": ("# x\n", 0, ""),
    "not UTF-8": (b"name: a\ndescription: \xff\xfe\n", 2, ""),
    "binary": (b"GGUF\x03\x00\x00\x00", 0, ""),
    "control character": (b"name: a\x1b[31m\n", 1, ""),
    "too large": (b"#" * (1 << 20) + b"\n", 0, ""),
    "text": ("just some words\n", 1, ""),
    "a list": ("- name: a\n", 1, ""),
    "JSON that is cut": ('{"name": "a", ', 1, ""),
    "bad indentation": ("name: a\n  blocks: 3\n", 2, ""),
    "a typographic quote in a comment": ("name: a  # “best”\n  blocks: 3\n", 2, ""),
    "a tab": ("name: a\nengine:\n\tkind: llama.cpp\n", 3, ""),
    "a tab after a colon": ("name:\tdemo\n", 1, ""),
    "JSON with tabs": ('{\n\t"name": "a"\n}\n', 2, ""),
    "UTF-16": ("name: a\n".encode("utf-16"), 0, ""),
    "a non-breaking space": ("name: a\nengine:\u00a0{kind: llama.cpp}\n", 2, "engine:\u00a0{kind"),
    "a non-breaking space in a key": ("name: a\nengine:\n\u00a0 kind: llama.cpp\n", 3, "\u00a0 kind"),
    "a shell variable": ("models: {target: {source: ${HOME}/t.gguf}}\n", 1, ""),
    "a template's braces": ("models: {target: {source: models/{{ model }}.gguf}}\n", 1, ""),
    "a template's braces alone": ("models:\n  target:\n    source: {{ model }}\n", 3, "models.target.source"),
    "braces in quotes above a wrong indentation": ('name: a\ndescription: "{{ messages }}"\n  blocks: 3\n', 3, ""),
    "a template's condition": ("name: a\n{% if gpu %}\nblocks: 3\n{% endif %}\n", 2, ""),
    "a Windows path in double quotes": ('models: {target: {source: "C:\\Users\\me\\t.gguf"}}\n', 1, ""),
    "a Compose file": ("services:\n  llama: {image: x}\n", 1, ""),
    "two documents": ("name: a\n---\nname: b\n", 2, ""),
    "a duplicate key": ("name: a\nblocks: 3\nname: b\n", 3, "name"),
    "a python tag": ("name: !!python/object/apply:os.system [echo]\n", 1, "name"),
    "an own tag": ("name: !secret x\n", 1, "name"),
    "a merge key": ("a: &a {b: 1}\nc:\n  <<: *a\n", 3, "c"),
    "an unknown alias": ("name: *nothing\n", 1, ""),
    "a list as a key": ("? [a, b]\n: c\n", 1, ""),
    "deep nesting": ("a: " + "[" * 100 + "\n", 1, ""),
    "many values": ("a: [" + "1," * 30_000 + "]\n", 1, ""),
    "a list that holds itself": ("a: &a [*a]\n", 1, "a[0][0][0]"),
    "a bomb of aliases": (
        "a: &a [x,x,x,x,x,x,x,x,x]\n"
        + "".join(f"{b}: &{b} [{','.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefg", "bcdefgh", strict=True)),
        1,
        "e[1][5][2][3]",
    ),
}


@pytest.mark.parametrize(("text", "line", "key"), NOT_A_RECIPE.values(), ids=NOT_A_RECIPE.keys())
def test_a_file_that_is_no_recipe_is_one_message(refused: Refused, text: str, line: int, key: str) -> None:
    assert_names(refused(text), line, key)


WRONG_VALUES = {
    "unknown key": (HEAD + "blcoks: 3\n" + ARMS, 6, "blcoks"),
    "a cache that this engine lacks": (
        HEAD + "engine: {kind: transformers, prefix_caching: true}\n" + ARMS,
        6,
        "engine.prefix_caching",
    ),
    "unknown key, nothing near": (HEAD + "sampling: {qqq: 1}\n" + ARMS, 6, "sampling.qqq"),
    "unknown key in an arm": (arm("{type: draft-simple, depth: 4}"), 9, "arms[1].speculation.depth"),
    "missing key": (
        "name: demo\nmodels: {target: {}}\nprompts: {suite: tiny.json}\n" + ARMS,
        2,
        "models.target.source",
    ),
    "no arms": (HEAD, 1, "arms"),
    "empty arms": (HEAD + "arms: []\n", 6, "arms"),
    "arms that are no list": (HEAD + "arms: {a: b}\n", 6, "arms"),
    "an arm that is no mapping": (HEAD + "arms: [baseline]\n", 6, "arms[0]"),
    "a number for a word": (arm("{type: 5}"), 9, "arms[1].speculation.type"),
    "a word for a mapping": (arm("draft-simple"), 9, "arms[1].speculation"),
    "bad engine": (HEAD + "engine: {kind: llamacpp}\n" + ARMS, 6, "engine.kind"),
    "bad name": (HEAD.replace("demo", "'../demo'") + ARMS, 1, "name"),
    "long name": (HEAD.replace("demo", "d" * 65) + ARMS, 1, "name"),
    "zero blocks": (HEAD + "blocks: 0\n" + ARMS, 6, "blocks"),
    "a fraction of a block": (HEAD + "blocks: 2.5\n" + ARMS, 6, "blocks"),
    "1e3": (HEAD + "blocks: 1e3\n" + ARMS, 6, "blocks"),
    "leading zeros": (HEAD + "blocks: 010\n" + ARMS, 6, "blocks"),
    "1e3 for a name": (HEAD.replace("demo", "1e3") + ARMS, 1, "name"),
    "1.10 for text": (HEAD + "engine: {env: {A: 1.10}}\n" + ARMS, 6, "engine.env.A"),
    "typographic quotes": (
        HEAD.replace("bundled:tiny-hybrid}", "“bundled:tiny-hybrid”}") + ARMS,
        3,
        "models.target.source",
    ),
    "a typographic dash": (HEAD + 'engine: {args: ["—flash-attn", "on"]}\n' + ARMS, 6, "engine.args[0]"),
    "an engine's name alone": (HEAD + "engine: vllm\n" + ARMS, 6, "engine"),
    "a variable with a default": (HEAD.replace("tiny.json", '"${P:-p}.json"') + ARMS, 5, "prompts.suite"),
    "a template's braces in a text": (
        HEAD.replace("{suite: tiny.json}", "\n  suite: p-{{ lang }}.json") + ARMS,
        6,
        "prompts.suite",
    ),
    "a variable in quotes": (HEAD.replace("tiny.json", '"$HOME/p.json"') + ARMS, 5, "prompts.suite"),
    "a number in quotes": (HEAD + 'blocks: "3"\n' + ARMS, 6, "blocks"),
    "sexagesimal": (HEAD + "blocks: 1:30\n" + ARMS, 6, "blocks"),
    "yes": (HEAD + "sampling: {ignore_eos: yes}\n" + ARMS, 6, "sampling.ignore_eos"),
    "a number for text": (HEAD + "engine: {args: [-ngl, 99]}\n" + ARMS, 6, "engine.args[1]"),
    "true for text": (HEAD + "engine: {env: {A: true}}\n" + ARMS, 6, "engine.env.A"),
    "infinite": (HEAD + "sampling: {temperature: .inf}\n" + ARMS, 6, "sampling.temperature"),
    "not a number": (HEAD + "sampling: {temperature: .nan}\n" + ARMS, 6, "sampling.temperature"),
    "a huge integer": (HEAD + "blocks: " + "9" * 100 + "\n" + ARMS, 6, "blocks"),
    "depth 0": (arm("{type: draft-simple, max: 0}"), 9, "arms[1].speculation.max"),
    "depth 65": (arm("{type: draft-simple, max: 65}"), 9, "arms[1].speculation.max"),
    "a placeholder without a matrix": (arm('{type: draft-simple, max: "{depth}"}'), 9, "arms[1].speculation.max"),
    "nothing where a word belongs": (HEAD + "engine: {kind: }\n" + ARMS, 6, "engine.kind"),
    "terminal escapes": (HEAD + 'engine: {kind: "\\e]0;owned\\a\\u202e"}\n' + ARMS, 6, "engine.kind"),
    "a word for blocks": (HEAD + "blocks: auot\n" + ARMS, 6, "blocks"),
    "a key of auto blocks": (HEAD + "blocks: {maxx: 9}\n" + ARMS, 6, "blocks.maxx"),
    "fewer blocks than a first look takes": (HEAD + "blocks: {max: 2}\n" + ARMS, 6, "blocks.max"),
    "a schedule": (HEAD + "schedule: interleave\n" + ARMS, 6, "schedule"),
    "a penalty that is not sent": (
        HEAD + "sampling: {presence_penalty: 1.1}\nengine: {kind: transformers}\n" + ARMS,
        6,
        "sampling.presence_penalty",
    ),
    "engines that do not interleave": (HEAD + "schedule: interleaved\nengine: {kind: vllm}\n" + ARMS, 6, "schedule"),
    "terminal escapes in a key": (HEAD + '"\\e[2J\\n": 1\n' + ARMS, 6, "␛[2J⏎"),
}


@pytest.mark.parametrize(("text", "line", "key"), WRONG_VALUES.values(), ids=WRONG_VALUES.keys())
def test_a_wrong_value_is_named_with_line_and_key(refused: Refused, text: str, line: int, key: str) -> None:
    assert_names(refused(text), line, key)


NO_DRAFT = HEAD.replace("  draft: {source: bundled:tiny-hybrid-draft}\n", "")
MISFITS = {
    "no baseline arm": (HEAD + "arms:\n  - name: spec\n    speculation: {type: draft-simple}\n", 1, "baseline"),
    "baseline misspelt": (HEAD + "baseline: basline\n" + ARMS, 6, "baseline"),
    "baseline of another name": (HEAD + "arms: [{name: plain}]\n", 1, "baseline"),
    "baseline that speculates": (
        HEAD + "arms:\n  - name: baseline\n    speculation: {type: ngram-simple}\n",
        8,
        "arms[0].speculation",
    ),
    "duplicate arm": (HEAD + "arms: [{name: baseline}, {name: Baseline}]\n", 6, "arms[1].name"),
    "no draft model": (
        NO_DRAFT + "arms:\n  - name: baseline\n  - {name: a, speculation: {type: draft-simple}}\n",
        7,
        "arms[1].speculation.type",
    ),
    "min above max": (arm("{type: draft-simple, max: 4, min: 8}"), 9, "arms[1].speculation.min"),
    "depth beyond the context": (
        arm("{type: draft-simple, max: 64}") + "engine: {context: 64}\nsampling: {max_tokens: 8}\n",
        9,
        "arms[1].speculation.max",
    ),
    "answers beyond the context": (HEAD + "sampling: {max_tokens: 4096}\n" + ARMS, 6, "sampling.max_tokens"),
    "n-gram key on a draft": (arm("{type: draft-simple, size_n: 4}"), 9, "arms[1].speculation.size_n"),
    "probability on an n-gram": (arm("{type: ngram-simple, p_min: 0.5}"), 9, "arms[1].speculation.p_min"),
    "depth on ngram-cache": (arm("{type: ngram-cache, max: 4}"), 9, "arms[1].speculation.max"),
    "max against size_m": (arm("{type: ngram-simple, max: 4, size_m: 8}"), 9, "arms[1].speculation.size_m"),
    "two drafts": (arm("{type: [draft-simple, draft-mtp]}"), 9, "arms[1].speculation.type"),
    "a type twice": (arm("{type: [ngram-mod, ngram-mod]}"), 9, "arms[1].speculation.type"),
    "no type": (arm("{type: []}"), 9, "arms[1].speculation.type"),
    "a task twice": (HEAD.replace("tiny.json", "tiny.json, tasks: [code, code]") + ARMS, 5, "prompts.tasks"),
    "unknown bundled model": (
        HEAD.replace("bundled:tiny-hybrid}", "bundled:tiny-hybird}") + ARMS,
        3,
        "models.target.source",
    ),
    "half a hub name": (HEAD.replace("bundled:tiny-hybrid}", "hf:tiny}") + ARMS, 3, "models.target.source"),
    "a page of the hub": (
        HEAD.replace("bundled:tiny-hybrid}", '"https://huggingface.co/Qwen/Qwen3-4B-GGUF/blob/main/q.gguf"}') + ARMS,
        3,
        "models.target.source",
    ),
    "unknown quantization": (
        HEAD.replace("bundled:tiny-hybrid}", "bundled:tiny-hybrid, quantize: {type: q4_k_x}}") + ARMS,
        3,
        "models.target.quantize.type",
    ),
    "overrides of a plain type": (
        HEAD.replace("bundled:tiny-hybrid}", "bundled:tiny-hybrid, quantize: {type: f16, tensors: {a: bf16}}}") + ARMS,
        3,
        "models.target.quantize.tensors",
    ),
    "a regular expression for tensors": (
        HEAD.replace("bundled:tiny-hybrid}", "bundled:tiny-hybrid, quantize: {type: q8_0, tensors: {'.*': bf16}}}")
        + ARMS,
        3,
        "models.target.quantize.tensors..*",
    ),
}


@pytest.mark.parametrize(("text", "line", "key"), MISFITS.values(), ids=MISFITS.keys())
def test_parts_that_do_not_fit_together_are_refused(refused: Refused, text: str, line: int, key: str) -> None:
    assert_names(refused(text), line, key)


def matrix(arm: str) -> str:
    return HEAD + "arms:\n  - name: baseline\n" + "".join(f"  {line}\n" for line in arm.splitlines())


MATRICES = {
    "unknown placeholder": (
        matrix('- name: "d{dept}"\n  speculation: {type: draft-simple, max: "{depth}"}\n  matrix: {depth: [2]}'),
        8,
        "arms[1].name",
    ),
    "unused key": (matrix('- name: "d{depth}"\n  matrix: {depth: [2], p: [0.5]}'), 9, "arms[1].matrix.p"),
    "empty list": (matrix('- name: "d{depth}"\n  matrix: {depth: []}'), 9, "arms[1].matrix.depth"),
    "no list": (matrix('- name: "d{depth}"\n  matrix: {depth: 4}'), 9, "arms[1].matrix.depth"),
    "no mapping": (matrix("- name: d\n  matrix: [1]"), 9, "arms[1].matrix"),
    "nothing in it": (matrix("- name: d\n  matrix: {}"), 9, "arms[1].matrix"),
    "a value that is no scalar": (matrix('- name: "d{depth}"\n  matrix: {depth: [[2]]}'), 9, "arms[1].matrix.depth[0]"),
    "a key that is no word": (matrix("- name: d\n  matrix: {a-b: [1]}"), 9, "arms[1].matrix.a-b"),
    "too many arms": (
        matrix('- name: "d{a}{b}{c}"\n  matrix: {a: &a [1,2,3,4,5,6,7,8], b: *a, c: *a}'),
        9,
        "arms[1].matrix",
    ),
    "names that meet": (
        matrix('- name: d\n  speculation: {type: draft-simple, max: "{depth}"}\n  matrix: {depth: [2, 4]}'),
        8,
        "arms[1].name",
    ),
    "one bad value of several": (
        matrix('- name: "d{depth}"\n  speculation: {type: draft-simple, max: "{depth}"}\n  matrix: {depth: [2, 99]}'),
        9,
        "arms[1].speculation.max",
    ),
    "one mistake in all of them": (
        matrix('- name: "d{depth}"\n  speculation: {type: ngram-cache, max: "{depth}"}\n  matrix: {depth: [2, 4]}'),
        9,
        "arms[1].speculation.max",
    ),
}


@pytest.mark.parametrize(("text", "line", "key"), MATRICES.values(), ids=MATRICES.keys())
def test_a_wrong_matrix_is_named_where_it_stands_in_the_file(refused: Refused, text: str, line: int, key: str) -> None:
    assert_names(refused(text), line, key)


def test_what_their_writers_read(refused: Refused) -> None:
    """The whole texts, in one place: after a change of wording, read them there."""
    cases: dict[str, Any] = NOT_A_RECIPE | WRONG_VALUES | MISFITS | MATRICES
    texts = {name: str(refused(case[0])) for name, case in cases.items()}
    assert texts == json.loads((Path(__file__).parent / "refusals.json").read_text(encoding="utf-8"))


def test_everything_wrong_with_a_file_is_listed_in_its_order(refusal: Refusal) -> None:
    text = "nam: demo\nmodels: {target: {source: ''}}\nprompts: {suite: tiny.json, limit: 0}\nblocks: no\n" + ARMS
    assert refusal(text).splitlines() == [
        "recipe.yaml:1: name: this key is missing; expected the recipe's name; its runs are kept under it.",
        "recipe.yaml:1: nam: unknown key. Did you mean 'name'?",
        "recipe.yaml:2: models.target.source: expected text, got an empty one.",
        "recipe.yaml:3: prompts.limit: expected at least 1, got 0.",
        "recipe.yaml:4: blocks: expected an integer, auto or {max: 20, budget_min: 30}, got 'no'.",
    ]
