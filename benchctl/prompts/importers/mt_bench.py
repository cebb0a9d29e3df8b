"""MT-Bench's `question.jsonl`: 80 questions of two turns, in eight categories."""

from __future__ import annotations

from benchctl.prompts.importers.format import Fields, Format, Question, first_turn


def _read(fields: Fields) -> Question:
    """The hub's copy of the file (`HuggingFaceH4/mt_bench_prompts`) calls the turns `prompt`."""
    return first_turn({**fields, "turns": fields["prompt"]} if "turns" not in fields and "prompt" in fields else fields)


FORMAT = Format(
    name="mt-bench",
    title="MT-Bench",
    home="https://github.com/lm-sys/FastChat",
    licence="Apache-2.0",
    kind="chat",
    example='{"question_id": 81, "category": "writing", "turns": ["…", "…"], "reference": ["…", "…"]}',
    read=_read,
)
