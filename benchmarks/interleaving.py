"""How much narrower does the interval get when prompts alternate between arms that are up together?

    python -m benchmarks.interleaving

The same recipe (the bundled pair on the CPU, one draft arm) is run both ways in turn, several times: the arms of a
block one after the other, and interleaved. Both make the same number of records. A machine on which nothing else runs
shows little; what is to be seen is what a shared one does, so the load average stands beside every run.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchctl.analysis.frame import ALL_TASKS, make_frame
from benchctl.analysis.speedup import find_speedups
from benchctl.data.store import open_run
from benchctl.measurement.prepare import prepare
from benchctl.measurement.progress import RunProgress
from benchctl.measurement.run import start_run
from benchctl.recipes.schema import Recipe, Schedule
from benchmarks.keep import keep

SCHEDULES: tuple[Schedule, ...] = ("blocks", "interleaved")


def main() -> None:
    """Run both schedules in turn and keep what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3, help="runs of each schedule")
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--prompts", type=int, default=2, help="of each task of the suite")
    parser.add_argument("--max-tokens", type=int, default=64)
    options = parser.parse_args()
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        for repeat in range(options.repeats):
            for schedule in SCHEDULES if repeat % 2 == 0 else SCHEDULES[::-1]:
                runs.append(_one_run(_recipe(options, schedule), Path(scratch) / schedule))
                print(runs[-1], flush=True)
    widths = {schedule: [run["half_width"] for run in runs if run["schedule"] == schedule] for schedule in SCHEDULES}
    spreads = {schedule: [run["spread"] for run in runs if run["schedule"] == schedule] for schedule in SCHEDULES}
    results = {
        "records_a_run": runs[0]["records"],
        "half_width_median": {schedule: statistics.median(values) for schedule, values in widths.items()},
        "spread_median": {schedule: statistics.median(values) for schedule, values in spreads.items()},
        "narrower_by_factor": statistics.median(widths["blocks"]) / statistics.median(widths["interleaved"]),
        "runs": runs,
    }
    keep("interleaving", results)


def _recipe(options: argparse.Namespace, schedule: Schedule) -> Recipe:
    return Recipe.model_validate(
        {
            "name": f"interleaving-{schedule}",
            "engine": {"device": "cpu", "context": 2048, "threads": 1},
            "models": {
                "target": {"source": "bundled:tiny-hybrid"},
                "draft": {"source": "bundled:tiny-hybrid-draft"},
            },
            "prompts": {"suite": "tiny.json", "limit": options.prompts},
            "sampling": {"max_tokens": options.max_tokens, "ignore_eos": True},
            "blocks": options.blocks,
            "schedule": schedule,
            "preflight": "off",
            "arms": [{"name": "baseline"}, {"name": "spec_d4", "speculation": {"type": "draft-simple", "max": 4}}],
        }
    )


def _one_run(recipe: Recipe, results: Path) -> dict[str, Any]:
    """Measure once: half the interval's width as a share of the speed-up, and the spread of the blocks' logarithms."""
    load, began = os.getloadavg()[0], time.perf_counter()
    run = open_run(start_run(prepare(recipe, recipe_folder=Path.cwd()), results, RunProgress(), []))
    frame = make_frame(run.records, run.manifest)
    arm = next(number for number in range(len(frame.arms)) if number != frame.baseline)
    overall = next(row for row in find_speedups(frame, arm) if row.task == ALL_TASKS)
    assert overall.interval is not None
    assert overall.pooled is not None
    return {
        "schedule": recipe.schedule,
        "speedup": overall.pooled,
        "interval": [overall.interval.low, overall.interval.high],
        "half_width": (overall.interval.high - overall.interval.low) / 2 / overall.pooled,
        "by_block": overall.by_block,
        "spread": max(overall.by_block) / min(overall.by_block) - 1,
        "records": overall.pairs * 2,
        "wall_s": time.perf_counter() - began,
        "load_average": [load, os.getloadavg()[0]],
    }


if __name__ == "__main__":
    main()
