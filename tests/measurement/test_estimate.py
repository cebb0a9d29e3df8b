"""How long a plan will take, by what was timed."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any, cast

import pytest

from benchctl.data.cell import Cell
from benchctl.data.manifest import Manifest
from benchctl.data.record import SCHEMA_VERSION, Record
from benchctl.data.store import open_run
from benchctl.data.writer import RunWriter
from benchctl.machine import nvidia
from benchctl.measurement import estimate
from benchctl.measurement.estimate import REACHED, Timings, cell_s, timings_of, token_steps
from benchctl.measurement.plan import make_plan
from benchctl.measurement.prepare import Prepared, PreparedSetup
from benchctl.models.files import ModelFile, ResolvedModel, ResolvedPair
from benchctl.prompts.suite import PromptItem
from benchctl.recipes.adapters import adapter_of
from benchctl.recipes.schema import Recipe
from benchctl.recipes.speculation import takes_draft
from benchmarks.restore_runs import unpack
from tests.measurement.toy_engine import ToyEngine

ENDED = Cell(block=0, arm="baseline", order=0, status="finished", started_at="", wall_s=6, startup_s=1.0, log="")


@pytest.mark.parametrize(("concurrency", "seconds"), [(1, 2 * (1 + 2 * 4)), (2, 2 * (1 + 5))])
def test_requests_in_flight_together_are_not_added_up(
    concurrency: int,
    seconds: float,
    recipe: Recipe,
    prompts: list[PromptItem],
    writer: RunWriter,
    folder: Path,
) -> None:
    for number, sent_s in enumerate((0.0, 4.0 if concurrency == 1 else 1.0)):  # both take 4 s, and in flight together 5
        record = Record(label="baseline", task="code", prompt_idx=number, rep=0, schema_version=SCHEMA_VERSION)
        writer.append(record.changed(sent_s=sent_s, late_s=0.0, e2e_s=4.0))
    writer.add_cell(ENDED)
    arm = recipe.arms[0].model_copy(update={"concurrency": concurrency})
    plan = make_plan(recipe.model_copy(update={"arms": [arm]}), prompts)
    assert timings_of(open_run(folder), 8, "").of_plan(plan) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("tokens", "finish_reason", "max_tokens", "seconds"),
    [
        (8, "length", 16, 8.0),
        (8, "length", 4, 2.0),
        (6, "stop", 16, 4.0),  # it ended by itself, and would again
        (6, "stop", 3, 2.0),
    ],
)
def test_another_limit_of_tokens_takes_another_time(
    tokens: int,
    finish_reason: Any,
    max_tokens: int,
    seconds: float,
    recipe: Recipe,
    prompts: list[PromptItem],
    writer: RunWriter,
    folder: Path,
) -> None:
    for number in range(2):
        record = Record(label="baseline", task="code", prompt_idx=number, rep=0, schema_version=SCHEMA_VERSION)
        writer.append(record.changed(e2e_s=4.0, n_predicted=tokens, finish_reason=finish_reason))
    writer.add_cell(ENDED)
    plan = make_plan(recipe.model_copy(update={"arms": recipe.arms[:1]}), prompts)
    assert timings_of(open_run(folder), max_tokens, "").of_plan(plan) == pytest.approx(2 * (1 + 2 * seconds))


def test_a_run_that_was_cut_off_in_its_first_cell_tells_its_pace(
    recipe: Recipe, prompts: list[PromptItem], writer: RunWriter, folder: Path
) -> None:
    """No process of it ended, so how long one takes to start is not known; that every answer takes 40 s is."""
    record = Record(label="baseline", task="code", prompt_idx=0, rep=0, schema_version=SCHEMA_VERSION)
    writer.append(record.changed(e2e_s=40.0, n_predicted=8, finish_reason="length"))
    timings = timings_of(open_run(folder), 8, "")
    plan = make_plan(recipe, prompts)
    seconds = timings.of_plan(plan)
    answers = sum(len(cell.prompts) for cell in plan)
    assert timings.known and seconds is not None and 40 * answers < seconds < 50 * answers


def test_an_engine_that_starts_slowly_counts(
    recipe: Recipe, prompts: list[PromptItem], writer: RunWriter, folder: Path
) -> None:
    """vLLM took 75 s to start and 0.2 s an answer: 5 s were announced for 97 s."""
    record = Record(label="baseline", task="warmup", prompt_idx=0, rep=0, phase="warmup", e2e_s=8.5)
    writer.append(record)
    writer.append(record.changed(task="code", phase="measure", e2e_s=0.2, n_predicted=8, finish_reason="length"))
    writer.add_cell(ENDED.model_copy(update={"startup_s": 75.0, "wall_s": 90.0, "status": "interrupted"}))
    plan = make_plan(recipe, prompts)
    expected = 4 * (83.5 + 2 * 0.2)
    assert timings_of(open_run(folder), 8, "").of_plan(plan) == pytest.approx(expected), (
        "of both arms, for want of spec's"
    )


def test_this_run_counts_before_an_earlier_one_and_gives_its_pace(recipe: Recipe, prompts: list[PromptItem]) -> None:
    earlier = Timings()
    for arm, seconds in (("baseline", 2.0), ("spec", 1.0)):
        earlier.starts[arm], earlier.answers[arm] = [1.0], [seconds]
    now = Timings(earlier)
    plan = make_plan(recipe, prompts, blocks=[0])
    assert now.of_plan(plan) == pytest.approx(1 + 2 * 2 + 1 + 2 * 1)
    now.starts["baseline"], now.answers["baseline"] = [1.0], [6.0]
    assert now.of_plan(plan) == pytest.approx(1 + 2 * 6 + 1 + 2 * 3), "this machine is three times slower now"
    assert Timings().of_plan(plan) is None, "nothing is known"


ROOT = Path(__file__).parents[2]
_H100, _TWO_CORES = REACHED * 3.352e12, 28e9
"""Bytes a second: of the card, by its memory's clock and width; as `memory_bandwidth` measures two cores of an EPYC."""


@pytest.mark.parametrize(
    ("name", "bandwidth"),
    [
        ("padded-cuda", _H100),
        ("qwen2.5-coder", _TWO_CORES),
        ("qwen2.5-coder-bf16", _TWO_CORES),
        ("vllm-hybrid", _TWO_CORES),
        ("vllm-gpu", _H100),
        ("vllm-gpu-hybrid", _H100),
        ("tf-cuda", _H100),
        ("vllm-served", _H100),
    ],
)
def test_a_first_estimate_is_within_a_factor_of_two_of_kept_runs(name: str, bandwidth: float, tmp_path: Path) -> None:
    """On an H100 2 h 4 min were announced for 100 s: a GPU was taken to read no faster than a core.

    vLLM's starts of 92 s were announced as 2 s, those of transformers (14 s) likewise.
    """
    folder = next((ROOT / "results" / name).glob("2*"), tmp_path / "second" / name)
    if folder.is_relative_to(tmp_path):  # of the session on an H100
        with tarfile.open(ROOT / "benchmarks" / "results" / "h100.tar.xz") as archive:
            unpack(archive, tmp_path)
    run = open_run(folder, check=False)
    manifest = run.manifest
    assert manifest is not None
    usual = adapter_of(manifest.engine.kind).usual
    assert usual is not None
    setups = {setup.name: setup for setup in manifest.setups}
    tokens, estimated = len(manifest.prompts) * manifest.recipe["sampling"]["max_tokens"], 0.0
    finished = [cell for cell in manifest.cells if cell.status == "finished"]
    for cell in finished:
        arm = next(arm for arm in manifest.arms if arm.name == cell.arm)
        pair = setups.get(arm.setup or "", manifest)
        weights = sum(file.size for file in pair.target.files)
        slower = 1.0
        if takes_draft(arm.types) and pair.draft is not None:
            share, depth = sum(file.size for file in pair.draft.files) / weights, (arm.speculation or {})["max"]
            slower = token_steps(depth, share, on_gpu=bandwidth == _H100)
        estimated += cell_s(usual, weights, slower * tokens, bandwidth)
    took = sum(cell.wall_s for cell in finished)
    assert 0.5 < estimated / took < 2


def test_a_gpu_reads_with_its_own_bandwidth_and_one_that_is_not_reported_gives_no_estimate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nvidia, "settings", lambda: [{"memory_bandwidth": 3_352_320_000_000}])
    assert estimate.gpu_bandwidth.__wrapped__() == pytest.approx(_H100, rel=1e-3)
    monkeypatch.setattr(nvidia, "settings", lambda: [{"power_default_w": 700}])
    assert estimate.gpu_bandwidth.__wrapped__() is None


def test_a_run_of_another_machine_says_nothing_of_this_one(
    recipe: Recipe, prompts: list[PromptItem], manifest: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU a plan took "about 26 min, by run …": vLLM's on an H100, which is kept beside it."""
    engine, suite = ToyEngine(), None
    models = ResolvedPair(ResolvedModel("t.gguf", ()), None)
    setups: dict[str | None, PreparedSetup] = {None: PreparedSetup(recipe, engine, engine.probe(), models)}
    prepared = Prepared(recipe, Path(), cast(Any, suite), tuple(prompts), {}, [], setups)
    kind = manifest.engine.model_copy(update={"kind": recipe.engine.kind})
    cards: dict[str, list[dict[str, Any]]] = {"1": [], "2": [{"name": "H100"}]}
    stored: dict[str, Any] = {**cards, "3": ["a stranger's"], "4": 5}
    for run in stored:
        machine = {"cpu": "EPYC" if run in cards else "Xeon", "accelerators": stored[run]}
        made = manifest.model_copy(update={"run": run, "machine": machine, "engine": kind})
        with RunWriter(tmp_path / "toy" / run, made) as writer:
            record = Record(label="baseline", task="code", prompt_idx=0, rep=0, schema_version=SCHEMA_VERSION)
            writer.append(record.changed(e2e_s=4.0, n_predicted=8, finish_reason="length"))
            writer.add_cell(ENDED)
    monkeypatch.setattr("benchctl.machine.describe.cpu_model", lambda: "EPYC")
    for run, accelerators in cards.items():
        monkeypatch.setattr("benchctl.machine.describe.accelerators", lambda cards=accelerators: cards)
        timings = estimate.earlier_timings(prepared, tmp_path)
        assert timings is not None and timings.source == f"by run {run}"


def test_the_headers_of_a_model_are_read_once_for_a_plan_of_many_cells(
    recipe: Recipe, prompts: list[PromptItem], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were read for every cell, which took longer than the plan's first answers."""
    read: list[ResolvedModel] = []

    def read_share(model: ResolvedModel) -> float:
        read.append(model)
        return 1.0

    monkeypatch.setattr(estimate, "read_share", read_share)
    monkeypatch.setattr(estimate, "memory_bandwidth", lambda _: _TWO_CORES)
    engine = ToyEngine()
    models = ResolvedPair(ResolvedModel("t", (ModelFile(Path("t.gguf"), 10**9, ""),)), None)
    setups: dict[str | None, PreparedSetup] = {None: PreparedSetup(recipe, engine, engine.probe(), models)}
    suite: Any = None
    prepared = Prepared(recipe, Path(), suite, tuple(prompts), {}, [], setups)
    plan = make_plan(recipe, prompts)
    size = estimate.size_of(prepared, plan, Timings())
    assert len(plan) == 4 and read == [models.target]
    assert size.source is None and size.seconds is not None
