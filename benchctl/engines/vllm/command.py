"""The command line of one cell: benchctl's own options, the arm's speculation, then the recipe's arguments.

Everything that decides speed or numerics and that vLLM would choose by itself is written out, so that two arms differ
in nothing but what the recipe says.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchctl.engines.vllm.adapter import VllmSpec
from benchctl.engines.vllm.package import Package
from benchctl.engines.vllm.speculation import speculative_config, takes_draft
from benchctl.models.resolved import ResolvedPair
from benchctl.recipes.problems import did_you_mean
from benchctl.recipes.schema import Arm

MODEL_NAME = "benchctl"
"""The model's served name, whatever its folder is called."""
_IS_OPTION = re.compile(r"--?[A-Za-z]")
_LOOPBACK = "nothing (benchctl talks to its own server on loopback)"
_MEASURES = "nothing (benchctl sets it for its measurement)"
_RESERVED = {
    **dict.fromkeys(("--model", "--tokenizer", "--revision"), "models.target"),
    "--max-model-len": "engine.context",
    "--dtype": "engine.dtype",
    "--max-num-seqs": "concurrency",
    **dict.fromkeys(
        ("--speculative-config", "-sc", "--spec-method", "--spec-model", "--spec-tokens"), "arms[].speculation"
    ),
    **dict.fromkeys(
        ("--host", "--port", "--uds", "--root-path", "--api-key", "--ssl-keyfile", "--ssl-certfile"), _LOOPBACK
    ),
    **dict.fromkeys(("--served-model-name", "--config", "--headless", "--api-server-count"), _LOOPBACK),
    "--hf-token": "nothing (models are fetched before, and a recipe is recorded as it is)",
    **dict.fromkeys(
        ("--enable-prefix-caching", "--enable-per-request-metrics", "--no-enable-per-request-metrics"), _MEASURES
    ),
    **dict.fromkeys(("--per-request-spec-decode-metrics", "--stream-interval", "--disable-log-stats"), _MEASURES),
    **dict.fromkeys(("--max-logprobs", "--data-parallel-size", "--return-tokens-as-token-ids"), _MEASURES),
}
"""Options that benchctl itself relies on, and the recipe's key for each."""


def command_line(program: Path, package: Package, engine: VllmSpec, arm: Arm, models: ResolvedPair) -> tuple[str, ...]:
    """Return the whole command of one cell; `{port}` stands for the port."""
    own = [
        ["--host", "127.0.0.1"],
        ["--port", "{port}"],
        ["--served-model-name", MODEL_NAME],
        ["--max-model-len", str(engine.context)],
        ["--dtype", engine.dtype],
        ["--max-num-seqs", str(max(1, arm.concurrency))],
        ["--seed", "0"],
        ["--enable-prefix-caching" if engine.prefix_caching else "--no-enable-prefix-caching"],
        ["--enable-per-request-metrics"],
    ]
    if arm.cache_type is not None and arm.cache_type.target is not None:
        own.append(["--kv-cache-dtype", arm.cache_type.target])
    if package.cpu:  # without it vLLM compiles the model for minutes, at every start
        own.append(["--enforce-eager"])
    if arm.speculation is not None:
        draft = models.draft if takes_draft(arm.speculation) else None
        own.append(["--speculative-config", speculative_config(arm.speculation, draft)])
        own.append(["--per-request-spec-decode-metrics", "detailed"])
    theirs = [*engine.args, *arm.args]
    replaced = {_positive(argument) for argument in theirs if _IS_OPTION.match(argument)}
    kept = [argument for setting in own if _positive(setting[0]) not in replaced for argument in setting]
    return (str(program), "serve", str(models.target.path), *kept, *theirs)


def _positive(option: str) -> str:
    """Return an option as vLLM compares it: without its value, an underscore is a dash, `--no-x` is about `--x`."""
    name = option.partition("=")[0].replace("_", "-")
    return f"--{name.removeprefix('--no-')}" if name.startswith("--no-") else name


def argument_problems(args: Sequence[str], options: Mapping[str, int | None] | None) -> list[str]:
    """Return a sentence for every argument of a recipe that this vLLM lacks or that benchctl sets itself."""
    problems = []
    if args and not _IS_OPTION.match(args[0]):
        problems.append(f"`{args[0]}` is not an option; write each option and its value as items of their own.")
    for argument in args:
        if not _IS_OPTION.match(argument):
            continue
        name = argument.partition("=")[0].partition(".")[0].replace("_", "-")
        instead = _RESERVED.get(name) or _RESERVED.get(_positive(name))
        if instead is not None:
            problems.append(f"{name} may not be among a recipe's arguments; use {instead}.")
        elif options is not None and name not in options:
            problems.append(f"This vLLM has no option {name}.{did_you_mean(name, list(options))}")
    return problems


def missing_options(package: Package, *, speculates: bool) -> list[str]:
    """Return a sentence when this vLLM is too old to report what benchctl needs of each answer."""
    needed = ["--enable-per-request-metrics"]
    if speculates:
        needed += ["--speculative-config", "--per-request-spec-decode-metrics"]
    lacking = [name for name in needed if package.options is not None and name not in package.options]
    if not lacking:
        return []
    return [f"this vLLM {package.version} has no {', '.join(lacking)}, without which nothing can be counted."]
