"""An arm that is lossy by design is labelled and a violation, even where every answer is equal."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchctl.data.manifest import MANIFEST_FORMAT, Manifest
from benchctl.data.record import Record
from benchctl.data.store import RunData
from benchctl.lossless.analysed import OutputComparison, analyse_run

LOSSY = ["synthetic acceptance"]


@pytest.fixture
def equal(
    make_record: Callable[..., Record], make_manifest: Callable[..., Manifest], make_run: Callable[..., RunData]
) -> RunData:
    """Two blocks of equal answers, `spec` with a synthetic acceptance length on its command line."""
    manifest = make_manifest(
        {"baseline": None, "spec": {"type": "draft-simple"}, "real": {"type": "draft-simple"}}, 1, 2
    )
    written = manifest.model_dump(by_alias=True)
    for arm in written["arms"]:
        arm["lossy"] = None  # as in a manifest of an older benchctl
        arm["argv"] = ["llama-server", "--spec-synth-len=3"] if arm["name"] != "real" else ["llama-server"]
    records = [make_record(label, block=block) for block in range(2) for label in ("baseline", "spec", "real")]
    return make_run(records, MANIFEST_FORMAT.validated(Manifest, {**written, "schema": 1}, "manifest.json"))


def test_the_manifest_is_labelled_and_keeps_the_label(equal: RunData) -> None:
    assert equal.manifest is not None
    assert [arm.lossy for arm in equal.manifest.arms] == [[], LOSSY, []]
    again = Manifest.model_validate_json(equal.manifest.model_dump_json(by_alias=True))
    assert [arm.lossy for arm in again.arms] == [[], LOSSY, []]


def test_equal_hashes_do_not_make_it_lossless(equal: RunData) -> None:
    spec, real = OutputComparison(equal).verdicts()
    assert (real.verdict, real.lossy) == ("identical", [])
    assert (spec.verdict, spec.lossy) == ("violation", LOSSY)
    assert spec.reason.startswith("Lossy by design: synthetic acceptance")
    assert spec.counts == {"identical": 1}


def test_the_verdict_says_so(equal: RunData) -> None:
    spec = next(one for one in analyse_run(equal).verdicts if one.arm == "spec")
    assert (spec.lossless, spec.lossy) == ("violation", LOSSY)
    assert "ossy by design: synthetic acceptance" in spec.sentence
