"""Every disturbance is told when the watch saw it, and nothing is said of a quiet machine or of what is not known."""

from __future__ import annotations

from typing import Any

import pytest

from benchctl.lossless.judge.run import analyse_run
from benchctl.words.warnings import seen

QUIET = {
    "wall_s": 10.0,
    "cores": 4,
    "own_cpu_s": 20.0,
    "other_cpu_s": 0.4,
    "stolen_cpu_s": 0.0,
    "engine_major_faults": 3,
    "swapped_bytes": 0,
    "throttled": 0,
    "cpu_mhz": 3000.0,
    "gpu_slowed_s": 0.0,
    "clock_jump_s": 0.00001,
    "cost_s": 0.001,
}


def warned(make_record: Any, make_run: Any, make_manifest: Any, second: Any, **first: Any) -> list[tuple[str, str]]:
    """Warnings of a run whose cells of block 1 saw `first` on top of a quiet watch, and whose others saw `second`."""
    arms = {"baseline": None, "spec": {"type": "ngram-simple"}}
    records = [make_record(arm, index, block=block) for block in range(3) for arm in arms for index in range(2)]
    cells = [
        {
            "block": block,
            "arm": arm,
            "order": 0,
            "status": "finished",
            "started_at": f"2026-11-21T11:0{block}:00+00:00",
            "wall_s": 12.0,
            "log": "logs/x.log",
            "load_before": 30.0,
            "watch": QUIET | (first if (block, arm) == (0, "spec") else {}) if second is QUIET else second,
        }
        for block in range(3)
        for arm in arms
    ]
    manifest = make_manifest(arms, 2, 3, cells=cells, machine={"cores": 4})
    return [(warning.id, seen(warning)) for warning in analyse_run(make_run(records, manifest)).warnings]


@pytest.mark.parametrize(
    ("saw", "kind", "message"),
    [
        (
            {"other_cpu_s": 6.0},
            "high-load",
            "1 of 6 cells had to share the cores; in the worst, block 1, spec, other programs used 0.6 of 4 cores.",
        ),
        (
            {"other_cpu_s": None, "stolen_cpu_s": 8.0},
            "high-load",
            "1 of 6 cells had to share the cores; in the worst, block 1, spec, "
            "the host of this virtual machine took 0.8 of 4 cores.",
        ),
        (
            {"other_cpu_s": 6.0, "stolen_cpu_s": 3.0},
            "high-load",
            "1 of 6 cells had to share the cores; in the worst, block 1, spec, "
            "other programs used 0.6 of 4 cores and the host of this virtual machine took 0.3.",
        ),
        ({"throttled": 4}, "throttling", "Heat slowed a core in 1 cell, most in block 1, spec: 4 times."),
        (
            {"gpu_slowed_s": 2.5},
            "throttling",
            "Heat slowed the GPU in 1 cell, most in block 1, spec: 25 % of the time.",
        ),
        (
            {"cpu_mhz": 2400.0},
            "throttling",
            "The cores ran at 2400 MHz in block 1, spec, and at up to 3000 MHz in other cells.",
        ),
        (
            {"swapped_bytes": 64 * 2**20},
            "swapping",
            "The system swapped in 1 cell, most in block 1, spec: 64 MiB.",
        ),
        (
            {"engine_major_faults": 5000},
            "swapping",
            "The engine waited for the disk in 1 cell, most in block 1, spec: 5,000 times.",
        ),
        (
            {"clock_jump_s": -3600.0},
            "clock-jump",
            "The wall clock jumped in 1 cell, most in block 1, spec: -3600.0 s.",
        ),
    ],
)
def test_a_disturbance_is_reported_with_its_worst_cell(
    make_record: Any, make_run: Any, make_manifest: Any, saw: dict[str, Any], kind: str, message: str
) -> None:
    assert warned(make_record, make_run, make_manifest, QUIET, **saw) == [(kind, message)]


@pytest.mark.parametrize(
    "saw",
    [
        {},
        {"other_cpu_s": 3.9},
        {"other_cpu_s": 1.5, "wall_s": 0.4},  # too short for a share: processor time comes in hundredths of a second
        {"cpu_mhz": 2700.0},
        {"gpu_slowed_s": 0.05},
        {"swapped_bytes": 2**20, "engine_major_faults": 40},
        {"clock_jump_s": 0.02},
        {key: None for key in QUIET if key not in ("wall_s", "other_cpu_s")},
    ],
)
def test_a_quiet_machine_is_not_warned_of(
    make_record: Any, make_run: Any, make_manifest: Any, saw: dict[str, Any]
) -> None:
    # the load average of 30 before each cell is not asked: what others used while measuring is known
    assert warned(make_record, make_run, make_manifest, QUIET, **saw) == []


@pytest.mark.parametrize("watch", [None, {"wall_s": 10.0}, QUIET | {"other_cpu_s": None}])
def test_without_the_use_of_others_the_load_average_counts(
    make_record: Any, make_run: Any, make_manifest: Any, watch: Any
) -> None:
    warnings = warned(make_record, make_run, make_manifest, watch)
    assert [kind for kind, _ in warnings] == ["high-load"]
    assert "6 of 6 cells" in warnings[0][1]
