"""Translates a recipe's speculation to the flags of the binary, and back. `max`, `min` and the other keys mean the same
in every recipe; the flag that carries them depends on the type and on the binary's dialect.

What limits a draft's length was read in llama.cpp's `common/speculative.cpp`: for the n-gram look-ups it is the size of
the copied m-gram, and `ngram-cache` always drafts up to 8.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest

from benchctl.engines.llama_cpp.probe import MTP_SWITCH, Flags, normalise
from benchctl.recipes.problems import did_you_mean
from benchctl.recipes.speculation import COPIES, SPECULATION_TYPES, TAKEN_BY, OptionValue, Speculation

KEYS = ("max", "min", "p_min", "size_n", "size_m", "min_hits")

FLAG_TABLE = """
draft      max       --spec-draft-n-max        --draft-max
draft      min       --spec-draft-n-min        --draft-min
draft      p_min     --spec-draft-p-min        --draft-p-min
copy       max       --spec-{}-size-m          --spec-ngram-size-m,--draft-max
copy       size_m    --spec-{}-size-m          --spec-ngram-size-m,--draft-max
copy       size_n    --spec-{}-size-n          --spec-ngram-size-n
copy       min_hits  --spec-{}-min-hits        --spec-ngram-min-hits
ngram-mod  max       --spec-ngram-mod-n-max    --draft-max
ngram-mod  min       --spec-ngram-mod-n-min    --draft-min
ngram-mod  size_n    --spec-ngram-mod-n-match  --spec-ngram-size-n
"""
"""The flags that carry a key of a kind of types, of newer builds first: those are used that the binary at hand has,
wholly. Builds of early 2026, and ik_llama.cpp, cut every look-up at --draft-max, too (`get_n_draft_max` in
server-context)."""


def _spellings(type_name: str) -> dict[str, list[list[str]]]:
    """Return by key the flags of a type; one that benchctl does not know takes a draft's keys where its name says so:
    its log tells what it took."""
    kind = "copy" if type_name in COPIES else "draft" if type_name.startswith("draft-") else type_name
    rows = [row.split() for row in FLAG_TABLE.strip().splitlines()]
    return {key: [cell.format(type_name).split(",") for cell in cells] for word, key, *cells in rows if word == kind}


_TYPE_SETTINGS = {"max": "n_max", "p_min": "p_min"}
"""The names of keys in a build that takes settings with the type: `mtp:n_max=3,p_min=0.0`."""
_MINIMUMS = frozenset({"--spec-draft-n-min", "--draft-min", "--spec-draft-p-min", "--draft-p-min"})
_SETTING = re.compile(r"\w{1,64}=[\w.+-]{1,64}")
_CACHE_DEPTH = 8
_OWN_PREFIXES = ("spec-", "draft-")


_NAMES = [name for word in FLAG_TABLE.split() if word.startswith("--") for name in word.split(",")]
_KEY_FLAGS = {name.format(kind) for name in _NAMES for kind in COPIES}
SET_BY_KEYS = {
    **dict.fromkeys(("--spec-draft-model", "--model-draft", "--spec-draft-hf", "--hf-repo-draft"), "models.draft"),
    **dict.fromkeys(sorted({"--spec-type", "--spec-default", MTP_SWITCH} | _KEY_FLAGS), "arms[].speculation"),
}
"""Flags of speculation, and the recipe's key that sets each."""


def _flags_of(type_name: str, key: str, flags: Flags) -> list[str]:
    """Return the flags of this binary that carry a key for a type; empty where it has no effect."""
    spellings = _spellings(type_name).get(key, [])
    return next((names for names in spellings if all(name in flags for name in names)), [])


def _takes(type_name: str, key: str, flags: Flags) -> bool:
    if flags.types_take_keys:
        return key == "max" or (key in _TYPE_SETTINGS and type_name in TAKEN_BY[key])
    return bool(_flags_of(type_name, key, flags))


def _keys_set(speculation: Speculation) -> dict[str, int | float]:
    values = {key: getattr(speculation, key) for key in KEYS}
    return {key: value for key, value in values.items() if value is not None}


def _written(value: OptionValue) -> str:
    if isinstance(value, list):
        return ",".join(_written(entry) for entry in value)
    return f"{value:g}" if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else str(value)


def speculation_problems(speculation: Speculation, flags: Flags) -> list[str]:
    """Return a sentence for everything in `speculation` that the binary cannot do."""
    types = flags.speculation_names()
    problems = []
    for name in speculation.types:
        if name in types:
            continue
        if list(types) == ["draft-simple"] and flags.dialect == "legacy":
            reason = "it is of the older dialect (--draft-max), which has draft models only; build a newer llama.cpp."
        else:
            reason = f"it knows {', '.join(types) or 'no speculation'}.{did_you_mean(name, types)}"
        problems.append(f"This llama-server has no speculation type `{name}`: {reason}")
    if problems:
        return problems
    if len(speculation.types) > 1 and not flags.takes_several_types:
        problems.append(f"This llama-server takes one type at a time, not {' and '.join(speculation.types)}.")
    for key in _keys_set(speculation):
        if not any(_takes(name, key, flags) for name in speculation.types):
            usable = sorted({word for name in speculation.types for word in KEYS if _takes(name, word, flags)})
            problems.append(
                f"`{key}` has no effect on {', '.join(speculation.types)} in this llama-server; "
                + (f"it takes {', '.join(usable)}." if usable else "it takes no keys.")
            )
    problems += _option_problems(speculation, flags)
    if speculation.max is not None and speculation.min is not None and speculation.min > speculation.max:
        problems.append(f"`min` ({speculation.min}) is above `max` ({speculation.max}), so nothing could be drafted.")
    lookups = [name for name in speculation.types if name in COPIES]
    if lookups and None not in (speculation.max, speculation.size_m) and speculation.max != speculation.size_m:
        problems.append(f"For {', '.join(lookups)} `max` and `size_m` are the same thing; give one of them.")
    return problems


def _option_problems(speculation: Speculation, flags: Flags) -> Iterator[str]:
    """Yield what of `options` is no setting of speculation of this binary, or what a key of the recipe sets."""
    options = speculation.options or {}
    yield from (f"options.{key}: leave out what is not to be set." for key, value in options.items() if value is False)
    if flags.types_take_keys:
        recipe_keys = {setting_names: key for key, setting_names in _TYPE_SETTINGS.items()}
        type_settings = _type_settings(options, flags)
        for key, value in type_settings.items():
            if key in recipe_keys:
                yield f"options.{key}: use instead `{recipe_keys[key]}`."
            elif not _SETTING.fullmatch(f"{key}={_written(value)}"):
                yield f"options.{key}: expected a word or number without commas, colons and spaces."
        options = {key: value for key, value in options.items() if key not in type_settings}
    setting_names = [name for name in flags.names() if name.lstrip("-").startswith(_OWN_PREFIXES)]
    # Of a type that benchctl does not know a recipe's key is `max` alone.
    known_types = all(name in SPECULATION_TYPES for name in speculation.types)
    for key in options:
        name = normalise(f"--{key}")
        flag = flags.get(name)
        if flag is None or flag.removed or name not in setting_names:
            near = did_you_mean(name.lstrip("-"), [option.lstrip("-") for option in setting_names])
            yield f"options.{key}: this llama-server has no such setting of speculation.{near}"
        elif not known_types and _MINIMUMS.intersection(flag.names):
            continue
        elif instead := next((SET_BY_KEYS[word] for word in flag.names if word in SET_BY_KEYS), None):
            yield f"options.{key}: a key of the recipe sets it; use {instead}."


def _type_settings(options: Mapping[str, OptionValue], flags: Flags) -> dict[str, OptionValue]:
    """Return the options that stand with the type, on builds that take them there: those that are no flags."""
    if not flags.types_take_keys:
        return {}
    return {key: value for key, value in options.items() if normalise(f"--{key}") not in flags}


_HEADS = {"eagle3": "draft-eagle3", "dflash": "draft-dflash", "dspark": "draft-dspark"}
"""Architectures of drafts that were made for a single target, and the type that each is for."""
_DRAFT_TRIALS: tuple[dict[str, int | float], ...] = (
    {"max": 4},
    {"max": 2},
    {"max": 8, "p_min": 0.75},
    {"max": 16, "p_min": 0.9},
    {"max": 8},
    {"max": 4, "min": 2, "p_min": 0.75},
    {"max": 1},
    {"max": 16},
)
_LOOKUP_TRIALS: tuple[dict[str, object], ...] = (
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
    drafts = [*heads, *({"type": kind, **values} for values in _DRAFT_TRIALS if draft is not None)]
    turns = chain.from_iterable(zip_longest(drafts, _LOOKUP_TRIALS))
    settings = [Speculation.model_validate(setting) for setting in turns if setting is not None]
    return [setting for setting in settings if not speculation_problems(setting, flags)]


def speculation_warnings(speculation: Speculation | None, flags: Flags) -> Iterator[str]:
    """Yield what the binary accepts although it has another effect than expected."""
    if speculation is not None and flags.dialect == "ik":
        yield (
            "ik_llama.cpp ends answers up to a draft short of max_tokens when it speculates, so that answers which "
            "reach the limit are not the baseline's."
        )
    if speculation is None or "ngram-simple" not in speculation.types:
        return
    if speculation.min_hits is not None and speculation.types == ("ngram-simple",):
        yield "llama-server reads `min_hits` for ngram-simple, but its search does not use it."
    defaults = [flag.default for name in _flags_of("ngram-simple", "size_n", flags) if (flag := flags.get(name))]
    size_n, size_m = speculation.size_n or next(iter(defaults), None) or 0, speculation.size_m or speculation.max
    if size_m is not None and size_m < size_n:
        yield (
            f"ngram-simple throws away drafts shorter than its key: with {size_m} draft tokens and a key of {size_n} "
            f"(size_n) it never drafts. Set size_n to at most {size_m}."
        )


def deepest_draft(speculation: Speculation, flags: Flags) -> int:
    """Return the most draft tokens that a round can verify, from the recipe or the binary's own defaults."""
    deepest = 0
    for name in speculation.types:
        requested = speculation.size_m if speculation.size_m and name in COPIES else speculation.max
        limits = _flags_of(name, "max", flags)
        if requested is not None and (limits or flags.types_take_keys):
            deepest = max(deepest, requested)
        else:
            defaults = [flag.default for limit in limits if (flag := flags.get(limit)) and flag.default]
            deepest = max(deepest, min(defaults, default=_CACHE_DEPTH))
    return deepest


def speculation_args(speculation: Speculation | None, flags: Flags) -> list[str]:
    """Return the flags that set speculation as requested, or turn it off where the binary has a flag for that."""
    names = flags.speculation_names()
    if speculation is None:
        return ["--spec-type", "none"] if "--spec-type" in flags else []
    type_words = [names[name] for name in speculation.types if names[name]]
    values, options = _keys_set(speculation), speculation.options or {}
    type_settings = _type_settings(options, flags) if type_words else {}
    if flags.types_take_keys and type_words:
        settings = {_TYPE_SETTINGS[key]: value for key, value in values.items()} | type_settings
        joined = ",".join(f"{key}={_written(value)}" for key, value in settings.items())
        type_words, values = [f"{type_words[0]}:{joined}" if joined else type_words[0]], {}
    args = ["--spec-type", ",".join(type_words)] if type_words else []
    if "draft-mtp" in speculation.types and not names["draft-mtp"]:
        args.append(MTP_SWITCH)
    if "ngram-mod" in speculation.types and "max" in values and "min" not in values:
        values["min"] = min(int(values["max"]), 48)  # Its own minimum is 48, which a smaller maximum contradicts.
    flags_set: set[str] = set()
    for name in speculation.types:
        for key, value in values.items():
            for flag in _flags_of(name, key, flags):
                if flag not in flags_set:
                    flags_set.add(flag)
                    args += [flag, _written(value)]
    for key, setting in options.items():
        if key not in type_settings:
            args += [normalise(f"--{key}")] if setting is True else [normalise(f"--{key}"), _written(setting)]
    return args


@dataclass(frozen=True)
class RequestedSpeculation:
    """The speculation that a command line requests."""

    types: tuple[str, ...]
    """The types, by benchctl's names; empty for the target alone."""
    may_hold_back: bool
    """Whether a minimum length or probability can keep a working drafter from ever drafting."""


def requested_of(argv: Sequence[str], flags: Flags) -> RequestedSpeculation:
    """Read the requested speculation from a command line, so that the check uses what really ran."""
    names = {engine_name: key for key, engine_name in flags.speculation_names().items()}
    settings = dict(zip(argv, [*argv[1:], ""], strict=True))
    kind, _, type_settings = settings.get("--spec-type", "").partition(":")
    if "--spec-type" in settings:
        types = tuple(names.get(name, name) for name in kind.split(",") if name != "none")
    elif MTP_SWITCH in argv:
        types = ("draft-mtp",)
    else:
        types = ("draft-simple",) if any(flag in settings for flag in ("-md", "--model-draft")) else ()
    may_hold_back = any(float(settings[flag]) > 0 for flag in _MINIMUMS if flag in settings)
    if flags.types_take_keys:
        may_hold_back = "p_min=0" not in type_settings.replace(".0", "").split(",")
    elif flags.dialect != "current" and "--draft-p-min" not in settings:
        may_hold_back = True  # Its default is not 0, as today, but as high as 0.9.
    return RequestedSpeculation(types, may_hold_back)
