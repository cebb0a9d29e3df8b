"""An arm that is lossy by design is labelled and a violation, even where every answer is equal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from benchctl.data.manifest import Manifest
from benchctl.data.record import Record
from benchctl.data.store import RunData
from benchctl.lossless.judge.run import OutputComparison, analyse_run

LOSSY = ["synthetic acceptance"]


@pytest.fixture
def equal(
    make_record: Callable[..., Record], make_manifest: Callable[..., Manifest], make_run: Callable[..., RunData]
) -> RunData:
    """Two blocks of equal answers, `spec` with a synthetic acceptance length on its command line."""
    manifest = make_manifest(
        {"baseline": None, "spec": {"type": "draft-simple"}, "real": {"type": "draft-simple"}}, 1, 2
    )
    document = manifest.model_dump(by_alias=True)
    for arm in document["arms"]:
        arm["lossy"] = LOSSY if arm["name"] == "spec" else []
    records = [make_record(label, block=block) for block in range(2) for label in ("baseline", "spec", "real")]
    return make_run(records, Manifest.model_validate(document))


def test_the_manifest_is_labelled_and_keeps_the_label(equal: RunData) -> None:
    assert equal.manifest is not None
    assert [arm.lossy for arm in equal.manifest.arms] == [[], LOSSY, []]
    stored = Manifest.model_validate_json(equal.manifest.model_dump_json(by_alias=True))
    assert [arm.lossy for arm in stored.arms] == [[], LOSSY, []]


def test_equal_hashes_do_not_make_it_lossless(equal: RunData) -> None:
    spec, real = OutputComparison(equal).verdicts()
    assert (real.verdict, real.lossy) == ("identical", [])
    assert (spec.verdict, spec.lossy) == ("violation", LOSSY)
    assert spec.reason.startswith("Lossy by design: synthetic acceptance")
    assert spec.counts == {"identical": 1}


def test_the_verdict_says_so(equal: RunData) -> None:
    spec = next(verdict for verdict in analyse_run(equal).verdicts if verdict.arm == "spec")
    assert (spec.lossless, spec.lossy) == ("violation", LOSSY)


def test_arms_that_accept_by_lot_are_no_claims_and_never_lossless(
    make_record: Any, make_run: Any, make_manifest: Any
) -> None:
    arms = {"baseline": None, "spec": {"type": "draft-simple", "max": 4}}
    lots = {f"synth_{index}": {"type": "draft-simple", "max": 4} for index in range(8)}
    counters = {"draft_n": 16, "draft_n_accepted": 6, "rounds": 4}

    def run(names: dict[str, Any]) -> Any:
        manifest = make_manifest(names, 1, 3)
        for arm in manifest.arms:
            arm.lossy = ["synthetic acceptance"] if arm.name.startswith("synth") else []
        records = [
            make_record(name, block=block, rate=10.0 + block + (2 if name != "baseline" else 0),
                        **({} if name == "baseline" else counters))
            for block in range(3) for name in names
        ]  # fmt: skip
        return analyse_run(make_run(records, manifest))

    real, mixed = run(arms), run(arms | lots)
    spec = [
        next(row for row in analysis.speedups if row.arm == "spec" and row.task == "all") for analysis in (real, mixed)
    ]
    assert spec[0] == spec[1], "eight more arms must not widen what is claimed of a real one"
    for verdict in mixed.verdicts:
        if verdict.arm.startswith("synth"):
            assert verdict.lossless == "violation"
    assert mixed.breakeven is not None
    assert real.breakeven is None
