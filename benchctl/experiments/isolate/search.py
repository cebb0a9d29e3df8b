"""Which configurations to measure, and what follows from them: group testing.

Damage is taken to be monotone: what breaks a model with few tensors quantized breaks it with more. First all families
are quantized, then each of four groups alone; that shows what the type usually costs and which groups break the model.
A group that does is halved until single families are left, and the families found are kept, all others quantized: if
that repairs the model, nothing else breaks it, and nothing else was measured. Where no family breaks the model alone,
all are measured alone and kept in that order, worst first, as many as it takes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from benchctl.experiments.isolate.stored import Family, Isolation, Kept, Measurement
from benchctl.measurement.probes import DAMAGED

GROUPS = 4
"""Number of groups that the families are first divided into."""
BEYOND_USUAL = 10.0
"""So many times the usual divergence is no rounding any more. The full quantization of sound models (the bundled
targets at q8_0, q4_0, q4_k_m and q2_k) diverges by 0.8 to 2.4 times it."""
LEAST = 0.01
"""Nats below which a divergence is no damage, whatever caused it: between the 0.005 of q6_k and the 0.03 of q4_k_m that
llama.cpp's own table has for a model of 8 billion parameters (tools/perplexity/README.md)."""
MOST = DAMAGED
"""Nats above which it always is: where the preflight of a run warns."""

Measure = Callable[[Kept], Measurement]
"""Measures a configuration, or returns its earlier measurement."""
Located = tuple[list[str], list[str]]
"""The units that break the model alone, and those that repair it when they are kept."""
Verdict = Literal["source damaged", "healthy", "one family", "several families", "spread"]
"""`several families`: no single family repairs the model, several do. `spread`: nor do fewer than half of them."""


def usual(groups: Sequence[Measurement]) -> float | None:
    """Return what the type usually costs this model, in nats: the lower median of its groups, for all of them.

    `groups` are measurements with a group of families quantized and the rest kept; between them, all families.
    Divergences of small independent errors add up. With four groups the lower median stays sound when two of them
    hold a broken family. None when that group's divergence is no number.
    """
    values = sorted(group.divergence for group in groups)
    middle = values[(len(values) - 1) // 2]
    return None if middle == float("inf") else middle * len(values)


def limit_of(level: float | None, noise: float) -> float:
    """Return the limit in nats, from `usual` and from what the source diverges from itself when it reads twice."""
    limit = max(LEAST, BEYOND_USUAL * noise, BEYOND_USUAL * (level or 0.0))
    return min(limit, MOST)


def damage(measurement: Measurement, limit: float) -> list[str]:
    """Return why a measurement counts as damaged, a clause each; empty when it does not."""
    reasons = list(dict.fromkeys(finding.id for finding in measurement.findings))
    if measurement.divergence == float("inf"):
        reasons.append("its logits are not numbers")
    elif measurement.divergence > limit:
        reasons.append(f"it diverges by {measurement.divergence:.3g} nats")
    return reasons


@dataclass(frozen=True)
class DamagingLayers:
    """The tensors of a family that matter, as patterns."""

    breaking: tuple[str, ...]
    """Each breaks the model when it alone is quantized."""
    repair: tuple[str, ...]
    """Keeping these, and nothing else of the family, repairs it."""
    whole: bool = False
    """Whether `repair` holds every layer of the family, so that the family's name is enough."""


@dataclass(frozen=True)
class DamagingTensors:
    """The tensors that must not be quantized: the result of a search."""

    verdict: Verdict
    usual: float | None
    """Usual divergence of this type on this model, in nats; `None` if it was not needed."""
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
    layers: Mapping[str, DamagingLayers] = field(default_factory=dict)
    """The layers by family, if layers were requested."""

    @property
    def kept(self) -> tuple[str, ...]:
        """The patterns that repair the model with the fewest tensors that are known to."""
        layers = self.layers.get(self.repair[0]) if len(self.repair) == 1 else None
        return self.repair if layers is None or layers.whole else layers.repair


def search(
    families: Sequence[Family], measure: Measure, *, singly: bool = False, layers: bool = False
) -> DamagingTensors:
    """Measure until it is known which families break the model; nothing is measured twice. Raises what `measure` does.

    `families`: largest first. `singly`: measure every family alone as well, and kept alone where the model is damaged.
    `layers`: of each family that repairs it, find the layers.
    """
    return _Search({family.name: family.layers for family in families}, measure).run(singly=singly, layers=layers)


def recall(isolation: Isolation) -> DamagingTensors | None:
    """Return what a stored search found, from its measurements alone; `None` where it was broken off before its end."""
    stored: dict[Kept, Measurement] = {
        None if measurement.kept is None else frozenset(measurement.kept): measurement
        for measurement in isolation.measurements
    }
    try:
        return search(isolation.families, stored.__getitem__)
    except KeyError:
        return None


class _Search:
    """Units are what can be kept: families, or within one of them its layers."""

    def __init__(self, layers: Mapping[str, Sequence[str]], measure: Measure) -> None:
        self._layers, self._families = layers, list(layers)
        self._measure_new = measure
        self._measured: dict[Kept, Measurement] = {}
        self._usual: float | None = None
        self._limit = LEAST

    def run(self, *, singly: bool, layers: bool) -> DamagingTensors:
        """Search, and conclude."""
        source = self._measure(None)
        breaking, repair = self._locate_families(source)
        for name in self._families if singly and not source.findings else ():
            self._alone(self._families, [name])
            if repair:
                self._measure(frozenset({name}))
        within = self._in_layers(repair) if layers and len(repair) < len(self._families) else {}
        return DamagingTensors(
            verdict="source damaged" if source.findings else self._verdict(repair),
            usual=self._usual,
            limit=self._limit,
            breaking=tuple(breaking),
            repair=tuple(repair),
            evaluations=sum(keep is not None for keep in self._measured),
            one_by_one=1 + 2 * (len(self._families) + sum(len(self._layers[name]) for name in within)),
            layers=within,
        )

    def _verdict(self, repair: Sequence[str]) -> Verdict:
        if len(repair) < 2:
            return "one family" if repair else "healthy"
        return "spread" if 2 * len(repair) > len(self._families) else "several families"

    def _locate_families(self, source: Measurement) -> Located:
        """Set the limit, and locate the families where the full quantization is beyond it."""
        if source.findings:
            return [], []
        self._limit = limit_of(None, source.divergence)
        if self._repairs([]):
            return [], []
        groups = [self._families[start::GROUPS] for start in range(min(GROUPS, len(self._families)))]
        self._usual = usual([self._alone(self._families, group) for group in groups])
        self._limit = limit_of(self._usual, source.divergence)
        if self._repairs([]):
            return [], []
        groups.sort(key=lambda group: -self._alone(self._families, group).divergence)
        return self._locate(self._families, groups, [])

    def _measure(self, keep: Kept) -> Measurement:
        if keep not in self._measured:
            self._measured[keep] = self._measure_new(keep)
        return self._measured[keep]

    def _alone(self, units: Sequence[str], quantized: Sequence[str]) -> Measurement:
        return self._measure(frozenset(units) - frozenset(quantized))

    def _breaks(self, units: Sequence[str], quantized: Sequence[str]) -> bool:
        return bool(damage(self._alone(units, quantized), self._limit))

    def _repairs(self, keep: Sequence[str]) -> bool:
        return not damage(self._measure(frozenset(keep)), self._limit)

    def _locate(self, units: Sequence[str], groups: Sequence[Sequence[str]], always_kept: Sequence[str]) -> Located:
        """Return which of the units in `groups` break the model alone, and which repair it when kept.

        `units`: everything that can be kept. `always_kept`: what is kept in any case when repairing.
        """
        breaking: list[str] = []
        waiting = list(groups)
        while waiting:
            group = waiting.pop(0)
            if self._breaks(units, group):
                unit, untested = self._halved(units, group, sure=True)
                breaking += unit
                waiting += untested
            if breaking and self._repairs([*always_kept, *breaking]):
                return breaking, breaking
        candidates = [unit for group in groups for unit in group if unit not in breaking]
        candidates.sort(key=lambda unit: -self._alone(units, [unit]).divergence)
        if not breaking and units is self._families:  # among layers, a single one matters little
            single = next((unit for unit in candidates if self._repairs([unit])), None)
            if single is not None:
                return [], [single]
        fewest = bisect_left(
            range(len(candidates)),
            True,
            lo=1,
            key=lambda count: self._repairs([*always_kept, *breaking, *candidates[:count]]),
        )
        return breaking, [*breaking, *candidates[:fewest]]

    def _halved(
        self, units: Sequence[str], group: Sequence[str], *, sure: bool
    ) -> tuple[Sequence[str], list[Sequence[str]]]:
        """Follow a group that breaks the model down to a unit that does; return that, if any, and what was not tested.

        Where the left half does not break it, the right must, and is not measured as a whole: it is not `sure`.
        """
        if len(group) == 1:
            return (group if sure or self._breaks(units, group) else []), []
        first_half, second_half = group[: len(group) // 2], group[len(group) // 2 :]
        if not self._breaks(units, first_half):
            return self._halved(units, second_half, sure=False)
        breaking, untested = self._halved(units, first_half, sure=True)
        return breaking, [second_half, *untested]

    def _in_layers(self, repair: Sequence[str]) -> dict[str, DamagingLayers]:
        """Find the layers of each repairing family that need it, the other repairing families being kept whole."""
        damaging: dict[str, DamagingLayers] = {}
        for name in repair:
            layers = list(self._layers[name])
            if len(layers) < 2:
                continue
            units = [*(family for family in self._families if family != name), *layers]
            other_families = [family for family in repair if family != name]
            middle = len(layers) // 2
            breaking, needed = self._locate(units, [layers[:middle], layers[middle:]], other_families)
            damaging[name] = DamagingLayers(tuple(breaking), tuple(needed), whole=set(needed) == set(layers))
        return damaging
