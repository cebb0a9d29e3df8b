"""How often `benchctl runs history` tells a step that is none, finds one, and names its build; how long it takes.

    python -m benchmarks.history [--trials 800] [--runs 500 5000]

Simulated series of known truth: the logarithms of runs' speed-ups, each with blocks of its own and noise from run to
run, given to `benchctl.experiments.history.steps` as the command does, four arms together. `told`: share of workloads
without any step of which one is told. A step of the size that the command states (found 8 times in 10; the median) is
planted in one arm: `found`: how often one is told; `at_build`: share of those told whose first build is the true one;
`named`: of which it is among those that it may have begun with.

Then so many runs of 54 records each are written, and both commands are timed as a user would call them.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from benchctl.analysis.statistics import block_variance
from benchctl.data.chain import Chain, canonical_sha256, chain_seed, sealed
from benchctl.data.manifest import EngineIdentity
from benchctl.experiments.history.steps import Split, find_noise, find_steps, run_variances, seen_at_end
from benchmarks.keep import keep
from benchmarks.many_runs import timed
from benchmarks.synthetic_run import Answer, baseline_arm, speculating_arm, synthetic_run

ARMS = 4
MOST_PAGES = 1000
"""Of so many runs at most a site is made, too."""
BLOCK_SPREAD = 0.02
"""Standard deviation of a block's logarithm."""
LAYOUTS: dict[str, list[int]] = {
    "4 builds, 2 runs each": [2] * 4,
    "10 builds, 2 runs each": [2] * 10,
    "10 builds, 5 runs each": [5] * 10,
    "20 builds, every fourth twice": [1, 1, 1, 2] * 5,
    "20 builds, the first three times": [3, *[1] * 19],
    "100 builds, 2 runs each": [2] * 100,
}
BETWEEN = {"no noise between runs": 0.0, "2 % between runs": 0.02}


def series(
    rng: Generator, builds: NDArray[np.int64], between: float, step: float, at: int, *, heavy: bool
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the logarithms and their variances; `step` from run `at` on. `heavy`: noise of Student's t3."""
    count = len(builds)
    blocks = rng.normal(0, BLOCK_SPREAD, (count, 5))
    noise = rng.standard_t(3, count) / 3**0.5 if heavy else rng.normal(0, 1, count)
    logs = blocks.mean(axis=1) + between * noise + step * (np.arange(count) >= at)
    return logs, run_variances([block_variance(np.exp(row)) for row in blocks])


def told(
    rng: Generator, builds: NDArray[np.int64], between: float, step: float, at: int, *, heavy: bool = False
) -> list[list[Split]]:
    """Return the steps that are told of each arm; `step` is of the first alone."""
    found = []
    for number in range(ARMS):
        logs, variances = series(rng, builds, between, 0.0 if number else step, at, heavy=heavy)
        noise = find_noise(logs, variances, builds)
        assert noise is not None
        found.append(find_steps(logs, variances, noise, ARMS))
    return found


def simulate(trials: int) -> list[dict[str, Any]]:
    """Return a row for each layout and noise."""
    rows = []
    for layout, repeats in LAYOUTS.items():
        builds = np.repeat(np.arange(len(repeats)), repeats)
        tries = max(200, trials * 20 // (20 + len(builds)))
        for word, between in BETWEEN.items():
            rng = np.random.default_rng(31)
            row: dict[str, Any] = {"layout": layout, "noise": word, "trials": tries}
            for name, heavy in (("told", False), ("told, heavy-tailed noise", True)):
                alarms = [any(told(rng, builds, between, 0.0, 0, heavy=heavy)) for _ in range(tries)]
                row[name] = float(np.mean(alarms))
            for name, place in (("in the middle", len(repeats) // 2), ("last build", len(repeats) - 1)):
                at = int(np.flatnonzero(builds == place)[0])
                stated = _stated(rng, builds, between, len(builds) - at)
                row[f"stated step, {name}"] = round(float(np.expm1(stated)), 4)
                power = _power(rng, builds, between, stated, at, tries)
                row |= {f"{key}, {name}": value for key, value in power.items()}
            rows.append(row)
            print(json.dumps(row))
    return rows


def _stated(rng: Generator, builds: NDArray[np.int64], between: float, latest: int) -> float:
    """Return the step, as a logarithm, that the command says it finds 8 times in 10: the median over series."""
    found = []
    for _ in range(201):
        logs, variances = series(rng, builds, between, 0.0, 0, heavy=False)
        noise = find_noise(logs, variances, builds)
        assert noise is not None
        found.append(seen_at_end(variances, noise, latest, ARMS))
    return float(np.median(found))


def _power(
    rng: Generator, builds: NDArray[np.int64], between: float, step: float, at: int, tries: int
) -> dict[str, float]:
    counts = dict.fromkeys(("found", "at_build", "named"), 0)
    for _ in range(tries):
        splits = told(rng, builds, between, step, at)[0]
        if not splits:
            continue
        split = max(splits, key=lambda split: abs(split.size))
        counts["found"] += 1
        counts["at_build"] += int(builds[split.place] == builds[at])
        counts["named"] += int(builds[at] in builds[split.first : split.last + 1])
    found = max(1, counts["found"])
    return {
        "found": round(counts["found"] / tries, 4),
        "at_build": round(counts["at_build"] / found, 4),
        "named": round(counts["named"] / found, 4),
    }


def write_runs(results: Path, count: int, repeats: int = 10, slower: int = 30) -> None:
    """Write runs of three arms, three blocks and six prompts: a build every `repeats`, 10 % slower from one on."""
    rng = np.random.default_rng(count)
    arms = [baseline_arm(), speculating_arm("spec_d4"), speculating_arm("ngram <b>")]
    started = datetime(2025, 1, 1, tzinfo=UTC)
    for number in range(count):
        moment = started + timedelta(hours=number)
        name = f"{moment:%Y%m%d-%H%M%S}-{number:04x}"
        build = number // repeats
        speeds = {"baseline": 1.0, "spec_d4": 1.5 * (0.9 if build >= slower else 1.0), "ngram <b>": 1.1}
        answers = [
            Answer(arm, block, prompt, 64, 3.0 / speed * float(np.exp(rng.normal(0, 0.01) + shift)))
            for arm, speed in speeds.items()
            for shift in [rng.normal(0, 0.01)]
            for block in range(3)
            for prompt in range(6)
        ]
        made = synthetic_run(arms, answers, blocks=3, prompts=6)
        assert made.manifest is not None
        engine = EngineIdentity(
            kind="llama.cpp",
            binary="llama-server",
            found_in="PATH",
            version=f"b{7000 + build}",
            build=str(7000 + build),
            commit=f"{build:07x}",
            speculation_types=[],
            details={"sha256": f"{build:064x}"},
        )
        update = {"run": name, "created_at": moment.isoformat(), "engine": engine, "recipe_name": "many <script>"}
        manifest = made.manifest.model_copy(update={**update, "recipe_sha256": canonical_sha256({}), "cells": []})
        chain = Chain(chain_seed(name, manifest.recipe_sha256))
        lines = []
        for cell in made.manifest.cells:
            for record in made.records:
                if (record.block, record.label) == (cell.block, cell.arm):
                    lines.append(chain.line(record.changed(run=name, order=cell.order).to_line()))
                    chain.add(lines[-1])
            manifest.cells.append(cell.model_copy(update={"mark": chain.mark}))
        folder = results / f"part{number % 7}" / "deep" / name
        folder.mkdir(parents=True)
        (folder / "records.jsonl").write_bytes(b"".join(lines))
        (folder / "manifest.json").write_text(sealed(manifest.model_dump_json(by_alias=True, indent=1)) + "\n", "utf-8")


def scale(count: int) -> dict[str, Any]:
    """Return how long the commands take for so many runs."""
    with tempfile.TemporaryDirectory() as temporary:
        results, site = Path(temporary) / "results", Path(temporary) / "public"
        write_runs(results, count)
        history = ["runs", "history", "--results", str(results), "--json"]
        found: dict[str, Any] = {"runs": count}
        for name in ("history, the first time", "history, again"):
            found[name] = timed(history)
        if count > MOST_PAGES:
            return found
        for name in ("site, the first time", "site, again"):
            found[name] = timed(["runs", "site", str(results), "-o", str(site)])
        found["index_mb"] = round((site / "index.html").stat().st_size / 1e6, 2)
        found["site_mb"] = round(sum(file.stat().st_size for file in site.rglob("*") if file.is_file()) / 1e6, 1)
    return found


def main() -> None:
    """Measure, and keep what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=800)
    parser.add_argument("--runs", type=int, nargs="*", default=[500, 5000])
    options = parser.parse_args()
    if options.trials:
        keep("history_steps", {"layouts": simulate(options.trials)})
    if options.runs:
        keep("history_scale", {"runs": [scale(count) for count in options.runs]})


if __name__ == "__main__":
    main()
