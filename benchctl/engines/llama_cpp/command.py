"""The command line of a cell: benchctl's own flags, the arm's speculation (`spec_flags`), the recipe's arguments.

Everything that decides speed or numerics is written out, so that two arms differ in nothing but what the recipe says
and the manifest shows all of it.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from benchctl.engines.common.programs import reserved
from benchctl.engines.llama_cpp.adapter import LlamaCppSpec
from benchctl.engines.llama_cpp.probe import Flags
from benchctl.engines.llama_cpp.spec_flags import SET_BY_KEYS, speculation_args
from benchctl.models.files import ResolvedPair
from benchctl.recipes.options import IS_OPTION
from benchctl.recipes.problems import did_you_mean
from benchctl.recipes.schema import Arm
from benchctl.recipes.speculation import copies, takes_draft

BATCH = 512
"""Logical and physical batch size of every arm: other shapes round differently, and give other text."""

_NEAR = 0.85
"""How alike a flag is to one that the binary lacks before it is proposed: `--no-mmap` is no `--no-mmproj`."""
_OFFLOAD_ALL = "999"
DEVICES: dict[str, tuple[str, ...]] = {
    **{"cuda": ("CUDA",), "metal": ("Metal", "MTL"), "vulkan": ("Vulkan",)},
    **{"rocm": ("ROCm",), "sycl": ("SYCL",), "rpc": ("RPC",)},
}
"""How the names begin of what `--list-devices`, and the log, call a device of a recipe: `Vulkan0`, `MTL0`."""

RESERVED = SET_BY_KEYS | reserved(
    {
        "models.target": "--model --model-url --docker-repo --hf-repo --hf-file",
        "engine.context": "--ctx-size",
        "engine.threads": "--threads",
        "concurrency (a slot for every request in flight)": "--parallel --sleep-idle-seconds",
        "nothing (benchctl talks to its own server on loopback)": "--host --port --reuse-port --api-prefix --api-key "
        "--api-key-file --ssl-key-file --ssl-cert-file",
        "engine.prefix_caching": "--cache-ram",
        "nothing (benchctl sets it for its measurement)": "--slots --metrics",
        "nothing (benchctl keeps the log and reads it)": "--log-disable --log-file --log-jsonl --log-colors",
        "nothing (no text would be generated)": "--embedding --rerank --models-dir --models-preset",
        "nothing": "--help --version --cache-list --completion-bash --list-devices",
    }
)
"""Flags that benchctl itself relies on, and the recipe's key for each."""


def default_threads() -> int:
    """Return how many threads an engine gets: the physical cores, as far as this process may use them."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(allowed, psutil.cpu_count(logical=False) or allowed))


def uses_draft(arm: Arm, models: ResolvedPair) -> bool:
    """Whether the arm is given the draft model: its type needs it, or may, as an MTP head of its own or a type that
    benchctl does not know and that is not called a look-up."""
    if arm.speculation is None or models.draft is None:
        return False
    return takes_draft(name for name in arm.speculation.types if not copies(name))


def command_line(
    binary: Path,
    flags: Flags,
    engine: LlamaCppSpec,
    arm: Arm,
    models: ResolvedPair,
    devices: Sequence[str] = (),
    *,
    in_use: bool = False,
) -> tuple[str, ...]:
    """Return the whole command of a cell; `{port}` stands for the port. `devices`: those that the binary lists.

    `in_use`: slots (of one request at a time), batches and caches are llama-server's own defaults.
    """
    settings_first: list[list[str]] = [["-m", str(models.target.path)]]
    draft = models.draft if uses_draft(arm, models) else None
    if draft is not None:
        settings_first.append(["-md", str(draft.path)])
    settings_first += [["--host", "127.0.0.1"], ["--port", "{port}"]]
    if in_use and arm.concurrency == 1:
        settings_first.append(["-c", str(engine.context)])
    else:
        settings_first += _slots(arm.concurrency, engine.context, flags)
    if not in_use:
        settings_first += [["-b", str(BATCH)], ["-ub", str(BATCH)]]
    settings_first.append(["-t", str(engine.threads or default_threads())])
    settings_first += _device(engine.device, draft is not None, flags, devices)
    settings_first += _cache_types(arm, with_draft=draft is not None, flags=flags)
    host_cache = [] if engine.prefix_caching else ["--cache-ram 0"]
    measuring = [] if in_use else ["-fit off", *host_cache, "--no-context-shift"]
    always = [*measuring, "--metrics", "--slots", "--jinja"]
    settings = [setting.split() for setting in [*always, flags.first("--no-ui", "--no-webui") or "--no-ui"]]
    settings_first += [setting for setting in settings if setting[0] in flags]
    verbosity = flags.get("-lv")
    if verbosity and "4: trace" in verbosity.description:  # This level logs how speculation was initialised.
        settings_first.append(["-lv", "4"])
    theirs = [*engine.args, *arm.args]
    replaced = {name for flag in map(flags.get, _flags_in(theirs)) if flag for name in flag.names}
    arguments = [argument for setting in settings_first if setting[0] not in replaced for argument in setting]
    return (str(binary), *arguments, *speculation_args(arm.speculation, flags), *theirs)


def _slots(count: int, context: int, flags: Flags) -> list[list[str]]:
    """Return the settings for `count` slots of `context` tokens each, each with a KV cache of its own.

    llama-server divides `-c` among the slots, the draft's context too. A unified cache would let what a slot holds
    decide how much attention another computes over, and how much memory it has.
    """
    settings = [["-np", str(count)], ["-c", str(count * context)]]
    if count > 1:
        settings += [[flag] for flag in ("--no-kv-unified", "--cont-batching") if flag in flags]
    return settings


def slots_of(argv: Sequence[str]) -> int:
    """Return how many slots a command line of `command_line` requests."""
    return int(value_of(argv, ("-np",)) or 1)


def with_one_slot(argv: Sequence[str]) -> tuple[str, ...]:
    """Return a command line of `command_line` for a single slot of the same context: what is given last holds."""
    slots, context = slots_of(argv), int(value_of(argv, ("-c",)) or 0)
    return tuple(argv) if slots == 1 else (*argv, "-np", "1", "-c", str(context // slots))


def value_of(argv: Sequence[str], names: Sequence[str]) -> str | None:
    """Return the value that a command line gives an option last, under any of its names."""
    return next((value for word, value in reversed([*itertools.pairwise(argv)]) if word in names), None)


def devices_of(device: str, listed: Sequence[str]) -> list[str]:
    """Return the names of the listed devices that a recipe's `device` stands for."""
    names = (entry.partition(":")[0] for entry in listed)
    return [name for name in names if name.startswith(DEVICES.get(device, ("?",)))]


def _device(device: str, with_draft: bool, flags: Flags, listed: Sequence[str]) -> list[list[str]]:
    if device == "auto":
        return []
    layers = "0" if device == "cpu" else _OFFLOAD_ALL
    named = devices_of(device, listed)
    where = "none" if device == "cpu" else ",".join(named) if 0 < len(named) < len(listed) else None
    settings = [["-ngl", layers]]
    if where is not None and "--device" in flags:
        settings.append(["--device", where])
    if with_draft:
        settings.append(["-ngld", layers])
        draft_device = flags.first("--spec-draft-device", "--device-draft")
        if where is not None and draft_device:
            settings.append([draft_device, where])
    return settings


def _cache_types(arm: Arm, *, with_draft: bool, flags: Flags) -> list[list[str]]:
    """Return the types of keys and values of both KV caches, where the recipe names them."""
    types = arm.cache_type
    if types is None:
        return []
    settings = [] if types.target is None else [["-ctk", types.target], ["-ctv", types.target]]
    if with_draft and types.draft is not None:
        names = [flags.first(f"--spec-draft-type-{part}", f"--cache-type-{part}-draft") for part in "kv"]
        settings += [[name, types.draft] for name in names if name]
    return settings


def _flags_in(args: Sequence[str]) -> list[str]:
    return [argument for argument in args if IS_OPTION.match(argument)]


def argument_problems(args: Sequence[str], flags: Flags) -> list[str]:
    """Return a sentence for every argument of a recipe that the binary lacks or that benchctl sets itself."""
    problems = []
    if args and not IS_OPTION.match(args[0]):
        problems.append(f"`{args[0]}` is not a flag; write each flag and its value as items of their own.")
    for index, argument in enumerate(args):
        if not IS_OPTION.match(argument):
            continue
        flag = flags.get(argument)
        if flag is None:
            near = did_you_mean(argument, flags.names(), _NEAR) if argument.startswith("--") else ""
            hint = " Write its value as an item of its own." if "=" in argument else near
            problems.append(f"This llama-server has no flag {argument}.{hint}")
            continue
        instead = next((RESERVED[name] for name in flag.names if name in RESERVED), None)
        if flag.removed:
            use = f"; use {flag.replacement}" if flag.replacement else ""
            key = f" (in a recipe: {instead})" if instead else ""
            problems.append(f"{argument} was removed from this llama-server{use}{key}.")
        elif instead is not None:
            problems.append(f"{argument} may not be among a recipe's arguments; use {instead}.")
        elif flag.names[-1].endswith(("-default", "-spec")):
            problems.append(f"{argument} chooses its own models and settings; write them in the recipe.")
        elif flag.metavar and flags.dialect != "ik" and (args[index + 1 : index + 2] or ["-m"])[0] in flags:
            problems.append(f"{argument} lacks its value, {flag.metavar}; write it as the next item.")
    return problems


def batch_problems(args: Sequence[str], slots: int, deepest: int, flags: Flags) -> Iterator[str]:
    """Yield why a round of `deepest` draft tokens in every slot does not fit the batch: llama-server would abort."""
    size = BATCH
    for argument, value in itertools.pairwise(args):
        flag = flags.get(argument) if IS_OPTION.match(argument) else None
        if flag is not None and "--batch-size" in flag.names and value.isdigit():
            size = int(value)
    if size < (needed := slots * (1 + deepest)):
        per_slot = f" in each of {slots} slots" if slots > 1 else ""
        yield f"A round of {deepest} draft tokens{per_slot} needs a batch of {needed}, and -b is {size}."
