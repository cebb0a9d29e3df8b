"""The command line of one cell: benchctl's own flags, the arm's speculation, then the recipe's arguments.

Everything that decides speed or numerics is written out, so that two arms differ in nothing but what the recipe says
and the manifest shows all of it.
"""

from __future__ import annotations

import difflib
import itertools
import os
import re
from collections.abc import Sequence
from pathlib import Path

import psutil

from benchctl.engines.llama_cpp.adapter import LlamaCppSpec
from benchctl.engines.llama_cpp.dialect import Flags
from benchctl.engines.llama_cpp.speculation import speculation_args, speculation_flags
from benchctl.models.resolved import ResolvedPair
from benchctl.recipes.schema import Arm
from benchctl.recipes.speculation import NEEDS_DRAFT_MODEL

BATCH = 512
"""Logical and physical batch size of every arm: other shapes round differently, and give other text."""

_OFFLOAD_ALL = "999"
_IS_FLAG = re.compile(r"--?[A-Za-z]")

_RESERVED = {
    **dict.fromkeys(("--model", "--model-url", "--docker-repo", "--hf-repo", "--hf-file"), "models.target"),
    **dict.fromkeys(("--spec-draft-model", "--model-draft", "--spec-draft-hf", "--hf-repo-draft"), "models.draft"),
    "--ctx-size": "engine.context",
    "--threads": "engine.threads",
    **dict.fromkeys(sorted(speculation_flags()), "arms[].speculation"),
    **dict.fromkeys(
        ("--host", "--port", "--reuse-port", "--api-prefix", "--api-key", "--api-key-file"),
        "nothing (benchctl talks to its own server on loopback)",
    ),
    **dict.fromkeys(("--ssl-key-file", "--ssl-cert-file"), "nothing (benchctl talks to its own server on loopback)"),
    **dict.fromkeys(("--parallel", "--sleep-idle-seconds"), "concurrency (a slot for every request in flight)"),
    **dict.fromkeys(("--slots", "--metrics", "--cache-ram"), "nothing (benchctl sets it for its measurement)"),
    **dict.fromkeys(
        ("--log-disable", "--log-file", "--log-jsonl", "--log-colors"),
        "nothing (benchctl keeps the log and reads it)",
    ),
    **dict.fromkeys(
        ("--embedding", "--rerank", "--models-dir", "--models-preset"), "nothing (no text would be generated)"
    ),
    **dict.fromkeys(("--help", "--version", "--cache-list", "--completion-bash", "--list-devices"), "nothing"),
}
"""Flags that benchctl itself relies on, and the recipe's key for each."""


def default_threads() -> int:
    """Return how many threads an engine gets: the physical cores, as far as this process may use them."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(allowed, psutil.cpu_count(logical=False) or allowed))


def uses_draft(arm: Arm, models: ResolvedPair) -> bool:
    """Whether the arm is given the draft model: its type needs one, or it is an MTP head of its own."""
    if arm.speculation is None or models.draft is None:
        return False
    return any(name in NEEDS_DRAFT_MODEL or name == "draft-mtp" for name in arm.speculation.types)


def command_line(binary: Path, flags: Flags, engine: LlamaCppSpec, arm: Arm, models: ResolvedPair) -> tuple[str, ...]:
    """Return the whole command of one cell; `{port}` stands for the port."""
    own: list[list[str]] = [["-m", str(models.target.path)]]
    draft = models.draft if uses_draft(arm, models) else None
    if draft is not None:
        own.append(["-md", str(draft.path)])
    own += [["--host", "127.0.0.1"], ["--port", "{port}"], *_slots(arm.concurrency, engine.context, flags)]
    own += [["-b", str(BATCH)], ["-ub", str(BATCH)], ["-t", str(engine.threads or default_threads())]]
    own += _device(engine.device, draft is not None, flags)
    own += _cache_types(arm, with_draft=draft is not None, flags=flags)
    for setting in (
        ["-fit", "off"],
        ["--cache-ram", "0"],
        ["--no-context-shift"],
        ["--metrics"],
        ["--slots"],
        ["--jinja"],
    ):
        if setting[0] in flags:
            own.append(setting)
    no_ui = flags.first("--no-ui", "--no-webui")
    if no_ui:
        own.append([no_ui])
    verbosity = flags.get("-lv")
    if verbosity and "4: trace" in verbosity.description:  # This level logs how speculation was initialised.
        own.append(["-lv", "4"])
    theirs = [*engine.args, *arm.args]
    replaced = {name for flag in map(flags.get, _flags_in(theirs)) if flag for name in flag.names}
    kept = [argument for setting in own if setting[0] not in replaced for argument in setting]
    return (str(binary), *kept, *speculation_args(arm.speculation, flags), *theirs)


def _slots(count: int, context: int, flags: Flags) -> list[list[str]]:
    """Return the settings for `count` slots of `context` tokens each, each with a KV cache of its own.

    llama-server divides `-c` among the slots, the draft's context too. A unified cache would let what one slot holds
    decide how much attention another computes over, and how much memory it has.
    """
    settings = [["-np", str(count)], ["-c", str(count * context)]]
    if count > 1:
        settings += [[flag] for flag in ("--no-kv-unified", "--cont-batching") if flag in flags]
    return settings


def slots_of(argv: Sequence[str]) -> int:
    """Return how many slots a command line of `command_line` requests."""
    return _own(argv, "-np", 1)


def with_one_slot(argv: Sequence[str]) -> tuple[str, ...]:
    """Return a command line of `command_line` for one slot of the same context: what is given last holds."""
    slots, context = slots_of(argv), _own(argv, "-c", 0)
    return tuple(argv) if slots == 1 else (*argv, "-np", "1", "-c", str(context // slots))


def _own(argv: Sequence[str], name: str, default: int) -> int:
    return int(next((value for argument, value in reversed([*itertools.pairwise(argv)]) if argument == name), default))


def _device(device: str, with_draft: bool, flags: Flags) -> list[list[str]]:
    if device == "auto":
        return []
    layers = "0" if device == "cpu" else _OFFLOAD_ALL
    settings = [["-ngl", layers]]
    if device == "cpu" and "--device" in flags:
        settings.append(["--device", "none"])
    if with_draft:
        settings.append(["-ngld", layers])
        draft_device = flags.first("--spec-draft-device", "--device-draft")
        if device == "cpu" and draft_device:
            settings.append([draft_device, "none"])
    return settings


def _cache_types(arm: Arm, *, with_draft: bool, flags: Flags) -> list[list[str]]:
    """Return the types of keys and values of both KV caches, where the recipe names them."""
    types = arm.cache_type
    if types is None:
        return []
    settings = [] if types.target is None else [["-ctk", types.target], ["-ctv", types.target]]
    if with_draft and types.draft is not None:
        for names in (("--spec-draft-type-k", "--cache-type-k-draft"), ("--spec-draft-type-v", "--cache-type-v-draft")):
            flag = flags.first(*names)
            settings += [[flag, types.draft]] if flag else []
    return settings


def _flags_in(args: Sequence[str]) -> list[str]:
    return [argument for argument in args if _IS_FLAG.match(argument)]


def argument_problems(args: Sequence[str], flags: Flags) -> list[str]:
    """Return a sentence for every argument of a recipe that the binary lacks or that benchctl sets itself."""
    problems = []
    if args and not _IS_FLAG.match(args[0]):
        problems.append(f"`{args[0]}` is not a flag; write each flag and its value as items of their own.")
    for argument in _flags_in(args):
        flag = flags.get(argument)
        if flag is None:
            near = difflib.get_close_matches(argument, flags.names(), n=1)
            hint = (
                " write its value as an item of its own."
                if "=" in argument
                else f" did you mean {near[0]}?"
                if near
                else ""
            )
            problems.append(
                f"This llama-server has no flag {argument};{hint}"
                if hint
                else f"This llama-server has no flag {argument}."
            )
        elif flag.removed:
            use = f"; use {flag.replacement}" if flag.replacement else ""
            recipe_key = next((f" (in a recipe: {_RESERVED[n]})" for n in flag.names if n in _RESERVED), "")
            problems.append(f"{argument} was removed from this llama-server{use}{recipe_key}.")
        else:
            instead = next((_RESERVED[name] for name in flag.names if name in _RESERVED), None)
            if instead is not None:
                problems.append(f"{argument} may not be among a recipe's arguments; use {instead}.")
            elif flag.names[-1].endswith(("-default", "-spec")):
                problems.append(f"{argument} chooses its own models and settings; write them in the recipe.")
    return problems


def batch_problem(args: Sequence[str], slots: int, deepest: int, flags: Flags) -> str | None:
    """Return why a round of `deepest` draft tokens in every slot does not fit the batch: llama-server would abort."""
    size = BATCH
    for argument, value in itertools.pairwise(args):
        flag = flags.get(argument) if _IS_FLAG.match(argument) else None
        if flag is not None and "--batch-size" in flag.names and value.isdigit():
            size = int(value)
    needed = slots * (1 + deepest)
    if size >= needed:
        return None
    each = f" in each of {slots} slots" if slots > 1 else ""
    return f"A round of {deepest} draft tokens{each} needs a batch of {needed}, and -b is {size}."
