"""The result of a search, and the limits for its verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from benchctl.experiments.isolate.stored import Measurement
from benchctl.measure.preflight.session import DAMAGED

BEYOND_USUAL = 10.0
"""So many times the usual divergence is no rounding any more. The full quantization of sound models (the bundled
targets at q8_0, q4_0, q4_k_m and q2_k) diverges by 0.8 to 2.4 times it."""
LEAST = 0.01
"""Nats below which a divergence is no damage, whatever caused it: between the 0.005 of q6_k and the 0.03 of q4_k_m that
llama.cpp's own table has for a model of 8 billion parameters (tools/perplexity/README.md)."""
MOST = DAMAGED
"""Nats above which it always is: where the preflight of a run warns."""

Verdict = Literal["source damaged", "healthy", "one family", "several families", "spread"]
"""`several families`: no single family repairs the model, several do. `spread`: nor do fewer than half of them."""


def usual(groups: Sequence[Measurement]) -> float | None:
    """Return what the type usually costs this model, in nats: the lower median of its groups, for all of them.

    `groups` are measurements with a group of families quantized and the rest kept; between them, all families.
    Divergences of small independent errors add up. With four groups the lower median stays sound when two of them
    hold a broken family. None when that group's divergence is no number.
    """
    values = sorted(divergence_of(group) for group in groups)
    middle = values[(len(values) - 1) // 2]
    return None if middle == float("inf") else middle * len(values)


def limit_of(level: float | None, noise: float) -> float:
    """Return the limit in nats, from `usual` and from what the source diverges from itself when it reads twice."""
    limit = max(LEAST, BEYOND_USUAL * noise, BEYOND_USUAL * (level or 0.0))
    return min(limit, MOST)


def divergence_of(found: Measurement) -> float:
    """Return the divergence in nats; infinity where it is no number."""
    value = None if found.severity is None else found.severity.divergence
    return float("inf") if value is None else value


def damage(found: Measurement, limit: float) -> list[str]:
    """Return why a measurement counts as damaged, a clause each; empty when it does not."""
    reasons = list(dict.fromkeys(finding.id for finding in found.findings))
    value = divergence_of(found)
    if value == float("inf"):
        reasons.append("its logits are not numbers")
    elif value > limit:
        reasons.append(f"it diverges by {value:.3g} nats")
    return reasons


@dataclass(frozen=True)
class LayerFinding:
    """Which tensors of a family it is, as patterns."""

    breaking: tuple[str, ...]
    """Each breaks the model when it alone is quantized."""
    repair: tuple[str, ...]
    """Keeping these, and nothing else of the family, repairs it."""
    whole: bool = False
    """Whether that is every layer of the family, so that its name is enough."""


@dataclass(frozen=True)
class Finding:
    """The result of a search."""

    verdict: Verdict
    usual: float | None
    """What the type usually costs this model in nats; `None` where it was not needed."""
    limit: float
    """Divergence in nats beyond which a model counts as damaged."""
    breaking: tuple[str, ...]
    """Families each of which breaks the model when it alone is quantized."""
    repair: tuple[str, ...]
    """Families that repair it when they, and no others, are kept; empty when there is nothing to repair."""
    evaluations: int
    """Quantizations that were measured."""
    one_by_one: int
    """How many it would have been with the full quantization, and every family (and every layer of those that were
    divided) kept alone and quantized alone."""
    layers: Mapping[str, LayerFinding] = field(default_factory=dict)
    """By family, where layers were requested."""

    @property
    def kept(self) -> tuple[str, ...]:
        """The patterns that repair the model with the fewest tensors that are known to."""
        if len(self.repair) != 1:
            return self.repair
        layers = self.layers.get(self.repair[0])
        return self.repair if layers is None or layers.whole else layers.repair

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain data."""
        return asdict(self)
