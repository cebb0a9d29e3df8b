from __future__ import annotations

import gc
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchctl.data.store import open_run
from benchctl.data.writer import RunWriter
from benchctl.engines.base import Attestation, Completion, Launch
from benchctl.errors import EngineError
from benchctl.measurement.plan import CellPlan, earlier_processes, make_plan, measured
from benchctl.measurement.progress import RunProgress
from benchctl.measurement.runner import Runner
from benchctl.prompts.suite import PromptItem
from benchctl.recipes.schema import Recipe
from tests.measurement.toy_engine import ToyEngine, answer, honest


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


def test_no_garbage_is_collected_while_prompts_are_measured(
    recipe: Recipe, prompts: list[PromptItem], writer: RunWriter
) -> None:
    collecting: list[bool] = []

    def answers(arm: str, number: int) -> Completion:
        collecting.append(gc.isenabled())
        return answer()

    execute(ToyEngine(answers=answers), recipe.model_copy(update={"blocks": 1}), prompts, writer)
    assert collecting == [True, False, False] * 2, "a warm-up, two prompts"
    assert gc.isenabled()


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
    one_block = recipe.model_copy(update={"blocks": 1})
    Runner(one_block, ToyEngine(answers=answers), launches, writer, [model]).run(
        make_plan(one_block, prompts), RunProgress()
    )
    run = open_run(folder)
    assert run.manifest is not None
    assert [cell.status for cell in run.manifest.cells] == ["finished", "failed"]
    assert run.manifest.cells[1].error is not None
    assert "Changed since" in run.manifest.cells[1].error.message


def test_the_log_of_a_cell_that_a_killed_benchctl_left_is_kept(
    recipe: Recipe, prompts: list[PromptItem], writer: RunWriter, folder: Path
) -> None:
    leftover = folder / "logs" / "block0-baseline.log"
    leftover.write_text("what the killed one saw")
    execute(ToyEngine(), recipe, prompts, writer)
    assert leftover.read_text() == "what the killed one saw"
    first = writer.manifest.cells[0]
    assert (first.arm, first.attempt, first.log) == ("baseline", 1, "logs/block0-baseline.1.log")
    assert {r.attempt for r in open_run(folder).records if (r.block, r.label) == (0, "baseline")} == {1}


def dies(arm: str, *more: str) -> dict[str, EngineError]:
    fell = EngineError("It exited at once (port 4711).", kind="launch", fix="Look.", log_tail=("no memory",))
    return dict.fromkeys((arm, *more), fell)


class Notes(RunProgress):
    """Keeps what is reported."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[str] = []
        self.failures: list[tuple[str, str | None]] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def cell_ended(self, cell: CellPlan, failure: str | None) -> None:
        self.failures.append((cell.name, failure))


@pytest.mark.parametrize("schedule", ["blocks", "interleaved"])
def test_a_run_ends_where_its_baseline_cannot_start(
    schedule: str, recipe: Recipe, prompts: list[PromptItem], writer: RunWriter, folder: Path
) -> None:
    engine, notes = ToyEngine(start_failures=dies("baseline", "spec")), Notes()
    recipe = recipe.model_copy(update={"schedule": schedule})
    launches = {arm.name: Launch(argv=("toy", arm.name), env={}) for arm in recipe.arms}
    runner = Runner(recipe, engine, launches, writer)
    runner.run(make_plan(recipe, prompts), notes)
    assert engine.steps == ["baseline: start"]
    assert runner.ended
    assert notes.notes == [
        "  | no memory",
        "  Look.",
        "The run ends here: its baseline cannot start, so there would be nothing to compare with.",
    ]
    assert [cell.arm for cell in writer.manifest.cells] == ["baseline"], "what was not started can be resumed"


def test_the_other_conditions_go_on(recipe: Recipe, prompts: list[PromptItem], writer: RunWriter) -> None:
    arms = [
        arm.model_copy(update={"name": f"{arm.name}.c{slots}", "of": arm.name, "concurrency": slots})
        for slots in (1, 2)
        for arm in recipe.arms
    ]
    recipe = recipe.model_copy(update={"arms": arms, "baseline": "baseline.c1"})
    engine, notes = ToyEngine(start_failures=dies("baseline.c2")), Notes()
    launches = {arm.name: Launch(argv=("toy", arm.name), env={}) for arm in arms}
    runner = Runner(recipe, engine, launches, writer)
    runner.run(make_plan(recipe, prompts), notes)
    assert not runner.ended
    assert [(cell.arm, cell.status) for cell in writer.manifest.cells if cell.block == 0] == [
        ("baseline.c1", "finished"),
        ("spec.c1", "finished"),
        ("baseline.c2", "failed"),
    ]
    assert {cell.arm for cell in writer.manifest.cells if cell.block == 1} == {"baseline.c1", "spec.c1"}
    assert notes.notes[-1].startswith("No arm is measured under the condition of baseline.c2: ")


def test_later_a_baseline_that_cannot_start_costs_its_cell(
    recipe: Recipe, prompts: list[PromptItem], writer: RunWriter
) -> None:
    failures: dict[str, EngineError] = {}

    def answers(arm: str, number: int) -> Completion:
        failures.update(dies("baseline"))
        return answer()

    execute(ToyEngine(answers=answers, start_failures=failures), recipe, prompts, writer)
    assert [(cell.block, cell.arm, cell.status) for cell in writer.manifest.cells] == [
        (0, "baseline", "finished"),
        (0, "spec", "finished"),
        (1, "spec", "finished"),
        (1, "baseline", "failed"),
    ]


def test_one_cause_is_told_once_with_its_log(
    recipe: Recipe, prompts: list[PromptItem], writer: RunWriter, folder: Path
) -> None:
    class Logging(ToyEngine):
        def start(self, launch: Launch, log_path: Path) -> Any:
            log_path.write_text("no memory")
            self.start_failures["spec"] = dies("spec")["spec"]
            return super().start(launch, log_path)

    notes = Notes()
    launches = {arm.name: Launch(argv=("toy", arm.name), env={}) for arm in recipe.arms}
    Runner(recipe, Logging(), launches, writer).run(make_plan(recipe, prompts), notes)
    assert [failure for _, failure in notes.failures if failure] == [
        "It exited at once (port 4711).",
        "for the same reason as block 1, spec",
    ]
    assert notes.notes == ["  | no memory", "  Look.", f"  Log: {folder}/logs/block0-spec.log"]


def test_a_cell_that_only_lacks_its_last_attestation_is_opened_and_measures_nothing(
    recipe: Recipe, prompts: list[PromptItem], writer: RunWriter, folder: Path
) -> None:
    one_block = recipe.model_copy(update={"blocks": 1})
    execute(
        ToyEngine(answers=lambda arm, number: answer(drafted=None if arm == "baseline" else 5)),
        one_block,
        prompts,
        writer,
    )
    before = open_run(folder).records
    del writer.manifest.cells[1]  # as a benchctl leaves it that is killed after its last answer
    run = open_run(folder)
    done = measured(run, len(prompts))
    plan = make_plan(one_block, prompts, done, unclosed={(0, "spec")})

    def idle(arm: str, drafted: int | None) -> Attestation:
        return Attestation("idle", ("nothing drafted yet",))

    launches = {arm.name: Launch(argv=("toy", arm.name), env={}) for arm in recipe.arms}
    engine = ToyEngine(attestations=idle)
    Runner(one_block, engine, launches, writer, earlier=earlier_processes(run.records)).run(plan, RunProgress())
    assert engine.steps == ["spec: start", "spec: attest(None)", "spec: ask", "spec: attest(None)", "spec: stop"]
    closing = writer.manifest.cells[-1]
    assert (closing.arm, closing.status, closing.attempt) == ("spec", "finished", 1)
    assert closing.attestation is not None
    assert closing.attestation.state == "active", "its answers were drafted, and that is what it says of them"
    assert "drafted 10 tokens" in closing.attestation.evidence[-1]
    assert [record for record in open_run(folder).records if record.phase == "measure"] == [
        earlier for earlier in before if earlier.phase == "measure"
    ]


def test_an_earlier_process_that_drafted_where_nothing_should_is_no_baseline(
    recipe: Recipe, prompts: list[PromptItem], writer: RunWriter, folder: Path
) -> None:
    one_block = recipe.model_copy(update={"blocks": 1, "arms": recipe.arms[:1]})
    launches = {"baseline": Launch(argv=("toy", "baseline"), env={})}
    (plan,) = make_plan(one_block, prompts)
    execute(ToyEngine(answers=lambda arm, number: answer(drafted=4)), one_block, prompts, writer)
    writer.manifest.cells.clear()
    runner = Runner(one_block, ToyEngine(), launches, writer, earlier=earlier_processes(open_run(folder).records))
    runner.run([replace(plan, prompts=())], RunProgress())
    assert writer.manifest.cells[-1].status == "failed"
    assert not [record for record in open_run(folder).records if record.phase == "measure"]


@pytest.mark.parametrize("jump_s", [3600.0, -3600.0])
def test_a_clock_that_jumps_changes_no_duration_and_is_noted(
    jump_s: float, recipe: Recipe, prompts: list[PromptItem], writer: RunWriter, folder: Path, monkeypatch: Any
) -> None:
    real, jumped = time.time, [0.0]
    monkeypatch.setattr(time, "time", lambda: real() + jumped[0])

    def answers(arm: str, number: int) -> Completion:
        if arm == "baseline" and number == 3:  # between its two prompts
            jumped[0] = jump_s
        return answer()

    one_block = recipe.model_copy(update={"blocks": 1})
    execute(ToyEngine(answers=answers), one_block, prompts, writer)
    run = open_run(folder)
    assert run.manifest is not None
    baseline, spec = (cell.watch for cell in run.manifest.cells)
    assert baseline is not None and spec is not None
    assert baseline.clock_jump_s == pytest.approx(jump_s, abs=1)
    assert abs(spec.clock_jump_s or 0.0) < 1, "it jumped once"
    assert all(0 <= cell.wall_s < 60 for cell in run.manifest.cells)
    assert all(0 <= (record.sent_s or 0.0) < 60 for record in run.records)


@pytest.mark.parametrize(("kind", "cells"), [("crash", [("baseline", "finished"), ("spec", "failed")]), ("http", None)])
def test_a_run_may_end_at_its_first_failure(
    recipe: Recipe,
    prompts: list[PromptItem],
    writer: RunWriter,
    folder: Path,
    kind: str,
    cells: list[tuple[str, str]] | None,
) -> None:
    launches = {arm.name: Launch(argv=("toy", arm.name), env={}) for arm in recipe.arms}
    runner = Runner(recipe, _fails_at("spec", 2, kind), launches, writer, stop_at_failure=True)
    runner.run(make_plan(recipe, prompts), RunProgress())
    run = open_run(folder)
    assert runner.ended and run.manifest is not None
    expected = cells or [("baseline", "finished"), ("spec", "finished")]  # a refused request costs its cell nothing
    assert [(c.arm, c.status) for c in run.manifest.cells] == expected
