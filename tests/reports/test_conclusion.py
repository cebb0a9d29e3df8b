"""What a report says first."""

from __future__ import annotations

from benchctl.analysis.results import Analysis
from benchctl.reports.conclusion import headline
from tests.reports.handmade import build_analysis


def with_violations(analysis: Analysis, **counts: int) -> Analysis:
    judged = [
        row.model_copy(update={"counts": {"violation": counts[row.arm]} if row.arm in counts else {"identical": 12}})
        for row in analysis.losslessness
    ]
    return analysis.model_copy(update={"losslessness": judged})


def test_damage_is_said_before_any_speed() -> None:
    analysis = with_violations(build_analysis(["baseline", "ngram"]), ngram=7)
    assert headline(analysis) == (
        "Speculation damages the output here: ngram (7 prompts), beyond what numeric noise explains."
    )


def test_a_damaged_arm_does_not_pay_however_fast_it_is() -> None:
    sound = with_violations(build_analysis(["baseline", "spec_d2", "ngram"]))
    fastest = max(sound.verdicts, key=lambda verdict: verdict.speedup or 0.0).arm
    assert fastest in headline(sound)
    damaged = headline(with_violations(sound, **{fastest: 1}))
    assert damaged.startswith(f"Speculation damages the output here: {fastest} (1 prompt)")
    assert damaged.count(fastest) == 1
    assert "pay" in damaged
