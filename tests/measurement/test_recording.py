"""What of an engine's report becomes a record."""

from __future__ import annotations

from dataclasses import replace

from benchctl.engines.base import Ledger
from benchctl.measurement.recording import measured_fields
from tests.measurement.toy_engine import answer


def test_steps_are_stored_unless_they_contradict_the_counters_or_the_tokens() -> None:
    ledger = Ledger(drafted=8, accepted=5, rounds=2, target_steps=((4, 4), (4, 1)))
    done = replace(answer(), ledger=ledger)  # of eight tokens
    assert measured_fields(done)["target_steps"] == [[4, 4], [4, 1]]
    assert measured_fields(replace(done, n_predicted=9))["target_steps"] is None
    for contradicted in (replace(ledger, drafted=7), replace(ledger, accepted=6), replace(ledger, rounds=3)):
        assert measured_fields(replace(done, ledger=contradicted))["target_steps"] is None
    assert measured_fields(replace(done, ledger=replace(ledger, target_steps=None)))["target_steps"] is None
