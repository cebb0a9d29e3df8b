"""What the schema cannot check in a single value: how the parts of a recipe must fit together.

What depends on the binary at hand (does this build know the type, does this head fit) is the engine's check.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pkgutil import resolve_name
from typing import Any
from urllib.parse import urlsplit

from benchctl.errors import UsageError
from benchctl.recipes.adapters import Adapter, adapter_of, kinds, kinds_with, target_settings, without_effect
from benchctl.recipes.engine_spec import EndpointSpec, LaunchedEngineSpec
from benchctl.recipes.problems import KeyPath, did_you_mean, quoted
from benchctl.recipes.quantization import quantize_problems
from benchctl.recipes.schema import CONSTRAINTS, GREEDY, ModelSpec, Recipe
from benchctl.recipes.source import BundledSource, ServedSource, Source, bundled_names, parse_source
from benchctl.recipes.speculation import COPIES, DRAFTS, NEEDS_DRAFT_MODEL, SPECULATION_TYPES, TAKEN_BY, Speculation

ALONE = {"concurrency": 1, "rate": None}
"""Conditions, and their values under which no two requests are in flight at a time."""
Messages = Iterator[tuple[KeyPath, str]]


def relation_problems(recipe: Recipe) -> list[tuple[KeyPath, str]]:
    """Return (key path in the expanded recipe, message) for everything that does not fit together."""
    checks = (_processes, _endpoints, _models, _names, _baseline, _lengths, _cache_types, _same_target, _stated)
    return [problem for check in (*checks, _constraints, _schedule, _arms) for problem in check(recipe)]


def _processes(recipe: Recipe) -> Messages:
    """Yield what no process can be started with, and what is benchctl's own."""
    engine = recipe.engine
    texts: list[tuple[KeyPath, str]] = []
    for index, arm in enumerate(recipe.arms):
        texts += [(("arms", index, "args", word_index), word) for word_index, word in enumerate(arm.args)]
    if isinstance(engine, LaunchedEngineSpec):
        texts += [(("engine", "args", word_index), word) for word_index, word in enumerate(engine.args)]
        texts += [(("engine", "env", name), value) for name, value in engine.env.items()]
        texts += [(("engine", "binary"), engine.binary or "")]
        for name in engine.env:
            if not name or "=" in name or "\0" in name:
                yield ("engine", "env"), f"expected the name of an environment variable, got {quoted(name)}."
            elif name.upper().startswith("BENCHCTL_"):
                yield ("engine", "env", name), "this is a setting of benchctl's own; set it in your shell."
    message = "what a process is given cannot contain the character U+0000."
    yield from ((word_index, message) for word_index, text in texts if "\0" in text)


def _endpoints(recipe: Recipe) -> Messages:
    engine = recipe.engine
    if isinstance(engine, EndpointSpec) and engine.url is not None:
        yield from ((("engine", "url"), message) for message in _url_problems(engine.url))
    for index, arm in enumerate(recipe.arms):
        arm_key: KeyPath = ("arms", index)
        if not isinstance(engine, EndpointSpec):
            if arm.url is not None:
                yield (*arm_key, "url"), f"url has no meaning for {engine.kind}: it is for {_endpoint_kinds()}."
            continue
        if arm.url is not None:
            yield from (((*arm_key, "url"), message) for message in _url_problems(arm.url))
        elif engine.url is None:
            yield (*arm_key, "name"), "this arm has no endpoint. Write `url:` here, or once for all arms as engine.url."
        if arm.args:
            message = f"args have no meaning for {engine.kind}: benchctl does not start an endpoint that runs already."
            yield (*arm_key, "args"), message


def _endpoint_kinds() -> str:
    return f"`kind: {kinds_with(lambda adapter: not adapter.launched)}`"


def _url_problems(url: str) -> Iterator[str]:
    try:
        parts = urlsplit(url)
        fits = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        fits = False
    if not fits:
        yield f"expected an address such as http://127.0.0.1:8000/v1, got {quoted(url)}."
    elif "@" in parts.netloc:
        # The value is not quoted: what stands before the @ may be a secret.
        yield "an address with a user or password is refused; name the key's variable in engine.api_key_env."
    elif parts.query or parts.fragment:
        yield "expected an address without anything after a ? or #."


def _models(recipe: Recipe) -> Messages:
    adapter = adapter_of(recipe.engine.kind)
    for role, model in (("target", recipe.models.target), ("draft", recipe.models.draft)):
        if model is None:
            continue
        model_key: KeyPath = ("models", role)
        try:
            source = parse_source(model.source)
        except ValueError as error:
            yield (*model_key, "source"), f"{error}; got {quoted(model.source)}."
        else:
            valid = bundled_names()
            if isinstance(source, BundledSource) and valid and source.name not in valid:
                near = did_you_mean(source.name, valid) or f" Known: {', '.join(valid)}."
                yield (*model_key, "source"), f"benchctl ships no model called {quoted(source.name)}.{near}"
            yield from (((*model_key, key), message) for key, message in _form(adapter, model, source))
        if model.quantize is not None:
            for path, message in quantize_problems(model.quantize):
                yield (*model_key, "quantize", *path), message


def _form(adapter: Adapter, model: ModelSpec, source: Source) -> Iterator[tuple[str, str]]:
    """Yield (key, message) for settings of a model that this kind of engine cannot take."""
    served = adapter.model_format == "served"
    if served and not isinstance(source, ServedSource):
        yield "source", "an endpoint loads its models itself. Write served:NAME, or leave `models` out."
    elif not served and isinstance(source, ServedSource):
        message = f"served:NAME is for {_endpoint_kinds()}, and this recipe starts {adapter.kind}"
        yield "source", f"{message}. Name a model's files."
    if model.quantize is not None and not adapter.quantizes:
        takers = kinds_with(lambda adapter: adapter.quantizes)
        yield "quantize", f"quantize makes GGUF files for {takers}; {adapter.kind} does not take them."


def _names(recipe: Recipe) -> Messages:
    first: dict[str, int] = {}
    for index, arm in enumerate(recipe.arms):
        folded = arm.name.casefold()  # log files are named after arms, and some file systems ignore case
        if folded in first:
            yield ("arms", index, "name"), f"the name {quoted(arm.name)} is taken by an earlier arm; give each its own."
        first.setdefault(folded, index)


def _baseline(recipe: Recipe) -> Messages:
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


def _lengths(recipe: Recipe) -> Messages:
    answer, context = recipe.sampling.max_tokens, recipe.engine.context
    if answer >= context:
        yield ("sampling", "max_tokens"), f"expected less than the context of {context} tokens, got {answer}."
    longest = max((arm.context_length or 0 for arm in recipe.arms), default=0)
    if longest and longest + answer > context:
        message = f"{longest} tokens of prompt and {answer} of answer do not fit engine.context, which is {context}."
        yield ("context_length",), message
    if recipe.prompts.tasks is not None and len(set(recipe.prompts.tasks)) < len(recipe.prompts.tasks):
        yield ("prompts", "tasks"), "a task is named twice."


def _cache_types(recipe: Recipe) -> Messages:
    """Yield what of `cache_type` this kind of engine does not have; the binary at hand may have less."""
    cache, adapter = next((arm.cache_type for arm in recipe.arms), None), adapter_of(recipe.engine.kind)
    if cache is None:
        return
    if not adapter.cache_types:
        takers = kinds_with(lambda adapter: bool(adapter.cache_types))
        yield ("cache_type",), f"cache_type has no meaning for {adapter.kind}; it is for {takers}."
        return
    for role in ("target", "draft"):
        name = getattr(cache, role)
        if name is not None and name not in adapter.cache_types:
            near = did_you_mean(name, adapter.cache_types) or f" Known: {', '.join(adapter.cache_types)}."
            yield ("cache_type",), f"expected a type of {adapter.kind}'s KV cache, got {quoted(name)}.{near}"
    if cache.draft != cache.target and not adapter.draft_cache_types:
        yield ("cache_type",), f"{adapter.kind} has one type for both models; write it alone."


def _same_target(recipe: Recipe) -> Messages:
    """Yield arms whose own arguments change what the target computes or samples: speculation would be blamed."""
    adapter = adapter_of(recipe.engine.kind)
    baseline = next((arm for arm in recipe.arms if arm.name == recipe.baseline), None)
    if baseline is None:
        return
    theirs = target_settings(adapter, baseline.args)
    for index, arm in enumerate(recipe.arms):
        settings = target_settings(adapter, arm.args)
        for name in [name for name in settings | theirs if settings.get(name) != theirs.get(name)][:1]:
            having, lacking = ("this arm", "the baseline") if name in settings else ("the baseline", "this arm")
            message = (
                f"{having} has {(settings | theirs)[name][0]}, which changes what the target computes or samples, and "
                f"{lacking} has not: its effect would be attributed to speculation. Give it to all arms in "
                "engine.args, or make it an axis (`matrix`: cache_type or engine.args), where every value has its own "
                "baseline."
            )
            yield ("arms", index, "args"), message


def _stated(recipe: Recipe) -> Messages:
    """Yield arguments that every request overrides: a run would seem to have measured them."""
    adapter = adapter_of(recipe.engine.kind)
    places: list[tuple[KeyPath, Sequence[str]]] = [
        (("arms", index, "args"), arm.args) for index, arm in enumerate(recipe.arms)
    ]
    if isinstance(recipe.engine, LaunchedEngineSpec):
        places.insert(0, (("engine", "args"), recipe.engine.args))
    for key, args in places:
        for option in without_effect(adapter, args):
            message = (
                f"{option} has no effect: every request states its samplers. Leave it out; `sampling` has "
                "temperature, top_k, top_p, penalties, logit_bias, grammar, seed and max_tokens."
            )
            yield key, message


def _constraints(recipe: Recipe) -> Messages:
    """Yield penalties, biases and grammars that this kind of engine is not sent."""
    adapter = adapter_of(recipe.engine.kind)
    for key in recipe.sampling.constraints:
        if key not in adapter.sampling:
            yield ("sampling", key), f"{key} is for {_takers(key)}; benchctl does not send it to {adapter.kind}."


def _takers(key: str) -> str:
    return kinds_with(lambda adapter: key in adapter.sampling)


def unscored_constraints(recipe: Mapping[str, Any]) -> list[str]:
    """Return what a stored recipe's sampling sets that its engine's scores do not take into account."""
    sampling = recipe.get("sampling") or {}
    constraints = [key for key in CONSTRAINTS if sampling.get(key, getattr(GREEDY, key)) != getattr(GREEDY, key)]
    try:
        scored = adapter_of((recipe.get("engine") or {}).get("kind") or kinds()[0]).scored
    except UsageError:  # of a package that is not installed here
        scored = frozenset[str]()
    return [key for key in constraints if key not in scored]


def _schedule(recipe: Recipe) -> Messages:
    if recipe.schedule != "interleaved":
        return
    kind, remedy = recipe.engine.kind, "Write `schedule: blocks`."
    if not adapter_of(kind).interleaves:
        message = f"interleaved keeps several engines up at once, which benchctl does not support for {kind}."
        yield ("schedule",), f"{message} {remedy}"
    crowd = next((name for name, unset in ALONE.items() if any(getattr(a, name) != unset for a in recipe.arms)), None)
    if crowd is not None:
        message = f"interleaved has one request in flight at a time, and {quoted(crowd)} needs more."
        yield ("schedule",), f"{message} {remedy}"


def _arms(recipe: Recipe) -> Messages:
    for index, arm in enumerate(recipe.arms):
        if arm.speculation is not None:
            arm_key: KeyPath = ("arms", index, "speculation")
            yield from ((arm_key + path, message) for path, message in _speculation(recipe, arm.speculation))


def _speculation(recipe: Recipe, speculation: Speculation) -> Messages:
    types, adapter = speculation.types, adapter_of(recipe.engine.kind)
    yield from _own_methods(adapter, speculation)
    if not types or len(set(types)) < len(types):
        yield ("type",), "a type is named twice." if types else "expected at least one type, got an empty list."
        return
    by_engine = resolve_name(adapter.speculation)(speculation) if adapter.speculation is not None else []
    yield from (((), message) for message in by_engine)
    drafts = [name for name in types if name in DRAFTS]
    if len(drafts) > 1:
        message = f"{' and '.join(drafts)} cannot share one draft model; name at most one draft-* type in an arm."
        yield ("type",), message
    needy = [name for name in types if name in NEEDS_DRAFT_MODEL]
    if needy and recipe.models.draft is None and adapter.model_format != "served":
        yield ("type",), f"{needy[0]} needs a draft model, and the recipe has none. Add `models.draft.source`."
    if not by_engine:  # which names the keys that it lacks itself
        yield from _untaken(speculation)
    lookups = [name for name in types if name in COPIES]
    if lookups and speculation.size_m is not None and speculation.max not in {None, speculation.size_m}:
        yield ("size_m",), f"for {', '.join(lookups)} it means the same as max; give one of them."
    if speculation.min is not None and speculation.max is not None and speculation.min > speculation.max:
        yield ("min",), f"expected at most max, which is {speculation.max}, got {speculation.min}."
    if speculation.max is not None and speculation.max >= recipe.engine.context:
        message = f"expected less than the context of {recipe.engine.context} tokens, got {speculation.max}."
        yield ("max",), message


def _untaken(speculation: Speculation) -> Messages:
    """Yield keys that none of the speculation types takes."""
    types = speculation.types
    for key, takers in TAKEN_BY.items():
        if getattr(speculation, key) is None or any(name in takers for name in types):
            continue
        if all(name in SPECULATION_TYPES for name in types):
            yield (key,), f"{key} has no meaning for {', '.join(types)}; it is for {', '.join(takers)}."
        elif key != "max":
            yield (key,), f"{key} has no meaning for {', '.join(types)}; give the engine's own key in options."


def _own_methods(adapter: Adapter, speculation: Speculation) -> Messages:
    """Yield speculation types and options that this kind of engine does not have."""
    if adapter.own_methods:
        return
    for index, name in enumerate(speculation.types):
        if name not in SPECULATION_TYPES:
            path: KeyPath = ("type",) if isinstance(speculation.type, str) else ("type", index)
            near = did_you_mean(name, SPECULATION_TYPES)
            yield path, f"expected one of {', '.join(SPECULATION_TYPES)}; got {quoted(name)}.{near}"
    if speculation.options:
        takers = kinds_with(lambda adapter: adapter.own_methods)
        yield ("options",), f"options are for {takers}; {adapter.kind} takes args."
