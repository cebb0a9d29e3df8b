"""SGLang, declared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import Field

from benchctl.recipes.adapters import SYNTHETIC, Adapter
from benchctl.recipes.engine_spec import CachingEngineSpec, Dtype
from benchctl.recipes.options import read_flags

CACHE_TYPES = ("auto", "fp8_e5m2", "fp8_e4m3", "bf16", "bfloat16", "fp4_e2m1")
"""The values of `--kv-cache-dtype` (sglang/srt/server_args.py)."""

_CHANGES_TARGET = """
kv-cache-dtype quantization tensor-parallel-size tp tp-size pipeline-parallel-size attention-backend
disable-cuda-graph enable-torch-compile chunked-prefill-size max-prefill-tokens page-size sampling-backend
disable-overlap-schedule enable-mixed-chunk device dtype
"""
"""Types, shapes and places of the target's computation."""

SIMULATED = "simulate-acc-len"
"""Key of a speculation's options that `SGLANG_SIMULATE_ACC_LEN` is set from; only break-even may write it."""
_THRESHOLDS = ("speculative-accept-threshold-single", "speculative-accept-threshold-acc")


class SglangSpec(CachingEngineSpec):
    """SGLang's server, started for every cell."""

    kind: Literal["sglang"] = Field(description="SGLang's server.")
    dtype: Dtype = Field(default="auto", description="Precision of the weights; auto: the model's own.")


def lossy(argv: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """Thresholds below which a draft token need not be the target's, and acceptance that is simulated."""
    reasons = []
    if any(name in _THRESHOLDS and not _is_one(value) for name, value in read_flags(argv)):
        reasons.append("acceptance threshold")
    if any(name.startswith("SGLANG_SIMULATE_ACC") for name in env):
        reasons.append(SYNTHETIC)
    return reasons


def synthetic(rates: Sequence[float]) -> tuple[list[str], dict[str, object]]:
    """The mean acceptance length alone: SGLang takes no rates by position."""
    return [], {SIMULATED: round(1 + sum(rates), 6)}


def _is_one(value: str | None) -> bool:
    try:
        return float(value or "") == 1.0
    except ValueError:
        return False


ADAPTER = Adapter(
    spec=SglangSpec,
    engine="benchctl.engines.sglang.engine:SglangEngine",
    inventory="benchctl.engines.sglang.engine:inventory",
    endpoint="benchctl.engines.sglang.engine:FAMILY",
    issue="benchctl.engines.sglang.issue:FORM",
    model_format="huggingface",
    dead_drafter="A cause seen in SGLang: an EAGLE-3 head that ran as EAGLE (pull request 21272; its type is "
    "draft-eagle3).",
    own_methods=True,
    speculation="benchctl.engines.sglang.command:recipe_problems",
    lossy=lossy,
    synthetic=synthetic,
    changes_target=frozenset(_CHANGES_TARGET.split()),
    sampling=frozenset({"repeat_penalty", "presence_penalty", "frequency_penalty"}),
    cache_types=CACHE_TYPES,
    cache_type_options=("--kv-cache-dtype",),
    reserves_device=True,
    remembers=frozenset({"ngram", "ngram-simple"}),  # its n-gram store is shared by all requests of a process
    example=("# dtype: bfloat16        # precision of the weights; left out: the model's own",),
)
