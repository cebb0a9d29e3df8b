"""The exact command line and environment of a cell."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchctl.engines.common.process import engine_environment, refused_variables
from benchctl.engines.vllm.adapter import VllmSpec
from benchctl.engines.vllm.command import (
    REFUSED_VARIABLES,
    argument_problems,
    command_line,
    missing_options,
    own_settings,
)
from benchctl.engines.vllm.engine import VllmEngine
from benchctl.models.files import ResolvedPair
from benchctl.recipes.schema import Arm
from benchctl.recipes.speculation import Speculation

Make = Callable[..., Any]
PROGRAM = Path("/venv/bin/vllm")


def test_a_baseline_in_full(package: Make, folder: Make) -> None:
    target = folder("target")
    spec = VllmSpec(kind="vllm", context=1024, dtype="float32")
    argv = command_line(PROGRAM, package(), spec, Arm(name="baseline"), ResolvedPair(target, None))
    assert " ".join(argv) == (
        f"/venv/bin/vllm serve {target.path} --host 127.0.0.1 --port {{port}} --served-model-name benchctl "
        "--max-model-len 1024 --dtype float32 --max-num-seqs 1 --seed 0 --no-enable-prefix-caching "
        "--enable-per-request-metrics --enforce-eager"
    )


def test_an_arm_that_speculates(package: Make, folder: Make) -> None:
    spec = VllmSpec(kind="vllm", args=["--block-size", "32"])
    arm = Arm(name="ngram", speculation=Speculation(type="ngram-simple", max=4), concurrency=8)
    models = ResolvedPair(folder("target"), None)
    argv = command_line(PROGRAM, package(platform="cuda"), spec, arm, models)
    options = dict(itertools.pairwise(argv))
    assert options["--speculative-config"] == '{"method": "ngram", "num_speculative_tokens": 4}'
    assert options["--per-request-spec-decode-metrics"] == "detailed"
    assert "--max-num-seqs" not in argv, "graphs have the batch sizes of what is served, not of what is measured"
    for planned, requests in ((64, "64"), (4, "8")):
        spec = VllmSpec(kind="vllm", max_num_seqs=planned)
        planned_for = command_line(PROGRAM, package(platform="cuda"), spec, arm, models)
        assert planned_for[planned_for.index("--max-num-seqs") + 1] == requests
    assert "--enforce-eager" not in argv  # a GPU is measured with its graphs
    assert argv[-2:] == ("--block-size", "32")


def test_in_use_cache_and_requests_at_a_time_are_its_own(package: Make, folder: Make) -> None:
    models = ResolvedPair(folder("target"), None)

    def argv(concurrency: int = 1, **engine: Any) -> str:
        arm = Arm(name="a", concurrency=concurrency)
        return " ".join(command_line(PROGRAM, package(), VllmSpec(kind="vllm", **engine), arm, models, in_use=True))

    assert "prefix-caching" not in argv() and "--max-num-seqs" not in argv()
    assert "--no-enable-prefix-caching" in argv(prefix_caching=False), "the recipe says so"
    assert "--enable-prompt-tokens-details" in argv(), "what came from the cache is reported"
    assert "--max-num-seqs 3 " in argv(3) and "--max-num-seqs 8 " in argv(max_num_seqs=8)


def test_under_pressure_the_cache_holds_a_few_blocks_and_the_longest_request(tmp_path: Path) -> None:
    engine = VllmEngine(VllmSpec(kind="vllm"))
    options = engine.options_under("preemption", tmp_path, 480)
    assert options == ("--block-size", "32", "--num-gpu-blocks-override", "16", "--max-model-len", "480")


def test_a_vllm_that_cannot_be_counted_with_is_refused(package: Make) -> None:
    old = package(version="0.20.0", options={"--speculative-config": None})
    (message,) = missing_options(old)
    assert "vLLM 0.20.0 has no --enable-per-request-metrics, --per-request-spec-decode-metrics" in message
    assert missing_options(package(options=None)) == []


def test_an_argument_of_the_recipe_replaces_ours(package: Make, folder: Make) -> None:
    spec = VllmSpec(kind="vllm", args=["--no-enforce-eager"])
    argv = command_line(PROGRAM, package(), spec, Arm(name="a"), ResolvedPair(folder("target"), None))
    assert "--enforce-eager" not in argv
    assert argv[-1] == "--no-enforce-eager"


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("--max-model-len", "engine.context"),
        ("--max_model_len=4096", "engine.context"),
        ("--no-enable-prefix-caching", "engine.prefix_caching"),
        ("-sc", "arms[].speculation"),
        ("--speculative-config.method", "arms[].speculation"),
        ("--api-key", "loopback"),
        ("--hf-token=abc", "a recipe is recorded as it is"),
        ("--block-sise", "Did you mean '--block-size'?"),
        ("32", "is not an option"),
    ],
)
def test_arguments_that_are_refused(package: Make, word: str, message: str) -> None:
    (problem,) = argument_problems([word], package().options)
    assert message in problem


def test_the_environment_is_scrubbed_offline_and_silent(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libiomp5.so").touch()
    settings = own_settings(cpu=True, prefix=tmp_path, threads=None)
    caller = {"PATH": "/bin", "HF_TOKEN": "secret", "VLLM_USE_V1": "0", "PYTHONPATH": "/mine"}
    env = engine_environment(caller, settings | {"VLLM_CPU_KVCACHE_SPACE": "1"})
    assert not {"HF_TOKEN", "VLLM_USE_V1", "PYTHONPATH"} & env.keys()
    assert (env["HF_HUB_OFFLINE"], env["DO_NOT_TRACK"], env["VLLM_CPU_OMP_THREADS_BIND"]) == ("1", "1", "auto")
    assert env["LD_PRELOAD"] == str(tmp_path / "lib" / "libiomp5.so")
    assert env["VLLM_CPU_KVCACHE_SPACE"] == "1"


def test_threads_are_bound_where_requested(tmp_path: Path) -> None:
    bound = own_settings(cpu=True, prefix=tmp_path, threads=1)["VLLM_CPU_OMP_THREADS_BIND"]
    assert bound.isdigit()
    assert "VLLM_CPU_OMP_THREADS_BIND" not in own_settings(cpu=False, prefix=tmp_path, threads=None)


@pytest.mark.parametrize("name", ["VLLM_API_KEY", "HF_TOKEN", "VLLM_PLUGINS"])
def test_variables_that_are_refused(name: str) -> None:
    (problem,) = refused_variables({name: "x"}, REFUSED_VARIABLES)
    assert name in problem


def test_prefix_caching_is_a_key_of_the_engine(package: Make, folder: Make) -> None:
    spec = VllmSpec(kind="vllm", prefix_caching=True, args=["--mamba-cache-mode", "align"])
    argv = command_line(PROGRAM, package(), spec, Arm(name="baseline"), ResolvedPair(folder("target"), None))
    assert "--enable-prefix-caching" in argv and "--no-enable-prefix-caching" not in argv
    assert argv[-2:] == ("--mamba-cache-mode", "align")
    assert "--enable-prompt-tokens-details" in argv, "how many tokens were not read is reported"


def test_an_option_without_its_value_is_refused_before_a_launch() -> None:
    options = {"--tensor-parallel-size": 1, "--enforce-eager": 0, "--block-size": 1}
    (problem,) = argument_problems(["--tensor_parallel_size", "--enforce-eager", "--block-size", "16"], options)
    assert problem == "--tensor_parallel_size lacks its value; write it as the next item."
    assert len(argument_problems(["--block-size"], options)) == 1
    assert argument_problems(["--enforce-eager", "--block-size", "16"], options) == []
