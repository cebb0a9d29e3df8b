"""Energy per token and memory, from cells made by hand."""

from __future__ import annotations

from typing import Any

import pytest

from benchctl.analysis.cells import ELSEWHERE, NOT_RECORDED, TOGETHER, Resources, find_resources
from benchctl.analysis.frame import make_frame
from benchctl.analysis.record_checks import check_disturbances
from benchctl.analysis.results import Analysis
from benchctl.data.cell import Cell, MemoryRecord, WatchRecord
from benchctl.data.manifest import EngineIdentity, IdlePower
from benchctl.reports.tables.speed import resources
from tests.analysis.conftest import build_manifest, build_record

MIB = 1 << 20


def cell(arm: str, block: int, joules: dict[str, float], seconds: float = 10.0, **memory: Any) -> Cell:
    return Cell(
        block=block,
        arm=arm,
        order=0,
        status="finished",
        started_at=f"2026-11-21T11:0{block}:00+00:00",
        wall_s=20.0,
        log="logs/x.log",
        watch=WatchRecord(wall_s=seconds, energy_j=joules, energy_untold=[] if joules else ["there is no RAPL"]),
        memory=MemoryRecord(**memory) if memory else None,
    )


def resources_of(*cells: Cell, **more: Any) -> list[Resources]:
    arms = {"baseline": None, "spec": {"type": "draft-simple"}}
    manifest = build_manifest(arms, 1, 2, **more).model_copy(update={"cells": list(cells)})
    records = [build_record(arm, block=block) for arm in arms for block in (0, 1)]  # eleven tokens each
    return find_resources(make_frame(records, manifest))


def test_energy_is_over_all_tokens_and_idle_is_beside_it() -> None:
    idle = IdlePower(seconds=5.0, watts={"processor": 2.0, "gpu": 8.0})
    baseline, spec = resources_of(
        *(cell("baseline", block, {"processor": 50.0 + block, "gpu": 200.0}) for block in (0, 1)),
        *(cell("spec", block, {"processor": 20.0, "gpu": 100.0}, seconds=5.0) for block in (0, 1)),
        idle=idle,
    )
    assert baseline.joules_per_token == pytest.approx(501 / 22)
    assert spec.joules_per_token == pytest.approx(240 / 22)
    assert spec.above_idle_per_token == pytest.approx((240 - 10 * 10) / 22)
    assert spec.against_baseline == pytest.approx(240 / 501)
    assert baseline.against_baseline == 1.0
    assert spec.told_by == ["processor", "gpu"]
    assert spec.untold is None


def test_a_block_without_energy_takes_its_tokens_with_it() -> None:
    baseline, _ = resources_of(cell("baseline", 0, {"processor": 110.0}), cell("baseline", 1, {}))
    assert baseline.joules_per_token == pytest.approx(10.0)
    assert baseline.above_idle_per_token is None, "idle power was not measured"


def test_unreported_energy_has_its_reason() -> None:
    energy = {"baseline": {"processor": 1.0}, "spec": {"processor": 1.0}}
    cells = [cell(arm, 0, joules) for arm, joules in energy.items()]
    assert {resource.untold for resource in resources_of(*cells, recipe={"schedule": "interleaved"})} == {TOGETHER}
    endpoint = EngineIdentity(
        kind="openai", binary=None, found_in="url", version=None, build=None, commit=None, speculation_types=[]
    )
    assert {resource.untold for resource in resources_of(*cells, engine=endpoint)} == {ELSEWHERE}
    assert all(resource.joules_per_token is None for resource in resources_of(*cells, engine=endpoint))
    assert {resource.untold for resource in resources_of(cell("baseline", 0, {}))} == {"there is no RAPL", NOT_RECORDED}


def test_memory_is_the_most_of_all_blocks_and_swap_warns() -> None:
    cells = [
        cell("baseline", 0, {}, resident=100 * MIB, swapped=0, checkpoint=7),
        cell("baseline", 1, {}, resident=300 * MIB, swapped=0),
        cell("spec", 0, {}, resident=200 * MIB, swapped=64 * MIB, spilled="20 of 29 layers are on the GPU"),
    ]
    baseline, spec = resources_of(*cells)
    assert (baseline.resident_bytes, baseline.checkpoint_bytes, baseline.device_bytes) == (300 * MIB, 7, None)
    assert spec.swapped_bytes == 64 * MIB
    manifest = build_manifest({"baseline": None, "spec": {}}, 1, 2).model_copy(update={"cells": cells})
    observed = {row.id: row.facts[0] for row in check_disturbances(make_frame([build_record()], manifest))}
    assert (observed["swapping"].code, observed["swapping"].values["value"]) == ("engine", 64)
    assert observed["spilled"].values == {"spilled": ["spec: 20 of 29 layers are on the GPU"]}


def test_what_the_sensors_showed_is_averaged_over_the_time_of_the_cells() -> None:
    def watched(block: int, seconds: float, **series: list[float]) -> Cell:
        watch = WatchRecord(wall_s=seconds, series=series)
        return cell("baseline", block, {}, resident=MIB).model_copy(update={"watch": watch})

    rows = resources_of(watched(0, 10.0, gpu_w=[100.0, 200.0], gpu_c=[50.0]), watched(1, 30.0, gpu_w=[70.0]))
    assert rows[0].means == {"gpu_w": 90.0, "gpu_c": 50.0}
    table = resources(Analysis.model_construct(resources=rows, verdicts=[]))
    (power,) = [column for column in table.visible_columns if column.key == "mean_gpu_w"]
    assert (power.header, power.text(rows[0])) == ("GPU, mean", "90")


@pytest.mark.parametrize(
    ("device", "listed", "used", "reported"),
    [
        ("vulkan", [], None, True),
        ("vulkan", [], 5, False),
        ("auto", ["Vulkan0: llvmpipe"], None, True),
        ("auto", [], None, False),
        ("cpu", ["Vulkan0: llvmpipe"], None, False),
    ],
)
def test_a_gpu_whose_memory_is_not_reported_has_a_line(
    device: str, listed: list[str], used: int | None, reported: bool
) -> None:
    engine = EngineIdentity(
        kind="llama.cpp", binary="x", found_in="PATH", version=None, build=None, commit=None, speculation_types=[],
        details={"devices": listed},
    )  # fmt: skip
    cells = [cell(arm, 0, {}, resident=MIB, device=used) for arm in ("baseline", "spec")]
    rows = resources_of(*cells, engine=engine, recipe={"engine": {"device": device}})
    table = resources(Analysis.model_construct(resources=rows, verdicts=[]))
    assert ("GPU memory is not reported" in str(table.note)) is reported


def test_memory_that_some_engines_reserve_is_said_of_those() -> None:
    """Engines may be an axis of a run."""
    baseline, spec = resources_of(*(cell(arm, 0, {}, device=MIB) for arm in ("baseline", "spec")))
    reserved = "reserved by the engine at its start"
    for kinds, said in (
        ((False, False), ""),
        ((True, True), f": {reserved}"),
        ((False, True), f"of some arms {reserved}"),
    ):
        pairs = zip((baseline, spec), kinds, strict=True)
        rows = [row.model_copy(update={"device_reserved": kind}) for row, kind in pairs]
        table = resources(Analysis.model_construct(resources=rows, verdicts=[]))
        assert said in str(table.explanation) and (reserved in str(table.explanation)) == bool(said)
