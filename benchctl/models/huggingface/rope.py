"""The base of the rotary position embedding, which transformers 4 and 5 keep in different places of `config.json`."""

from __future__ import annotations

from benchctl.errors import UsageError
from benchctl.models.huggingface.layout import Config


def with_rope_theta(theta: float) -> Config:
    """Return the keys that name an unscaled rotary embedding of this base to either generation."""
    return {"rope_theta": theta, "rope_parameters": {"rope_type": "default", "rope_theta": theta}}


def rope_theta(config: Config) -> float:
    """Return the base. Raises UsageError for a scaled embedding, which the layouts do not write."""
    parameters = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if kind != "default":
        raise UsageError(f"a rotary embedding of type {kind} cannot be written", where="config.json")
    theta = parameters.get("rope_theta") or config.get("rope_theta") or 10000.0
    return float(theta)
