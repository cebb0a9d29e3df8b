"""A recipe that opens the machine is refused, however it is spelled, unless its reader trusts it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from benchctl.errors import UsageError
from benchctl.recipes.load import load_recipe, shipped_recipes
from benchctl.recipes.schema import Recipe
from benchctl.recipes.trust import find_openings, refuse

Load = Callable[[str], Recipe]
HEAD = "name: demo\nmodels: {target: {source: bundled:tiny-hybrid}}\nprompts: {suite: tiny.json}\n"
ARMS = "arms: [{name: baseline}]\n"


def openings(load: Load, engine: str, names: tuple[tuple[str, ...], ...] = ()) -> list[str]:
    recipe = load(f"{HEAD}engine: {engine}\n{ARMS}")
    return [str(one) for one in find_openings(recipe, Path.cwd(), names)]


@pytest.mark.parametrize(
    "engine",
    [
        *("{args: [--tools, all]}", "{args: [--tools=all]}", "{args: [--agent]}", "{args: [-ag]}"),
        *("{args: [--mcp-servers-config, x]}", "{args: [--mcp_servers_json, x]}", "{args: [--rpc, 'a:1']}"),
        *("{args: [--path, /]}", "{args: [--media-path, /]}", "{args: [--media_path=/]}", "{args: [--props]}"),
        *("{args: [--slot-save-path, x]}", "{args: [--log-prompts-dir, x]}", "{args: [-lcd, x]}", "{args: [-mmu, x]}"),
        *("{args: [--lookup-cache-dynamic, x]}", "{args: [--mmproj-url, x]}", "{args: [-hft, x]}", "{args: [-mm, x]}"),
        *("{env: {LD_PRELOAD: x}}", "{env: {LD_AUDIT: x}}", "{env: {PATH: x}}", "{env: {GGML_BACKEND_PATH: x}}"),
        *("{env: {LLAMA_ARG_TOOLS: all}}", "{env: {PYTHONPATH: x}}", "{env: {HTTPS_PROXY: x}}", "{env: {HOME: /x}}"),
        *("{kind: vllm, args: [--trust-remote-code]}", "{kind: vllm, args: [--trust_remote_code]}"),
        *(
            "{kind: vllm, args: [--trust-rem]}",
            "{kind: vllm, args: [--middleware=x.y]}",
            "{kind: vllm, args: [--worker-cls, x]}",
        ),
        *(
            "{kind: vllm, env: {VLLM_PLUGINS: x}}",
            "{kind: sglang, args: [--trust-remote-code]}",
            "{kind: transformers, remote_code: true}",
        ),
        *("{args: [--grammar-file, '/etc/{x}']}", "{args: [--lora]}", "{args: ['--json-schema-file=/etc/{a}']}"),
        *("{args: [--lora, /etc/passwd]}", "{args: [--grammar-file, ../g]}", "{args: ['--lora=good.gguf,/x.gguf']}"),
    ],
)
def test_what_opens_the_machine_is_found(load: Load, engine: str) -> None:
    recipe = load(f"{HEAD}engine: {engine}\n{ARMS}")
    found = find_openings(recipe, Path.cwd())
    assert [one.opens is None for one in found] == [False]
    with pytest.raises(UsageError, match="would open the machine") as caught:
        refuse(found, trusted=False)
    assert caught.value.exit_code == 2
    assert refuse(found, trusted=True) == [str(found[0])]


@pytest.mark.parametrize(
    "engine",
    [
        *(
            "{args: [--flash-attn, 'on', -ngl, '99', --no-repack, --override-tensor=x=CPU]}",
            "{env: {OMP_NUM_THREADS: '2'}}",
        ),
        *("{args: [--lora, a.gguf, --chat-template-file, sub/t.jinja]}", "{args: [--lora-scaled, 'a.gguf:0.5']}"),
        *("{args: [--chat-template, '{{ messages }}']}", "{env: {GGML_CUDA_DISABLE_GRAPHS: '1'}}"),
        *("{kind: vllm, args: [--gpu-memory-utilization=0.5, --max-num-batched-tokens, '512']}",),
        *("{kind: vllm, env: {VLLM_CPU_KVCACHE_SPACE: '1'}}", "{kind: vllm, args: [--chat-template, t.jinja]}"),
    ],
)
def test_what_only_measures_passes(load: Load, engine: str) -> None:
    assert openings(load, engine) == []


def test_a_link_out_of_the_folder_is_outside(load: Load, tmp_path: Path) -> None:
    (tmp_path / "a.gguf").symlink_to("/etc/passwd")
    assert "the recipe's folder" in openings(load, "{args: [--lora, a.gguf]}")[0]


def test_an_option_that_no_list_knows_passes_with_a_line(load: Load) -> None:
    [line] = openings(load, "{args: [--brand-new, '1']}")
    assert line.startswith("engine.args: --brand-new") and "unchecked" in line


def test_a_new_name_of_a_listed_option_counts_as_the_option(load: Load) -> None:
    names = (("--all-tools", "--tools"),)
    assert openings(load, "{args: [--all-tools]}", names) == ["engine.args: --all-tools runs code."]


@pytest.mark.parametrize("name", sorted(shipped_recipes()))
def test_no_shipped_recipe_opens_the_machine(name: str) -> None:
    file = shipped_recipes()[name]
    assert find_openings(load_recipe(file), file.parent) == []


def test_a_class_of_ones_own_is_code(load: Load) -> None:
    arms = "arms:\n  - name: baseline\n  - {name: a, speculation: {type: custom_class}}\n"
    text = f"{HEAD}engine: {{kind: vllm}}\n{arms}"
    assert [str(one) for one in find_openings(load(text), Path.cwd())] == [
        "arm a: speculation: custom_class runs code."
    ]


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ("{env: {BENCHCTL_SCRATCH: /tmp}}", "engine.env.BENCHCTL_SCRATCH: this is a setting of benchctl's own"),
        ('{env: {"A=B": x}}', "engine.env: expected the name of an environment variable, got 'A=B'"),
        ('{env: {"": x}}', "engine.env: expected the name of an environment variable, got ''"),
        ('{env: {"A\\0": x}}', "engine.env: expected the name of an environment variable"),
        ('{env: {A: "x\\0"}}', "engine.env.A: what a process is given cannot contain the character U+0000"),
        ('{args: ["x\\0"]}', "engine.args[0]: what a process is given cannot contain the character U+0000"),
    ],
)
def test_what_no_process_can_be_given_is_one_error(refusal: Callable[[str], str], engine: str, message: str) -> None:
    text = refusal(f"{HEAD}engine: {engine}\n{ARMS}")
    assert message in text
    assert text.count("\n") == 0
