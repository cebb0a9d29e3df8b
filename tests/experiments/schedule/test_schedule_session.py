"""From a run over concurrency to the engine's own setting by load, and to the recipe that measures it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from benchctl.cli.schedule import schedule
from benchctl.data.store import open_run
from benchctl.errors import UsageError
from benchctl.experiments.schedule import session
from benchctl.experiments.schedule.session import (
    Schedule,
    Written,
    compare,
    fixed_depths,
    levels_of,
    measure,
    resume,
    resumed_by,
    write,
)
from benchctl.lossless.judge.run import analyse_run
from benchctl.measurement.prepare import RecipeContext
from benchctl.measurement.progress import RunProgress
from benchctl.recipes.load import recipe_of_options
from benchctl.recipes.speculation import Speculation
from benchctl.words.schedule import load_range, mixed, steps
from tests.analysis.conditions.simulated import Server, Sweep, write_sweep

GAINS = {"spec_d4": {1: 1.6, 8: 0.7}, "spec_d2": {1: 1.3, 8: 0.9}, "ngram": {1: 1.1, 8: 1.0}}
ARMS: dict[str, Any] = {
    "baseline": None,
    "spec_d4": {"type": "draft-simple", "max": 4},
    "spec_d2": {"type": "draft-simple", "max": 2},
    "ngram": {"type": "ngram-mod", "max": 8},
}


class Unable:
    """An engine that takes no schedule for this type."""

    def with_schedule(self, setting: Speculation, ranges: list[tuple[int, int, int]]) -> None:
        return None

    def has_schedule(self, setting: Speculation) -> bool:
        return False


class Scheduling:
    """An engine that takes the depths as a number."""

    def with_schedule(self, setting: Speculation, ranges: list[tuple[int, int, int]]) -> Speculation:
        assert ranges[-1][-1] == 0, "where nothing was measured nothing is drafted"
        return setting.model_copy(update={"max": max(depth for *_, depth in ranges), "min": len(ranges)})

    def has_schedule(self, setting: Speculation) -> bool:
        return setting.min is not None


def context() -> RecipeContext:
    arms = [{"name": name, **({"speculation": setting} if setting else {})} for name, setting in ARMS.items()]
    models = {role: {"source": f"{role}.gguf"} for role in ("target", "draft")}
    matrix = {"concurrency": [1, 8]}
    data = {"name": "sweep", "engine": {"kind": "llama.cpp"}, "models": models, "prompts": {"suite": "tiny.json"}}
    return RecipeContext(recipe_of_options({**data, "matrix": matrix, "arms": arms}), Path(), trusted=True)


def written(folder: Path, engine: object, gains: dict[str, dict[int, float]] = GAINS) -> Written:
    server = Server(gain=lambda arm, concurrency, temperature: gains[arm][concurrency])
    write_sweep(folder / "run", Sweep(concurrency=(1, 8), arms=ARMS, prompts=24), server)
    run = open_run(folder / "run")

    def prepare(chosen: RecipeContext) -> Any:
        launches = {arm.name: SimpleNamespace(argv=("serve", arm.name)) for arm in chosen.recipe.arms}
        return SimpleNamespace(of_baseline=SimpleNamespace(engine=engine), recipe=chosen.recipe, launches=launches)

    return write(run, analyse_run(run), context(), prepare)


def test_an_engine_that_takes_a_schedule_gets_it_beside_the_best_fixed_depth(tmp_path: Path) -> None:
    result = written(tmp_path, Scheduling())
    first, *_, last = result.schedule.steps
    assert (first.first, first.depth, last.last, last.depth) == (1, 4, 8, 0)
    assert result.schedule.fixed == "spec_d4", "of the type that gains most, the best over all loads"
    assert result.setting is not None and result.setting.types == ("draft-simple",)
    assert result.ready is not None and result.ready.recipe.name == "sweep-schedule"
    arms = [(arm.name, arm.of, arm.concurrency) for arm in result.ready.recipe.arms]
    assert arms == [(f"{name}-c{load}", name, load) for load in (1, 8) for name in ("baseline", "schedule", "spec_d4")]
    assert result.commands == {"schedule": ("serve", "schedule-c8")}
    assert steps(result.schedule.steps)[-1].endswith("8 requests in flight: no speculation; no depth is shown to help.")
    assert "as many tokens at each: spec_d4 serves 1." in mixed(result.schedule.mixed[0])


def test_beyond_the_last_measured_load_nothing_is_drafted(tmp_path: Path) -> None:
    """vLLM carries the last depth on to larger batches."""
    ranges: list[tuple[int, int, int]] = []

    class Recording(Scheduling):
        def with_schedule(self, setting: Speculation, steps: list[tuple[int, int, int]]) -> Speculation:
            ranges.extend(steps)
            return super().with_schedule(setting, steps)

    written(tmp_path, Recording(), {**GAINS, "spec_d4": {1: 1.6, 8: 1.5}})
    assert ranges == [(1, 8, 4), (9, 9, 0)]


@pytest.mark.parametrize("engine", [object(), Unable()])
def test_another_engine_has_a_command_for_each_range_of_load_and_their_arms_are_measured(
    tmp_path: Path, engine: object
) -> None:
    result = written(tmp_path, engine)
    assert list(result.commands) == [load_range(step) for step in result.schedule.steps]
    commands = list(result.commands.values())
    assert (commands[0], commands[-1]) == (("serve", "spec_d4-c8"), ("serve", "baseline-c8"))
    assert result.ready is not None
    names = {arm.name for arm in result.ready.recipe.arms}
    assert names == {f"{arm}-c{load}" for arm in ("baseline", "spec_d4") for load in (1, 8)}

    analysis, loads = compare(result, open_run(tmp_path / "run"))
    assert [(load.arm, load.against) for load in loads] == [("schedule", "baseline"), ("schedule", "spec_d4")]
    assert analysis.sweep is not None
    throughput = {row.arm: row.throughput or 0 for row in analysis.sweep.levels}
    alone, scheduled = (1 / throughput[arm] for arm in ("baseline-c1", "spec_d4-c1"))
    at_eight = 1 / throughput["baseline-c8"]  # where the schedule is off
    assert loads[0].ratio == pytest.approx((alone + at_eight) / (scheduled + at_eight))
    assert loads[1].ratio == pytest.approx((scheduled + 1 / throughput["spec_d4-c8"]) / (scheduled + at_eight))


def test_where_no_depth_helps_there_is_nothing_to_measure(tmp_path: Path) -> None:
    result = Written(Schedule([], None, None, []), None, None, {})
    with pytest.raises(UsageError, match="no schedule to measure"):
        measure(result, tmp_path, RunProgress(), [])


def test_an_arm_with_a_depth_by_load_is_no_fixed_depth(tmp_path: Path) -> None:
    by_load = {"type": "draft-simple", "max": 8, "min": 1}
    write_sweep(tmp_path / "run", Sweep(concurrency=(1, 8), arms={**ARMS, "ranges": by_load}, blocks=1))
    run = open_run(tmp_path / "run")
    fixed = {arm: depth for arms in fixed_depths(run, Scheduling()).values() for arm, depth in arms.items()}
    assert fixed == {"spec_d4": 4, "spec_d2": 2, "ngram": 8}
    assert any("ranges" in arms for arms in fixed_depths(run, object()).values()), "this engine has fixed depths only"


def test_an_arm_that_has_the_schedules_name_is_refused(tmp_path: Path) -> None:
    write_sweep(tmp_path / "run", Sweep(concurrency=(1, 8), arms={**ARMS, "schedule": ARMS["spec_d4"]}, blocks=1))
    with pytest.raises(UsageError, match="named schedule"):
        fixed_depths(open_run(tmp_path / "run"), object())


def test_ctrl_c_names_the_command_that_also_compares() -> None:
    again = "benchctl runs schedule first --resume"
    with pytest.raises(KeyboardInterrupt, match=f"To finish it: {again} results/x/1$"), resumed_by(again):
        raise KeyboardInterrupt("Interrupted. To finish it: benchctl run --resume results/x/1")
    with pytest.raises(KeyboardInterrupt, match=r"^$"), resumed_by(again):
        raise KeyboardInterrupt  # before a run has a folder


def test_a_measurement_that_was_interrupted_is_finished_and_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = written(tmp_path, object())
    ready, run = result.ready, open_run(tmp_path / "run")
    assert ready is not None and run.manifest is not None
    unused = cast("Any", pytest.fail)
    stored = {"status": "interrupted", "recipe": ready.recipe.model_dump(mode="json")}
    begun = replace(run, manifest=run.manifest.model_copy(update=stored))
    monkeypatch.setattr(session, "resume_run", lambda prepared, *_: prepared)
    finished = resume(result, begun, lambda _: cast("Any", run.folder), RunProgress())
    assert finished.folder == run.folder
    ended = replace(begun, manifest=run.manifest.model_copy(update=stored | {"status": "finished"}))
    assert resume(result, ended, unused, RunProgress()) is ended, "nothing is left to measure"
    with pytest.raises(UsageError, match="does not measure the schedule"):
        resume(replace(result, ready=None), run, unused, RunProgress())


@pytest.mark.parametrize("option", [{"blocks": 3}, {"measure": True, "resume": "sweep-schedule"}])
def test_options_without_a_use_are_refused(option: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"Only --measure|started or resumed"):
        schedule(**option)


def test_a_schedule_is_not_compared_on_the_run_that_it_was_chosen_on(tmp_path: Path) -> None:
    write_sweep(tmp_path / "run", Sweep(concurrency=(1, 8), blocks=1))
    with pytest.raises(UsageError, match="cannot decide what it gains"):
        schedule(run=str(tmp_path / "run"), resume=str(tmp_path / "run"))


def test_a_run_at_one_load_is_refused(tmp_path: Path) -> None:
    write_sweep(tmp_path / "run", Sweep())
    run = open_run(tmp_path / "run")
    with pytest.raises(UsageError, match="over several concurrencies"):
        levels_of(run, analyse_run(run))
