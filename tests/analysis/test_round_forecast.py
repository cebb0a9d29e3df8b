"""Lines through the cost of rounds, what refuses them, and forecasts that never see the arm's own rounds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchctl.analysis.result import Interval
from benchctl.analysis.round_model import DepthCost, expected_by_position, fit_rounds, forecast
from benchctl.data.store import open_run
from benchctl.lossless.judge.run import analyse_run
from tests.kept_runs import ROOT

KEPT = ROOT / "results"
BY_POSITION = [80.0, 60.0, 48.0, 36.0, 27.0, 18.0, 9.0, 9.0]
"""Of 100 rounds."""


def arm(depth: int, cost: float | None = None, measured: float | None = None, **more: object) -> DepthCost:
    cost = 1.2 + 0.5 * depth if cost is None else cost
    tokens = 1 + sum(BY_POSITION[:depth]) / 100
    cost_row = DepthCost(
        arm=f"spec_d{depth}",
        setting="draft-simple",
        depth=depth,
        round_cost=cost,
        rounds=100,
        accepted_at=BY_POSITION[:depth],
        alpha=0.8,
        tokens=tokens,
        undrafted=0.0,
        measured=tokens / cost if measured is None else measured,
        interval=None,
    )
    return replace(cost_row, **more)  # type: ignore[arg-type]


def test_a_line_is_found_again() -> None:
    fit = fit_rounds("draft-simple", [arm(2), arm(4), arm(8)])
    assert [fit.intercept, fit.slope, fit.r2] == pytest.approx([1.2, 0.5, 1.0])
    assert fit.refused is None


@pytest.mark.parametrize(
    ("costs", "reason"),
    [
        ({2: 3.0, 4: 2.5, 8: 2.0}, "a further draft token would cost -0.16 steps"),
        ({4: 1.0, 8: 4.0, 16: 9.0}, "a round without a draft would cost -1.50 steps"),
        ({2: 2.0, 4: 6.0, 8: 4.5, 16: 7.0}, "its r² is 0.54, below 0.9"),
        ({2: 1.2, 4: 4.4, 8: 6.0, 16: 12.0}, "a residual is 61 % of the cost there, above 15 %"),
    ],
)
def test_a_line_that_fails_its_check_is_not_used(costs: dict[int, float], reason: str) -> None:
    fit = fit_rounds("draft-simple", [arm(depth, cost) for depth, cost in costs.items()])
    assert (fit.intercept, fit.slope, fit.refused) == (None, None, reason)


def test_a_forecast_is_made_of_the_other_depths_alone() -> None:
    other_arms = [arm(2), arm(4), arm(8)]
    result, no_forecast = forecast(arm(6), other_arms)
    assert no_forecast is None
    assert result is not None
    tokens = 1 + sum(BY_POSITION[:6]) / 100
    assert [result.tokens, result.round_cost] == pytest.approx([tokens, 1.2 + 0.5 * 6])
    assert result.error == pytest.approx(0.0)
    assert (result.holds, result.why) == (True, None)
    strange = arm(6, cost=9.0, measured=0.4, accepted_at=[0.0] * 6, alpha=0.0)
    second, _ = forecast(strange, other_arms)
    assert second is not None
    assert second.predicted == pytest.approx(result.predicted), "its own rounds must not be in it"
    assert not second.holds
    assert second.why == (
        "a round costs 9.00 steps where the line predicts 4.20 (another width can run another kernel, which a line "
        "does not know)."
    )


def test_a_forecast_within_the_interval_holds() -> None:
    wide = Interval(low=0.3, high=2.0, method="")
    result, _ = forecast(arm(6, measured=0.7, interval=wide), [arm(2), arm(4), arm(8)])
    assert result is not None
    assert abs(result.error) > 0.1
    assert result.holds


def test_a_forecast_is_as_uncertain_as_the_rounds_beside_it() -> None:
    def between(*spreads: float) -> tuple[float, float, float]:
        other_arms = [
            arm(depth, measured=0.6, interval=Interval(low=0.6 * (1 - spread), high=0.6 * (1 + spread), method=""))
            for depth, spread in zip((4, 8), spreads, strict=True)
        ]
        result, _ = forecast(arm(6), other_arms)
        assert result is not None and result.predicted_interval is not None
        return result.predicted_interval.low, result.predicted, result.predicted_interval.high

    narrow, wide = between(0.01, 0.01), between(0.2, 0.01)
    assert narrow[0] < narrow[1] < narrow[2] and wide[1] == narrow[1]
    assert wide[0] < narrow[0] and narrow[2] < wide[2]
    bare, _ = forecast(arm(6), [arm(4, measured=0.6, interval=None), arm(8)])
    assert bare is not None and bare.predicted_interval is None


def test_errors_of_tokens_and_cost_that_cancel_do_not_hold() -> None:
    """A fourth too many tokens at a fourth too high a cost give the right speed-up, by chance."""
    other_arms = [arm(2), arm(4), arm(8)]
    fair, _ = forecast(arm(6), other_arms)
    assert fair is not None
    result, _ = forecast(arm(6, cost=4.2 / 1.25, tokens=fair.tokens / 1.25, measured=fair.predicted), other_arms)
    assert result is not None
    assert result.error == pytest.approx(0.0)
    assert not result.holds
    assert result.why is not None and "a round costs" in result.why and "a round yields" in result.why


def test_steps_without_a_draft_count_on_both_sides() -> None:
    other_arms = [arm(depth, undrafted=0.5) for depth in (2, 4, 8)]
    result, _ = forecast(arm(6), other_arms)
    assert result is not None
    assert result.predicted == pytest.approx((result.tokens + 0.5) / (4.2 + 0.5))


def test_unreported_positions_come_from_alpha() -> None:
    assert expected_by_position(2, [arm(4, accepted_at=None)]) == pytest.approx(1 + 0.8 + 0.64)
    assert expected_by_position(2, [arm(4, accepted_at=None, alpha=None)]) is None
    deeper = expected_by_position(4, [arm(2)])
    assert deeper == pytest.approx(1 + 0.8 + 0.6 + 0.6 * 0.75 + 0.6 * 0.75**2), "the last share goes on"


def test_a_refused_line_gives_no_forecast() -> None:
    result, no_forecast = forecast(arm(6), [arm(2, 3.0), arm(4, 2.5), arm(8, 2.0)])
    assert result is None
    assert no_forecast == "spec_d6: no forecast from depths 4, 8, since a further draft token would cost -0.12 steps."
    result, no_forecast = forecast(arm(1), [arm(2, 1.0), arm(4, 5.0)])
    assert result is None
    assert no_forecast == "spec_d1: no forecast from depths 2, 4, since a round would cost -1.00."
    assert forecast(arm(6), [arm(2)])[1] == "spec_d6: no forecast, since a line needs two other depths."


def test_the_depths_beside_it_are_used_where_all_lie_on_no_line() -> None:
    curved = [arm(2, 4.5), arm(4, 7.8), arm(16, 21.0)]
    result, _ = forecast(arm(8, 12.2), curved)
    assert result is not None
    assert (result.from_depths, result.round_cost) == ([4, 16], 12.2)
    outer, _ = forecast(arm(1, 3.0), curved)
    assert outer is not None
    assert outer.from_depths == [2, 4]


def test_synthetic_acceptance_enters_no_forecast() -> None:
    run = open_run(KEPT / "qwen2.5-coder-breakeven" / "20261122-171557-87cd")
    rounds = analyse_run(run).rounds
    assert rounds is not None
    assert {forecast.arm for forecast in rounds.forecasts} == {"spec_d2", "spec_d4", "spec_d8", "spec_d16"}
    depth4 = next(forecast for forecast in rounds.forecasts if forecast.arm == "spec_d4")
    assert depth4.tokens == pytest.approx(depth4.tokens_measured, rel=0.1), "not 2.03"


def test_a_forecast_takes_the_verify_of_a_width_as_it_was_timed() -> None:
    """Measured on an H100: rounds of depth 16 cost less than those of 8, since 17 tokens run another kernel than 9."""
    other_arms, held_out = [arm(4, 2.72), arm(8, 3.17)], arm(16, 2.66)
    widths = {5: 1.94, 9: 2.06, 17: 0.78}
    by_line, _ = forecast(held_out, other_arms)
    by_width, _ = forecast(held_out, other_arms, widths)
    assert by_line is not None and by_line.round_cost == pytest.approx(4.07)
    assert by_line.why is not None and "another width can run another kernel" in by_line.why
    assert by_width is not None and by_width.round_cost == pytest.approx(2.55)
    assert by_width.why is None or "kernel" not in by_width.why
    lacking, _ = forecast(held_out, other_arms, {5: 1.94, 17: 0.78})
    assert lacking is not None and lacking.round_cost == pytest.approx(4.07), "a line takes whole rounds or none"
