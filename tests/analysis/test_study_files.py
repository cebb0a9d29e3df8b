"""The published study's eleven-key JSONL files, read from disk: repetitions are blocks, and nothing else is known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchctl.data.record import sha256_text
from benchctl.data.store import open_run
from benchctl.lossless.judge.run import analyse_run


def line(label: str, rep: int, rate: float, content: str = "こんにちは", **more: Any) -> str:
    values: dict[str, Any] = {
        "label": label,
        "task": "ja_chat",
        "prompt_idx": 0,
        "rep": rep,
        "tok_per_sec": rate,
        "n_predicted": 41,
        "draft_n": 0 if label == "baseline" else 40,
        "draft_n_accepted": 0 if label == "baseline" else 30,
        "prompt_per_sec": 100.0,
        "content_sha": sha256_text(content),
        "content": content,
    }
    return json.dumps(values | more, ensure_ascii=False)


def study(folder: Path, *lines: str) -> Path:
    file = folder / "plamo2.jsonl"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


def test_repetitions_are_blocks(tmp_path: Path) -> None:
    lines = [line(arm, rep, rate) for rep in range(3) for arm, rate in (("baseline", 20.0), ("spec_d4", 24.0))]
    analysis = analyse_run(open_run(study(tmp_path, *lines)))
    assert (analysis.blocks, analysis.arms, analysis.records) == (3, ["baseline", "spec_d4"], 6)
    overall = analysis.speedups[0]
    assert overall.pooled == pytest.approx(1.2)
    assert overall.by_block == pytest.approx([1.2, 1.2, 1.2])
    assert overall.interval is not None
    assert overall.end_to_end is None
    assert analysis.acceptance[0].rate == pytest.approx(0.75)
    assert analysis.acceptance[0].rounds is None
    assert analysis.losslessness[0].verdict == "identical"
    assert "token ids are absent" in analysis.losslessness[0].reason
    assert "token-ids-withheld" not in {warning.id for warning in analysis.warnings}
    assert analysis.verdicts[0].setting == "not recorded"


def test_arms_are_in_natural_order_after_the_baseline(tmp_path: Path) -> None:
    labels = ["spec_d16", "ngram", "spec_d2", "baseline", "spec_d8"]
    analysis = analyse_run(open_run(study(tmp_path, *(line(label, 0, 10.0) for label in labels))))
    assert analysis.arms == ["baseline", "ngram", "spec_d2", "spec_d8", "spec_d16"]


def test_a_truncated_last_line_is_never_equal(tmp_path: Path) -> None:
    lines = [line("baseline", 0, 10.0), line("spec_d4", 0, 12.0)]
    file = study(tmp_path, *lines, line("spec_d8", 0, 12.0)[:60])
    analysis = analyse_run(open_run(file))
    assert [row.verdict for row in analysis.losslessness] == ["undetermined"]
    assert "damaged-records" in {warning.id for warning in analysis.warnings}


def test_a_changed_text_is_damaged_not_different(tmp_path: Path) -> None:
    file = study(
        tmp_path, line("baseline", 0, 10.0), line("spec_d4", 0, 12.0, content="さようなら", content_sha="0" * 64)
    )
    analysis = analyse_run(open_run(file))
    assert analysis.losslessness[0].verdict == "undetermined"
    assert "damaged-records" in {warning.id for warning in analysis.warnings}
