"""Settings that are lossy by design: with them an engine does not even try to answer as the target alone would.

Recognised from the exact command line and environment that ran, for each engine kind by a closed list of that engine's
own names; nothing is probed. An arm with such a setting is never called lossless, whatever its hashes say: equal text
is luck there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence

SYNTHETIC = "synthetic acceptance"
TYPICAL = "typical acceptance"
THRESHOLD = "acceptance threshold"
SIMULATED = "simulated acceptance"
ENSEMBLE = "draft and target mixed"

Setting = tuple[str, str | None]
"""A flag without dashes, with `-` for `_`, and its value; `None` when it has none."""


def lossy_settings(kind: str, argv: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """Return what is lossy by design in a command line, in words, without repetition; empty when nothing is.

    `kind` is `engine.kind` of the recipe; an unknown one has no known settings.
    """
    find = _FINDERS.get(kind)
    return [] if find is None else list(dict.fromkeys(find(list(_settings(argv)), env)))


def _settings(argv: Sequence[str]) -> Iterator[Setting]:
    """Read `--flag value` and `--flag=value`; `--flag_name` is the same flag as `--flag-name`."""
    for place, word in enumerate(argv):
        if not word.startswith("-") or word.lstrip("-")[:1].isdigit():
            continue
        name, equals, value = word.lstrip("-").partition("=")
        after = argv[place + 1] if place + 1 < len(argv) else None
        yield name.replace("_", "-"), value if equals else after


def _llama_cpp(settings: Sequence[Setting], env: Mapping[str, str]) -> Iterator[str]:
    named = {name for name, _ in settings} & {"spec-synth-len", "spec-synth-rates"}
    if named or {"LLAMA_ARG_SPEC_SYNTH_LEN", "LLAMA_ARG_SPEC_SYNTH_RATES"} & set(env):
        yield SYNTHETIC


_EXACT_RULES = {None, "standard", "strict", "probabilistic", "block", "rejection_sampler"}
"""vLLM's ways to verify that keep the target's distribution, over its versions; others are lossy or not known to us."""
_RULES = {"synthetic": SYNTHETIC, "typical_acceptance_sampler": TYPICAL}


def _vllm(settings: Sequence[Setting], env: Mapping[str, str]) -> Iterator[str]:
    del env
    config: dict[str, object] = {}
    for name, value in settings:
        if name in ("speculative-config", "sc"):
            config |= _json_object(value)
        elif name.startswith(("speculative-config.", "sc.")):
            config[name.partition(".")[2].replace("-", "_")] = value
        elif name == "spec-decoding-acceptance-method":  # before speculation had a configuration of its own
            config["acceptance_method"] = value
        elif name.startswith("typical-acceptance-sampler-posterior"):
            yield TYPICAL
    for key in ("rejection_sample_method", "acceptance_method"):
        rule = config.get(key)
        if rule not in _EXACT_RULES:
            yield _RULES.get(str(rule), f"acceptance rule {rule!s}")
    keys = [key for key, value in config.items() if value is not None]
    if any(key.startswith("synthetic_acceptance") for key in keys):
        yield SYNTHETIC
    if any(key in ("posterior_threshold", "posterior_alpha") for key in keys):
        yield TYPICAL


def _json_object(text: str | None) -> dict[str, object]:
    """Read `--speculative-config`; what is no JSON object makes vLLM refuse to start, so it hides nothing."""
    try:
        value = json.loads(text or "")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _sglang(settings: Sequence[Setting], env: Mapping[str, str]) -> Iterator[str]:
    for name, value in settings:
        if name in ("speculative-accept-threshold-single", "speculative-accept-threshold-acc") and not _is_one(value):
            yield THRESHOLD
    if any(name.startswith("SGLANG_SIMULATE_ACC") or name == "SIMULATE_ACC_LEN" for name in env):
        yield SIMULATED


def _is_one(value: str | None) -> bool:
    try:
        return float(value or "") == 1.0
    except ValueError:
        return False


def _transformers(settings: Sequence[Setting], env: Mapping[str, str]) -> Iterator[str]:
    del env
    if any(name == "assistant-ensemble-weight" and value not in (None, "None") for name, value in settings):
        yield ENSEMBLE


_FINDERS: dict[str, Callable[[Sequence[Setting], Mapping[str, str]], Iterator[str]]] = {
    "llama.cpp": _llama_cpp,
    "vllm": _vllm,
    "sglang": _sglang,
    "transformers": _transformers,
}
