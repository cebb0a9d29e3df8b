"""HumanEval's `HumanEval.jsonl.gz`: 164 Python functions to be completed from their head and docstring."""

from __future__ import annotations

from benchctl.prompts.importers.format import Fields, Format, Question, first_reference, text_of


def _read(fields: Fields) -> Question:
    text_of(fields, "task_id")
    return Question("humaneval", text_of(fields, "prompt"), first_reference(fields.get("canonical_solution")))


FORMAT = Format(
    name="humaneval",
    title="HumanEval",
    home="https://github.com/openai/human-eval",
    licence="MIT",
    kind="raw",  # the prompt is the beginning of a file that the model goes on with
    example='{"task_id": "HumanEval/0", "prompt": "def …", "canonical_solution": "…"}',
    read=_read,
)
