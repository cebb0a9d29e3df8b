"""SGLang, declared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import Field

from benchctl.engines.sglang.options import OPTIONS
from benchctl.recipes.adapters import Adapter
from benchctl.recipes.engine_spec import Dtype, LaunchedEngineSpec
from benchctl.recipes.flags import read_flags

_THRESHOLDS = ("speculative-accept-threshold-single", "speculative-accept-threshold-acc")


class SglangSpec(LaunchedEngineSpec):
    """SGLang's server, started for every cell."""

    kind: Literal["sglang"] = Field(description="SGLang's server.")
    dtype: Dtype = Field(default="auto", description="Precision of the weights; auto: the model's own.")


def lossy(argv: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """Thresholds below which a draft token need not be the target's, and acceptance that is simulated."""
    found = []
    if any(name in _THRESHOLDS and not _is_one(value) for name, value in read_flags(argv)):
        found.append("acceptance threshold")
    if any(name.startswith("SGLANG_SIMULATE_ACC") or name == "SIMULATE_ACC_LEN" for name in env):
        found.append("simulated acceptance")
    return found


def _is_one(value: str | None) -> bool:
    try:
        return float(value or "") == 1.0
    except ValueError:
        return False


ADAPTER = Adapter(
    spec=SglangSpec,
    engine="benchctl.engines.sglang.engine:SglangEngine",
    inventory="benchctl.engines.sglang.probe:inventory",
    endpoint="benchctl.engines.sglang.endpoint:FAMILY",
    model_format="huggingface",
    own_methods=True,
    options=OPTIONS,
    lossy=lossy,
    example=("# dtype: bfloat16        # precision of the weights; left out: the model's own",),
)
