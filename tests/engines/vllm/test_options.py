"""The list of what options do to the machine is held against the options that the real package has."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchctl.engines.common.programs import FoundBinary
from benchctl.engines.vllm.adapter import OPTIONS, VllmSpec
from benchctl.engines.vllm.engine import probe_vllm
from benchctl.recipes.schema import Recipe
from benchctl.recipes.trust import find_openings
from tests.engines.cells import arm_of, recipe_of

pytestmark = pytest.mark.vllm
Names = tuple[tuple[str, ...], ...]


@pytest.fixture(scope="module")
def names(vllm_program: Path) -> Names:
    """The options of the installed vLLM."""
    return probe_vllm(FoundBinary(vllm_program, "test")).capabilities.option_names


def recipe(*args: str) -> Recipe:
    return recipe_of(arm_of(), engine=VllmSpec(kind="vllm", args=list(args)))


def test_options_that_open_the_machine_are_the_real_packages(names: Names) -> None:
    assert ("--uds",) in names
    assert any({"--compilation-config", "-cc"} <= set(group) for group in names), "aliases are told together"
    plain = {name.lstrip("-").removeprefix("no-") for group in names for name in group}
    assert plain >= {"trust-remote-code", "middleware", "kv-transfer-config", "enforce-eager", "mamba-cache-mode"}
    (found,) = find_openings(recipe("--watermark"), Path.cwd(), names)
    assert found.opens is None, "what is on no list is unknown"


@pytest.mark.parametrize(
    "args",
    [
        *(("--trust-remote-code",), ("--trust_remote_code",), ("--trust-rem",), ("-cc.mode=3",), ("--middleware=a.b",)),
        *(
            ("--lora-modules", "a=/etc/passwd"),
            ("--lora-modules", "in=a", "out=/etc"),
            ("--model-class-overrides", "{}"),
        ),
        *(("--lora-modules", '{"name": "a", "path": "/etc"}'), ("--generation-config", "/etc"), ("-dpa", "1.2.3.4")),
        *(("--logging-config.pylogging_config_file", "x.json"), ("--chat-template", "/etc/passwd"), ("--grpc",)),
    ],
)
def test_what_opens_the_machine_is_found_however_it_is_spelled(names: Names, args: tuple[str, ...]) -> None:
    found = find_openings(recipe(*args), Path.cwd(), names)
    assert [one.opens is not None for one in found] == [True], found


@pytest.mark.parametrize(
    "args",
    [
        *(("--lora-modules", "a=adapters/a", "b=b"), ("--generation-config", "vllm"), ("-O3",), ("--block_size", "16")),
        *(("--chat-template", "{{ messages }}"), ("--chat-template", "t.jinja"), ("--no-enable-chunked-prefill",)),
    ],
)
def test_what_only_measures_passes(names: Names, args: tuple[str, ...]) -> None:
    assert [str(one) for one in find_openings(recipe(*args), Path.cwd(), names)] == []


def test_no_option_that_opens_the_machine_is_called_harmless() -> None:
    assert not OPTIONS.harmless & (OPTIONS.opens.keys() | OPTIONS.reads | OPTIONS.aliases.keys())
