"""A run over axes: every group against its own baseline, parts with their own target, the best of each group."""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from benchctl.analysis.conditions.split import parts_of
from benchctl.analysis.conditions.sweep import axis_rows, find_curves, pareto_front, varied_axes
from benchctl.analysis.outcome import find_outcome
from benchctl.data.cell import Cell, WatchRecord
from benchctl.data.manifest import ArmIdentity, EngineIdentity, FileIdentity, Manifest, ModelIdentity
from benchctl.data.record import Record
from benchctl.data.store import RunData
from benchctl.lossless.judge.run import OutputComparison, analyse_run
from benchctl.reports.figures.sweep import draw_pareto
from benchctl.reports.write import render_files
from benchctl.words.sweep import curves
from tests.analysis.conftest import build_manifest, build_record

SPEC = {"type": "draft-simple", "max": 4}
DRAFTED: dict[str, Any] = {"draft_n": 12, "draft_n_accepted": 6, "rounds": 3}
RATES = {
    "baseline-f16": 10.0,
    "spec-small-f16": 15.0,
    "spec-large-f16": 8.0,
    "baseline-q8": 20.0,
    "spec-small-q8": 12.0,
    "spec-large-q8": 24.0,
}
TEXT = {"f16": "the one answer", "q8": "another answer"}
"""Each KV type has the target answer otherwise: only groups of their own keep them apart."""
MEMORY = {"baseline": 100, "small": 150, "large": 200}


def model(name: str) -> ModelIdentity:
    return ModelIdentity(source=name, path=name, files=[FileIdentity(name=name, size=1, sha256=name)])


def arm(name: str) -> ArmIdentity:
    recipe_arm, *_, kv = name.split("-")
    draft = name.split("-")[1] if recipe_arm == "spec" else "small"
    return ArmIdentity(
        name=name,
        baseline=recipe_arm == "baseline",
        speculation=SPEC if recipe_arm == "spec" else None,
        argv=["llama-server"],
        env=[],
        of=recipe_arm,
        setup=f"{draft}-{kv}",
        group=kv,
        memory_bytes=MEMORY["baseline" if recipe_arm == "baseline" else draft],
    )


def over_axes(blocks: int = 3, prompts: int = 3) -> RunData:
    engine = EngineIdentity(
        kind="llama.cpp", binary="b", found_in="PATH", version=None, build=None, commit=None, speculation_types=[]
    )
    arms = [arm(name) for name in RATES]
    setups = [
        {
            "name": f"{draft}-{kv}",
            "group": kv,
            "axes": {"models.draft": draft, "cache_type": kv},
            "engine": engine.model_copy(update={"build": kv}),
            "target": model(f"target-{kv}"),
            "draft": model(f"draft-{draft}"),
        }
        for draft in ("small", "large")
        for kv in ("f16", "q8")
    ]
    manifest = build_manifest({}, prompts, blocks, baseline="baseline-f16", setups=setups)
    manifest = manifest.model_copy(update={"arms": arms})
    records = []
    for name, rate in RATES.items():
        kv = name.rpartition("-")[2]
        for block in range(blocks):
            for prompt in range(prompts):
                drafted: dict[str, Any] = DRAFTED if name.startswith("spec") else {}
                pace = rate * (1 + 0.01 * block)
                ids = list(range(10 if kv == "f16" else 50, 21 if kv == "f16" else 61))
                records.append(build_record(name, prompt, block=block, rate=pace, text=TEXT[kv], ids=ids, **drafted))
    return RunData(folder=Path("by-hand"), manifest=manifest, records=records, damaged=[])


@pytest.fixture(scope="module")
def run() -> RunData:
    return over_axes()


def test_every_arm_is_compared_with_the_baseline_of_its_own_group(run: RunData) -> None:
    analysis = analyse_run(run)
    speeds = {row.arm: row.pooled for row in analysis.speedups if row.task == "all"}
    assert speeds == {
        "spec-small-f16": pytest.approx(1.5),
        "spec-large-f16": pytest.approx(0.8),
        "spec-small-q8": pytest.approx(0.6),
        "spec-large-q8": pytest.approx(1.2),
    }
    assert analysis.baselines == {"baseline-f16", "baseline-q8"}
    assert analysis.baseline == "baseline"
    assert {row.arm: row.verdict for row in analysis.losslessness} == dict.fromkeys(speeds, "identical")
    assert analysis.records == len(run.records)


def test_a_part_is_a_run_of_its_own_target_engine_and_recipe(run: RunData) -> None:
    parts = parts_of(run)
    assert [part.part for part in parts] == ["f16", "q8"]
    for part in parts:
        assert part.manifest is not None
        assert part.manifest.setups == []
        assert part.manifest.target.source == f"target-{part.part}"
        assert part.manifest.engine.build == part.part
        assert part.manifest.baseline == f"baseline-{part.part}"
        assert {record.label.rpartition("-")[2] for record in part.records} == {part.part}
    assert sum(len(part.records) for part in parts) == len(run.records)


def test_a_run_without_axes_is_its_own_only_part() -> None:
    manifest = build_manifest({"baseline": None, "spec": SPEC}, 1, 1)
    plain = RunData(Path("x"), manifest, [build_record("baseline"), build_record("spec")], [])
    assert parts_of(plain) == [plain]
    assert axis_rows(analyse_run(plain)) == []


def test_the_best_arm_of_each_group_is_named_with_what_to_do(run: RunData) -> None:
    analysis = analyse_run(run)
    assert analysis.decision is not None
    groups = analysis.decision.groups
    labels = {row.level.arm: row.labels for row in axis_rows(analysis)}
    assert [labels[group.baseline] for group in groups] == [{"cache_type": "f16"}, {"cache_type": "q8"}]
    assert [len(group.arms) for group in groups] == [2, 2]
    assert [group.fastest for group in groups] == ["spec-small-f16", "spec-large-q8"]
    assert [group.overall.arm for group in groups] == ["spec-small-f16", "spec-large-q8"]
    assert (groups[0].action, groups[0].overall.setting) == ("run", "draft-simple, depth 4")


def test_labels_stand_on_their_axes_and_a_draft_s_on_no_baseline(run: RunData) -> None:
    analysis = analyse_run(run)
    assert analysis.sweep is not None
    assert varied_axes(analysis.sweep.levels) == ["cache_type", "models.draft"]
    labels = {row.level.arm: row.labels for row in axis_rows(analysis)}
    assert labels["baseline-q8"] == {"cache_type": "q8"}
    assert labels["spec-large-q8"] == {"cache_type": "q8", "models.draft": "large"}


def test_the_front_is_beaten_neither_in_speed_nor_in_memory(run: RunData) -> None:
    front = pareto_front(axis_rows(analyse_run(run)), attrgetter("level.memory_bytes"))
    assert [row.level.arm for row in front] == ["baseline-q8", "spec-large-q8"]


def with_energy(run: RunData, joules: dict[str, float]) -> RunData:
    """The run with so many joules in every cell of some arms; each cell generates 33 tokens."""
    cells = [
        Cell(
            block=block,
            arm=name,
            order=0,
            status="finished",
            started_at=f"2026-11-21T11:0{block}:00+00:00",
            wall_s=20.0,
            log="logs/x.log",
            watch=WatchRecord(wall_s=10.0, energy_j={"processor": used}),
        )
        for block in range(3)
        for name, used in joules.items()
    ]
    assert run.manifest is not None
    return replace(run, manifest=run.manifest.model_copy(update={"cells": cells}))


@pytest.mark.integration
def test_energy_of_any_arm_has_a_front_a_panel_and_a_column(run: RunData) -> None:
    measured = with_energy(run, {"baseline-q8": 330.0, "spec-large-q8": 495.0, "spec-small-q8": 660.0})
    analysis = analyse_run(measured)
    energy = {row.level.arm: row.joules_per_token for row in axis_rows(analysis)}
    assert energy == pytest.approx(
        dict.fromkeys(RATES) | {"baseline-q8": 10.0, "spec-large-q8": 15.0, "spec-small-q8": 20.0}
    )
    front = pareto_front(axis_rows(analysis), attrgetter("joules_per_token"))
    assert [row.level.arm for row in front] == ["baseline-q8", "spec-large-q8"]
    figure = draw_pareto(analysis)
    assert figure is not None
    titles = [panel.get_title() for panel in figure.axes]
    assert titles == [
        f"{quantity} against {cost}" for cost in ("memory", "energy") for quantity in ("Speed", "Speed-up")
    ]
    files = render_files(measured, analysis)
    text = files["index.html"].decode()
    assert "memory and energy" in text
    assert "whole machine&#39;s" in text
    assert "Energy is not reported" not in text
    header, *lines = (line.split(",") for line in files["axes.csv"].decode().splitlines())
    column = header.index("joules_per_token")
    assert {line[0]: line[column] for line in lines}["spec-large-q8"] == "15.0"


@pytest.mark.integration
def test_without_energy_there_is_no_panel(run: RunData) -> None:
    analysis = analyse_run(run)
    figure = draw_pareto(analysis)
    assert figure is not None
    assert [panel.get_xlabel() for panel in figure.axes] == ["memory (GiB)", "memory (GiB)"]
    text = render_files(run, analysis)["index.html"].decode()
    assert "J/token" not in text


@pytest.mark.integration
def test_the_report_has_tables_and_figures_by_axis(run: RunData) -> None:
    analysis = analyse_run(run)
    files = render_files(run, analysis)
    text = files["report.md"].decode()
    assert "figures/by-axis.png" in text
    assert "spec-small-f16" in text
    assert {"figures/by-axis.svg", "figures/pareto.svg", "axes.csv"} <= set(files)
    assert files["axes.csv"].decode().splitlines()[0].startswith("arm,cache_type,models_draft,tok_per_s,speedup")
    assert 'id="by-axes"' in files["index.html"].decode()


def test_one_arm_may_be_verified_and_a_baseline_named_by_its_recipes_name(run: RunData) -> None:
    outputs = OutputComparison(run, arms=["spec-large-q8"])
    assert [(verdict.arm, verdict.verdict) for verdict in outputs.verdicts()] == [("spec-large-q8", "identical")]
    assert outputs.baseline == "baseline"


def of_lengths(rates: dict[str, float], condition: str = "context_length") -> tuple[Manifest, list[Record]]:
    arms = [
        ArmIdentity(
            name=name,
            baseline=name.startswith("base"),
            speculation=None if name.startswith("base") else SPEC,
            argv=["x"],
            env=[],
            of=name.rpartition("-")[0],
        ).model_copy(update={condition: int(name.rpartition("-ctx")[2])})
        for name in rates
    ]
    manifest = build_manifest({}, 2, 3, baseline="baseline-ctx100").model_copy(update={"arms": arms})

    records = [
        build_record(
            name,
            prompt,
            block=block,
            rate=rate * (1 + block / 200),
            **({} if name.startswith("base") else DRAFTED),
        )
        for name, rate in rates.items()
        for block in range(3)
        for prompt in range(2)
    ]
    return manifest, records


def test_answers_of_each_length_are_a_part_with_its_own_limit() -> None:
    rates = {"baseline-ctx100": 10.0, "spec-ctx100": 15.0, "baseline-ctx900": 10.0, "spec-ctx900": 6.0}
    run = RunData(Path("x"), *of_lengths(rates, "max_tokens"), [])
    parts = parts_of(run)
    assert [part.part for part in parts] == ["n100", "n900"]
    assert [part.manifest.recipe["sampling"]["max_tokens"] for part in parts if part.manifest] == [100, 900]
    analysis = analyse_run(run)
    assert curves(analysis) == [
        "spec: 1.50× at 100 tokens of answer, 0.60× at 900 tokens of answer; "
        "it crosses 1 between 100 tokens of answer and 900 tokens of answer."
    ]
    assert find_outcome(analysis).fastest is None, "rates of different lengths are no choice"


@pytest.mark.integration
def test_a_crossing_by_length_needs_verdicts_on_both_sides() -> None:
    rates = {"baseline-ctx100": 10.0, "spec-ctx100": 15.0, "baseline-ctx900": 10.0, "spec-ctx900": 6.0}
    manifest, records = of_lengths(rates)
    run = RunData(Path("x"), manifest, records, [])
    analysis = analyse_run(run)
    assert curves(analysis) == [
        "spec: 1.50× at 100 tokens, 0.60× at 900 tokens; it crosses 1 between 100 tokens and 900 tokens."
    ]
    assert analysis.sweep is not None
    assert analysis.sweep.dimensions == ["context_length"]
    assert [part.part for part in parts_of(run)] == ["ctx100", "ctx900"]
    files = render_files(run, analysis)
    assert "<h2>By context length</h2>" in files["index.html"].decode()
    assert "figures/by-context.svg" in files
    manifest, records = of_lengths(rates | {"spec-ctx900": 10.0})
    (curve,) = find_curves(analyse_run(RunData(Path("x"), manifest, records, [])))
    assert (curve.labels, curve.crosses_after, curve.throughout) == (["100", "900"], None, None)
