"""What a report says first."""

from __future__ import annotations

from benchctl.analysis.results import Analysis, Caution
from benchctl.words.conclusion import headline
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
        "ngram (7 of 12 prompts) damages the output, beyond what numeric noise explains. "
        "No safe setting is faster than the target without speculation (baseline), 16.6 tok/s."
    )


def test_a_damaged_arm_does_not_pay_however_fast_it_is() -> None:
    sound = with_violations(build_analysis(["baseline", "spec_d2", "ngram"]))
    fastest = max(sound.verdicts, key=lambda verdict: verdict.speedup or 0.0).arm
    assert fastest in headline(sound)
    damaged = headline(with_violations(sound, **{fastest: 1}))
    assert damaged.startswith(f"{fastest} (1 of 12 prompts) damages the output")
    assert damaged.count(fastest) == 1
    assert "No safe setting is faster than the target without speculation" in damaged


def test_an_arm_without_a_rate_is_not_called_undecided() -> None:
    analysis = with_violations(build_analysis(["baseline", "spec_d2", "ngram"]))
    unknown = {"speed": "unknown", "speedup": None, "interval": None}
    slower = {"speed": "slower", "speedup": 0.5}
    verdicts = [row.model_copy(update=unknown if row.arm == "ngram" else slower) for row in analysis.verdicts]
    analysis = analysis.model_copy(update={"verdicts": verdicts, "warnings": [], "decision": None})
    assert headline(analysis).endswith("Slower: spec_d2 (0.50×). ngram has no rate.")
    counts = Caution(id="contradicted-count", where="ngram", facts=[])
    contradicted = headline(analysis.model_copy(update={"warnings": [counts]}))
    assert contradicted.endswith("Slower: spec_d2 (0.50×). ngram has no rate: its counts contradict each other.")
