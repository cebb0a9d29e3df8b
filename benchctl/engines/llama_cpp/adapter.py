"""llama.cpp's llama-server, declared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field

from benchctl.recipes.adapters import SYNTHETIC, Adapter
from benchctl.recipes.engine_spec import LaunchedEngineSpec
from benchctl.recipes.options import PROCESSORS, OptionList, read_flags, read_words

_WORDS = read_words(Path(__file__).with_name("options.toml"))
CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
"""Of `--cache-type-k` (common/arg.cpp, kv_cache_types)."""

OPTIONS = OptionList.of(
    _WORDS,
    opens={
        "draft-params": "may set any option of the draft's",
        "ui-config": "changes what its web page does",
        "props": "lets any client change its settings",
    },
    variables=PROCESSORS.union(_WORDS["variables"]),
)
"""Of llama.cpp and of ik_llama.cpp (common/common.cpp of ik-llama-cpp-python 0.1.5)."""


class LlamaCppSpec(LaunchedEngineSpec):
    """llama.cpp's llama-server, started for every cell."""

    kind: Literal["llama.cpp"] = Field(default="llama.cpp", description="llama.cpp's llama-server.")


def lossy(argv: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """A synthetic acceptance accepts draft tokens that the target would not generate."""
    named = {name for name, _ in read_flags(argv)} & {"spec-synth-len", "spec-synth-rates"}
    if named or {"LLAMA_ARG_SPEC_SYNTH_LEN", "LLAMA_ARG_SPEC_SYNTH_RATES"} & set(env):
        return [SYNTHETIC]
    return []


def synthetic(rates: Sequence[float]) -> tuple[list[str], dict[str, object]]:
    """Rates by position, unconditional."""
    return ["--spec-synth-rates", ",".join(f"{rate:.6g}" for rate in rates)], {}


ADAPTER = Adapter(
    spec=LlamaCppSpec,
    engine="benchctl.engines.llama_cpp.engine:LlamaCppEngine",
    inventory="benchctl.engines.llama_cpp.installation:inventory",
    endpoint="benchctl.engines.llama_cpp.score:FAMILY",
    doctor="benchctl.engines.llama_cpp.installation:check",
    installer="benchctl.engines.llama_cpp.installation:LlamaCppInstaller",
    model_format="gguf",
    own_methods=True,
    lists_types=True,
    speculation_arguments="benchctl.engines.llama_cpp.spec_flags:option_arguments",
    interleaves=True,
    quantizes=True,
    options=OPTIONS,
    lossy=lossy,
    synthetic=synthetic,
    truncates_first=True,
    changes_target=frozenset(_WORDS["changes_target"]),
    stated=frozenset(_WORDS["stated"]),
    sampling=frozenset({"repeat_penalty", "presence_penalty", "frequency_penalty", "logit_bias", "grammar"}),
    scored=frozenset({"presence_penalty", "frequency_penalty", "logit_bias"}),
    cache_types=CACHE_TYPES,
    draft_cache_types=True,
    # One cache and one hash table for all requests; the maps keep keys, and how they fared, of earlier prompts' starts.
    remembers=frozenset({"ngram-cache", "ngram-mod", "ngram-map-k", "ngram-map-k4v"}),
    example=(
        "# binary: llama-server   # a path or a name; else the environment, PATH, then benchctl's own build",
        '# args: ["--flash-attn", "on"]   # passed through as they are',
    ),
)
