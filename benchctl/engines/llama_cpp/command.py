"""The command line of a cell: benchctl's own flags, the arm's speculation, then the recipe's arguments.

Everything that decides speed or numerics is written out, so that two arms differ in nothing but what the recipe says
and the manifest shows all of it. `max`, `min`, … mean the same in every recipe; which flag carries them depends on the
type, and on the binary's dialect. What limits a draft's length was read in llama.cpp's `common/speculative.cpp`: for
the n-gram look-ups it is the size of the copied m-gram, and `ngram-cache` always drafts up to 8.
"""

from __future__ import annotations

import difflib
import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path

import psutil

from benchctl.engines.llama_cpp.adapter import LlamaCppSpec
from benchctl.engines.llama_cpp.probe import Flags
from benchctl.models.resolved import ResolvedPair
from benchctl.recipes.flags import IS_OPTION
from benchctl.recipes.schema import Arm
from benchctl.recipes.speculation import NEEDS_DRAFT_MODEL, Speculation

KEYS = ("max", "min", "p_min", "size_n", "size_m", "min_hits")

_DRAFT = {"max": "--spec-draft-n-max", "min": "--spec-draft-n-min", "p_min": "--spec-draft-p-min"}
_LEGACY_DRAFT = {"max": "--draft-max", "min": "--draft-min", "p_min": "--draft-p-min"}


def _lookup(name: str) -> dict[str, str]:
    size_m = f"--spec-{name}-size-m"
    return {"max": size_m, "size_m": size_m, "size_n": f"--spec-{name}-size-n", "min_hits": f"--spec-{name}-min-hits"}


_CURRENT: dict[str, dict[str, str]] = {
    **dict.fromkeys(("draft-simple", "draft-eagle3", "draft-mtp", "draft-dflash", "draft-dspark"), _DRAFT),
    **{name: _lookup(name) for name in ("ngram-simple", "ngram-map-k", "ngram-map-k4v")},
    "ngram-mod": {
        "max": "--spec-ngram-mod-n-max",
        "min": "--spec-ngram-mod-n-min",
        "size_n": "--spec-ngram-mod-n-match",
    },
    "ngram-cache": {},
}
_CACHE_DEPTH = 8


def speculation_flags() -> frozenset[str]:
    """Return every flag that the recipe's keys control, of both dialects."""
    tables = (*_CURRENT.values(), _LEGACY_DRAFT)
    return frozenset({"--spec-type", "--spec-default"}.union(*(table.values() for table in tables)))


def _flag_of(type_name: str, key: str, flags: Flags) -> str | None:
    table = _CURRENT[type_name] if flags.dialect == "current" else _LEGACY_DRAFT
    return flags.first(table[key]) if key in table else None


def _given(speculation: Speculation) -> dict[str, int | float]:
    values = {key: getattr(speculation, key) for key in KEYS}
    return {key: value for key, value in values.items() if value is not None}


def speculation_problems(speculation: Speculation, flags: Flags) -> list[str]:
    """Return a sentence for everything in `speculation` that the binary cannot do."""
    known = flags.speculation_names()
    problems = []
    for name in speculation.types:
        if name in known:
            continue
        if flags.dialect == "legacy":
            why = "it is of the older dialect (--draft-max), which has draft models only; build a newer llama.cpp"
        else:
            why = f"it knows {', '.join(known) or 'no speculation'}"
        problems.append(f"This llama-server has no speculation type `{name}`: {why}.")
    if problems:
        return problems
    for key in _given(speculation):
        if all(_flag_of(name, key, flags) is None for name in speculation.types):
            usable = sorted({w for name in speculation.types for w in KEYS if _flag_of(name, w, flags)})
            problems.append(
                f"`{key}` has no effect on {', '.join(speculation.types)} in this llama-server; "
                + (f"it takes {', '.join(usable)}." if usable else "it takes no keys.")
            )
    if speculation.max is not None and speculation.min is not None and speculation.min > speculation.max:
        problems.append(f"`min` ({speculation.min}) is above `max` ({speculation.max}), so nothing could be drafted.")
    lookups = [name for name in speculation.types if _CURRENT[name].get("size_m")]
    if lookups and None not in (speculation.max, speculation.size_m) and speculation.max != speculation.size_m:
        problems.append(f"For {', '.join(lookups)} `max` and `size_m` are the same thing; give one of them.")
    return problems


_HEADS = {"eagle3": "draft-eagle3", "dflash": "draft-dflash", "dspark": "draft-dspark"}
"""Architectures of drafts that were made for a single target, and the type that each is for."""
_OF_DRAFT: tuple[dict[str, int | float], ...] = (
    {"max": 4},
    {"max": 2},
    {"max": 8, "p_min": 0.75},
    {"max": 16, "p_min": 0.9},
    {"max": 8},
    {"max": 4, "min": 2, "p_min": 0.75},
    {"max": 1},
    {"max": 16},
)
_LOOKED_UP: tuple[dict[str, object], ...] = (
    {"type": "ngram-mod"},
    {"type": "ngram-simple"},
    {"type": "ngram-map-k", "size_n": 8, "size_m": 16},
    {"type": "ngram-simple", "size_n": 6, "size_m": 12},
    {"type": "ngram-mod", "size_n": 12, "max": 32, "min": 4},
    {"type": "ngram-map-k4v"},
    {"type": "ngram-cache"},
)


def worth_trying(draft: str | None, mtp_layers: int, flags: Flags) -> list[Speculation]:
    """Return the settings that this binary has, a draft's and a look-up's in turn, the likeliest to pay first.

    `draft`: the architecture of the draft model, `None` without. `mtp_layers`: heads inside the target.
    """
    heads = [{"type": "draft-mtp", "max": depth} for depth in (1, 2, 3)] if mtp_layers else []
    kind = _HEADS.get(draft or "", "draft-simple")
    drafts = [*heads, *({"type": kind, **values} for values in _OF_DRAFT if draft is not None)]
    turns = chain.from_iterable(zip_longest(drafts, _LOOKED_UP))
    settings = [Speculation.model_validate(setting) for setting in turns if setting is not None]
    return [setting for setting in settings if not speculation_problems(setting, flags)]


def speculation_warnings(speculation: Speculation, flags: Flags) -> list[str]:
    """Return what the binary accepts although it has another effect than expected."""
    warnings = []
    if "ngram-simple" in speculation.types:
        if speculation.min_hits is not None and speculation.types == ("ngram-simple",):
            warnings.append("llama-server reads `min_hits` for ngram-simple, but its search does not use it.")
        defaults = {key: flags.get(flag) for key, flag in _CURRENT["ngram-simple"].items()}
        size_n = speculation.size_n or (defaults["size_n"].default if defaults["size_n"] else None) or 0
        size_m = speculation.size_m or speculation.max
        if size_m is not None and size_m < size_n:
            warnings.append(
                f"ngram-simple throws away drafts shorter than its key: with {size_m} draft tokens and a key of "
                f"{size_n} (size_n) it never drafts. Set size_n to at most {size_m}."
            )
    return warnings


def deepest_draft(speculation: Speculation, flags: Flags) -> int:
    """Return the most draft tokens that a round can verify, from the recipe or the binary's own defaults."""
    deepest = 0
    for name in speculation.types:
        flag = flags.get(_flag_of(name, "max", flags) or "")
        requested = speculation.size_m if speculation.size_m and "size_m" in _CURRENT[name] else speculation.max
        default = (flag.default if flag else None) or _CACHE_DEPTH
        deepest = max(deepest, requested if requested is not None and flag else default)
    return deepest


def speculation_args(speculation: Speculation | None, flags: Flags) -> list[str]:
    """Return the flags that set speculation as requested, or turn it off where the binary has a flag for that."""
    names = flags.speculation_names()
    if speculation is None:
        return ["--spec-type", "none"] if "--spec-type" in flags else []
    own = [names[name] for name in speculation.types if names[name]]
    args = ["--spec-type", ",".join(own)] if own else []
    given = _given(speculation)
    if "ngram-mod" in speculation.types and "max" in given and "min" not in given:
        given["min"] = min(int(given["max"]), 48)  # Its own minimum is 48, which a smaller maximum contradicts.
    seen: set[str] = set()
    for name in speculation.types:
        for key, value in given.items():
            flag = _flag_of(name, key, flags)
            if flag is not None and flag not in seen:
                seen.add(flag)
                args += [flag, f"{value:g}" if isinstance(value, float) else str(value)]
    return args


@dataclass(frozen=True)
class RequestedSpeculation:
    """The speculation that a command line requests."""

    types: tuple[str, ...]
    """By benchctl's names; empty for the target alone."""
    may_hold_back: bool
    """Whether a minimum length or probability can keep a working drafter from ever drafting."""


def requested_of(argv: Sequence[str], flags: Flags) -> RequestedSpeculation:
    """Read the requested speculation from a command line, so that the check uses what really ran."""
    names = {own: key for key, own in flags.speculation_names().items()}
    settings = dict(zip(argv, [*argv[1:], ""], strict=True))
    if "--spec-type" in settings:
        own = [name for name in settings["--spec-type"].split(",") if name != "none"]
        types = tuple(names.get(name, name) for name in own)
    else:
        types = ("draft-simple",) if any(flag in settings for flag in ("-md", "--model-draft")) else ()
    minimums = {table[key] for table in (_DRAFT, _LEGACY_DRAFT) for key in ("min", "p_min")}
    may_hold_back = any(float(settings[flag]) > 0 for flag in minimums if flag in settings)
    if flags.dialect == "legacy" and "--draft-p-min" not in settings:
        may_hold_back = True  # Its default is not 0, as today, but as high as 0.9.
    return RequestedSpeculation(types, may_hold_back)


BATCH = 512
"""Logical and physical batch size of every arm: other shapes round differently, and give other text."""

_OFFLOAD_ALL = "999"

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
    """Whether the arm is given the draft model: its type needs it, or it is an MTP head of its own."""
    if arm.speculation is None or models.draft is None:
        return False
    return any(name in NEEDS_DRAFT_MODEL or name == "draft-mtp" for name in arm.speculation.types)


def command_line(binary: Path, flags: Flags, engine: LlamaCppSpec, arm: Arm, models: ResolvedPair) -> tuple[str, ...]:
    """Return the whole command of a cell; `{port}` stands for the port."""
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

    llama-server divides `-c` among the slots, the draft's context too. A unified cache would let what a slot holds
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
    """Return a command line of `command_line` for a single slot of the same context: what is given last holds."""
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
    return [argument for argument in args if IS_OPTION.match(argument)]


def argument_problems(args: Sequence[str], flags: Flags) -> list[str]:
    """Return a sentence for every argument of a recipe that the binary lacks or that benchctl sets itself."""
    problems = []
    if args and not IS_OPTION.match(args[0]):
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
        flag = flags.get(argument) if IS_OPTION.match(argument) else None
        if flag is not None and "--batch-size" in flag.names and value.isdigit():
            size = int(value)
    needed = slots * (1 + deepest)
    if size >= needed:
        return None
    each = f" in each of {slots} slots" if slots > 1 else ""
    return f"A round of {deepest} draft tokens{each} needs a batch of {needed}, and -b is {size}."
