from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from benchctl.engines.llama_cpp.adapter import LlamaCppSpec
from benchctl.engines.llama_cpp.command import (
    DEVICES,
    argument_problems,
    batch_problems,
    command_line,
    default_threads,
    devices_of,
    slots_of,
    uses_draft,
)
from benchctl.engines.llama_cpp.probe import Flags, parse_help
from benchctl.models.files import ResolvedPair
from benchctl.recipes.schema import Arm
from tests.engines.cells import HERE, arm_of

CURRENT = parse_help((HERE / "data" / "help_current.txt").read_text())
LEGACY = parse_help((HERE / "data" / "help_legacy.txt").read_text())
Command = Callable[..., list[str]]


@pytest.fixture
def command(any_pair: ResolvedPair) -> Command:
    def build(arm: Arm, flags: Flags = CURRENT, **engine: object) -> list[str]:
        spec = LlamaCppSpec.model_validate({"threads": 2, "device": "cpu"} | engine)
        return list(command_line(Path("llama-server"), flags, spec, arm, any_pair))

    return build


def test_the_target_alone(command: Command, any_pair: ResolvedPair) -> None:
    assert command(arm_of()) == [
        *("llama-server", "-m", str(any_pair.target.path), "--host", "127.0.0.1", "--port", "{port}", "-np", "1"),
        *("-c", "4096", "-b", "512", "-ub", "512", "-t", "2", "-ngl", "0", "--device", "none", "-fit", "off"),
        *("--cache-ram", "0", "--no-context-shift", "--metrics", "--slots", "--no-ui", "-lv", "4"),
        *("--spec-type", "none"),
    ]


def test_prefix_caching_leaves_the_servers_own_cache_on(command: Command) -> None:
    assert "--cache-ram" not in command(arm_of(), prefix_caching=True)
    assert any("engine.prefix_caching" in text for text in argument_problems(["--cache-ram", "64"], CURRENT))


def test_a_slot_for_every_request_in_flight_with_a_context_of_its_own(command: Command) -> None:
    argv = command(arm_of("draft-simple").model_copy(update={"concurrency": 8}), context=1000)
    index = argv.index("-np")
    assert argv[index : index + 6] == ["-np", "8", "-c", "8000", "--no-kv-unified", "--cont-batching"]
    assert slots_of(argv) == 8
    assert slots_of(command(arm_of())) == 1
    assert "--no-kv-unified" not in command(arm_of().model_copy(update={"concurrency": 8}), args=["-kvu"])


def test_of_several_kinds_of_devices_the_one_that_is_asked_for_is_named(any_pair: ResolvedPair) -> None:
    listed = ["CUDA0: NVIDIA H200", "Vulkan0: NVIDIA H200", "Vulkan1: llvmpipe"]
    spec = LlamaCppSpec(device="vulkan")
    argv = command_line(Path("s"), CURRENT, spec, arm_of("draft-simple"), any_pair, listed)
    index = argv.index("--device")
    assert argv[index + 1] == argv[argv.index("--spec-draft-device") + 1] == "Vulkan0,Vulkan1"
    assert "--device" not in command_line(Path("s"), CURRENT, spec, arm_of(), any_pair, listed[1:])
    assert {device for device in DEVICES if devices_of(device, listed)} == {"cuda", "vulkan"}


@pytest.mark.parametrize(("device", "named"), [("rocm", "ROCm1"), ("sycl", "SYCL1"), ("metal", "MTL1")])
def test_every_device_is_named_as_the_binary_lists_it(device: str, named: str, any_pair: ResolvedPair) -> None:
    """ROCm and SYCL were never run here."""
    spec = LlamaCppSpec.model_validate({"device": device})
    argv = command_line(Path("s"), CURRENT, spec, arm_of("draft-simple"), any_pair, ["CUDA0: x", f"{named}: y"])
    assert argv[argv.index("--device") + 1] == argv[argv.index("--spec-draft-device") + 1] == named
    assert argv[argv.index("-ngl") + 1] == argv[argv.index("-ngld") + 1] == "999"


def test_an_arm_with_a_draft_model(command: Command, any_pair: ResolvedPair) -> None:
    argv = command(arm_of("draft-simple", max=4), device="cuda")
    assert any_pair.draft is not None
    assert argv[argv.index("-md") + 1] == str(any_pair.draft.path)
    assert argv[argv.index("-ngl") + 1] == argv[argv.index("-ngld") + 1] == "999"
    assert "--device" not in argv
    assert argv[-4:] == ["--spec-type", "draft-simple", "--spec-draft-n-max", "4"]


def test_auto_leaves_the_device_to_the_engine(command: Command) -> None:
    argv = command(arm_of("draft-simple"), device="auto")
    assert not {"-ngl", "-ngld", "--device", "--spec-draft-device"} & set(argv)


def test_the_old_dialect(command: Command) -> None:
    argv = command(arm_of("draft-simple", max=4, min=1), LEGACY)
    assert argv[-4:] == ["--draft-max", "4", "--draft-min", "1"]
    assert "--no-webui" in argv
    assert not {"--spec-type", "-fit", "--cache-ram", "-lv", "--no-ui"} & set(argv)
    assert argv[argv.index("--device-draft") + 1] == "none"
    assert "-md" not in command(arm_of(), LEGACY)


def test_arguments_of_recipe_and_arm_come_last_and_replace_ours(command: Command) -> None:
    argv = command(arm_of(args=["--ubatch-size", "64"]), args=["-fa", "on", "--batch-size", "256"])
    assert argv[-6:] == ["-fa", "on", "--batch-size", "256", "--ubatch-size", "64"]
    assert "-b" not in argv
    assert "-ub" not in argv


def test_which_arms_get_the_draft_model(any_pair: ResolvedPair) -> None:
    assert uses_draft(arm_of("draft-eagle3"), any_pair)
    assert uses_draft(arm_of("draft-mtp"), any_pair)
    assert uses_draft(arm_of(["ngram-simple", "draft-simple"]), any_pair)
    assert not uses_draft(arm_of("ngram-simple"), any_pair)
    assert not uses_draft(arm_of(), any_pair)
    assert not uses_draft(arm_of("draft-mtp"), ResolvedPair(any_pair.target, None))


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--flash-atn", "on"], "Did you mean '--flash-attn'?"),
        (["--qqqqqqq"], "has no flag --qqqqqqq."),
        (["--flash-attn=on"], "value as an item of its own"),
        (["on"], "`on` is not a flag"),
        (["--draft-max", "4"], "use --spec-draft-n-max or --spec-ngram-mod-n-max (in a recipe: arms[].speculation)"),
        (["--spec_draft_n_max", "4"], "arms[].speculation"),
        (["--spec-type", "draft-simple"], "arms[].speculation"),
        (["-m", "x"], "models.target"),
        (["--model-draft", "x"], "models.draft"),
        (["-md", "x"], "models.draft"),
        (["-c", "1"], "engine.context"),
        (["-t", "1"], "engine.threads"),
        (["-np", "2"], "use concurrency"),
        (["--port", "1"], "loopback"),
        (["--host", "0.0.0.0"], "loopback"),
        (["--no-slots"], "benchctl sets it"),
        (["--log-disable"], "keeps the log"),
        (["--spec-default"], "arms[].speculation"),
        (["--fim-qwen-7b-spec"], "its own models"),
        (["-fa"], "-fa lacks its value, [on|off|auto]"),
        (["-fa", "-ngl", "99"], "-fa lacks its value"),
    ],
)
def test_arguments_that_would_break_the_measurement_are_refused(args: list[str], message: str) -> None:
    (problem,) = argument_problems(args, CURRENT)
    assert message in problem


@pytest.mark.parametrize("gone", ["--no-mmap", "--ctx-size-draft", "-cd"])
def test_no_flag_of_another_meaning_is_proposed(gone: str) -> None:
    assert argument_problems([gone], CURRENT) == [f"This llama-server has no flag {gone}."]


def test_other_arguments_pass() -> None:
    args = ["-fa", "on", "-ub", "64", "--spec-synth-len", "2.5", "-ngl", "-1", "--load-mode", "mmap"]
    assert argument_problems(args, CURRENT) == []
    assert argument_problems(["--mlock", "--no-mmap"], LEGACY) == []


def test_a_round_must_fit_the_batch() -> None:
    assert not list(batch_problems([], 1, 511, CURRENT))
    assert "needs a batch of 513" in str(list(batch_problems([], 1, 512, CURRENT)))
    assert not list(batch_problems(["--batch-size", "5"], 1, 4, CURRENT))
    assert not list(batch_problems([], 8, 63, CURRENT))
    assert "batch of 520" in str(list(batch_problems([], 8, 64, CURRENT)))
    assert "-b is 4" in str(list(batch_problems(["-ub", "9", "-b", "4"], 1, 4, CURRENT)))


def test_there_is_a_thread_at_least() -> None:
    assert default_threads() >= 1
