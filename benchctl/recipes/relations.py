"""What the schema cannot see in one value: how the parts of a recipe must fit together.

What depends on the binary at hand (does this build know the type, does this head fit) is the engine's check.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchctl.recipes.engine_kinds import engine_problems, model_problems, word_problems
from benchctl.recipes.problems import KeyPath, did_you_mean, quoted
from benchctl.recipes.quantization import quantize_problems
from benchctl.recipes.schema import NEEDS_DRAFT_MODEL, SPECULATION_WORDS, Recipe, Speculation
from benchctl.recipes.source import BundledSource, bundled_names, parse_source

_DRAFTS = ("draft-simple", "draft-eagle3", "draft-mtp", "draft-dflash", "draft-dspark")
_COPIES = ("ngram-simple", "ngram-map-k", "ngram-map-k4v")
TAKEN_BY: dict[str, tuple[str, ...]] = {
    "max": (*_DRAFTS, *_COPIES, "ngram-mod"),
    "min": (*_DRAFTS, "ngram-mod"),
    "p_min": _DRAFTS,
    "size_n": (*_COPIES, "ngram-mod"),
    "size_m": _COPIES,
    "min_hits": _COPIES,
}
"""Which speculation types a key has a meaning for; everywhere else an engine would ignore it without a word."""

Found = Iterator[tuple[KeyPath, str]]


def relation_problems(recipe: Recipe) -> list[tuple[KeyPath, str]]:
    """Return (key path in the expanded recipe, message) for everything that does not fit together."""
    return [
        *engine_problems(recipe),
        *_models(recipe),
        *_names(recipe),
        *_baseline(recipe),
        *_lengths(recipe),
        *_schedule(recipe),
        *_arms(recipe),
    ]


def _models(recipe: Recipe) -> Found:
    for role, model in (("target", recipe.models.target), ("draft", recipe.models.draft)):
        if model is None:
            continue
        here: KeyPath = ("models", role)
        try:
            source = parse_source(model.source)
        except ValueError as error:
            yield (*here, "source"), f"{error}; got {quoted(model.source)}."
        else:
            known = bundled_names()
            if isinstance(source, BundledSource) and known and source.name not in known:
                near = did_you_mean(source.name, known) or f" Known: {', '.join(known)}."
                yield (*here, "source"), f"benchctl ships no model called {quoted(source.name)}.{near}"
            yield from (((*here, key), message) for key, message in model_problems(recipe.engine.kind, model, source))
        if model.quantize is not None:
            for path, message in quantize_problems(model.quantize):
                yield (*here, "quantize", *path), message


def _names(recipe: Recipe) -> Found:
    first: dict[str, int] = {}
    for index, arm in enumerate(recipe.arms):
        folded = arm.name.casefold()  # log files are named after arms, and some file systems ignore case
        if folded in first:
            yield ("arms", index, "name"), f"the name {quoted(arm.name)} is taken by an earlier arm; give each its own."
        first.setdefault(folded, index)


def _baseline(recipe: Recipe) -> Found:
    names = [arm.name for arm in recipe.arms]
    if recipe.baseline not in names:
        plain = [arm.name for arm in recipe.arms if arm.speculation is None]
        fix = f" Write `baseline: {plain[0]}`." if plain else " Add an arm without speculation: `- name: baseline`."
        near = did_you_mean(recipe.baseline, names) or fix
        yield ("baseline",), f"no arm is called {quoted(recipe.baseline)}, and every arm is compared with it.{near}"
        return
    index = names.index(recipe.baseline)
    if recipe.arms[index].speculation is not None:
        message = f"{quoted(recipe.baseline)} is the baseline, the target alone; it must have no speculation."
        yield ("arms", index, "speculation"), message


def _lengths(recipe: Recipe) -> Found:
    if recipe.sampling.max_tokens >= recipe.engine.context:
        message = f"expected less than the context of {recipe.engine.context} tokens, got {recipe.sampling.max_tokens}."
        yield ("sampling", "max_tokens"), message
    if recipe.prompts.tasks is not None and len(set(recipe.prompts.tasks)) < len(recipe.prompts.tasks):
        yield ("prompts", "tasks"), "a task is named twice."


def _schedule(recipe: Recipe) -> Found:
    if recipe.schedule == "interleaved" and recipe.engine.kind != "llama.cpp":
        message = f"interleaved keeps several engines up at once, which {recipe.engine.kind} is not made for here."
        yield ("schedule",), f"{message} Write `schedule: blocks`."


def _arms(recipe: Recipe) -> Found:
    for index, arm in enumerate(recipe.arms):
        if arm.speculation is not None:
            here: KeyPath = ("arms", index, "speculation")
            yield from ((here + path, message) for path, message in _speculation(recipe, arm.speculation))


def _speculation(recipe: Recipe, speculation: Speculation) -> Found:
    types = speculation.types
    yield from word_problems(recipe.engine.kind, speculation)
    if not types or len(set(types)) < len(types):
        yield ("type",), "a type is named twice." if types else "expected at least one type, got an empty list."
        return
    drafts = [name for name in types if name in _DRAFTS]
    if len(drafts) > 1:
        message = f"{' and '.join(drafts)} cannot share one draft model; name at most one draft-* type in an arm."
        yield ("type",), message
    needy = [name for name in types if name in NEEDS_DRAFT_MODEL]
    if needy and recipe.models.draft is None and recipe.engine.kind != "openai":
        yield ("type",), f"{needy[0]} needs a draft model, and the recipe has none. Add `models.draft.source`."
    for key, takers in TAKEN_BY.items():
        if getattr(speculation, key) is None or any(name in takers for name in types):
            continue
        if not all(name in SPECULATION_WORDS for name in types):
            if key != "max":
                yield (key,), f"{key} has no meaning for {', '.join(types)}; give the engine's own key in options."
        else:
            yield (key,), f"{key} has no meaning for {', '.join(types)}; it is for {', '.join(takers)}."
    lookups = [name for name in types if name in _COPIES]
    if lookups and speculation.size_m is not None and speculation.max not in {None, speculation.size_m}:
        yield ("size_m",), f"for {', '.join(lookups)} it means the same as max; give one of them."
    if speculation.min is not None and speculation.max is not None and speculation.min > speculation.max:
        yield ("min",), f"expected at most max, which is {speculation.max}, got {speculation.min}."
    if speculation.max is not None and speculation.max >= recipe.engine.context:
        message = f"expected less than the context of {recipe.engine.context} tokens, got {speculation.max}."
        yield ("max",), message
