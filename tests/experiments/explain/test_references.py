"""Acceptance lengths from elsewhere, in the YAML of golden_al_distribution."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from benchctl.analysis.breakeven import Reference
from benchctl.analysis.results import Analysis
from benchctl.data.store import RunData
from benchctl.errors import UsageError
from benchctl.experiments.explain.references import measured_with, read_references, write_references

# the shape of SemiAnalysisAI/InferenceX golden_al_distribution/minimaxm3_eagle3.yaml
GOLDEN = """\
# key = num_speculative_tokens (EAGLE3 level); value = golden AL
_metadata:
  draft-model: org/draft
some-model:
  thinking_on:
    1: 1.78
    3: 2.83
  thinking_off:
    1: 1.84
"""


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    golden = tmp_path / "golden.yaml"
    golden.write_text(GOLDEN)
    references = read_references(golden)
    assert [(row.model, row.mode, row.depth, row.acceptance_length) for row in references] == [
        ("some-model", "thinking_on", 1, 1.78),
        ("some-model", "thinking_on", 3, 2.83),
        ("some-model", "thinking_off", 1, 1.84),
    ]
    file = tmp_path / "own.yaml"
    write_references(file, references, ["two lines\nof a name"])
    assert read_references(file) == references


def test_a_name_cannot_become_another_key(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    named = Reference(model="a: {b", mode="# c\n", depth=2, acceptance_length=1.5)
    write_references(file, [named], ["x\ny: 1"])
    assert read_references(file) == [named]


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("m: {thinking_on: {3: 5.1}}", "m.thinking_on.3"),
        ("m: {thinking_on: {3: 2}}\nn: {thinking_on: {0: 1}}", "n.thinking_on.0"),
        ("m: {thinking_on: {few: 2}}", "m.thinking_on.few"),
        ("m: {thinking_on: {3: null}}", "m.thinking_on.3"),
        ("m: {thinking_on: {3: .nan}}", "m.thinking_on.3"),
        ("m: {thinking_on: 3}", "m.thinking_on"),
        ("m: 3", "m"),
        ("- m", "golden.yaml"),
        ("m: {", "golden.yaml"),
        ("", "golden.yaml"),
    ],
)
def test_a_bad_file_is_refused_with_its_place(tmp_path: Path, text: str, where: str) -> None:
    golden = tmp_path / "golden.yaml"
    golden.write_text(text)
    with pytest.raises(UsageError) as refused:
        read_references(golden)
    assert str(refused.value.where).endswith(where)


def test_the_writers_folders_are_not_written() -> None:
    recipe = {"prompts": {"suite": "/home/me/mine.json", "context": "/home/me/mine.txt", "limit": 3}}
    for prompts, said in (
        (recipe, '{"suite": "mine.json", "context": "mine.txt", "limit": 3}'),
        ({}, "{}"),
    ):
        run = cast("RunData", SimpleNamespace(manifest=SimpleNamespace(recipe=prompts)))
        lines = measured_with(run, cast("Analysis", SimpleNamespace(run="r", recipe="tiny")))
        assert any(line.endswith(f"prompts {said}") for line in lines), lines
