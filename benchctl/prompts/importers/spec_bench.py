"""Spec-Bench's `question.jsonl`: 480 questions of six existing data sets, by category."""

from __future__ import annotations

from benchctl.prompts.importers.format import Format, first_turn

FORMAT = Format(
    name="spec-bench",
    title="Spec-Bench",
    home="https://github.com/hemingkx/Spec-Bench",
    licence=None,  # the questions come from data sets of different licences
    kind="chat",
    example='{"question_id": 1, "category": "writing", "turns": ["…"]}',
    read=first_turn,
)
