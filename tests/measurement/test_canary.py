"""The first prompt of a cell, asked once more at its end: in the manifest alone, and in no number."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from benchctl.data.store import RunData, open_run
from benchctl.data.writer import RunWriter
from benchctl.engines.base import Completion, MemoryReport
from benchctl.errors import EngineError
from benchctl.lossless.judge.run import analyse_run
from benchctl.prompts.suite import PromptItem
from benchctl.recipes.schema import Recipe
from tests.measurement.test_runner import execute
from tests.measurement.toy_engine import ToyEngine, ToyServer, answer


@dataclass
class OwnServer(ToyServer):
    """One whose process is benchctl's own."""

    pid: int = 0

    def memory_report(self) -> MemoryReport:
        return MemoryReport()


class OwnEngine(ToyEngine):
    def starts(self, server: ToyServer) -> ToyServer:
        return super().starts(OwnServer(server.engine, server.arm, server.log_path))


LAST = 4
"""The number of the canary's request: after a warm-up and two prompts."""


@pytest.fixture
def run(recipe: Recipe, prompts: list[PromptItem], writer: RunWriter, folder: Path) -> Any:
    def measure(last: Completion | EngineError, arm: str = "spec", engine: type[ToyEngine] = OwnEngine) -> RunData:
        def answers(name: str, number: int) -> Completion:
            drafted = None if name == "baseline" else 10
            if number != LAST or name != arm:
                return answer(drafted=drafted)
            if isinstance(last, EngineError):
                raise last
            return replace(last, ledger=answer(drafted=drafted).ledger)

        execute(engine(answers=answers), recipe, prompts, writer)
        return open_run(folder)

    return measure


def canaries(run: RunData) -> dict[str, Any]:
    assert run.manifest is not None
    return {cell.arm: cell.canary for cell in run.manifest.cells}


def verdict(run: RunData) -> str:
    (judged,) = analyse_run(run).losslessness
    return judged.verdict


def test_it_is_no_record_and_its_drafts_are_attested(run: Any) -> None:
    stored = run(answer())
    assert len([record for record in stored.records if record.phase == "measure"]) == 8
    canary = canaries(stored)["spec"]
    assert (canary.requests, canary.exact, canary.same, canary.text) == (1, True, True, None)
    assert not [warning for warning in analyse_run(stored).warnings if warning.id == "repeat-differs"]
    assert verdict(stored) == "identical"


def test_numbers_are_the_same_without_it(run: Any) -> None:
    stored = run(answer())
    with_canary = analyse_run(stored)
    for cell in stored.manifest.cells:
        cell.canary = None
    assert analyse_run(stored).model_dump_json() == with_canary.model_dump_json()


def test_another_answer_of_the_arm_leaves_its_output_undetermined(run: Any) -> None:
    stored = run(replace(answer("one three"), token_ids=(0, 1, 9, *range(3, 8))))
    canary = canaries(stored)["spec"]
    assert (canary.same, canary.index, canary.text) == (False, 2, "one three")
    analysis = analyse_run(stored)
    (warning,) = [warning for warning in analysis.warnings if warning.id == "repeat-differs"]
    assert warning.where == "spec" and warning.facts[0].values["requests"] == 1
    assert verdict(stored) == "undetermined"
    reasons = [comparison.reasons[0] for comparison in analysis.losslessness[0].comparisons]
    assert [(reason.code, reason.values["arm"]) for reason in reasons] == [("repeated-otherwise", "spec")] * 2
    for cell in stored.manifest.cells:
        cell.canary.exact = False
    assert verdict(stored) == "identical", "where equality is not the rule nothing follows"


def test_another_answer_of_the_baseline_is_not_held_against_the_arm(run: Any) -> None:
    stored = run(answer("one three"), arm="baseline")
    analysis = analyse_run(stored)
    assert [warning.where for warning in analysis.warnings if warning.id == "repeat-differs"] == ["baseline"]
    (judged,) = analysis.losslessness
    assert judged.verdict == "undetermined"
    first = next(comparison for comparison in judged.comparisons if comparison.outcome == "undetermined")
    assert first.reasons[0].code == "repeated-otherwise" and first.reasons[0].values["arm"] == "baseline"


def test_a_request_that_fails_costs_nothing_but_is_told(run: Any) -> None:
    stored = run(EngineError("Out of luck.", kind="http"))
    assert [cell.status for cell in stored.manifest.cells] == ["finished"] * 4
    assert canaries(stored)["spec"].error == "Out of luck."
    (warning,) = [warning for warning in analyse_run(stored).warnings if warning.id == "repeat-differs"]
    assert warning.facts[0].code == "failed"


def test_an_endpoint_is_not_asked_again(run: Any) -> None:
    assert canaries(run(answer(), engine=ToyEngine)) == {"baseline": None, "spec": None}
