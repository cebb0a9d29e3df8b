"""What a diagnosis of the recipe `self-speculation-ablation`, or runs of the studies' recipes, found of every draft.

    python -m benchmarks.self_speculation_study --diagnosis FOLDER [--keep NAME]
    python -m benchmarks.self_speculation_study --run RUN [--run RUN] [--keep NAME]

Kept for the documents' tables.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import benchctl
from benchctl.analysis.frame import ALL_TASKS
from benchctl.api import Run
from benchctl.experiments.diagnose.judge import judge_diagnosis
from benchctl.experiments.diagnose.stored import read_diagnosis
from benchmarks.keep import keep


def drafts_of(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield a row for every draft of a diagnosis and temperature."""
    for draft in judge_diagnosis(read_diagnosis(folder)):
        for row in draft.acceptance:
            if row.task == ALL_TASKS:
                yield {
                    "draft": draft.draft,
                    "temperature": row.temperature,
                    "per_token": round(row.per_token.value, 3),
                    "accepted_of_k": {depth: round(share.value, 3) for depth, share in row.accepted_share.items()},
                    "c": draft.cost and round(draft.cost, 3),
                    "perplexity_ratio": draft.perplexity_ratio and round(draft.perplexity_ratio, 3),
                }


def arms_of(run: Run) -> Iterator[dict[str, Any]]:
    """Yield a row for every arm of a run that speculates."""
    analysis, manifest = run.analysis, run.data.manifest
    assert manifest is not None
    types = {arm.name: arm.speculation for arm in manifest.arms}
    rates = {row.arm: row for row in analysis.acceptance if row.task == ALL_TASKS}
    splits = {row.arm: row for row in analysis.rounds.splits if row.task == ALL_TASKS}
    speeds = {row.arm: row for row in analysis.speedups if row.task == ALL_TASKS}
    for verdict in analysis.verdicts:
        arm, ends = analysis.compared[verdict.arm], speeds[verdict.arm].interval
        tpt = splits[verdict.arm].tokens_per_time if verdict.arm in splits else None
        yield {
            "model": manifest.target.source.rpartition("/")[2],
            "arm": arm.of,
            "type": (types[verdict.arm] or {}).get("type"),
            "context": arm.group.context_length,
            "blocks": analysis.blocks,
            "prompts": len(manifest.prompts),
            "drafted": rates[verdict.arm].drafted,
            "accepted": rates[verdict.arm].accepted,
            "tokens_per_time": tpt and round(tpt, 3),
            "speedup": round(speeds[verdict.arm].pooled or 0.0, 3),
            "interval": ends and [round(ends.low, 3), round(ends.high, 3)],
            "output": verdict.lossless,
        }


def main() -> None:
    """Read the diagnosis; print its drafts, or keep them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    measured = parser.add_mutually_exclusive_group(required=True)
    measured.add_argument("--diagnosis", type=Path, help="its folder")
    measured.add_argument("--run", action="append", help="a run's folder; repeatable")
    parser.add_argument("--keep", help="name of the file below benchmarks/results")
    options = parser.parse_args()
    if options.run:
        runs = [benchctl.open_run(run) for run in options.run]
        output: dict[str, Any] = {
            "commands": [run.data.manifest.command for run in runs if run.data.manifest is not None]
        }
        output |= {"arms": [row for run in runs for row in arms_of(run)]}
    else:
        output = {"drafts": list(drafts_of(options.diagnosis))}
    if options.keep:
        keep(options.keep, output)
    else:
        print(json.dumps(output, indent=1))


if __name__ == "__main__":
    main()
