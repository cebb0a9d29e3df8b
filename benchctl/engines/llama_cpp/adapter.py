"""llama.cpp's llama-server, declared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import Field

from benchctl.recipes.adapters import SYNTHETIC, Adapter, Usual
from benchctl.recipes.engine_spec import CachingEngineSpec
from benchctl.recipes.options import read_flags

CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
"""The values of `--cache-type-k` (common/arg.cpp, kv_cache_types)."""

_CHANGES_TARGET = """
cache-type-k cache-type-v flash-attn batch-size ubatch-size threads-batch rope-scaling rope-scale rope-freq-base
rope-freq-scale yarn-orig-ctx yarn-ext-factor yarn-attn-factor yarn-beta-slow yarn-beta-fast swa-full kv-offload
repack no-host op-offload override-kv override-tensor cpu-moe n-cpu-moe n-cpu-ffn gpu-layers split-mode tensor-split
main-gpu device kv-unified lora lora-scaled control-vector control-vector-scaled control-vector-layer-range ignore-eos
logit-bias l grammar grammar-file json-schema json-schema-file j reverse-prompt r special sp context-shift
backend-sampling bs mirostat mirostat-lr mirostat-ent dynatemp-range dynatemp-exp chat-template chat-template-file
chat-template-kwargs jinja mla-use mla attention-max-batch amb fused-moe fmoe grouped-expert-routing ger
smart-expert-reduction ser run-time-repack rtr merge-qkv mqkv k-cache-hadamard khad v-cache-hadamard vhad graph-reuse
gr
"""
"""Types, shapes and places of the target's computation, what is added to its weights, and what is sampled of it."""
_STATED = """
temp temperature top-k top-p min-p seed s samplers sampler-seq sampling-seq predict n-predict n repeat-last-n
repeat-penalty presence-penalty frequency-penalty dry-multiplier dry-base dry-allowed-length dry-penalty-last-n
dry-sequence-breaker xtc-probability xtc-threshold typical typical-p top-nsigma top-n-sigma adaptive-target
adaptive-decay
"""
"""Options that requests override (`completion_body`), by values or by a chain of samplers without these. Tried with
build 0c1e570 at temperatures 0 and 0.9: no answer changed."""
_ALIASES = """
ctk=cache-type-k ctv=cache-type-v fa=flash-attn b=batch-size ub=ubatch-size ngl=gpu-layers n-gpu-layers=gpu-layers
sm=split-mode ts=tensor-split mg=main-gpu dev=device ot=override-tensor cmoe=cpu-moe ncmoe=n-cpu-moe ncffn=n-cpu-ffn
kvo=kv-offload nkvo=no-kv-offload nr=no-repack kvu=kv-unified tb=threads-batch jf=json-schema-file
"""


class LlamaCppSpec(CachingEngineSpec):
    """llama.cpp's llama-server, started for every cell."""

    kind: Literal["llama.cpp"] = Field(default="llama.cpp", description="llama.cpp's llama-server.")


def lossy(argv: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """A synthetic acceptance accepts draft tokens that the target would not generate."""
    rates = {"spec-synth-len", "spec-synth-rates", "LLAMA_ARG_SPEC_SYNTH_LEN", "LLAMA_ARG_SPEC_SYNTH_RATES"}
    return [] if rates.isdisjoint([*env, *(name for name, _ in read_flags(argv))]) else [SYNTHETIC]


def synthetic(rates: Sequence[float]) -> tuple[list[str], dict[str, object]]:
    """Rates by position, unconditional."""
    return ["--spec-synth-rates", ",".join(f"{rate:.6g}" for rate in rates)], {}


ADAPTER = Adapter(
    spec=LlamaCppSpec,
    engine="benchctl.engines.llama_cpp.engine:LlamaCppEngine",
    inventory="benchctl.engines.llama_cpp.installation:inventory",
    endpoint="benchctl.engines.llama_cpp.score:FAMILY",
    issue="benchctl.engines.llama_cpp.issue:FORM",
    doctor="benchctl.engines.llama_cpp.installation:check",
    program="llama-server",
    line="benchctl.engines.llama_cpp.line:LINE",
    installer="benchctl.engines.llama_cpp.installation:LlamaCppInstaller",
    model_format="gguf",
    pair="benchctl.engines.llama_cpp.pair:pair_problems",
    dead_drafter="Causes seen in llama.cpp: a quantized KV cache that the draft head shares (-ctk q8_0, pull request "
    "22853), or the GPU's backend (try the same file with `device: cpu`).",
    usual=Usual(start_s=2.0, step_s=0.001),  # 0.4 ms on an H100, 1.6 to 3 on two cores
    own_methods=True,
    lists_types=True,
    interleaves=True,
    quantizes=True,
    lossy=lossy,
    synthetic=synthetic,
    truncates_first=True,
    repeats=True,
    changes_target=frozenset(_CHANGES_TARGET.split()),
    stated=frozenset(_STATED.split()),
    aliases=dict(alias.split("=") for alias in _ALIASES.split()),
    sampling=frozenset({"repeat_penalty", "presence_penalty", "frequency_penalty", "logit_bias", "grammar"}),
    scored=frozenset({"presence_penalty", "frequency_penalty", "logit_bias"}),
    cache_types=CACHE_TYPES,
    cache_type_options=("-ctk", "--cache-type-k"),
    draft_cache_types=True,
    # One cache and one hash table for all requests; the maps keep keys, and how they fared, of earlier prompts' starts.
    remembers=frozenset({"ngram-cache", "ngram-mod", "ngram-map-k", "ngram-map-k4v"}),
    example=(
        "# binary: llama-server   # a path or a name; else the environment, PATH, then benchctl's own build",
        '# args: ["--flash-attn", "on"]   # passed through as they are',
    ),
)
