"""A recipe made of a command line's options: new, to be run or edited, or a run's with other arms or settings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchctl.errors import UsageError
from benchctl.recipes.adapters import adapter_of, kinds, registered
from benchctl.recipes.document import dump_document, plain_value, read_value
from benchctl.recipes.engine_line import EngineLine
from benchctl.recipes.load import EXPANDED, absolute, recipe_of_options
from benchctl.recipes.matrix import expand, replaced
from benchctl.recipes.problems import did_you_mean, quoted
from benchctl.recipes.schema import MAX_ARM_NAME, MAX_NAME, Arm, Recipe
from benchctl.recipes.speculation import NEEDS_DRAFT_MODEL, SPECULATION_TYPES, TAKEN_BY, takes_draft

DEPTHS = (2, 4, 8)
"""Draft depths where none are named."""
DRAFT_TYPE, LOOKUP_TYPE = "draft-simple", "ngram-mod"
"""The types where none is named: with a draft model, and without."""
TASKS_LIMIT = 3
"""Prompts of each task of the default suite."""
MAX_TOKENS = 48
"""The longest answer. With `TASKS_LIMIT`, three blocks of a target of 15 tokens a second take a quarter of an hour."""
Sweeps = Mapping[str, Sequence[int | float | str]]
_UNSAFE = re.compile(r"[^A-Za-z0-9_.+-]+")


@dataclass(frozen=True)
class RecipeOptions:
    """The options of a command line that name a recipe, a run to measure again, or models and what is tried on them."""

    subject: Sequence[str] | None = None
    target: str | None = None
    draft: str | None = None
    engine: str | None = None
    types: Sequence[str] | None = None
    depth: str | None = None
    sweep: Sequence[str] | None = None
    prompts: str | None = None
    limit: int | None = None
    settings: Sequence[str] | None = None
    skip_bad: bool = False

    @property
    def overrides(self) -> dict[str, Any]:
        """The values of `--set`, by dotted key of the recipe. Raises UsageError."""
        return parse_settings(self.settings or [])

    @property
    def sweeps(self) -> dict[str, list[int | float | str]]:
        """The values of `--depth` and `-L`, by key of `speculation`. Raises UsageError."""
        return parse_sweep([*([f"depth={self.depth}"] if self.depth else []), *(self.sweep or [])])

    def types_for(self, draft: object) -> list[str]:
        """Return the types of speculation that are named, else the usual one with or without a draft model."""
        return list(self.types or [LOOKUP_TYPE if draft is None else DRAFT_TYPE])


NO_OPTIONS = RecipeOptions()


def recipe_from_options(options: RecipeOptions, target: str, draft: str | None, folder: Path | None) -> dict[str, Any]:
    """Return the plain data of a recipe. Raises UsageError for what cannot be a recipe.

    A type takes those swept values that have a meaning for it. `folder`: what relative paths start from; `None`: they
    stay as they are.
    """
    kind = options.engine or kinds()[0]
    _check_name(kind, kinds(), "engine")
    types = options.types_for(draft)
    needy = [word for word in types if word in NEEDS_DRAFT_MODEL]
    if needy and draft is None:
        raise UsageError(f"{needy[0]} needs a draft model.", fix="Name it: --draft DRAFT")
    measured: dict[str, Any] = {"engine": {"kind": kind}}
    if registered().adapters[kind].model_format != "served" or target.startswith("served:"):
        named = {"target": target} if draft is None else {"target": target, "draft": draft}
        measured["models"] = {role: {"source": absolute(name, folder)} for role, name in named.items()}
    arms = [arm_of_type(word, options.sweeps) for word in types]
    suite = "tiny.json" if target.startswith("bundled:") else "default"
    return _recipe(options, name_of(target, draft), measured, arms, suite, folder)


def recipe_of_line(options: RecipeOptions, line: EngineLine, folder: Path) -> dict[str, Any]:
    """Return the plain data of a recipe of an engine's own command line. Raises UsageError where it names no model.

    Its speculation is an arm. Types and values of the options are arms in its place, with what else the line sets.
    """
    models = line.data("models")
    if "target" not in models:
        raise UsageError("The line names no model.", where=line.kind, fix="Give it as the engine takes it.")
    for model in models.values():
        model["source"] = absolute(model["source"], folder)
    target, draft = models["target"]["source"], models.get("draft", {}).get("source")
    engine = {"kind": line.kind, **line.data("engine"), "args": line.args, "env": line.env}
    named = line.data("speculation")
    kind = named.get("type")
    if kind is None and not options.types and adapter_of(line.kind).speculation is not None:
        fix = "Name what is tried before --: --type TYPE --depth 2,4,8"
        raise UsageError("The line has no speculation, so nothing is compared.", where=line.kind, fix=fix)
    shortest, depths = named.get("min"), options.sweeps.get("depth", ())
    if isinstance(shortest, int) and any(isinstance(depth, int) and depth < shortest for depth in depths):
        del named["min"]
    if options.sweeps and not options.types and isinstance(kind, list):
        fix = f"Name it before --: --type {kind[0]}"
        raise UsageError(f"--depth and -L need a single type of speculation; the line has {len(kind)}.", fix=fix)
    if options.types or options.sweeps or kind is None:
        types = options.types or [kind or options.types_for(draft)[0]]
        arms = [arm_of_type(word, options.sweeps, has_depth="max" in named) for word in types]
    else:
        arms = [{"name": _UNSAFE.sub("_", "_".join([kind] if isinstance(kind, str) else kind)).replace("-", "_")}]
    for arm in arms:
        arm["speculation"] = named | arm.get("speculation", {})
    return _recipe(options, name_of(target, draft), {"engine": engine, "models": models}, arms, "default", folder)


def recipe_of_urls(options: RecipeOptions, url: str, arm_url: str | None, folder: Path) -> dict[str, Any]:
    """Return the plain data of a recipe of two servers that run already: without speculation, and with it.

    Type and depth are what the second was started with; no server can be asked for them. Raises UsageError where the
    second is missing, or has several types or depths.
    """
    if arm_url is None:
        raise UsageError(
            "One server alone gives nothing to compare: none that benchctl knows switches speculation per request.",
            where="--url",
            fix="Start a second server that speculates, and name it: --arm-url http://HOST:PORT/v1",
        )
    types, depths = options.types or [DRAFT_TYPE], options.sweeps.get("depth", [])
    if options.sweeps.keys() - {"depth"} or len(depths) > 1 or len(types) > 1:
        raise UsageError(
            "A server that runs has one type of speculation and one depth.",
            where="--type, --depth, -L",
            fix="Name what it was started with; several servers go into a recipe: recipes/endpoint.yaml.",
        )
    hosts = [urlsplit(address).netloc.rpartition("@")[2].replace(":", "-") for address in (url, arm_url)]
    served = next(name for name, adapter in registered().adapters.items() if adapter.model_format == "served")
    speculation = {"type": types[0], **({"max": depths[0]} if depths else {})}
    arms = [{"name": types[0].replace("-", "_"), "url": arm_url, "speculation": speculation}]
    return _recipe(options, name_of(*hosts), {"engine": {"kind": served, "url": url}}, arms, "default", folder)


def _recipe(
    options: RecipeOptions,
    name: str,
    measured: Mapping[str, Any],
    arms: Sequence[Mapping[str, Any]],
    suite: str,
    folder: Path | None,
) -> dict[str, Any]:
    limit = options.limit or (None if options.prompts else TASKS_LIMIT)
    data: dict[str, Any] = {
        "name": name,
        "description": "Made of the options of one command line.",
        **measured,
        "prompts": {
            "suite": absolute(options.prompts or suite, folder),
            **({"limit": limit} if limit else {}),
            **({"skip_bad": True} if options.skip_bad else {}),
        },
        "sampling": {"temperature": 0, "max_tokens": MAX_TOKENS},
        "blocks": {},  # auto, with keys that --set reaches
        "arms": [{"name": "baseline"}, *arms],
    }
    for key, value in options.overrides.items():
        data = replaced(data, key.split("."), value)
    return data


def name_of(target: str, draft: str | None) -> str:
    """Return a recipe's name made of its models' names."""

    def short(source: str) -> str:
        return _UNSAFE.sub("-", re.split(r"[/:]", source.rstrip("/"))[-1].removesuffix(".gguf")).strip("-_.+")

    parts = [short(target), *([] if draft is None else [short(draft)])]
    return "--".join(part for part in parts if part)[:MAX_NAME].strip("-_.+") or "unnamed"


def parse_sweep(options: Sequence[str]) -> dict[str, list[int | float | str]]:
    """Read `KEY=V1,V2` options: `depth=2,4,8`. Raises UsageError for text that is none."""
    sweeps: dict[str, list[int | float | str]] = {}
    for option in options:
        key, equals, values = option.partition("=")
        parsed = [plain_value(value.strip()) for value in values.split(",") if value.strip()]
        if not equals or not key.strip() or not parsed:
            raise UsageError(f"Expected KEY=V1,V2, got {quoted(option)}.", where="-L", fix="Such as -L depth=2,4,8.")
        sweeps[key.strip()] = parsed
    return sweeps


def parse_settings(options: Sequence[str]) -> dict[str, Any]:
    """Read `--set sampling.max_tokens=64`: a dotted key of the recipe and a YAML value. Raises UsageError."""
    settings: dict[str, Any] = {}
    for option in options:
        key, equals, value = option.partition("=")
        parts = key.split(".")
        if not equals or not all(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", part) for part in parts):
            fix = "Such as --set sampling.max_tokens=64."
            raise UsageError(f"Expected KEY=VALUE, got {quoted(option)}.", where="--set", fix=fix)
        try:
            settings[key] = read_value(value)
        except ValueError as error:
            raise UsageError(f"{error}.", where=f"--set {key}") from None
    return settings


def prompt_settings(options: RecipeOptions) -> dict[str, Any]:
    """Return `--prompts`, `--limit` and `--skip-bad` as keys of a recipe; of another suite all tasks are asked."""
    skipping = {"prompts.skip_bad": True} if options.skip_bad else {}
    if options.prompts is None:
        return skipping if options.limit is None else {"prompts.limit": options.limit, **skipping}
    suite = absolute(options.prompts, Path.cwd())
    return {"prompts.suite": suite, "prompts.tasks": None, "prompts.limit": options.limit, **skipping}


def arm_of_type(kind: str, sweeps: Sweeps, *, has_depth: bool = False) -> dict[str, Any]:
    """Return an arm as a file writes it, with a matrix of the swept values that have a meaning for its type.

    `has_depth`: what it is made of sets one, so that none is added, and others mean something for a lookup, too.
    """
    short = kind.replace("-", "_")
    by_model = kind in TAKEN_BY["p_min"]
    meant = {
        ("max" if key == "depth" else key): list(values)
        for key, values in sweeps.items()
        if key not in TAKEN_BY or kind in TAKEN_BY[key]
        if key != "depth" or by_model or has_depth or kind not in SPECULATION_TYPES
    }
    if by_model and "max" not in meant and not has_depth:
        meant["max"] = list(DEPTHS)
    if not meant:
        return {"name": short, "speculation": {"type": kind}}
    labels = "_".join(f"{'d' if key == 'max' else key}{{{key}}}" for key in meant)
    return {
        "name": f"{short}_{labels}",
        "speculation": {"type": kind, **{key: f"{{{key}}}" for key in meant}},
        "matrix": meant,
    }


_HEAD = """\
# yaml-language-server: $schema=recipe.schema.json
# Editors complete and check this file once the schema lies beside it:
#   benchctl recipes schema -o recipe.schema.json
"""
_COMMENTS = {
    "models:": "source: a path | hf:ORG/REPO[/FILE] | bundled:NAME",
    "prompts:": "a path, or the name of a shipped suite; at most `limit` prompts of each task",
    "sampling:": "greedy: the only setting in which outputs can be compared token by token",
    "blocks:": "fresh processes of each arm, until every arm is decided; a number fixes them",
    "- {name: baseline}": "the target alone; every arm is compared with it",
}
"""Comments by the beginning of the line of a new recipe."""


def new_recipe(
    name: str,
    *,
    engine: str | None,
    target: str,
    draft: str | None,
    types: Sequence[str],
    depths: Sequence[int] = DEPTHS,
    suite: str | None = None,
) -> str:
    """Return the commented YAML of a recipe with a baseline and an arm for each type. Raises UsageError."""
    kind = engine or kinds()[0]
    for word in types:
        _check_name(word, SPECULATION_TYPES, "speculation type")
    options = RecipeOptions(engine=kind, types=types, depth=",".join(map(str, depths)), prompts=suite)
    data = recipe_from_options(options, target, draft, folder=None)
    data |= {"name": name, "blocks": "auto", "description": "Does speculative decoding pay on this machine?"}
    data["engine"] |= read_value("\n".join(registered().adapters[kind].example)) or {}
    recipe_of_options(data)
    return _HEAD + "".join(f"{_commented(line)}\n" for line in dump_document(data).splitlines())


def _commented(line: str) -> str:
    about = next((text for start, text in _COMMENTS.items() if line.startswith(start)), None)
    return line if about is None else f"{line}  # {about}"


def _check_name(name: str, valid: Sequence[str], subject: str) -> None:
    if name not in valid:
        fix = did_you_mean(name, valid).strip() or f"Known: {', '.join(valid)}."
        raise UsageError(f"There is no {subject} {quoted(name)}.", fix=fix)


def with_settings(recipe: Recipe, settings: Mapping[str, Any]) -> Recipe:
    """Return a run's recipe with other values by dotted key, as `--set` gives them. Raises UsageError."""
    for key in settings if recipe.setups else ():
        if key.partition(".")[0] in ("engine", "models"):
            raise UsageError(
                f"The recipe of this run has {len(recipe.setups)} setups, so {key} has several values.",
                where=f"--set {key}",
                fix="Change it in the recipe file.",
            )
    return recipe_of_options(_written_out(recipe), settings)


def _written_out(recipe: Recipe) -> dict[str, Any]:
    return {EXPANDED: True, **recipe.model_dump(mode="json")}


def with_types(recipe: Recipe, options: RecipeOptions) -> Recipe:
    """Return a run's recipe with its baselines and arms of the options' types, under each of its conditions.

    A new arm keeps what an arm of its type has beside what is swept. Raises UsageError for what cannot be run.
    """
    if not adapter_of(recipe.engine.kind).launched:
        raise UsageError(
            "The endpoints of this run speculate as they were started, so no other type can be measured there.",
            where="--type",
            fix="Leave it out; or name endpoints in a recipe.",
        )
    expanded, messages = expand([arm_of_type(kind, options.sweeps) for kind in options.types_for(recipe.models.draft)])
    if messages:
        raise UsageError(messages[0][1], where="--type, --depth, -L")
    compared, data = recipe.compared, _written_out(recipe)
    data["arms"] = []
    for baseline in recipe.arms:
        if compared[baseline.name].is_baseline:
            data["arms"] += [baseline.model_dump(mode="json")]
            data["arms"] += [arm for new in expanded for arm in _arms(recipe, baseline, new.data)]
    used = {arm["setup"] for arm in data["arms"]}
    data["setups"] = [setup for setup in data["setups"] if setup["name"] in used]
    for key in ("engine", "models") if data["setups"] else ():
        data[key] = data["setups"][0][key]
    return recipe_of_options(data)


def _arms(recipe: Recipe, baseline: Arm, new: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a new arm beside a baseline; where it takes a draft model, an arm for every setup of the group."""
    types = (new["speculation"]["type"],)
    places: list[str | None] = [baseline.setup]
    if takes_draft(types) and recipe.setups:
        places = [setup.name for setup in recipe.setups if setup.group == baseline.group]
    like = next((arm for arm in recipe.arms if arm.speculation and arm.speculation.types == types), baseline)
    speculation = like.speculation.model_dump(mode="json", exclude_none=True) if like.speculation else {}
    speculation |= new["speculation"]
    shortest, longest = speculation.get("min"), speculation.get("max")
    if isinstance(shortest, int) and isinstance(longest, int) and shortest > longest:
        del speculation["min"]
    suffix = baseline.name.removeprefix(baseline.of or baseline.name)
    for setup_name in places:
        setup_suffix = suffix
        if setup_name is not None and setup_name != baseline.setup:
            group = f"-{baseline.group}"
            setup_suffix = suffix.replace(group, f"-{setup_name}", 1) if group in suffix else f"{suffix}-{setup_name}"
        yield baseline.model_dump(mode="json") | {
            "name": f"{new['name']}{setup_suffix}"[:MAX_ARM_NAME],
            "of": None if baseline.of is None else new["name"],
            "setup": setup_name,
            "speculation": speculation,
            "args": like.args,
        }
