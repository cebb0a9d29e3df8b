from __future__ import annotations

from pathlib import Path

import pytest

from benchctl.data.store import open_run
from benchctl.data.writer import RunWriter
from benchctl.engines.base import Attestation, Completion, Launch
from benchctl.errors import EngineError
from benchctl.measure.plan import make_plan
from benchctl.measure.progress import RunProgress
from benchctl.measure.runner import Runner
from benchctl.prompts.suite import PromptItem
from benchctl.recipes.schema import Recipe
from tests.measure.toy_engine import ToyEngine, answer, honest


def execute(engine: ToyEngine, recipe: Recipe, prompts: list[PromptItem], writer: RunWriter) -> None:
    launches = {arm.name: Launch(argv=("toy", arm.name), env={}) for arm in recipe.arms}
    Runner(recipe, engine, launches, writer).run(make_plan(recipe, prompts), RunProgress())


def test_the_order_of_steps(recipe: Recipe, prompts: list[PromptItem], writer: RunWriter) -> None:
    engine = ToyEngine(answers=lambda arm, number: answer(drafted=None if arm == "baseline" else 10))
    execute(engine, recipe.model_copy(update={"blocks": 1}), prompts, writer)
    assert engine.steps == [
        "baseline: start",
        "baseline: attest(None)",
        *["baseline: ask"] * 3,  # one warm-up, two prompts
        "baseline: attest(None)",
        "baseline: stop",
        "spec: start",
        "spec: attest(None)",
        *["spec: ask"] * 3,
        "spec: attest(30)",
        "spec: stop",
    ]


def test_warm_ups_are_kept_apart(recipe: Recipe, prompts: list[PromptItem], writer: RunWriter, folder: Path) -> None:
    execute(ToyEngine(), recipe, prompts, writer)
    records = open_run(folder).records
    assert [r.phase for r in records].count("warmup") == 4
    assert all(r.content is None for r in records if r.phase == "warmup")
    measured = [r for r in records if r.phase == "measure"]
    assert len(measured) == 8
    assert [r.client_tok_per_sec for r in measured] == pytest.approx([10.0] * 8), "7 decode steps in 0.7 s"
    assert {r.draft_n for r in measured} == {None}, "what the engine does not tell is absent"


def test_a_cell_that_cannot_start_costs_itself_only(
    recipe: Recipe, prompts: list[PromptItem], writer: RunWriter, folder: Path
) -> None:
    dead = EngineError("It exited at once.", kind="launch", fix="Look.", log_tail=("no memory",))
    execute(ToyEngine(start_failures={"spec": dead}), recipe, prompts, writer)
    run = open_run(folder)
    assert run.manifest is not None
    assert [(c.arm, c.status) for c in run.manifest.cells] == [
        ("baseline", "finished"),
        ("spec", "failed"),
        ("spec", "failed"),
        ("baseline", "finished"),
    ]
    error = run.manifest.cells[1].error
    assert error is not None
    assert (error.kind, error.remedy, error.log_tail) == ("launch", "Look.", ["no memory"])
    assert {r.label for r in run.records} == {"baseline"}


def _fails_at(arm: str, number: int, kind: str) -> ToyEngine:
    def answers(asked: str, count: int) -> Completion:
        if (asked, count) == (arm, number):
            raise EngineError("It went wrong.", kind=kind)
        return answer()

    return ToyEngine(answers=answers)


@pytest.mark.parametrize("kind", ["crash", "timeout", "protocol"])
def test_an_engine_that_breaks_is_not_asked_again(
    kind: str, recipe: Recipe, prompts: list[PromptItem], writer: RunWriter, folder: Path
) -> None:
    engine = _fails_at("spec", 2, kind)  # the first prompt after the warm-up
    execute(engine, recipe.model_copy(update={"blocks": 1}), prompts, writer)
    run = open_run(folder)
    assert [
        (r.label, r.prompt_idx, r.error.kind if r.error else None) for r in run.records if r.phase == "measure"
    ] == [
        ("baseline", 0, None),
        ("baseline", 1, None),
        ("spec", 0, kind),
    ]
    assert engine.steps[-1] == "spec: stop"


def test_a_refused_request_costs_that_request(
    recipe: Recipe, prompts: list[PromptItem], writer: RunWriter, folder: Path
) -> None:
    execute(_fails_at("spec", 2, "http"), recipe.model_copy(update={"blocks": 1}), prompts, writer)
    run = open_run(folder)
    assert run.manifest is not None
    assert [cell.status for cell in run.manifest.cells] == ["finished", "finished"]
    assert [r.error is None for r in run.records if r.label == "spec" and r.phase == "measure"] == [False, True]


def test_a_late_failed_attestation_takes_its_records_along(
    recipe: Recipe, prompts: list[PromptItem], writer: RunWriter, folder: Path
) -> None:
    def attest(arm: str, drafted: int | None) -> Attestation:
        if arm == "spec" and drafted == 0:
            return Attestation("failed", ("drafted 0",), reason="Nothing was drafted.", remedy="Check the draft.")
        return honest(arm, drafted)

    engine = ToyEngine(answers=lambda arm, number: answer(drafted=0), attestations=attest)
    execute(engine, recipe.model_copy(update={"blocks": 1}), prompts, writer)
    run = open_run(folder)
    assert run.manifest is not None
    spec = run.manifest.cells[1]
    assert spec.status == "failed"
    assert spec.attestation is not None
    assert spec.attestation.reason == "Nothing was drafted."
    assert {r.label for r in run.records} == {"baseline"}


def test_withheld_tokens_are_fetched_after_measuring(
    recipe: Recipe, prompts: list[PromptItem], writer: RunWriter, folder: Path
) -> None:
    def answers(arm: str, number: int) -> Completion:
        return answer(token_gap="2 ids withheld" if (arm, number) == ("spec", 2) else None)

    engine = ToyEngine(answers=answers)
    execute(engine, recipe.model_copy(update={"blocks": 1}), prompts, writer)
    assert engine.steps[-3:] == ["spec: recover", "spec: attest(None)", "spec: stop"]
    measured = [r for r in open_run(folder).records if r.label == "spec" and r.phase == "measure"]
    assert [r.token_ids for r in measured] == [list(range(8))] * 2
    assert len({r.token_sha for r in measured}) == 1


def test_an_interrupt_stops_the_engine_and_keeps_what_was_measured(
    recipe: Recipe, prompts: list[PromptItem], writer: RunWriter, folder: Path
) -> None:
    def answers(arm: str, number: int) -> Completion:
        if arm == "spec" and number == 3:
            raise KeyboardInterrupt
        return answer()

    engine = ToyEngine(answers=answers)
    with pytest.raises(KeyboardInterrupt):
        execute(engine, recipe, prompts, writer)
    assert engine.steps[-1] == "spec: stop"
    run = open_run(folder)
    assert run.manifest is not None
    assert [cell.status for cell in run.manifest.cells] == ["finished", "interrupted"]
    done = {r.key for r in run.records if r.phase == "measure"}
    assert len(done) == 3
    plan = make_plan(recipe, prompts, done)
    assert sum(len(cell.prompts) for cell in plan) == 5, "a resumed run measures the rest, and nothing twice"


def test_a_model_that_changes_under_the_run_ends_its_cells(
    recipe: Recipe, prompts: list[PromptItem], writer: RunWriter, folder: Path, tmp_path: Path
) -> None:
    model = tmp_path / "t.gguf"
    model.write_bytes(b"one")

    def answers(arm: str, number: int) -> Completion:
        if arm == "baseline":
            model.write_bytes(b"another")
        return answer()

    launches = {arm.name: Launch(argv=("toy", arm.name), env={}) for arm in recipe.arms}
    once = recipe.model_copy(update={"blocks": 1})
    Runner(once, ToyEngine(answers=answers), launches, writer, [model]).run(make_plan(once, prompts), RunProgress())
    run = open_run(folder)
    assert run.manifest is not None
    assert [cell.status for cell in run.manifest.cells] == ["finished", "failed"]
    assert run.manifest.cells[1].error is not None
    assert "Changed since the run began" in run.manifest.cells[1].error.message


def test_the_log_of_a_cell_that_a_killed_benchctl_left_is_kept(
    recipe: Recipe, prompts: list[PromptItem], writer: RunWriter, folder: Path
) -> None:
    left = folder / "logs" / "block0-baseline.log"
    left.write_text("what the killed one saw")
    execute(ToyEngine(), recipe, prompts, writer)
    assert left.read_text() == "what the killed one saw"
    first = writer.manifest.cells[0]
    assert (first.arm, first.attempt, first.log) == ("baseline", 1, "logs/block0-baseline.1.log")
    assert {r.attempt for r in open_run(folder).records if (r.block, r.label) == (0, "baseline")} == {1}
