"""SPEED-Bench's parquet files: questions by category, of which the published files withhold about half.

A withheld question holds a notice in place of its text. Such a row is left out and counted: asked as it stands, the
notice would be measured as if it were the question.
"""

from __future__ import annotations

from benchctl.prompts.importers.format import Fields, Format, Question, first_turn

NOTICE = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE"


def _read(fields: Fields) -> Question | None:
    question = first_turn(fields)
    return None if NOTICE in str(question.asked) else question


FORMAT = Format(
    name="speed-bench",
    title="SPEED-Bench",
    home="https://huggingface.co/datasets/nvidia/SPEED-Bench",
    licence="nvidia-evaluation-dataset-license",
    kind="chat",
    example="a row of `question_id`, `category` and `turns`",
    read=_read,
)
