"""The command line of a cell: benchctl's own options, the arm's speculation, then the recipe's arguments.

Everything that decides speed or numerics and that vLLM would choose by itself is written out, so that two arms differ
in nothing but what the recipe says. Which methods and keys of speculation there are comes from the installed package.
`size_n` is the length of the looked-up n-gram, so it is both `prompt_lookup_min` and `prompt_lookup_max`; `min`, the
fewest draft tokens worth verifying, does not exist in vLLM: its `prompt_lookup_min` is a length of the key.
"""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic.dataclasses import dataclass

from benchctl.engines.common.launched_server import MODEL_NAME
from benchctl.engines.common.process import OFFLINE_PYTHON
from benchctl.engines.common.programs import reserved
from benchctl.engines.common.python_environment import argument_problems as package_argument_problems
from benchctl.engines.common.python_environment import key_problems, named_types, type_problems, unused_keys
from benchctl.engines.vllm.adapter import VllmSpec
from benchctl.models.files import ResolvedModel, ResolvedPair
from benchctl.models.folder_facts import folder_facts, text_config, vocabulary_differences, weights_of
from benchctl.recipes.options import IS_OPTION, read_flags
from benchctl.recipes.problems import did_you_mean
from benchctl.recipes.schema import Arm
from benchctl.recipes.speculation import Speculation

RESERVED = reserved(
    {
        "models.target": "--model --tokenizer --revision",
        "engine.context": "--max-model-len",
        "engine.dtype": "--dtype",
        "engine.prefix_caching": "--enable-prefix-caching",
        "engine.max_num_seqs": "--max-num-seqs",
        "arms[].speculation": "--speculative-config -sc --spec-method --spec-model --spec-tokens",
        "nothing (benchctl talks to its own server on loopback)": "--host --port --uds --root-path --api-key "
        "--ssl-keyfile --ssl-certfile --served-model-name --config --headless --api-server-count",
        "nothing (models are fetched before, and a recipe is recorded as it is)": "--hf-token",
        "nothing (benchctl sets it for its measurement)": "--enable-per-request-metrics "
        "--per-request-spec-decode-metrics --stream-interval --disable-log-stats "
        "--max-logprobs --data-parallel-size --return-tokens-as-token-ids",
    }
)
"""Options that benchctl itself relies on, and the recipe's key for each."""


def command_line(
    program: Path, package: Package, engine: VllmSpec, arm: Arm, models: ResolvedPair, *, in_use: bool = False
) -> tuple[str, ...]:
    """Return the whole command of a cell; `{port}` stands for the port.

    `in_use`: the prefix cache and the requests at a time are vLLM's own defaults, unless the recipe writes them.
    """
    default = in_use and "prefix_caching" not in engine.model_fields_set
    prefix_caching = "--enable-prefix-caching" if engine.prefix_caching else "--no-enable-prefix-caching"
    caching = [] if default else [[prefix_caching]]
    settings = [
        ["--host", "127.0.0.1"],
        ["--port", "{port}"],
        ["--served-model-name", MODEL_NAME],
        ["--max-model-len", str(engine.context)],
        ["--dtype", engine.dtype],
        *([] if in_use and arm.concurrency == 1 and not engine.max_num_seqs else _most_requests(package, engine, arm)),
        ["--seed", "0"],
        *caching,
        ["--enable-per-request-metrics"],
    ]
    if (in_use or engine.prefix_caching) and (
        package.options is None or "--enable-prompt-tokens-details" in package.options
    ):
        settings.append(["--enable-prompt-tokens-details"])  # how many were in the cache
    if arm.cache_type is not None and arm.cache_type.target is not None:
        settings.append(["--kv-cache-dtype", arm.cache_type.target])
    if package.cpu:  # without it vLLM compiles the model for minutes, at every start
        settings.append(["--enforce-eager"])
    if arm.speculation is not None:
        settings.append(["--speculative-config", speculative_config(arm.speculation, models.draft)])
        settings.append(["--per-request-spec-decode-metrics", "detailed"])
    theirs = [*engine.args, *arm.args]
    replaced = {_positive(argument) for argument in theirs if IS_OPTION.match(argument)}
    arguments = [argument for setting in settings if _positive(setting[0]) not in replaced for argument in setting]
    return (str(program), "serve", str(models.target.path), *arguments, *theirs)


def _most_requests(package: Package, engine: VllmSpec, arm: Arm) -> list[list[str]]:
    """Return `--max-num-seqs`, which decides the batch sizes of CUDA graphs and the room for recurrent states.

    On a GPU it is vLLM's own default, as it is served, or the recipe's; never fewer than benchctl sends at a time.
    """
    if engine.max_num_seqs is None and not package.cpu:
        return []
    return [["--max-num-seqs", str(max(engine.max_num_seqs or 1, arm.concurrency))]]


def _positive(option: str) -> str:
    """Return an option as vLLM compares it: without key or value, an underscore is a dash, `--no-x` is about `--x`."""
    name = option.partition("=")[0].partition(".")[0].replace("_", "-")
    return f"--{name.removeprefix('--no-')}" if name.startswith("--no-") else name


def argument_problems(args: Sequence[str], options: Mapping[str, int | None] | None) -> list[str]:
    """Return a sentence for every argument of a recipe that this vLLM lacks or that benchctl sets itself."""
    problems = package_argument_problems(args, options, RESERVED, "vLLM", _positive)
    for argument, following in itertools.zip_longest(args, args[1:]):
        if options and options.get(argument.replace("_", "-")) == 1 and (following is None or following in options):
            problems.append(f"{argument} lacks its value; write it as the next item.")
    return problems


_COUNTING = ("--enable-per-request-metrics", "--speculative-config", "--per-request-spec-decode-metrics")


def missing_options(package: Package) -> list[str]:
    """Return a sentence when this vLLM is too old to report what benchctl needs of each answer."""
    lacking = [name for name in _COUNTING if package.options is not None and name not in package.options]
    sentence = f"this vLLM {package.version} has no {', '.join(lacking)}, without which nothing can be counted."
    return [sentence] if lacking else []


METHODS: Mapping[str, str] = {
    "draft-simple": "draft_model",
    "draft-eagle3": "eagle3",
    "draft-mtp": "mtp",
    "draft-dflash": "dflash",
    "draft-dspark": "dspark",
    "ngram-simple": "ngram",
}
"""benchctl's names of types, and vLLM's."""
_NEEDS_MODEL = frozenset({"draft_model", "eagle", "eagle3", "medusa", "mlp_speculator", "dflash", "dspark"})
_TAKES_MODEL = _NEEDS_MODEL | {"mtp"}
_LOOKUPS = ("ngram", "ngram_gpu")
_DEPTH_OPTIONAL = frozenset({"suffix", "mtp", "eagle", "eagle3", "medusa", "dflash", "dspark"})
"""Methods whose depth comes from the head's own configuration, or has a default."""
_RECIPE_KEYS = {
    "method": "type",
    "model": "models.draft",
    "num_speculative_tokens": "max",
    "tensor_parallel_size": "draft_tensor_parallel_size",
}
_NOT_ON_CPU = {
    "ngram_gpu": "it needs an accelerator (use ngram-simple, which runs on the CPU)",
    "mlp_speculator": "vLLM lists it, and on a CPU has nothing that drafts with it",
    "dspark": "vLLM drafts with it in its second model runner alone, which needs Triton",
}
_FIXED: Mapping[str, Mapping[str, object]] = {
    # The suffix tree is shared by all requests: the second block would be drafted from the first block's answers.
    "suffix": {"suffix_decoding_max_cached_requests": 0},
}


_WORTH_TRYING: tuple[dict[str, Any], ...] = (
    {"type": "draft-simple", "max": 4},
    {"type": "ngram-simple", "max": 4, "size_n": 3},
    {"type": "draft-simple", "max": 2},
    {"type": "suffix", "max": 16},
    {"type": "draft-simple", "max": 8},
    {"type": "ngram-simple", "max": 8, "size_n": 4},
    {"type": "ngram-simple", "max": 2, "size_n": 2},
    {"type": "draft-simple", "max": 1},
    {"type": "ngram-simple", "max": 16, "size_n": 6},
)
"""The likeliest to pay first."""


_HEADS = {"eagle3": "draft-eagle3", "eagle": "eagle", "medusa": "medusa", "dflash": "draft-dflash"}
"""Words in the class of a draft that was made for a single target, and the type that each is for."""


def worth_trying(package: Package, models: ResolvedPair) -> list[Speculation]:
    """Return the settings that this vLLM can run with these models."""
    named = "" if models.draft is None else str(folder_facts(models.draft.path)["architecture"]).lower()
    kind = next((type_name for word, type_name in _HEADS.items() if word in named), "draft-simple")
    trials = [{**trial, "type": kind} if trial["type"] == "draft-simple" else trial for trial in _WORTH_TRYING]
    settings = [Speculation.model_validate(trial) for trial in trials]
    return [setting for setting in settings if not speculation_problems(setting, package, models)]


def method_of(type_name: str) -> str:
    """Return vLLM's name for a speculation type of a recipe."""
    return METHODS.get(type_name, type_name)


def speculative_config(speculation: Speculation, draft: ResolvedModel | None) -> str:
    """Return the value of `--speculative-config`: the method always by name, the recipe's own keys last."""
    (method,) = map(method_of, speculation.types)
    config: dict[str, Any] = {"method": method}
    if draft is not None and method in _TAKES_MODEL:
        config["model"] = str(draft.path)
    depth = speculation.max if speculation.max is not None else speculation.size_m
    if depth is not None:
        config["num_speculative_tokens"] = depth
    if speculation.size_n is not None:
        config |= {"prompt_lookup_max": speculation.size_n, "prompt_lookup_min": speculation.size_n}
    config |= {**_FIXED.get(method, {}), **(speculation.options or {})}
    return json.dumps(config)


BY_BATCH_SIZE = "num_speculative_tokens_per_batch_size"
"""[[first, last, K], …]: how many tokens are drafted where so many requests are in a batch. Ranges begin at 1; beyond
the last one its K goes on (vllm/v1/spec_decode/dynamic/utils.py of 0.32.0)."""


def with_schedule(setting: Speculation, steps: Sequence[tuple[int, int, int]], package: Package) -> Speculation | None:
    """Return a setting with a depth for each range of batch sizes; `None` where this vLLM cannot."""
    if BY_BATCH_SIZE not in package.keys:
        return None
    options = {**(setting.options or {}), BY_BATCH_SIZE: [list(step) for step in steps]}
    return setting.model_copy(update={"max": max(depth for *_, depth in steps), "options": options})


def recipe_problems(speculation: Speculation) -> list[str]:
    """Return a sentence for everything in `speculation` that no vLLM can do."""
    if problems := type_problems(speculation, METHODS, "vLLM"):
        return problems
    (name,) = speculation.types
    return _keys(speculation, method_of(name)) if name in METHODS else []


def speculation_problems(speculation: Speculation, package: Package, models: ResolvedPair) -> list[str]:
    """Return a sentence for everything in `speculation` that this vLLM cannot do with these models."""
    if problems := recipe_problems(speculation):
        return problems
    (name,) = speculation.types
    method = method_of(name)
    lack = _unknown_method(name, package) or _impossible_here(method, package)
    if lack:
        return [lack]
    problems = [*_keys(speculation, method), *_options(speculation, method, package)]
    if method in _NEEDS_MODEL and models.draft is None:
        problems.append(f"{name} needs a draft model; name one in models.draft.")
    elif method == "draft_model" and models.draft is not None and models.draft.folder is not None:
        problems += _pair(models.target, models.draft, speculation)
    elif method == "mtp" and models.draft is None and not _has_multi_token_head(models.target.path):
        problems.append("the target has no multi-token head of its own; take a target with it, or name models.draft.")
    return problems


_MULTI_TOKEN = re.compile(r"mtp|nextn|n_predict")


def _has_multi_token_head(folder: Path) -> bool:
    """Whether a key of the configuration or the name of a tensor tells of it; vLLM reads either, by model class."""
    config = text_config(folder / "config.json")
    keys = [key for key, value in config.items() if value]
    return any(map(_MULTI_TOKEN.search, (*keys, *weights_of(folder)[0])))


def target_problems(package: Package, target: ResolvedModel) -> list[str]:
    """Return a sentence when this vLLM lacks a package that it imports for the target's class."""
    named = folder_facts(target.path)["architecture"]
    if package.torchvision or not str(named).startswith("Qwen3_5"):
        return []
    return [f"models.target: vLLM imports torchvision for {named}, and its own environment does not have it."]


def _unknown_method(name: str, package: Package) -> str | None:
    method = method_of(name)
    if method in package.methods:
        return None
    runnable = [method_name for method_name in package.methods if not _impossible_here(method_name, package)]
    types = named_types(METHODS, runnable)
    near = did_you_mean(name, [*package.methods, *METHODS])
    return f"this vLLM {package.version} has no method `{name}`.{near} Here it has {', '.join(types)}."


def _impossible_here(method: str, package: Package) -> str | None:
    if package.cpu and method in _NOT_ON_CPU:
        return f"{method} does not run here: {_NOT_ON_CPU[method]}."
    if method == "suffix" and not package.arctic_inference:
        return (
            "suffix decoding needs the package arctic-inference in vLLM's own environment "
            "(its suffix_decoding is enough), and it is not there."
        )
    return None


def _keys(speculation: Speculation, method: str) -> list[str]:
    unused = ("min", "p_min", "min_hits") if method in _LOOKUPS else ("min", "p_min", "min_hits", "size_n", "size_m")
    problems = unused_keys(speculation, unused, f"vLLM's {method}")
    depth = speculation.max or speculation.size_m
    if depth is None and method not in _DEPTH_OPTIONAL and method != "custom_class":
        problems.append(f"vLLM's {method} has no depth of its own; give `max`.")
    return problems


def _options(speculation: Speculation, method: str, package: Package) -> list[str]:
    options = speculation.options or {}
    requested = [key for key in options if not (key == "model" and method == "custom_class")]
    problems = key_problems(requested, package.keys, _RECIPE_KEYS, f"vLLM {package.version}")
    if package.cpu and options.get("enable_adaptive_verification"):
        reason = "vLLM has it in its second model runner alone, which needs Triton; on a CPU it would do nothing."
        problems.append(f"options.enable_adaptive_verification: {reason}")
    twice = [key for key in ("prompt_lookup_max", "prompt_lookup_min") if key in options and speculation.size_n]
    return problems + [f"options.{key}: `size_n` sets it already; give either." for key in twice]


def _pair(target: ResolvedModel, draft: ResolvedModel, speculation: Speculation) -> list[str]:
    """Return why vLLM cannot draft with this model for this target."""
    problems = []
    if folder_facts(draft.path)["memory"] in ("hybrid", "recurrent"):
        problems.append(
            "the draft keeps a recurrent state, and vLLM drafts only with models whose layers all share one kind of "
            "cache. Take a draft of attention layers alone, or an n-gram method."
        )
    if not (speculation.options or {}).get("use_heterogeneous_vocab"):
        differences = vocabulary_differences(target.path, draft.path)
        problems += [f"the draft's vocabulary is not the target's: {'; '.join(differences)}."] if differences else []
    return problems


def hybrid_warnings(package: Package, target: ResolvedModel) -> list[str]:
    """Return a warning where vLLM speculates although it is known to go wrong."""
    warning = (
        "The target keeps a recurrent state, and vLLM on a CPU is known to corrupt such models when it speculates: "
        "see `benchctl docs vllm-hybrids`, and check with verify-lossless."
    )
    return [warning] if package.cpu and folder_facts(target.path)["memory"] in ("hybrid", "recurrent") else []


def requested_method(argv: Sequence[str]) -> str | None:
    """Read from a command line which method it requests; `None` for the target alone."""
    method = requested_config(argv).get("method")
    return method if isinstance(method, str) else None


def requested_config(argv: Sequence[str]) -> dict[str, Any]:
    """Read from a command line the configuration of speculation; empty for the target alone."""
    config: dict[str, Any] = json.loads(dict(read_flags(argv)).get("speculative-config") or "{}")
    return config


KV_CACHE_GIB = 2
"""On a CPU vLLM plans with most of the machine's memory unless it is given a limit for the cache."""
ALWAYS_SET = OFFLINE_PYTHON | {
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
REFUSED_VARIABLES = {
    "VLLM_API_KEY": "benchctl talks to its own server on loopback",
    "VLLM_PLUGINS": "plugins change what runs",
}


@dataclass(frozen=True)
class Package:
    """Facts that the installed package reports."""

    version: str
    platform: str
    """`cpu`, `cuda`, …"""
    device: str
    prefix: Path
    methods: tuple[str, ...]
    keys: tuple[str, ...]
    """The keys of `--speculative-config`."""
    options: Mapping[str, int | None] | None
    """The options of `vllm serve`, and how many values each takes (`None`: it varies); `None` if not known."""
    arctic_inference: bool
    torchvision: bool
    """Whether these packages are in its environment."""

    @property
    def cpu(self) -> bool:
        """Whether it runs on the CPU."""
        return self.platform == "cpu"


def own_settings(*, cpu: bool, prefix: Path, threads: int | None) -> dict[str, str]:
    """Return what benchctl sets; `prefix` is vLLM's Python environment, `threads` the recipe's `engine.threads`.

    On a CPU vLLM itself binds one thread to each physical core and leaves one core to its other processes (`auto`); a
    number of threads binds to the first so many processors. Intel's OpenMP, which vLLM brings and requests where it
    speculates, is loaded first where it is there.
    """
    if not cpu:
        return dict(ALWAYS_SET)
    allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    bind = "auto" if threads is None else ",".join(map(str, allowed[:threads]))
    settings = ALWAYS_SET | {"VLLM_CPU_KVCACHE_SPACE": str(KV_CACHE_GIB), "VLLM_CPU_OMP_THREADS_BIND": bind}
    openmp = prefix / "lib" / "libiomp5.so"
    return settings | ({"LD_PRELOAD": str(openmp)} if openmp.is_file() else {})
