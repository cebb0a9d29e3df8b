"""vLLM, declared."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import Field

from benchctl.recipes.adapters import SYNTHETIC, Adapter, Usual
from benchctl.recipes.engine_spec import CachingEngineSpec, Dtype
from benchctl.recipes.options import read_flags

CACHE_TYPES = ("auto", "float16", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc", "fp8_ds_mla")
"""The values of `--kv-cache-dtype` (vllm/config/cache.py, CacheDType)."""

_CHANGES_TARGET = """
kv-cache-dtype quantization dtype mamba-cache-dtype mamba-ssm-cache-dtype mamba-block-size mamba-cache-mode block-size
attention-backend tensor-parallel-size tp pipeline-parallel-size pp data-parallel-size dp enforce-eager
compilation-config cc optimization-level O cudagraph-capture-sizes cuda-graph-sizes max-cudagraph-capture-size
max-num-batched-tokens enable-chunked-prefill disable-cascade-attn disable-sliding-window hf-overrides cpu-offload-gb
model-impl enable-prefix-caching enable-expert-parallel generation-config override-generation-config logits-processors
chat-template
"""
"""Types, shapes and places of the target's computation, and what is sampled of it."""

_EXACT_RULES = {None, "standard", "strict", "probabilistic", "block"}
"""vLLM's rules of acceptance that keep the target's distribution, over its versions; others are lossy or unknown."""


_INVARIANT = "VLLM_BATCH_INVARIANT"


class VllmSpec(CachingEngineSpec):
    """vLLM's server, started for every cell."""

    kind: Literal["vllm"] = Field(description="vLLM's server.")
    dtype: Dtype = Field(default="auto", description="Precision of the weights; auto: the model's own.")
    max_num_seqs: int | None = Field(
        default=None,
        ge=1,
        le=65536,
        description="Requests that vLLM plans for; null: its own (CPU: concurrency).",
    )


def lossy(argv: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """Rules of acceptance other than vLLM's exact ones."""
    del env
    config: dict[str, object] = {}
    for name, value in read_flags(argv):
        if name in ("speculative-config", "sc"):
            config |= _json_object(value)
        elif name.startswith(("speculative-config.", "sc.")):
            config[name.partition(".")[2].replace("-", "_")] = value
    rule = config.get("rejection_sample_method")
    if rule == "synthetic" or any(config[key] is not None for key in config if key.startswith("synthetic_acceptance")):
        return [SYNTHETIC]
    return [] if rule in _EXACT_RULES else [f"acceptance rule {rule!s}"]


def batch_invariant(argv: Sequence[str], env: Mapping[str, str]) -> str | None:
    """vLLM's variable; what it does not support under it, it refuses to start."""
    del argv
    value = env.get(_INVARIANT, "")
    return f"{_INVARIANT}={value}" if value.isdecimal() and int(value) else None


def _json_object(text: str | None) -> dict[str, object]:
    """Read `--speculative-config`; vLLM refuses to start with anything but a JSON object."""
    try:
        value = json.loads(text or "")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def synthetic(rates: Sequence[float]) -> tuple[list[str], dict[str, object]]:
    """Rates by position, unconditional."""
    return [], {
        "rejection_sample_method": "synthetic",
        "synthetic_acceptance_rates": [round(rate, 6) for rate in rates],
    }


ADAPTER = Adapter(
    spec=VllmSpec,
    engine="benchctl.engines.vllm.engine:VllmEngine",
    inventory="benchctl.engines.vllm.engine:inventory",
    endpoint="benchctl.engines.vllm.engine:FAMILY",
    issue="benchctl.engines.vllm.issue:FORM",
    program="vllm",
    line="benchctl.engines.vllm.line:LINE",
    installer="benchctl.engines.vllm.installation:VllmInstaller",
    model_format="huggingface",
    dead_drafter="A cause seen in vLLM: a quantized checkpoint whose MTP layers are not quantized and were not loaded "
    "(pull request 37667; name the original checkpoint as the draft).",
    usual=Usual(start_s=60.0, step_s=0.008),  # H100: 94 s compiled, 36 to 62 s eager; two cores: 65 s
    own_methods=True,
    speculation="benchctl.engines.vllm.command:recipe_problems",
    runs_code=frozenset({"custom_class"}),
    lossy=lossy,
    batch_invariant=batch_invariant,
    synthetic=synthetic,
    changes_target=frozenset(_CHANGES_TARGET.split()),
    aliases={"cc": "compilation-config"},
    sampling=frozenset({"repeat_penalty", "presence_penalty", "frequency_penalty", "logit_bias", "grammar"}),
    cache_types=CACHE_TYPES,
    cache_type_options=("--kv-cache-dtype",),
    reserves_device=True,
    remembers=frozenset({"suffix"}),  # its tree is shared by all requests, where the recipe lets it keep any
    example=("# dtype: bfloat16        # precision of the weights; left out: the model's own",),
)
