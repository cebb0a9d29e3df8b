"""Every kind of wrong recipe, and the whole message that its writer reads."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchctl.recipes.adapters import kinds

KINDS = ", ".join(kinds())
Refusal = Callable[[str], str]

HEAD = """\
name: demo
models:
  target: {source: bundled:tiny-hybrid}
  draft: {source: bundled:tiny-hybrid-draft}
prompts: {suite: tiny.json}
"""
ARMS = "arms: [{name: baseline}]\n"


def arm(speculation: str) -> str:
    return f"{HEAD}arms:\n  - name: baseline\n  - name: a\n    speculation: {speculation}\n"


NOT_A_RECIPE = {
    "empty": ("", "recipe.yaml: expected a mapping such as `name: …` (see `benchctl recipes new`), got nothing."),
    "comments only": (
        "# x\n",
        "recipe.yaml: expected a mapping such as `name: …` (see `benchctl recipes new`), got nothing.",
    ),
    "not UTF-8": (b"name: a\ndescription: \xff\xfe\n", "recipe.yaml:2: the file is not UTF-8 text; save it as UTF-8."),
    "binary": (b"GGUF\x03\x00\x00\x00", "recipe.yaml: this is a binary file; expected YAML text."),
    "control character": (
        b"name: a\x1b[31m\n",
        "recipe.yaml:1: this is not YAML: the character U+001B is not allowed.",
    ),
    "too large": (b"#" * (1 << 20) + b"\n", "recipe.yaml: the file is larger than 1 MiB, the limit for a recipe."),
    "text": (
        "just some words\n",
        "recipe.yaml:1: expected a mapping such as `name: …` (see `benchctl recipes new`), got 'just some words'.",
    ),
    "a list": (
        "- name: a\n",
        "recipe.yaml:1: expected a mapping such as `name: …` (see `benchctl recipes new`), got a list.",
    ),
    "JSON that is cut": (
        '{"name": "a", ',
        "recipe.yaml:1: this is not YAML: expected the node content, but found '<stream end>'.",
    ),
    "bad indentation": (
        "name: a\n  blocks: 3\n",
        "recipe.yaml:2: this is not YAML: mapping values are not allowed here.",
    ),
    "a tab": (
        "name: a\nengine:\n\tkind: llama.cpp\n",
        "recipe.yaml:3: a tab is used for indentation; YAML needs spaces.",
    ),
    "two documents": (
        "name: a\n---\nname: b\n",
        "recipe.yaml:2: this is not YAML: but found another document.",
    ),
    "a duplicate key": (
        "name: a\nblocks: 3\nname: b\n",
        "recipe.yaml:3: name: this key is given twice; it is on line 1 already.",
    ),
    "a python tag": (
        "name: !!python/object/apply:os.system [echo]\n",
        "recipe.yaml:1: name: the tag 'tag:yaml.org,2002:python/object/apply:os.system' is not allowed; "
        "a recipe contains plain data only.",
    ),
    "an own tag": (
        "name: !secret x\n",
        "recipe.yaml:1: name: the tag '!secret' is not allowed; a recipe contains plain data only.",
    ),
    "a merge key": (
        "a: &a {b: 1}\nc:\n  <<: *a\n",
        "recipe.yaml:3: c: merge keys (`<<`) are not supported; write the keys out.",
    ),
    "an unknown alias": ("name: *nothing\n", "recipe.yaml:1: this is not YAML: found undefined alias 'nothing'."),
    "a list as a key": ("? [a, b]\n: c\n", "recipe.yaml:1: a key must be a word; got a mapping or a list."),
    "deep nesting": ("a: " + "[" * 100 + "\n", "recipe.yaml:1: values are nested more than 24 deep."),
    "many values": ("a: [" + "1," * 30_000 + "]\n", "recipe.yaml:1: the file contains more than 20000 values."),
    "a list that holds itself": ("a: &a [*a]\n", "recipe.yaml:1: a[0][0][0]: values are nested more than 24 deep."),
    "a bomb of aliases": (
        "a: &a [x,x,x,x,x,x,x,x,x]\n"
        + "".join(f"{b}: &{b} [{','.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefg", "bcdefgh", strict=True)),
        "recipe.yaml:1: e[1][5][2][3]: aliases multiply the file to more than 20000 values.",
    ),
}


@pytest.mark.parametrize(("text", "message"), NOT_A_RECIPE.values(), ids=NOT_A_RECIPE.keys())
def test_a_file_that_is_no_recipe_is_one_message(refusal: Refusal, text: str, message: str) -> None:
    assert refusal(text) == message


WRONG_VALUES = {
    "unknown key": (HEAD + "blcoks: 3\n" + ARMS, "recipe.yaml:6: blcoks: unknown key. Did you mean 'blocks'?"),
    "unknown key, nothing near": (
        HEAD + "sampling: {qqq: 1}\n" + ARMS,
        "recipe.yaml:6: sampling.qqq: unknown key; known here: "
        "temperature, top_k, top_p, max_tokens, seed, ignore_eos, repeat_penalty, presence_penalty, frequency_penalty, "
        "logit_bias, grammar.",
    ),
    "unknown key in an arm": (
        arm("{type: draft-simple, depth: 4}"),
        "recipe.yaml:9: arms[1].speculation.depth: unknown key; known here: "
        "type, max, min, p_min, size_n, size_m, min_hits, options.",
    ),
    "missing key": (
        "name: demo\nmodels: {target: {}}\nprompts: {suite: tiny.json}\n" + ARMS,
        "recipe.yaml:2: models.target.source: this key is missing; "
        "expected a path | hf:ORG/REPO[/FILE] | bundled:NAME.",
    ),
    "no arms": (HEAD, "recipe.yaml:1: arms: this key is missing; expected the settings to be measured."),
    "empty arms": (HEAD + "arms: []\n", "recipe.yaml:6: arms: expected a list of at least one item, got an empty one."),
    "arms that are no list": (HEAD + "arms: {a: b}\n", "recipe.yaml:6: arms: expected a list, got a mapping."),
    "an arm that is no mapping": (
        HEAD + "arms: [baseline]\n",
        "recipe.yaml:6: arms[0]: expected a mapping, got 'baseline'. Write {name: baseline}.",
    ),
    "a number for a word": (
        arm("{type: 5}"),
        'recipe.yaml:9: arms[1].speculation.type: expected text, got 5. Put it in quotes: "5".',
    ),
    "a word for a mapping": (
        arm("draft-simple"),
        "recipe.yaml:9: arms[1].speculation: expected a mapping, got 'draft-simple'. Write {type: draft-simple}.",
    ),
    "bad engine": (
        HEAD + "engine: {kind: llamacpp}\n" + ARMS,
        f"recipe.yaml:6: engine.kind: expected one of {KINDS}; got 'llamacpp'. Did you mean 'llama.cpp'?",
    ),
    "bad name": (
        HEAD.replace("demo", "'../demo'") + ARMS,
        "recipe.yaml:1: name: expected a name of letters, digits, '_', '.', '+' and '-' that starts with a letter or "
        "digit, got '../demo'.",
    ),
    "long name": (
        HEAD.replace("demo", "d" * 65) + ARMS,
        "recipe.yaml:1: name: expected at most 64 characters, got 65.",
    ),
    "zero blocks": (HEAD + "blocks: 0\n" + ARMS, "recipe.yaml:6: blocks: expected at least 1, got 0."),
    "a fraction of a block": (HEAD + "blocks: 2.5\n" + ARMS, "recipe.yaml:6: blocks: expected an integer, got 2.5."),
    "1e3": (HEAD + "blocks: 1e3\n" + ARMS, "recipe.yaml:6: blocks: expected an integer, got 1000.0. Write 1000."),
    "leading zeros": (
        HEAD + "blocks: 010\n" + ARMS,
        "recipe.yaml:6: blocks: expected an integer, got '010'.",
    ),
    "a number in quotes": (
        HEAD + 'blocks: "3"\n' + ARMS,
        "recipe.yaml:6: blocks: expected an integer, got '3'.",
    ),
    "sexagesimal": (HEAD + "blocks: 1:30\n" + ARMS, "recipe.yaml:6: blocks: expected an integer, got '1:30'."),
    "yes": (
        HEAD + "sampling: {ignore_eos: yes}\n" + ARMS,
        "recipe.yaml:6: sampling.ignore_eos: expected true or false, got 'yes'.",
    ),
    "a number for text": (
        HEAD + "engine: {args: [-ngl, 99]}\n" + ARMS,
        'recipe.yaml:6: engine.args[1]: expected text, got 99. Put it in quotes: "99".',
    ),
    "true for text": (
        HEAD + "engine: {env: {A: true}}\n" + ARMS,
        'recipe.yaml:6: engine.env.A: expected text, got true. Put it in quotes: "true".',
    ),
    "infinite": (
        HEAD + "sampling: {temperature: .inf}\n" + ARMS,
        "recipe.yaml:6: sampling.temperature: expected a finite number, got inf.",
    ),
    "not a number": (
        HEAD + "sampling: {temperature: .nan}\n" + ARMS,
        "recipe.yaml:6: sampling.temperature: expected a finite number, got nan.",
    ),
    "a huge integer": (
        HEAD + "blocks: " + "9" * 100 + "\n" + ARMS,
        f"recipe.yaml:6: blocks: expected an integer, got '{'9' * 59}…'.",
    ),
    "depth 0": (
        arm("{type: draft-simple, max: 0}"),
        "recipe.yaml:9: arms[1].speculation.max: expected at least 1, got 0.",
    ),
    "depth 65": (
        arm("{type: draft-simple, max: 65}"),
        "recipe.yaml:9: arms[1].speculation.max: expected at most 64, got 65.",
    ),
    "a placeholder without a matrix": (
        arm('{type: draft-simple, max: "{depth}"}'),
        "recipe.yaml:9: arms[1].speculation.max: '{depth}' is a placeholder, but nothing fills it; "
        "give the arm a `matrix` with that key.",
    ),
    "nothing where a word belongs": (
        HEAD + "engine: {kind: }\n" + ARMS,
        f"recipe.yaml:6: engine.kind: expected one of {KINDS}; got nothing.",
    ),
    "terminal escapes": (
        HEAD + 'engine: {kind: "\\e]0;owned\\a\\u202e"}\n' + ARMS,
        f"recipe.yaml:6: engine.kind: expected one of {KINDS}; got '␛]0;owned␇⟨U+202E⟩'.",
    ),
    "a word for blocks": (
        HEAD + "blocks: auot\n" + ARMS,
        "recipe.yaml:6: blocks: expected an integer, auto or {max: 20, budget_min: 30}, got 'auot'.",
    ),
    "a key of auto blocks": (
        HEAD + "blocks: {maxx: 9}\n" + ARMS,
        "recipe.yaml:6: blocks.maxx: unknown key. Did you mean 'max'?",
    ),
    "fewer blocks than a first look takes": (
        HEAD + "blocks: {max: 2}\n" + ARMS,
        "recipe.yaml:6: blocks.max: expected at least 3, got 2.",
    ),
    "a schedule": (
        HEAD + "schedule: interleave\n" + ARMS,
        "recipe.yaml:6: schedule: expected one of blocks, interleaved; got 'interleave'. Did you mean 'interleaved'?",
    ),
    "a penalty that is not sent": (
        HEAD + "sampling: {presence_penalty: 1.1}\nengine: {kind: transformers}\n" + ARMS,
        "recipe.yaml:6: sampling.presence_penalty: presence_penalty is for llama.cpp, openai, sglang, vllm; benchctl "
        "does not send it to transformers.",
    ),
    "engines that do not interleave": (
        HEAD + "schedule: interleaved\nengine: {kind: vllm}\n" + ARMS,
        "recipe.yaml:6: schedule: interleaved keeps several engines up at once, which benchctl does not support for "
        "vllm. "
        "Write `schedule: blocks`.",
    ),
    "terminal escapes in a key": (
        HEAD + '"\\e[2J\\n": 1\n' + ARMS,
        "recipe.yaml:6: ␛[2J⏎: unknown key; known here: name, description, engine, models, prompts, sampling, "
        "lossless, goodput, blocks, schedule, preflight, warmup, baseline, arms, concurrency, rate, "
        "context_length, cache_type, matrix.",
    ),
}


@pytest.mark.parametrize(("text", "message"), WRONG_VALUES.values(), ids=WRONG_VALUES.keys())
def test_a_wrong_value_is_named_with_line_and_key(refusal: Refusal, text: str, message: str) -> None:
    assert refusal(text) == message


NO_DRAFT = HEAD.replace("  draft: {source: bundled:tiny-hybrid-draft}\n", "")
MISFITS = {
    "no baseline arm": (
        HEAD + "arms:\n  - name: spec\n    speculation: {type: draft-simple}\n",
        "recipe.yaml:1: baseline: no arm is called 'baseline', and every arm is compared with it. "
        "Add an arm without speculation: `- name: baseline`.",
    ),
    "baseline misspelt": (
        HEAD + "baseline: basline\n" + ARMS,
        "recipe.yaml:6: baseline: no arm is called 'basline', and every arm is compared with it. "
        "Did you mean 'baseline'?",
    ),
    "baseline of another name": (
        HEAD + "arms: [{name: plain}]\n",
        "recipe.yaml:1: baseline: no arm is called 'baseline', and every arm is compared with it. "
        "Write `baseline: plain`.",
    ),
    "baseline that speculates": (
        HEAD + "arms:\n  - name: baseline\n    speculation: {type: ngram-simple}\n",
        "recipe.yaml:8: arms[0].speculation: 'baseline' is the baseline, the target alone; "
        "it must have no speculation.",
    ),
    "duplicate arm": (
        HEAD + "arms: [{name: baseline}, {name: Baseline}]\n",
        "recipe.yaml:6: arms[1].name: the name 'Baseline' is taken by an earlier arm; give each its own.",
    ),
    "no draft model": (
        NO_DRAFT + "arms:\n  - name: baseline\n  - {name: a, speculation: {type: draft-simple}}\n",
        "recipe.yaml:7: arms[1].speculation.type: draft-simple needs a draft model, and the recipe has none. "
        "Add `models.draft.source`.",
    ),
    "min above max": (
        arm("{type: draft-simple, max: 4, min: 8}"),
        "recipe.yaml:9: arms[1].speculation.min: expected at most max, which is 4, got 8.",
    ),
    "depth beyond the context": (
        arm("{type: draft-simple, max: 64}") + "engine: {context: 64}\nsampling: {max_tokens: 8}\n",
        "recipe.yaml:9: arms[1].speculation.max: expected less than the context of 64 tokens, got 64.",
    ),
    "answers beyond the context": (
        HEAD + "sampling: {max_tokens: 4096}\n" + ARMS,
        "recipe.yaml:6: sampling.max_tokens: expected less than the context of 4096 tokens, got 4096.",
    ),
    "n-gram key on a draft": (
        arm("{type: draft-simple, size_n: 4}"),
        "recipe.yaml:9: arms[1].speculation.size_n: size_n has no meaning for draft-simple; "
        "it is for ngram-simple, ngram-map-k, ngram-map-k4v, ngram-mod.",
    ),
    "probability on an n-gram": (
        arm("{type: ngram-simple, p_min: 0.5}"),
        "recipe.yaml:9: arms[1].speculation.p_min: p_min has no meaning for ngram-simple; "
        "it is for draft-simple, draft-eagle3, draft-mtp, draft-dflash, draft-dspark.",
    ),
    "depth on ngram-cache": (
        arm("{type: ngram-cache, max: 4}"),
        "recipe.yaml:9: arms[1].speculation.max: max has no meaning for ngram-cache; it is for draft-simple, "
        "draft-eagle3, draft-mtp, draft-dflash, draft-dspark, ngram-simple, ngram-map-k, ngram-map-k4v, ngram-mod.",
    ),
    "max against size_m": (
        arm("{type: ngram-simple, max: 4, size_m: 8}"),
        "recipe.yaml:9: arms[1].speculation.size_m: for ngram-simple it means the same as max; give one of them.",
    ),
    "two drafts": (
        arm("{type: [draft-simple, draft-mtp]}"),
        "recipe.yaml:9: arms[1].speculation.type: draft-simple and draft-mtp cannot share one draft model; "
        "name at most one draft-* type in an arm.",
    ),
    "a type twice": (
        arm("{type: [ngram-mod, ngram-mod]}"),
        "recipe.yaml:9: arms[1].speculation.type: a type is named twice.",
    ),
    "no type": (
        arm("{type: []}"),
        "recipe.yaml:9: arms[1].speculation.type: expected at least one type, got an empty list.",
    ),
    "a task twice": (
        HEAD.replace("tiny.json", "tiny.json, tasks: [code, code]") + ARMS,
        "recipe.yaml:5: prompts.tasks: a task is named twice.",
    ),
    "unknown bundled model": (
        HEAD.replace("bundled:tiny-hybrid}", "bundled:tiny-hybird}") + ARMS,
        "recipe.yaml:3: models.target.source: benchctl ships no model called 'tiny-hybird'. "
        "Did you mean 'tiny-hybrid'?",
    ),
    "half a hub name": (
        HEAD.replace("bundled:tiny-hybrid}", "hf:tiny}") + ARMS,
        "recipe.yaml:3: models.target.source: expected hf:ORG/REPO or hf:ORG/REPO/FILE; got 'hf:tiny'.",
    ),
    "a page of the hub": (
        HEAD.replace("bundled:tiny-hybrid}", '"https://huggingface.co/Qwen/Qwen3-4B-GGUF/blob/main/q.gguf"}') + ARMS,
        "recipe.yaml:3: models.target.source: expected a path, hf:ORG/REPO[/FILE] or bundled:NAME; "
        "for this page write hf:Qwen/Qwen3-4B-GGUF/q.gguf; "
        "got 'https://huggingface.co/Qwen/Qwen3-4B-GGUF/blob/main/q.gguf'.",
    ),
    "unknown quantization": (
        HEAD.replace("bundled:tiny-hybrid}", "bundled:tiny-hybrid, quantize: {type: q4_k_x}}") + ARMS,
        "recipe.yaml:3: models.target.quantize.type: expected a llama-quantize type, got 'q4_k_x'. "
        "Did you mean 'q4_k_s'?",
    ),
    "overrides of a plain type": (
        HEAD.replace("bundled:tiny-hybrid}", "bundled:tiny-hybrid, quantize: {type: f16, tensors: {a: bf16}}}") + ARMS,
        "recipe.yaml:3: models.target.quantize.tensors: llama-quantize ignores tensor types when the base type is f16; "
        "use a quantized base type.",
    ),
    "a regular expression for tensors": (
        HEAD.replace("bundled:tiny-hybrid}", "bundled:tiny-hybrid, quantize: {type: q8_0, tensors: {'.*': bf16}}}")
        + ARMS,
        "recipe.yaml:3: models.target.quantize.tensors..*: expected parts of a tensor name such as ssm_out, "
        "blk.0.ffn_down or blk.*.attn_q.",
    ),
}


@pytest.mark.parametrize(("text", "message"), MISFITS.values(), ids=MISFITS.keys())
def test_parts_that_do_not_fit_together_are_refused(refusal: Refusal, text: str, message: str) -> None:
    assert refusal(text) == message


def matrix(arm: str) -> str:
    return HEAD + "arms:\n  - name: baseline\n" + "".join(f"  {line}\n" for line in arm.splitlines())


MATRICES = {
    "unknown placeholder": (
        matrix('- name: "d{dept}"\n  speculation: {type: draft-simple, max: "{depth}"}\n  matrix: {depth: [2]}'),
        "recipe.yaml:8: arms[1].name: the placeholder {dept} has no values; the matrix has: depth. "
        "Did you mean 'depth'?",
    ),
    "unused key": (
        matrix('- name: "d{depth}"\n  matrix: {depth: [2], p: [0.5]}'),
        "recipe.yaml:9: arms[1].matrix.p: no value of this arm uses it; write {p} where it belongs.",
    ),
    "empty list": (
        matrix('- name: "d{depth}"\n  matrix: {depth: []}'),
        "recipe.yaml:9: arms[1].matrix.depth: expected a list of values, or a mapping of names to values; "
        "got an empty one.",
    ),
    "no list": (
        matrix('- name: "d{depth}"\n  matrix: {depth: 4}'),
        "recipe.yaml:9: arms[1].matrix.depth: expected a list of values, or a mapping of names to values; got 4.",
    ),
    "no mapping": (
        matrix("- name: d\n  matrix: [1]"),
        "recipe.yaml:9: arms[1].matrix: expected a mapping such as {depth: [2, 4]}, got a list.",
    ),
    "nothing in it": (
        matrix("- name: d\n  matrix: {}"),
        "recipe.yaml:9: arms[1].matrix: expected a mapping such as {depth: [2, 4]}, got an empty one.",
    ),
    "a value that is no scalar": (
        matrix('- name: "d{depth}"\n  matrix: {depth: [[2]]}'),
        "recipe.yaml:9: arms[1].matrix.depth[0]: expected a number or text, got a list.",
    ),
    "a key that is no word": (
        matrix("- name: d\n  matrix: {a-b: [1]}"),
        "recipe.yaml:9: arms[1].matrix.a-b: expected a word of letters, digits and '_'.",
    ),
    "too many arms": (
        matrix('- name: "d{a}{b}{c}"\n  matrix: {a: &a [1,2,3,4,5,6,7,8], b: *a, c: *a}'),
        "recipe.yaml:9: arms[1].matrix: the matrices make 513 arms or more; at most 200 are allowed.",
    ),
    "names that meet": (
        matrix('- name: d\n  speculation: {type: draft-simple, max: "{depth}"}\n  matrix: {depth: [2, 4]}'),
        "recipe.yaml:8: arms[1].name: the name 'd' is taken by an earlier arm; give each its own.",
    ),
    "one bad value of several": (
        matrix('- name: "d{depth}"\n  speculation: {type: draft-simple, max: "{depth}"}\n  matrix: {depth: [2, 99]}'),
        "recipe.yaml:9: arms[1].speculation.max: expected at most 64, got 99.",
    ),
    "one mistake in all of them": (
        matrix('- name: "d{depth}"\n  speculation: {type: ngram-cache, max: "{depth}"}\n  matrix: {depth: [2, 4]}'),
        "recipe.yaml:9: arms[1].speculation.max: max has no meaning for ngram-cache; it is for draft-simple, "
        "draft-eagle3, draft-mtp, draft-dflash, draft-dspark, ngram-simple, ngram-map-k, ngram-map-k4v, ngram-mod.",
    ),
}


@pytest.mark.parametrize(("text", "message"), MATRICES.values(), ids=MATRICES.keys())
def test_a_wrong_matrix_is_named_where_it_stands_in_the_file(refusal: Refusal, text: str, message: str) -> None:
    assert refusal(text) == message


def test_everything_wrong_with_a_file_is_listed_in_its_order(refusal: Refusal) -> None:
    text = "nam: demo\nmodels: {target: {source: ''}}\nprompts: {suite: tiny.json, limit: 0}\nblocks: no\n" + ARMS
    assert refusal(text).splitlines() == [
        "recipe.yaml:1: name: this key is missing; expected the recipe's name; its runs are kept under it.",
        "recipe.yaml:1: nam: unknown key. Did you mean 'name'?",
        "recipe.yaml:2: models.target.source: expected text, got an empty one.",
        "recipe.yaml:3: prompts.limit: expected at least 1, got 0.",
        "recipe.yaml:4: blocks: expected an integer, auto or {max: 20, budget_min: 30}, got 'no'.",
    ]
