"""Which parts of a recipe have a meaning for which kind of engine: what one would ignore without a word is an error."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

from benchctl.recipes.problems import KeyPath, did_you_mean, quoted
from benchctl.recipes.schema import SPECULATION_WORDS, Arm, EngineSpec, ModelSpec, Recipe, Speculation
from benchctl.recipes.source import ServedSource, Source

_OF_ENDPOINTS = ("url", "api_key_env")
_OF_LAUNCHED = ("binary", "device", "threads", "args", "env", "health_timeout_s")
_OWN_METHODS = frozenset({"vllm", "sglang"})
"""Engines whose methods may be named by the engine's own words, with its own keys; the adapter checks them."""

Found = Iterator[tuple[KeyPath, str]]


def engine_problems(recipe: Recipe) -> Found:
    """Yield what `engine` and the arms say that this kind of engine cannot mean."""
    spec = recipe.engine
    endpoint = spec.kind == "openai"
    for key in _OF_LAUNCHED if endpoint else _OF_ENDPOINTS:
        if getattr(spec, key) != EngineSpec.model_fields[key].get_default(call_default_factory=True):
            why = "benchctl does not start an endpoint that runs already" if endpoint else "it is for `kind: openai`"
            yield ("engine", key), f"{key} has no meaning for {spec.kind}: {why}."
    if spec.dtype != "auto" and spec.kind not in _OWN_METHODS:
        yield ("engine", "dtype"), f"dtype has no meaning for {spec.kind}; it is for {', '.join(sorted(_OWN_METHODS))}."
    if spec.url is not None:
        yield from ((("engine", "url"), message) for message in _url_problems(spec.url))
    for index, arm in enumerate(recipe.arms):
        yield from ((("arms", index, *path), message) for path, message in _arm_problems(arm, spec))


def _arm_problems(arm: Arm, spec: EngineSpec) -> Found:
    if spec.kind != "openai":
        if arm.url is not None:
            yield ("url",), f"url has no meaning for {spec.kind}: it is for `kind: openai`."
        return
    if arm.url is not None:
        yield from ((("url",), message) for message in _url_problems(arm.url))
    elif spec.url is None:
        yield ("name",), "this arm has no endpoint. Write `url:` here, or once for all arms as engine.url."
    if arm.args:
        yield ("args",), "args have no meaning for openai: benchctl does not start an endpoint that runs already."


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


def model_problems(kind: str, model: ModelSpec, source: Source) -> Iterator[tuple[str, str]]:
    """Yield (key, message) for what a model says that this kind of engine cannot be given."""
    if (kind == "openai") != isinstance(source, ServedSource):
        if kind == "openai":
            yield "source", "an endpoint loads its models itself. Write served:NAME, or leave `models` out."
        else:
            yield "source", f"served:NAME is for `kind: openai`, and this recipe starts {kind}. Name a model's files."
    if model.quantize is not None and kind != "llama.cpp":
        yield "quantize", f"quantize makes GGUF files for llama.cpp, which {kind} is not given."


def word_problems(kind: str, speculation: Speculation) -> Found:
    """Yield what this kind of engine cannot mean by a speculation type or its options."""
    if kind in _OWN_METHODS:
        return
    for index, name in enumerate(speculation.types):
        if name not in SPECULATION_WORDS:
            path: KeyPath = ("type",) if isinstance(speculation.type, str) else ("type", index)
            near = did_you_mean(name, SPECULATION_WORDS)
            yield path, f"expected one of {', '.join(SPECULATION_WORDS)}; got {quoted(name)}.{near}"
    if speculation.options:
        yield ("options",), f"options are for {', '.join(sorted(_OWN_METHODS))}; {kind} takes args."
