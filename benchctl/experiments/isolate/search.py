"""Which configuration to measure next: group testing, a generator that yields requests and is sent measurements.

Damage is taken to be monotone: what breaks a model with few tensors quantized breaks it with more. First all families
are quantized, then each of four groups alone; that shows what the type usually costs and which groups break the model.
A group that does is halved until single families are left, and the families found are kept, all others quantized: if
that repairs the model, nothing else breaks it, and nothing else was measured. Where no family breaks the model alone,
all are measured alone and kept in that order, worst first, as many as it takes.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from benchctl.experiments.isolate.stored import Family, Isolation, Kept, Measurement
from benchctl.measure.preflight import DAMAGED

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


GROUPS = 4
"""Groups that the families are first divided into."""

Steps = Generator[Kept, Measurement, Measurement]
Found = Generator[Kept, Measurement, tuple[list[str], list[str]]]
"""Returns the units that break the model alone, and those that repair it when they are kept."""
Units = Generator[Kept, Measurement, list[str]]


def search(
    families: Sequence[Family], *, every: bool = False, layers: bool = False
) -> Generator[Kept, Measurement, Finding]:
    """Yield configurations, be sent their measurements, return the finding.

    `families`: largest first. `every`: measure every family alone as well, and kept where the model is damaged.
    `layers`: of each family that repairs it, find the layers.
    """
    in_layers = {family.name: family.layers for family in families}
    return _Search(list(in_layers), in_layers).run(every, layers)


def recall(isolation: Isolation) -> Finding | None:
    """Return what a stored search found, from its measurements alone; `None` where it was broken off before its end."""
    steps = search(isolation.families)
    try:
        request = next(steps)
        while (found := isolation.measured(request)) is not None:
            request = steps.send(found)
    except StopIteration as end:
        finding: Finding = end.value
        return finding
    return None


class _Search:
    def __init__(self, families: Sequence[str], layers: Mapping[str, Sequence[str]]) -> None:
        self._families, self._layers = list(families), layers
        self._measured: dict[Kept, Measurement] = {}
        self._limit = LEAST

    def run(self, every: bool, layers: bool) -> Generator[Kept, Measurement, Finding]:
        source = yield from self._measure(None)
        if source.findings:
            return self._finding("source damaged", None)
        full = yield from self._measure(frozenset())
        noise, level = divergence_of(source), None
        self._limit = limit_of(None, noise)
        healthy = not self._broken(full)
        groups = [self._families[start::GROUPS] for start in range(min(GROUPS, len(self._families)))]
        if not healthy:
            alone = {}
            for number, group in enumerate(groups):
                alone[number] = yield from self._only(self._families, group)
            level = usual(list(alone.values()))
            groups = [groups[number] for number in sorted(alone, key=lambda group: -divergence_of(alone[group]))]
            self._limit = limit_of(level, noise)
            healthy = not self._broken(full)
        breaking: list[str] = []
        repair: list[str] = []
        if not healthy:
            breaking, repair = yield from self._locate(self._families, groups, [])
        if every:
            yield from self._each(kept=not healthy)
        in_layers: dict[str, LayerFinding] = {}
        if layers and len(repair) < len(self._families):
            in_layers = yield from self._in_layers(repair)
        verdict: Verdict = "healthy"
        if not healthy:
            spread = len(repair) > 1 and 2 * len(repair) > len(self._families)
            verdict = "spread" if spread else "several families" if len(repair) > 1 else "one family"
        return self._finding(verdict, level, breaking, repair, in_layers)

    def _finding(
        self,
        verdict: Verdict,
        level: float | None,
        breaking: Sequence[str] = (),
        repair: Sequence[str] = (),
        layers: Mapping[str, LayerFinding] | None = None,
    ) -> Finding:
        return Finding(
            verdict=verdict,
            usual=level,
            limit=self._limit,
            breaking=tuple(breaking),
            repair=tuple(repair),
            layers=dict(layers or {}),
            evaluations=sum(kept is not None for kept in self._measured),
            one_by_one=1 + 2 * (len(self._families) + sum(len(self._layers[name]) for name in layers or ())),
        )

    def _broken(self, found: Measurement) -> bool:
        return bool(damage(found, self._limit))

    def _measure(self, kept: Kept) -> Steps:
        if kept not in self._measured:
            self._measured[kept] = yield kept
        return self._measured[kept]

    def _only(self, units: Sequence[str], quantized: Sequence[str]) -> Steps:
        return (yield from self._measure(frozenset(units) - frozenset(quantized)))

    def _locate(self, units: Sequence[str], groups: Sequence[Sequence[str]], beside: Sequence[str]) -> Found:
        """Find which of the units in `groups` break the model alone, and which repair it when kept.

        `units`: everything that can be kept. `beside`: what is kept in any case when repairing.
        """
        breaking: list[str] = []
        waiting: list[Sequence[str]] = list(groups)
        while waiting:
            waiting += yield from self._break_down(units, waiting.pop(0), breaking)
            if breaking and (yield from self._repairs([*beside, *breaking])):
                return breaking, [*breaking]
        members = [unit for group in groups for unit in group]
        alone = yield from self._by_severity(units, [unit for unit in members if unit not in breaking])
        if not breaking and units is self._families:  # of layers it matters little whether a single layer would do
            for unit in alone:
                if (yield from self._repairs([unit])):
                    return [], [unit]
        return breaking, [*breaking, *(yield from self._worst_first(alone, [*beside, *breaking]))]

    def _break_down(
        self, units: Sequence[str], group: Sequence[str], breaking: list[str]
    ) -> Generator[Kept, Measurement, list[Sequence[str]]]:
        """Follow a group down to a family that breaks the model, added to `breaking`; return what was not tested.

        Where the left half does not break it, the right must, and is not measured as a whole.
        """
        if not self._broken((yield from self._only(units, group))):
            return []
        untested: list[Sequence[str]] = []
        sure = True
        while len(group) > 1:
            middle = len(group) // 2
            left, right = group[:middle], group[middle:]
            if self._broken((yield from self._only(units, left))):
                group, sure = left, True
                untested.append(right)
            else:
                group, sure = right, False
        if sure or self._broken((yield from self._only(units, group))):
            breaking.append(group[0])
        return untested

    def _repairs(self, kept: Sequence[str]) -> Generator[Kept, Measurement, bool]:
        return not self._broken((yield from self._measure(frozenset(kept))))

    def _by_severity(self, units: Sequence[str], members: Sequence[str]) -> Units:
        """Return the members by how far each of them alone makes the model diverge, worst first."""
        alone: dict[str, float] = {}
        for unit in members:
            found = yield from self._only(units, [unit])
            alone[unit] = divergence_of(found)
        return sorted(members, key=lambda unit: -alone[unit])

    def _worst_first(self, members: Sequence[str], beside: Sequence[str]) -> Units:
        """Return the fewest of the members, taken in their order, that repair the model; all of them do."""
        fewest, most = 1, len(members)
        while fewest < most:
            middle = (fewest + most) // 2
            if (yield from self._repairs([*beside, *members[:middle]])):
                most = middle
            else:
                fewest = middle + 1
        return list(members[:most])

    def _each(self, *, kept: bool) -> Generator[Kept, Measurement, None]:
        for name in self._families:
            yield from self._only(self._families, [name])
        for name in self._families if kept else ():
            yield from self._measure(frozenset({name}))

    def _in_layers(self, repair: Sequence[str]) -> Generator[Kept, Measurement, dict[str, LayerFinding]]:
        """Find the layers of each repairing family that need it, the other repairing families being kept whole."""
        found: dict[str, LayerFinding] = {}
        for name in repair:
            layers = list(self._layers[name])
            if len(layers) < 2:
                continue
            units = [*(other for other in self._families if other != name), *layers]
            beside = [other for other in repair if other != name]
            middle = len(layers) // 2
            breaking, needed = yield from self._locate(units, [layers[:middle], layers[middle:]], beside)
            found[name] = LayerFinding(tuple(breaking), tuple(needed), whole=set(needed) == set(layers))
        return found
