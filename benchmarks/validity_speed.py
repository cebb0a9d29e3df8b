"""Sections a and b: claims about speed where the truth is known."""

from __future__ import annotations

import argparse
import statistics
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchctl.data.store import RunData
from benchctl.lossless.judge.run import analyse_run
from benchctl.measurement.prepare import prepare
from benchctl.recipes.schema import PromptsSpec, Sampling
from benchmarks.bundled_runs import bundled_recipe, measure, plain

_BLOCKS = (3, 5, 8)
_SLOWER = {"slower_3_percent": 0.03, "slower_10_percent": 0.10}


def equal_arms(scratch: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Run the target alone against itself, in runs of three blocks, and count the intervals that exclude 1.

    The verdict alone would flatter: an arm that drafted nothing is never called faster, whatever its interval.
    """
    recipe = bundled_recipe([plain("baseline"), plain("again")])
    runs = options.runs or 100
    verdicts: Counter[str] = Counter()
    ratios, widths, false_claims = [], [], 0
    for _ in range(runs):
        verdict = next(
            verdict_row for verdict_row in analyse_run(measure(recipe, scratch)).verdicts if verdict_row.arm == "again"
        )
        assert verdict.speedup is not None
        assert verdict.interval is not None
        verdicts[verdict.speed] += 1
        ratios.append(verdict.speedup)
        widths.append(verdict.interval.high - verdict.interval.low)
        false_claims += not verdict.interval.low <= 1 <= verdict.interval.high
    return {
        "runs": runs,
        "blocks": recipe.blocks,
        "prompts": len(prepare(recipe, recipe_folder=scratch).prompts),
        "said": dict(verdicts),
        "intervals_without_1": false_claims,
        "wrong_share": false_claims / runs,
        "wanted": "at most 0.05",
        "speedup_from_to": [min(ratios), max(ratios)],
        "interval_width_median": statistics.median(widths),
    }


def slowed_arms(scratch: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Slow two arms that are the baseline's equal by a known share, and count how often that is found.

    The times are those of real engines; the share is added to what was measured. A proxy cannot inject so little: a
    token of this model takes half a millisecond, and a sleep is late by a tenth of that.
    """
    recipe = bundled_recipe(
        [plain("baseline"), *map(plain, _SLOWER)],
        prompts=PromptsSpec(suite="tiny.json", tasks=["ja_chat", "translation_en_ja", "code"], limit=2),
        sampling=Sampling(max_tokens=64, ignore_eos=True),
        blocks=max(_BLOCKS),
    )
    runs = options.runs or 20
    words = {name: {blocks: Counter[str]() for blocks in _BLOCKS} for name in _SLOWER}
    ratios: dict[str, list[float]] = {name: [] for name in _SLOWER}
    for _ in range(runs):
        run = _slowed(measure(recipe, scratch))
        for blocks in _BLOCKS:
            for verdict in analyse_run(_first_blocks(run, blocks)).verdicts:
                if verdict.arm in _SLOWER:
                    words[verdict.arm][blocks][verdict.speed] += 1
                    if blocks == max(_BLOCKS) and verdict.speedup:
                        ratios[verdict.arm].append(verdict.speedup)
    return {
        "runs": runs,
        "prompts": 6,
        "said_by_blocks": {
            name: {str(blocks): dict(verdicts) for blocks, verdicts in by.items()} for name, by in words.items()
        },
        "found_share_by_blocks": {
            name: {str(blocks): verdicts["slower"] / runs for blocks, verdicts in by.items()}
            for name, by in words.items()
        },
        "true_ratio": {name: 1 / (1 + share) for name, share in _SLOWER.items()},
        "median_ratio_measured": {name: statistics.median(values) for name, values in ratios.items() if values},
    }


def _slowed(run: RunData) -> RunData:
    """Return the run with the answers of the slower arms slowed after the fact."""
    records = []
    for record in run.records:
        times = {key: getattr(record, key) for key in ("decode_s", "e2e_s", "engine_decode_s")}
        rates = {key: getattr(record, key) for key in ("tok_per_sec", "client_tok_per_sec")}
        factor = 1 + _SLOWER.get(record.label, 0.0)
        slower = {key: value * factor for key, value in times.items() if value is not None}
        slower |= {key: value / factor for key, value in rates.items() if value is not None}
        records.append(record.changed(**slower))
    return replace(run, records=records)


def _first_blocks(run: RunData, blocks: int) -> RunData:
    """Return the run as it would be had it ended after so many blocks."""
    assert run.manifest is not None
    manifest = run.manifest.model_copy(
        update={"blocks": blocks, "cells": [cell for cell in run.manifest.cells if cell.block < blocks]}
    )
    records = [record for record in run.records if record.block < blocks]
    return replace(run, manifest=manifest, records=records)
