"""The search, on models whose damage is known: what it asks for, what it concludes, and how few questions it takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from math import ceil, log2

import pytest

from benchctl.data.manifest import PreflightFinding
from benchctl.engines.quantizing import Divergence
from benchctl.experiments.isolate.search import GROUPS, DamagingTensors, search
from benchctl.experiments.isolate.stored import Family, Kept, Measurement

USUAL = 0.0005
"""What one sound family costs, in nats."""
Damage = Callable[[frozenset[str]], float]
"""Divergence in nats, beyond the usual, of what is quantized: tensors as `family` or `blk.N.family`."""


def measurement(keep: Kept, divergence: float | None, findings: Sequence[str] = ()) -> Measurement:
    severity = Divergence(
        divergence=divergence,
        divergence_error=0.0,
        worst=divergence,
        same_top=0.9,
        same_top_error=0.0,
        perplexity=2.0,
        perplexity_error=0.0,
    )
    return Measurement(
        kept=None if keep is None else sorted(keep),
        severity=severity,
        findings=[PreflightFinding(id=name, where="models.target", seen="seen") for name in findings],
        probes=[],
        bytes=1,
        wall_s=0.1,
    )


def families(count: int, layers: int = 0) -> list[Family]:
    return [
        Family(
            name=f"f{number}",
            tensors=max(1, layers),
            parameters=1,
            keep="bf16",
            layers=[f"blk.{layer}.f{number}" for layer in range(layers)],
        )
        for number in range(count)
    ]


class Model:
    """Answers the search's questions, and remembers them."""

    def __init__(self, count: int, damage: Damage, *, layers: int = 0, usual: float = USUAL) -> None:
        self.families = families(count, layers)
        self.damage, self.usual = damage, usual
        self.requested: list[Kept] = []
        self.findings: Callable[[frozenset[str]], Sequence[str]] = lambda quantized: ()

    def quantized(self, keep: Kept) -> frozenset[str]:
        if keep is None:
            return frozenset()
        tensors = {part for family in self.families for part in (family.layers or [family.name])}
        kept_parts = {
            part for family in self.families if family.name in keep for part in (family.layers or [family.name])
        }
        return frozenset(tensors - kept_parts - keep)

    def answer(self, keep: Kept) -> Measurement:
        assert keep not in self.requested, "requested twice"
        self.requested.append(keep)
        quantized = self.quantized(keep)
        units = sum(1 for family in self.families for _ in family.layers or [family.name])
        divergence = self.usual * len(self.families) * len(quantized) / units + self.damage(quantized)
        return measurement(keep, divergence, self.findings(quantized))

    def hunt(self, *, singly: bool = False, layers: bool = False) -> DamagingTensors:
        finding = search(self.families, self.answer, singly=singly, layers=layers)
        assert finding.evaluations == sum(keep is not None for keep in self.requested)
        return finding


def caused_by(severities: Mapping[str, float]) -> Damage:
    return lambda quantized: sum(value for name, value in severities.items() if name in quantized)


@pytest.mark.parametrize("count", range(1, 41))
def test_every_single_family_is_found_in_every_place_with_few_questions(count: int) -> None:
    for guilty in families(count):
        model = Model(count, caused_by({guilty.name: 0.4}))
        finding = model.hunt()
        assert finding.verdict == "one family"
        assert finding.repair == finding.breaking == finding.kept == (guilty.name,)
        assert finding.one_by_one == 1 + 2 * count
        size = ceil(count / min(GROUPS, count))
        assert finding.evaluations <= 1 + min(GROUPS, count) + ceil(log2(size)) + 1 + 1
        assert finding.evaluations <= finding.one_by_one


@pytest.mark.parametrize("count", [4, 6, 9, 10, 17])
def test_two_families_are_no_single_family_wherever_they_are(count: int) -> None:
    for pair in combinations([family.name for family in families(count)], 2):
        finding = Model(count, caused_by({pair[0]: 0.4, pair[1]: 0.1})).hunt()
        assert finding.verdict == "several families"
        assert set(finding.repair) == set(finding.breaking) == set(pair)


def test_three_families_in_one_group_are_all_found() -> None:
    guilty = {"f0": 0.4, "f4": 0.3, "f8": 0.2}  # every fourth one is in the same group
    finding = Model(12, caused_by(guilty)).hunt()
    assert set(finding.repair) == set(guilty)


def test_a_sound_quantization_takes_one_question() -> None:
    model = Model(10, lambda quantized: 0.0)
    finding = model.hunt()
    assert (finding.verdict, finding.evaluations, finding.repair) == ("healthy", 1, ())
    assert model.requested == [None, frozenset()]


def test_a_coarse_type_is_measured_by_its_own_cost_and_not_called_broken() -> None:
    model = Model(10, lambda quantized: 0.0, usual=0.01)  # 0.1 nats in all, where the least damage is 0.01
    finding = model.hunt()
    assert finding.verdict == "healthy"
    assert finding.usual == pytest.approx(0.08)  # four times the lower median of groups of 2 or 3 families
    assert finding.limit == 0.25
    assert finding.evaluations == 1 + GROUPS


def test_damage_of_no_single_family_adds_up() -> None:
    joint_damage = Model(10, lambda quantized: 0.3 if {"f2", "f5"} <= quantized else 0.0)
    finding = joint_damage.hunt()
    assert finding.breaking == ()
    assert len(finding.repair) == 1  # keeping either is enough
    assert finding.repair[0] in {"f2", "f5"}
    spread = Model(10, lambda quantized: 0.0, usual=0.06).hunt()
    assert spread.verdict == "spread"
    assert spread.breaking == ()
    assert len(spread.repair) == 6  # 0.6 nats in all, 0.25 the most that is sound


def test_a_broken_source_ends_the_search() -> None:
    model = Model(10, lambda quantized: 0.0)
    model.findings = lambda quantized: ["degenerate-target"] if not quantized else []
    finding = model.hunt()
    assert finding.verdict == "source damaged"
    assert model.requested == [None]


def test_degenerate_probes_alone_are_damage() -> None:
    model = Model(10, lambda quantized: 0.0)
    model.findings = lambda quantized: ["degenerate-target"] if "f7" in quantized else []
    finding = model.hunt()
    assert (finding.verdict, finding.repair) == ("one family", ("f7",))


def test_logits_that_are_no_numbers_are_damage() -> None:
    finding = Model(10, lambda quantized: float("inf") if "f3" in quantized else 0.0).hunt()
    assert (finding.verdict, finding.repair) == ("one family", ("f3",))


def test_noise_of_the_engine_raises_the_limit() -> None:
    model = Model(4, caused_by({"f1": 0.03}), usual=0.0)
    model.damage = lambda quantized: 0.005 if not quantized else 0.03
    assert model.hunt().verdict == "healthy"


@pytest.mark.parametrize("guilty", [["blk.5.f3"], ["blk.0.f3", "blk.7.f3"]])
def test_layers_of_the_family_are_found(guilty: list[str]) -> None:
    model = Model(10, caused_by(dict.fromkeys(guilty, 0.3)), layers=8)
    finding = model.hunt(layers=True)
    assert finding.repair == ("f3",)
    assert set(finding.layers["f3"].repair) == set(finding.layers["f3"].breaking) == set(guilty)
    assert set(finding.kept) == set(guilty)


def test_a_family_whose_every_layer_is_needed_is_kept_by_its_name() -> None:
    guilty = {f"blk.{layer}.f3": 0.3 for layer in range(4)}
    finding = Model(10, caused_by(guilty), layers=4).hunt(layers=True)
    assert set(finding.layers["f3"].repair) == set(guilty)
    assert finding.kept == ("f3",)


def test_layers_that_add_up_are_kept_worst_first() -> None:
    model = Model(10, caused_by({f"blk.{layer}.f3": 0.030 + 0.002 * layer for layer in range(4)}), layers=4)
    finding = model.hunt(layers=True)
    assert finding.layers["f3"].breaking == ()
    assert finding.layers["f3"].repair == ("blk.3.f3", "blk.2.f3", "blk.1.f3")  # 0.04 nats are sound here


def test_all_measures_every_family_alone_and_kept() -> None:
    model = Model(10, caused_by({"f3": 0.3}))
    finding = model.hunt(singly=True)
    assert finding.repair == ("f3",)
    names = frozenset(family.name for family in model.families)
    assert {names - {name} for name in names} <= set(model.requested)
    assert {frozenset({name}) for name in names} <= set(model.requested)
    sound = Model(10, lambda quantized: 0.0)
    assert sound.hunt(singly=True).verdict == "healthy"
    assert len(sound.requested) == 2 + 10
