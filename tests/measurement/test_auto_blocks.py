"""`blocks: auto`: how many blocks are measured, why it ends, and what a resumed run does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from benchctl.analysis.precision import Look, why_stop
from benchctl.data.manifest import Stopped
from benchctl.data.store import RunData, open_run
from benchctl.data.writer import RunWriter
from benchctl.engines.base import Launch
from benchctl.measurement import schedule
from benchctl.measurement.plan import make_plan, measured
from benchctl.measurement.progress import RunProgress
from benchctl.measurement.runner import Runner
from benchctl.measurement.schedule import blocks_as_needed
from benchctl.prompts.suite import PromptItem
from benchctl.recipes.schema import FIRST_LOOK, AutoBlocks, Recipe
from tests.measurement.toy_engine import ToyEngine

HalfWidths = Callable[[RunData], dict[str, float | None]]
Go = Callable[..., Stopped | None]
"""(rule, half-widths, where notes go) -> why it ended."""


@pytest.fixture
def go(recipe: Recipe, prompts: list[PromptItem], writer: RunWriter, monkeypatch: pytest.MonkeyPatch) -> Go:
    """Measure by a rule, from wherever the run folder stands; return why it ended."""
    launches = {arm.name: Launch(argv=("toy", arm.name), env={}) for arm in recipe.arms}
    runner = Runner(recipe, ToyEngine(), launches, writer)
    writer.manifest.blocks = 0

    def measure(rule: AutoBlocks, widths: HalfWidths, progress: RunProgress | None = None) -> Stopped | None:
        monkeypatch.setattr(schedule, "look", lambda run, _: Look(widths(run), {}, []))
        run = open_run(writer.folder)
        done = measured(run, len(prompts))
        plan = make_plan(recipe, prompts, done, range(max(FIRST_LOOK, writer.manifest.blocks)))
        prepared: Any = SimpleNamespace(recipe=recipe, prompts=prompts)
        for cells in blocks_as_needed(rule, prepared, writer, plan, progress or RunProgress()):
            runner.run(cells, RunProgress())
        return writer.manifest.stopped

    return measure


def width_falls(run: RunData) -> dict[str, float | None]:
    """A half-width of 28 % over the number of blocks."""
    assert run.manifest is not None
    return {"spec": 0.28 / run.manifest.blocks}


def test_it_ends_as_soon_as_every_interval_is_narrow_enough(go: Go, folder: Path) -> None:
    stopped = go(AutoBlocks(half_width=0.04), width_falls)
    assert stopped == Stopped(reason="reached", half_widths={"spec": 0.04})
    run = open_run(folder)
    assert run.manifest is not None
    assert (run.manifest.blocks, run.manifest.stopped) == (7, stopped), "both are stored"
    assert {(r.block, r.label) for r in run.records} == {(b, arm) for b in range(7) for arm in ("baseline", "spec")}


def test_the_first_look_is_after_five_blocks(go: Go, folder: Path) -> None:
    looks = []

    def narrow(run: RunData) -> dict[str, float | None]:
        looks.append(len({record.block for record in run.records}))
        return {"spec": 0.001}

    assert go(AutoBlocks(half_width=0.02), narrow) is not None
    assert looks == [FIRST_LOOK] == [5]


@pytest.mark.parametrize(
    ("rule", "blocks", "spent_s", "known", "reason"),
    [
        (AutoBlocks(half_width=0.02), 4, 1.0, {"a": 0.001}, None),
        (AutoBlocks(half_width=0.02), 5, 1.0, {"a": 0.001, "b": 0.03}, None),
        (AutoBlocks(half_width=0.02), 5, 1.0, {"a": 0.001, "b": None}, None),
        (AutoBlocks(half_width=0.02), 5, 1.0, {"a": 0.001, "b": 0.02}, "reached"),
        (AutoBlocks(half_width=0.02), 5, 1.0, {}, "no pairs"),
        (AutoBlocks(half_width=0.02, max=6), 6, 1.0, {"a": 0.03}, "maximum"),
        (AutoBlocks(half_width=0.02, budget_min=1), 5, 50.0, {"a": 0.03}, None),
        (AutoBlocks(half_width=0.02, budget_min=1), 5, 50.1, {"a": 0.03}, "budget"),
        (AutoBlocks(half_width=0.02, budget_min=1), 3, 50.0, {}, "budget"),
        (AutoBlocks(half_width=0.02, budget_min=1), 2, 100.0, {}, None),
        (AutoBlocks(budget_min=1), 1, 100.0, {}, None),
        (AutoBlocks(half_width=0.02, budget_min=1), 0, 0.0, {}, None),
        (AutoBlocks(half_width=0.02, budget_min=1, max=5), 5, 900.0, {"a": 0.01}, "reached"),
    ],
)
def test_why_it_ends(
    rule: AutoBlocks, blocks: int, spent_s: float, known: dict[str, float | None], reason: str | None
) -> None:
    stopped = why_stop(rule, blocks, spent_s, Look(known, {}, []))
    assert (stopped and stopped.reason) == reason


def test_a_resumed_run_goes_on_by_the_same_rule(go: Go, folder: Path) -> None:
    assert go(AutoBlocks(half_width=0.01, max=6), width_falls) == Stopped(
        reason="maximum", half_widths={"spec": 0.28 / 6}
    )
    before = open_run(folder).records
    assert go(AutoBlocks(half_width=0.04, max=20), width_falls) == Stopped(reason="reached", half_widths={"spec": 0.04})
    after = open_run(folder).records
    assert after[: len(before)] == before
    assert len({r.key for r in after if r.phase == "measure"}) == 7 * 2 * 2 == sum(r.phase == "measure" for r in after)


def test_what_is_told_after_every_look(go: Go) -> None:
    class Notes(RunProgress):
        notes: ClassVar[list[str]] = []

        def note(self, text: str) -> None:
            self.notes.append(text)

    go(AutoBlocks(half_width=0.04, max=6), width_falls, Notes())
    assert Notes.notes == [
        # 5 (5.6 / 4)² = 9.8 and 6 (4.67 / 4)² = 8.2 blocks would do.
        "After 5 repetitions: spec ±5.6 %; required: ±4 %. "
        "At this spread that takes about 5 more, 0 s; at most 6 are allowed.",
        "After 6 repetitions: spec ±4.7 %; required: ±4 %. "
        "At this spread that takes about 3 more, 0 s; at most 6 are allowed.",
        "Stopped after 6 repetitions: the recipe allows no more.",
    ]
