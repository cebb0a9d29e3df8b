"""The measured break-even: the curve between its points, where it crosses 1, and what lies on it."""

from __future__ import annotations

from typing import Any

import pytest

from benchctl.analysis.breakeven import Measured, Reference, find_breakeven
from benchctl.analysis.result import Interval
from benchctl.analysis.round_results import BreakEven
from benchctl.words import breakeven


def arm(name: str, tokens: float | None, speedup: float | None, *, depth: int = 4, **more: Any) -> Measured:
    ends = None if speedup is None else Interval(low=speedup / 1.02, high=speedup * 1.02, method="")
    values = {"synthetic": name.startswith("synth"), "interval": ends, "needs_alpha": None, "cost_known": False}
    return Measured(name=name, depth=depth, tokens=tokens, speedup=speedup, **(values | more))


def found(*arms: Measured, references: tuple[Reference, ...] = ()) -> BreakEven:
    curve = find_breakeven(arms, references)
    assert curve is not None
    return curve


LINE = (arm("synth_a0", 1.0, 0.4), arm("synth_a50", 2.0, 0.8), arm("synth_a100", 5.0, 2.0))
"""A round costs 2.5 steps, whatever is accepted."""


def test_where_it_breaks_even() -> None:
    (need,) = found(*LINE).needs
    assert need.outcome == "crosses"
    assert need.tokens == pytest.approx(2.5)
    assert need.alpha == pytest.approx(0.645, abs=0.001)  # 1 + α + α² + α³ + α⁴ = 2.5
    ends = [need.alpha_low or 0.0, need.alpha or 0.0, need.alpha_high or 0.0]
    assert ends == sorted(set(ends)), "the range is around the crossing"
    assert ends == pytest.approx([0.645] * 3, abs=0.02)


def test_of_a_recurrent_target_it_says_that_it_is_pessimistic() -> None:
    for recurrent in (True, False):
        curve = find_breakeven(LINE, recurrent=recurrent)
        assert curve is not None
        assert [note.code for note in curve.notes] == ["pessimistic"] * recurrent


def wide(name: str, tokens: float, speedup: float) -> Measured:
    return arm(name, tokens, speedup, interval=Interval(low=speedup / 1.12, high=speedup * 1.12, method=""))


def test_nothing_is_said_that_the_intervals_do_not_show() -> None:
    """A flat curve near 1 with intervals of 12 % neither always pays, nor never, nor breaks even anywhere."""
    for speeds in ((1.0, 1.02, 1.05), (0.97, 0.99, 0.98), (0.8, 1.0, 1.05), (0.95, 1.1, 1.3)):
        (need,) = found(*(wide(f"synth_{index}", 1.0 + index, speed) for index, speed in enumerate(speeds))).needs
        assert (need.outcome, need.tokens, need.alpha, need.alpha_low) == ("undecided", None, None, None)
    one_block = [arm(f"synth_{index}", 1.0 + index, speed, interval=None) for index, speed in enumerate((0.5, 2.0))]
    assert found(*one_block).needs[0].outcome == "undecided"


def test_a_depth_that_never_pays_and_one_that_always_does() -> None:
    never = found(arm("synth_a0", 1.0, 0.2), arm("synth_a100", 5.0, 0.9)).needs[0]
    assert (never.outcome, never.alpha) == ("never pays", None)
    assert found(arm("synth_a0", 1.0, 1.1), arm("synth_a100", 5.0, 3.0)).needs[0].outcome == "always pays"
    assert found(arm("synth_a0", 1.0, 1.1)).needs[0].outcome == "not measured"


def test_real_drafts_lie_on_the_curve_or_are_reported_off_it() -> None:
    ends = Interval(low=1.1, high=1.3, method="")
    curve = found(*LINE, arm("spec", 3.0, 1.25, interval=ends), arm("off", 4.0, 1.2, interval=ends))
    spec, off = (point for point in curve.points if point.kind == "draft")
    assert [spec.curve, off.curve] == pytest.approx([1.2, 1.6])
    assert (spec.curve_holds, off.curve_holds) == (True, False)
    assert breakeven.off_curve(spec) is None
    assert breakeven.off_curve(off) == (
        "off: the curve gives 1.60× at its 4.00 tokens per round, outside its interval."
    )


def test_references_stand_at_this_machines_speed() -> None:
    rows = [("Somebody", 4, 3.5), ("Deep", 7, 3.0)]
    references = tuple(Reference(model=model, mode="eagle3", depth=depth, acceptance_length=length)
                       for model, depth, length in rows)  # fmt: skip
    curve = found(*LINE, references=references)
    (point,) = (point for point in curve.points if point.kind == "reference")
    assert point.speedup == pytest.approx(1.4)
    assert [(note.code, note.values) for note in curve.notes] == [
        ("depth not measured", {"name": "Deep, eagle3, depth 7"})
    ]


def test_a_run_without_synthetic_arms_has_no_curve() -> None:
    assert find_breakeven([arm("spec", 3.0, 1.2)]) is None


def test_an_arm_without_rounds_is_listed() -> None:
    curve = found(*LINE, arm("spec", None, 1.2))
    assert [(note.code, note.values) for note in curve.notes] == [("not reported", {"name": "spec"})]
