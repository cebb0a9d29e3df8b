"""What a search found, and the words for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Verdict = Literal["source damaged", "healthy", "one family", "several families", "spread"]
"""`several families`: no single one repairs the model, these together do. `spread`: nor do fewer than half of them."""


@dataclass(frozen=True)
class LayerFinding:
    """Which tensors of a family it is, as patterns."""

    breaking: tuple[str, ...]
    """Each breaks the model when it alone is quantized."""
    repair: tuple[str, ...]
    """Keeping these, and nothing else of the family, repairs it."""
    whole: bool = False
    """Whether that is every layer of the family, so that its name says the same."""


@dataclass(frozen=True)
class Finding:
    """The answer."""

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
    looked into) kept alone and quantized alone."""
    layers: Mapping[str, LayerFinding] = field(default_factory=dict)
    """By family, where layers were asked for."""

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
