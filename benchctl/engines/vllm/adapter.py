"""vLLM, declared."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from pydantic import Field

from benchctl.engines.vllm.options import OPTIONS
from benchctl.recipes.adapters import Adapter
from benchctl.recipes.engine_spec import Dtype, LaunchedEngineSpec
from benchctl.recipes.flags import read_flags

SYNTHETIC = "synthetic acceptance"
TYPICAL = "typical acceptance"
_EXACT_RULES = {None, "standard", "strict", "probabilistic", "block", "rejection_sampler"}
"""vLLM's ways to verify that keep the target's distribution, over its versions; others are lossy or not known to us."""
_RULES = {"synthetic": SYNTHETIC, "typical_acceptance_sampler": TYPICAL}


class VllmSpec(LaunchedEngineSpec):
    """vLLM's server, started for every cell."""

    kind: Literal["vllm"] = Field(description="vLLM's server.")
    dtype: Dtype = Field(default="auto", description="Precision of the weights; auto: the model's own.")


def lossy(argv: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """Rules of acceptance other than vLLM's exact ones."""
    del env
    return list(_lossy(argv))


def _lossy(argv: Sequence[str]) -> Iterator[str]:
    config: dict[str, object] = {}
    for name, value in read_flags(argv):
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


ADAPTER = Adapter(
    spec=VllmSpec,
    engine="benchctl.engines.vllm.engine:VllmEngine",
    inventory="benchctl.engines.vllm.inventory:inventory",
    endpoint="benchctl.engines.vllm.endpoint:FAMILY",
    installer="benchctl.engines.vllm.installer:VllmInstaller",
    model_format="huggingface",
    own_methods=True,
    options=OPTIONS,
    lossy=lossy,
    example=("# dtype: bfloat16        # precision of the weights; left out: the model's own",),
)
