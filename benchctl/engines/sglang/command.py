"""The command line of a cell: benchctl's own options, the arm's speculation, then the recipe's arguments.

Which algorithms and options there are comes from the installed package (`Package`); here is only what benchctl's names
mean there. A draft depth of k is `--speculative-num-draft-tokens` k + 1: SGLang counts the token that the verify step
adds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchctl.data.record import sha256_text
from benchctl.engines.common.launched_server import MODEL_NAME
from benchctl.engines.common.process import OFFLINE_PYTHON
from benchctl.engines.common.programs import reserved
from benchctl.engines.common.python_environment import argument_problems as package_argument_problems
from benchctl.engines.common.python_environment import key_problems, named_types, type_problems, unused_keys
from benchctl.engines.sglang.adapter import SIMULATED, SglangSpec
from benchctl.models.files import ResolvedPair
from benchctl.models.folder_facts import vocabulary_differences
from benchctl.paths import cache_folder
from benchctl.recipes.problems import did_you_mean
from benchctl.recipes.schema import Arm
from benchctl.recipes.speculation import OptionValue, Speculation
from benchctl.writing import write_whole

DEVICES = {"cpu": "cpu", "cuda": "cuda", "metal": "mps"}
_RESERVED = reserved(
    {
        "models.target": "--model-path --model --tokenizer-path --revision",
        "engine.context": "--context-length",
        "engine.dtype": "--dtype",
        "engine.device": "--device",
        "concurrency": "--max-running-requests",
        "arms[].speculation": "--speculative-algorithm --speculative-draft-model-path --speculative-draft-model",
        "nothing (benchctl talks to its own server on loopback)": "--host --port --api-key --admin-api-key --config "
        "--grpc-mode --served-model-name --ssl-keyfile --ssl-certfile --smg-grpc-mode --ssl-keyfile-password",
        "engine.prefix_caching": "--disable-radix-cache",
        "nothing (benchctl sets it for its measurement)": "--random-seed --stream-interval "
        "--incremental-streaming-output --skip-tokenizer-init --stream-output",
    }
)
"""Options that benchctl itself relies on, and the recipe's key for each."""


def command_line(
    python: Path, package: Package, engine: SglangSpec, arm: Arm, models: ResolvedPair, *, in_use: bool = False
) -> tuple[str, ...]:
    """Return the whole command of a cell; `{port}` stands for the port.

    `in_use`: the cache and the requests at a time are SGLang's own defaults, unless the recipe writes them.
    """
    settings = [
        *("--model-path", str(models.target.path)),
        *("--served-model-name", MODEL_NAME),
        *("--host", "127.0.0.1"),
        *("--port", "{port}"),
        *("--context-length", str(engine.context)),
        *("--dtype", engine.dtype),
        *(() if in_use and arm.concurrency == 1 else ("--max-running-requests", str(arm.concurrency))),
        *("--random-seed", "0"),
    ]
    if in_use:
        settings.append("--enable-metrics")
    if not engine.prefix_caching and not (in_use and "prefix_caching" not in engine.model_fields_set):
        settings.append("--disable-radix-cache")
    if engine.device != "auto":
        settings += ["--device", DEVICES[engine.device]]
    if arm.cache_type is not None and arm.cache_type.target is not None:
        settings += ["--kv-cache-dtype", arm.cache_type.target]
    if arm.speculation is not None:
        settings += speculation_flags(arm.speculation, models, package)
    return (str(python), "-m", "sglang.launch_server", *settings, *engine.args, *arm.args)


def argument_problems(args: Sequence[str], options: Mapping[str, bool]) -> list[str]:
    """Return a sentence for every argument of a recipe that this SGLang lacks or that benchctl sets itself."""
    return package_argument_problems(args, options, _RESERVED, "SGLang")


ALGORITHMS: Mapping[str, str] = {
    "draft-simple": "STANDALONE",
    "draft-eagle3": "EAGLE3",
    "draft-mtp": "NEXTN",
    "draft-dflash": "DFLASH",
    "draft-dspark": "DSPARK",
    "ngram-simple": "NGRAM",
}
"""benchctl's names of types, and SGLang's."""
_NEEDS_MODEL = frozenset({"STANDALONE", "EAGLE", "EAGLE3", "DFLASH", "DSPARK"})
_TAKES_MODEL = _NEEDS_MODEL | {"NEXTN", "FROZEN_KV_MTP"}
_CHAINS = frozenset({"STANDALONE", "EAGLE", "EAGLE3", "NEXTN", "FROZEN_KV_MTP"})
_MEANINGLESS = ("min", "p_min", "size_n", "size_m", "min_hits")
_OTHER_KEYS = frozenset({"uno-lora-path", "enable-multi-layer-eagle"})
_RECIPE_KEYS = {
    "speculative-algorithm": "type",
    "speculative-draft-model-path": "models.draft",
    "speculative-draft-model": "models.draft",
}


def algorithm_of(type_name: str) -> str:
    """Return SGLang's name for a speculation type of a recipe; SGLang's own names may be in any case."""
    return ALGORITHMS.get(type_name, type_name.upper())


def speculation_flags(speculation: Speculation, models: ResolvedPair, package: Package) -> list[str]:
    """Return the options of an arm, the recipe's own last."""
    (algorithm,) = map(algorithm_of, speculation.types)
    flags = {"speculative-algorithm": algorithm}
    if models.draft is not None and algorithm in _TAKES_MODEL:
        flags["speculative-draft-model-path"] = str(models.draft.path)
    if speculation.max is not None:
        flags |= _depth(algorithm, speculation.max)
    for key, value in _own_options(speculation).items():
        name = key.replace("_", "-")
        if not (isinstance(value, bool) and package.options[f"--{name}"]):
            flags[name] = str(value).lower() if isinstance(value, bool) else str(value)
        elif value:
            flags[name] = ""  # a switch
    return [
        argument for name, value in flags.items() for argument in ([f"--{name}", value] if value else [f"--{name}"])
    ]


def _depth(algorithm: str, depth: int) -> dict[str, str]:
    """Return what makes every round draft `depth` tokens, one after the other."""
    if algorithm == "DSPARK":
        return {"speculative-dspark-block-size": str(depth)}
    chain = {"speculative-num-steps": str(depth), "speculative-eagle-topk": "1"} if algorithm in _CHAINS else {}
    return chain | {"speculative-num-draft-tokens": str(depth + 1)}


def _own_options(speculation: Speculation) -> dict[str, OptionValue]:
    return {key: value for key, value in (speculation.options or {}).items() if key != SIMULATED}


_ADAPTIVE, _BY_BATCH_SIZE = "speculative_adaptive", "speculative_adaptive_config"
_READS_BATCH_SIZES = (0, 5, 23)
"""The oldest version that was read for it. An older SGLang may take the file and ignore what it says of batch sizes."""


def with_schedule(setting: Speculation, steps: Sequence[tuple[int, int, int]], package: Package) -> Speculation | None:
    """Return a setting with a depth for each range of batch sizes, which SGLang reads from a file in the cache.

    `None` where SGLang cannot: it takes such a file for chains of EAGLE and EAGLE3 alone. A batch takes the entry of
    the largest size up to its own, after padding to a CUDA graph's size (adaptive_spec_params.py of 0.5.23). Never run.
    """
    (algorithm,) = map(algorithm_of, setting.types)
    version = tuple(map(int, re.findall(r"\d+", package.version)[:3]))
    option = f"--{_BY_BATCH_SIZE}".replace("_", "-")
    if algorithm not in ("EAGLE", "EAGLE3", "NEXTN") or version < _READS_BATCH_SIZES or option not in package.options:
        return None
    by_size = json.dumps({str(first): {"candidate_steps": [depth]} for first, _, depth in steps})
    file = cache_folder() / "schedules" / f"{sha256_text(by_size)[:16]}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, by_size)
    options = {**(setting.options or {}), _ADAPTIVE: True, _BY_BATCH_SIZE: str(file)}
    return setting.model_copy(update={"max": max(depth for *_, depth in steps), "options": options})


def has_schedule(setting: Speculation) -> bool:
    """Whether SGLang itself chooses the depth."""
    return any(value is True and key.replace("-", "_") == _ADAPTIVE for key, value in (setting.options or {}).items())


def simulated_acceptance(speculation: Speculation | None) -> dict[str, str]:
    """Return the variables that make SGLang accept draft tokens at random; none of an arm that does not ask for it.

    By the names and the meaning (target's token included) that InferenceX's golden_al_distribution/README.md gives.
    """
    options = speculation.options or {} if speculation else {}
    if SIMULATED not in options:
        return {}
    return {
        "SGLANG_SIMULATE_ACC_LEN": str(options[SIMULATED]),
        "SGLANG_SIMULATE_ACC_METHOD": "match-expected",
        "SGLANG_SIMULATE_ACC_TOKEN_MODE": "real-draft-token",
    }


def recipe_problems(speculation: Speculation) -> list[str]:
    """Return a sentence for everything in a recipe's `speculation` that no SGLang can do, or may not do there."""
    if simulated_acceptance(speculation):
        return [f"options.{SIMULATED} simulates acceptance, which is for `benchctl breakeven` alone."]
    return _impossible(speculation)


def _impossible(speculation: Speculation) -> list[str]:
    return type_problems(speculation, ALGORITHMS, "SGLang") or unused_keys(speculation, _MEANINGLESS, "SGLang")


def speculation_problems(speculation: Speculation, package: Package, models: ResolvedPair) -> list[str]:
    """Return a sentence for everything in `speculation` that this SGLang cannot do with these models."""
    if problems := _impossible(speculation):
        return problems
    (name,) = speculation.types
    algorithm = algorithm_of(name)
    if algorithm not in package.algorithms:
        types = named_types(ALGORITHMS, package.algorithms)
        near = did_you_mean(name, types)
        return [f"this SGLang {package.version} has no algorithm `{name}`.{near} It has {', '.join(types)}."]
    valid = [name[2:] for name in package.options if name.startswith("--speculative-") or name[2:] in _OTHER_KEYS]
    requested = [key.replace("_", "-") for key in _own_options(speculation)]
    problems = key_problems(requested, valid, _RECIPE_KEYS, f"SGLang {package.version}")
    if algorithm in _NEEDS_MODEL and models.draft is None:
        problems.append(f"{name} needs a draft model; name one in models.draft.")
    elif algorithm == "STANDALONE" and models.draft is not None and models.draft.folder and models.target.folder:
        unlike = vocabulary_differences(models.target.folder, models.draft.folder)
        problems += [f"the draft does not fit the target: {text}." for text in unlike]
    return problems


OWN_SETTINGS = OFFLINE_PYTHON | {
    # /health would generate a token and take a second for it.
    "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0",
}
REFUSED_VARIABLES = {
    "SGLANG_SIMULATE_ACC": "simulated acceptance is no measurement",
    "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "a health check that generates disturbs what is measured",
}


@dataclass(frozen=True)
class Package:
    """Facts that the installed package reports."""

    version: str
    algorithms: tuple[str, ...]
    options: Mapping[str, bool]
    """The options of its argument parser, and whether each is a switch without a value."""


def own_settings(*, cpu: bool) -> dict[str, str]:
    """Return what benchctl sets."""
    return OWN_SETTINGS | ({"SGLANG_USE_CPU_ENGINE": "1"} if cpu else {})
