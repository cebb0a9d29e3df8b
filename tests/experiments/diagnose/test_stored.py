"""A diagnosis on disk: whole, and files that an older benchctl wrote."""

from __future__ import annotations

from pathlib import Path

from benchctl.data.digests import sealed
from benchctl.data.traces import DiagnosisSettings
from benchctl.experiments.diagnose.stored import (
    DOCUMENT,
    DiagnosedDraft,
    Diagnosis,
    ForcedAnswer,
    read_diagnosis,
    write_diagnosis,
)
from tests.analysis.conftest import build_manifest

TEXT = "[\n 1,\n 2\n]"


def made() -> Diagnosis:
    answer = ForcedAnswer(
        task="code",
        prompt_idx=0,
        temperature=0.6,
        tokens=3,
        starts=[1, 2],
        overlap=[[0.5, 1e-9], [-1.25]],
        accept=[[1.0, 0.0], []],
        agree=[True, False],
        distance=[],
        steps_target=[0.1] * 200,
    )
    draft = DiagnosedDraft(name=TEXT, arms=["a", "b"], kind="part", exact=True, answers=[answer], error=TEXT)
    settings = DiagnosisSettings(tokens=64, temperature=0.6, depth=8, stride=4, top=100)
    return Diagnosis(settings=settings, manifest=build_manifest({"baseline": None}, 1, 1), drafts=[draft])


def test_a_diagnosis_is_read_as_it_was_written(tmp_path: Path) -> None:
    result = made()
    write_diagnosis(tmp_path, result)
    assert read_diagnosis(tmp_path) == result


def test_a_file_of_one_number_a_line_reads_as_before(tmp_path: Path) -> None:
    result = made()
    (tmp_path / DOCUMENT).write_text(sealed(result.model_dump_json(by_alias=True, indent=1)))
    assert read_diagnosis(tmp_path) == result
