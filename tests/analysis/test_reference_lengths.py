"""Published acceptance lengths stand beside an arm of the same pair, type and depth, and beside no other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchctl.analysis.reference_lengths import _references, reference_lengths
from benchctl.recipes.groups import ComparedArm, ModelName
from benchctl.words.verdict import explanation
from tests.reports.handmade import build_analysis

EAGLE = "hf:RedHatAI/Qwen3-8B-speculator.eagle3"


@pytest.mark.parametrize(
    ("target", "draft", "kind", "depth", "lengths"),
    [
        ("hf:Qwen/Qwen3-8B", EAGLE, "draft-eagle3", 3, [2.26]),
        ("hf:Qwen/Qwen3-8B-GGUF/Qwen3-8B-Q4_K_M.gguf", EAGLE, "eagle3", 3, [2.26]),
        ("/models/qwen3-8b-iq4_xs.gguf", "/models/qwen3-8b-speculator.eagle3-f16.gguf", "draft-eagle3", 3, [2.26]),
        ("hf:Qwen/Qwen3-8B-Base", EAGLE, "draft-eagle3", 3, []),
        ("hf:Qwen/Qwen3-8B", "hf:other/Qwen3-8B-eagle3", "draft-eagle3", 3, []),
        ("hf:Qwen/Qwen3-8B", EAGLE, "draft-eagle3", 4, []),
        ("hf:Qwen/Qwen3-8B", EAGLE, "draft-simple", 3, []),
        ("hf:Qwen/Qwen3.8-27B", None, "draft-mtp", 3, [2.52]),
        ("hf:Qwen/Qwen3.8-27B-FP8", None, "draft-mtp", 3, [2.51]),
        ("hf:MiniMaxAI/MiniMax-M3", "hf:Inferact/MiniMax-M3-EAGLE3", "eagle3", 8, [4.06, 3.74]),
    ],
)
def test_only_of_the_same_pair_type_and_depth(
    target: str, draft: str | None, kind: str, depth: int, lengths: list[float]
) -> None:
    arm = ComparedArm("a", "a", target=ModelName(target), draft=None if draft is None else ModelName(draft))
    assert [row.length for row in reference_lengths(arm, kind, depth)] == lengths


def test_no_published_length_is_more_than_its_depth_allows() -> None:
    rows = _references()
    assert all(1 < length <= int(depth) + 1 for row in rows for depth, length in row.lengths.items())
    assert all(row.source and row.conditions for row in rows)


def test_it_stands_beside_the_measured_length() -> None:
    analysis = build_analysis(["baseline", "spec_d4"])
    target, draft = ModelName("hf:MiniMaxAI/MiniMax-M3"), ModelName("hf:Inferact/MiniMax-M3-EAGLE3")
    arm = replace(analysis.compared["spec_d4"], target=target, draft=draft)
    compared = analysis.compared | {"spec_d4": arm}
    verdict = analysis.verdicts[0].model_copy(update={"setting": "draft-eagle3, depth 4"})
    sentence = explanation(analysis.model_copy(update={"compared": compared}), verdict)
    row = analysis.acceptance_of("spec_d4")
    measured = row.acceptance_length if row else None
    assert f"Its acceptance length is {measured:.2f}; published for this pair and depth: 3.41 (SPEED-Bench" in sentence
    assert "published" not in explanation(analysis, analysis.verdicts[0])
