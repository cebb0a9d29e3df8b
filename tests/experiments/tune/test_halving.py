"""The search: who is in which block, who stays, and what a search that was cut off does when it goes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchctl.data.manifest import ArmIdentity, Manifest, Tuning
from benchctl.data.store import open_run
from benchctl.data.writer import RunWriter
from benchctl.engines.base import Completion, Launch
from benchctl.errors import EngineError
from benchctl.experiments.tune.halving import Halving
from benchctl.measurement.plan import by_turns
from benchctl.measurement.progress import RunProgress
from benchctl.measurement.runner import Runner
from benchctl.prompts.suite import Prompt, PromptItem
from benchctl.recipes.schema import Recipe
from tests.measurement.toy_engine import ToyEngine, answer

ARMS = ["a1", "a2", "a3", "a4", "a5", "a6"]
RATES = {"a1": 0.5, "a2": 0.9, "a3": 2.0, "a4": 0.8, "a5": 1.5, "a6": 0.3}
Search = Callable[..., ToyEngine]


class Seen(RunProgress):
    """Keeps what is told."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[str] = []
        self.standings: list[tuple[str, list[str]]] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def standing(self, heading: str, arms: Any) -> None:
        self.standings.append((heading, list(arms)))


def timed(arm: str, number: int) -> Completion:
    """Answers as fast as `RATES` says; all but the baseline draft."""
    done = answer(drafted=None if arm == "baseline" else 4)
    return replace(done, decode_s=done.decode_s / RATES.get(arm, 1.0))


@pytest.fixture
def recipe() -> Recipe:
    return Recipe.model_validate(
        {
            "name": "toy-search",
            "models": {"target": {"source": "t.gguf"}},
            "prompts": {"suite": "s.json"},
            "blocks": 2,
            "warmup": 0,
            "arms": [
                {"name": "baseline"},
                *({"name": arm, "speculation": {"type": "ngram-simple"}} for arm in ARMS),
            ],
        }
    )


@pytest.fixture
def prompts() -> list[PromptItem]:
    return [
        PromptItem(task=task, prompt_idx=index, prompt=Prompt(prompt=f"{task}{index}"))
        for task in ("chat", "code")
        for index in range(2)
    ]


@pytest.fixture
def search(recipe: Recipe, prompts: list[PromptItem], folder: Path, manifest: Manifest) -> Search:
    """Run the search, from wherever its folder stands, for at most so many blocks."""
    manifest.blocks = 0
    manifest.arms = [
        ArmIdentity(name=arm.name, baseline=arm.name == "baseline", argv=[], env=[],
                    speculation=None if arm.speculation is None else arm.speculation.model_dump())
        for arm in recipe.arms
    ]  # fmt: skip
    manifest.tuning = Tuning(budget_s=1000, prompts_per_block=1, guessed={arm.name: (1.0, 1.0) for arm in recipe.arms})

    def go(engine: ToyEngine | None = None, progress: RunProgress | None = None, blocks: int = 99) -> ToyEngine:
        engine = engine or ToyEngine(answers=timed)
        launches = {arm.name: Launch(argv=("toy", arm.name), env={}) for arm in recipe.arms}
        prepared: Any = SimpleNamespace(recipe=recipe, prompts=tuple(prompts))
        with RunWriter(folder, manifest) as writer:
            runner = Runner(recipe, engine, launches, writer)
            batches = Halving.blocks(prepared, writer, progress or RunProgress())
            for number, cells in enumerate(batches, start=1):
                runner.run(cells, RunProgress())
                if number == blocks:
                    break
        return engine

    return go


def test_the_slower_half_goes_until_one_is_left(search: Search, folder: Path) -> None:
    search(progress=(recorded := Seen()))
    run = open_run(folder)
    assert run.manifest is not None and run.manifest.tuning is not None
    tuning = run.manifest.tuning
    assert [rung.arms for rung in tuning.rungs] == [ARMS, ["a3", "a5", "a2"]]
    assert [rung.kept for rung in tuning.rungs] == [["a3", "a5", "a2"], ["a3"]]
    assert (tuning.chosen, tuning.ended) == ("a3", True)
    assert all(rung.blocks >= 2 for rung in tuning.rungs), "no single block decides"
    in_block = {
        block: {record.label for record in run.records if record.block == block} for block in range(run.manifest.blocks)
    }
    for rung in tuning.rungs:
        for block in range(rung.first_block, rung.first_block + rung.blocks):
            assert in_block[block] == {"baseline", *rung.arms}, "the baseline is in every block"
    assert any("a4 0.80×, a1 0.50×" in note for note in recorded.notes)
    assert recorded.standings[-1] == ("Rung 2 of 2, remaining", ["a3 2.00×", "a5 1.50×", "a2 0.90×"])


def test_each_block_asks_the_next_prompts_of_the_suite(search: Search, folder: Path) -> None:
    search()
    prompts = {record.block: (record.task, record.prompt_idx) for record in open_run(folder).records}
    assert [prompts[block] for block in range(5)] == [("chat", 0), ("code", 0), ("chat", 1), ("code", 1), ("chat", 0)]


def test_a_search_that_was_cut_off_goes_on_and_measures_nothing_twice(search: Search, folder: Path) -> None:
    search(blocks=3)
    before = {(record.block, record.label) for record in open_run(folder).records}
    engine = search()
    run = open_run(folder)
    assert run.manifest is not None and run.manifest.tuning is not None
    assert run.manifest.tuning.chosen == "a3"
    assert len(run.records) == len({record.key for record in run.records})
    started = sum(step.endswith("start") for step in engine.steps)
    assert started == len({(record.block, record.label) for record in run.records} - before)


@pytest.mark.parametrize(("idle", "chosen"), [(("a3",), "a5"), (("a3", "a5"), "a3")])
def test_what_cannot_start_is_out_and_what_never_drafts_counts_as_no_speculation(
    search: Search, folder: Path, idle: tuple[str, ...], chosen: str
) -> None:
    def some_idle(arm: str, number: int) -> Completion:
        done = timed(arm, number)
        return replace(done, ledger=answer(drafted=0).ledger) if arm in idle else done

    crash = EngineError("It cannot start.", kind="launch")
    search(ToyEngine(answers=some_idle, start_failures={"a2": crash}), progress := Seen())
    run = open_run(folder)
    assert run.manifest is not None and run.manifest.tuning is not None
    assert run.manifest.tuning.chosen == chosen, "behind what is faster, before what is slower, whatever it measured"
    assert "a3 2.00× (never drafted)" in progress.notes[0] and "a2 no answer" in progress.notes[0]


def test_where_nothing_drafts_nothing_is_chosen(search: Search, folder: Path) -> None:
    search(ToyEngine(answers=lambda arm, number: answer(drafted=None if arm == "baseline" else 0)), progress := Seen())
    run = open_run(folder)
    assert run.manifest is not None and run.manifest.tuning is not None
    assert (run.manifest.tuning.chosen, run.manifest.tuning.ended) == (None, True)
    assert progress.notes[0].startswith("Rung 1: no arm drafted anything")


def test_prompts_are_asked_a_task_in_turn(prompts: list[PromptItem]) -> None:
    assert [item.prompt.prompt for item in by_turns(prompts)] == ["chat0", "code0", "chat1", "code1"]
