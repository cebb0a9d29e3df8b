"""The command line of one cell: benchctl's own options, the arm's speculation, then the recipe's arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from benchctl.engines.sglang.adapter import SglangSpec
from benchctl.engines.sglang.package import Option, Package
from benchctl.engines.sglang.speculation import speculation_flags
from benchctl.models.resolved import ResolvedPair
from benchctl.recipes.problems import did_you_mean
from benchctl.recipes.schema import Arm

MODEL_NAME = "benchctl"
"""The model's served name, whatever its folder is called."""
_DEVICES = {"cpu": "cpu", "cuda": "cuda", "metal": "mps"}
_LOOPBACK = "nothing (benchctl talks to its own server on loopback)"
_MEASURES = "nothing (benchctl sets it for its measurement)"
_RESERVED = {
    **dict.fromkeys(("--model-path", "--model", "--tokenizer-path", "--revision"), "models.target"),
    "--context-length": "engine.context",
    "--dtype": "engine.dtype",
    "--device": "engine.device",
    "--max-running-requests": "concurrency",
    **dict.fromkeys(("--speculative-algorithm", "--speculative-draft-model-path"), "arms[].speculation"),
    "--speculative-draft-model": "arms[].speculation",
    **dict.fromkeys(("--host", "--port", "--api-key", "--admin-api-key", "--config", "--grpc-mode"), _LOOPBACK),
    **dict.fromkeys(("--served-model-name", "--ssl-keyfile", "--ssl-certfile", "--smg-grpc-mode"), _LOOPBACK),
    "--ssl-keyfile-password": _LOOPBACK,
    **dict.fromkeys(("--disable-radix-cache", "--random-seed", "--incremental-streaming-output"), _MEASURES),
    **dict.fromkeys(("--stream-interval", "--skip-tokenizer-init", "--stream-output"), _MEASURES),
}
"""Options that benchctl itself relies on, and the recipe's key for each."""


def command_line(python: Path, package: Package, engine: SglangSpec, arm: Arm, models: ResolvedPair) -> tuple[str, ...]:
    """Return the whole command of one cell; `{port}` stands for the port."""
    own = [
        *("--model-path", str(models.target.path)),
        *("--served-model-name", MODEL_NAME),
        *("--host", "127.0.0.1"),
        *("--port", "{port}"),
        *("--context-length", str(engine.context)),
        *("--dtype", engine.dtype),
        *("--max-running-requests", str(arm.concurrency)),
        *("--random-seed", "0"),
        "--disable-radix-cache",
    ]
    if engine.device != "auto":
        own += ["--device", _DEVICES[engine.device]]
    if arm.cache_type is not None and arm.cache_type.target is not None:
        own += ["--kv-cache-dtype", arm.cache_type.target]
    if arm.speculation is not None:
        own += speculation_flags(arm.speculation, models, package)
    return (str(python), "-m", "sglang.launch_server", *own, *engine.args, *arm.args)


def argument_problems(args: Sequence[str], options: Mapping[str, Option]) -> list[str]:
    """Return a sentence for every argument of a recipe that this SGLang lacks or that benchctl sets itself."""
    problems = []
    if args and not args[0].startswith("--"):
        problems.append(f"`{args[0]}` is not an option; write each option and its value as items of their own.")
    for argument in args:
        if not argument.startswith("--"):
            continue
        name = argument.partition("=")[0]
        if instead := _RESERVED.get(name):
            problems.append(f"{name} may not be among a recipe's arguments; use {instead}.")
        elif name not in options:
            problems.append(f"This SGLang has no option {name}.{did_you_mean(name, list(options))}")
    return problems
