"""How acceptance, speed and losslessness move with the quantization of the draft and of the target.

    python -m benchmarks.quantization_sweep TARGET.gguf DRAFT.gguf --name qwen2.5-coder

Both files are unquantized. Every type is tried as the draft's, with the target at q8_0, and as the target's, with the
draft at q8_0; every pair of types is a run of its own, `baseline` and `spec_d4`, kept below results/. The table, its
CSV and the figure are written to reports/.
"""

from __future__ import annotations

import argparse
import csv
import statistics
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import matplotlib as mpl

from benchctl.analysis.analyse import analyse
from benchctl.analysis.fork import find_fork
from benchctl.analysis.results import ALL_TASKS
from benchctl.data.record import Record
from benchctl.data.store import RunData, open_run
from benchctl.measure.prepare import prepare
from benchctl.measure.progress import RunProgress
from benchctl.measure.run import start_run
from benchctl.recipes.schema import Recipe
from benchmarks.keep import keep

mpl.use("Agg")
import matplotlib.pyplot as plt

TYPES = ("f16", "q8_0", "q6_k", "q4_k_m", "q4_0")
FIXED = "q8_0"
"""The other model's type while one is swept."""
ARM = "spec_d4"


@dataclass(frozen=True)
class Row:
    """One pair of types."""

    swept: str
    """`draft` or `target`; the pair in which both have the fixed type stands in both sweeps."""
    target: str
    draft: str
    target_bits: float | None
    """Bits per weight of the swept file as it was written."""
    draft_bits: float | None
    baseline_tok_per_sec: float | None
    """Median over prompts and blocks, by the engine's clock."""
    arm_tok_per_sec: float | None
    speedup: float | None
    low: float | None
    high: float | None
    acceptance: float | None
    acceptance_length: float | None
    prompts: int
    identical: int
    """Prompts whose speculative answer is the baseline's, token by token."""
    verdict: str
    as_f16: int
    """Prompts whose baseline answer is that of the f16 target, token by token."""
    leaves_f16_at: float | None
    """Median token at which the other answers leave that of the f16 target."""
    run: str


class Silent(RunProgress):
    """Says which cells failed, and nothing else."""


def recipe_of(name: str, target: Path, draft: Path, types: tuple[str, str], options: argparse.Namespace) -> Recipe:
    """Return the recipe of one pair of types."""
    models = {
        role: {"source": str(path), "quantize": {"type": kind}}
        for role, path, kind in (("target", target, types[0]), ("draft", draft, types[1]))
    }
    return Recipe.model_validate(
        {
            "name": f"{name}-t-{types[0]}-d-{types[1]}",
            "description": "One point of a sweep of quantizations.",
            "engine": {"device": "cpu", "context": 2048},
            "models": models,
            "prompts": {"suite": options.suite, "limit": options.limit},
            "sampling": {"max_tokens": options.tokens},
            "blocks": options.blocks,
            "preflight": "off",
            "schedule": "interleaved",
            "arms": [{"name": "baseline"}, {"name": ARM, "speculation": {"type": "draft-simple", "max": 4}}],
        }
    )


def measured(recipe: Recipe, out: Path) -> RunData:
    """Return the finished run of a recipe, made unless it is there already."""
    kept = [file.parent for file in sorted((out / recipe.name).glob("*/manifest.json")) if _finished(file.parent)]
    if kept:
        return open_run(kept[-1])
    prepared = prepare(recipe, recipe_folder=Path.cwd(), notice=print)
    print(f"measuring {recipe.name}", flush=True)
    return open_run(start_run(prepared, out, Silent(), ["benchmarks.quantization_sweep"]))


def _finished(folder: Path) -> bool:
    manifest = open_run(folder).manifest
    return manifest is not None and manifest.status == "finished"


def row_of(swept: str, run: RunData, types: tuple[str, str], whole: dict[tuple[str, int], Record]) -> Row:
    """Lay one run out; `whole` has the answers of the f16 target's baseline."""
    found = analyse(run)
    speed = next((one for one in found.speedups if one.arm == ARM and one.task == ALL_TASKS), None)
    accepted = next((one for one in found.acceptance if one.arm == ARM and one.task == ALL_TASKS), None)
    lossless = next(one for one in found.losslessness if one.arm == ARM)
    own = answers(run)
    forks = [None if (fork := find_fork(whole[key], own[key])) is None else fork.index for key in whole]
    left = sorted(index for index in forks if index is not None)
    assert run.manifest is not None
    models = (run.manifest.target, run.manifest.draft)
    bits = [None if model is None else model.facts.get("bits_per_weight") for model in models]
    interval = None if speed is None else speed.interval
    return Row(
        swept=swept,
        target=types[0],
        draft=types[1],
        target_bits=bits[0],
        draft_bits=bits[1],
        baseline_tok_per_sec=median_rate(run, "baseline"),
        arm_tok_per_sec=median_rate(run, ARM),
        speedup=None if speed is None else speed.pooled,
        low=None if interval is None else interval.low,
        high=None if interval is None else interval.high,
        acceptance=None if accepted is None else accepted.rate,
        acceptance_length=None if accepted is None else accepted.acceptance_length,
        prompts=len(lossless.comparisons),
        identical=lossless.counts.get("identical", 0),
        verdict=lossless.verdict,
        as_f16=forks.count(None),
        leaves_f16_at=None if not left else float(left[len(left) // 2]),
        run=run.folder.name,
    )


def median_rate(run: RunData, arm: str) -> float | None:
    """Return the median decode rate of an arm, by the engine's clock."""
    rates = [r.tok_per_sec for r in run.records if r.label == arm and r.phase == "measure" and r.tok_per_sec]
    return statistics.median(rates) if rates else None


def answers(run: RunData) -> dict[tuple[str, int], Record]:
    """Return the baseline's answers of the first block, by task and index."""
    return {
        (record.task, record.prompt_idx): record
        for record in run.records
        if record.label == "baseline" and record.block == 0 and record.phase == "measure" and record.error is None
    }


def draw(rows: list[Row], target: Path) -> None:
    """Draw acceptance and speed-up by the type of the swept model, SVG and PNG."""
    plt.rcParams.update({"axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "sweep"})
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.8), layout="constrained")
    for swept, colour, mark, aside in (("draft", "#0072B2", "o", -0.08), ("target", "#D55E00", "s", 0.08)):
        here = [row for row in rows if row.swept == swept]
        places = [number + aside for number in range(len(here))]
        other = "target" if swept == "draft" else "draft"
        name = f"{swept} swept, {other} {FIXED}"
        left.plot(places, [row.acceptance for row in here], mark, linestyle="-", color=colour, label=name)
        middle = [row.speedup or 0.0 for row in here]
        low = [value - (row.low if row.low is not None else value) for row, value in zip(here, middle, strict=True)]
        high = [(row.high if row.high is not None else value) - value for row, value in zip(here, middle, strict=True)]
        right.errorbar(places, middle, yerr=[low, high], fmt=f"{mark}-", color=colour, capsize=3, label=name)
    for axes in (left, right):
        axes.set_xticks(range(len(TYPES)), TYPES)
        axes.set_xlabel("type of the swept model")
    left.set(ylabel="draft tokens accepted", ylim=(0, 1))
    right.set(ylabel=f"speed-up of {ARM} (95 % interval)", ylim=(0, None))
    right.axhline(1.0, color="0.4", linewidth=0.8, linestyle=":")
    left.legend(frameon=False)
    for ending in ("svg", "png"):
        figure.savefig(target.with_suffix(f".{ending}"), dpi=150, metadata={"Date": None} if ending == "svg" else None)
    plt.close(figure)


def table(rows: list[Row]) -> list[str]:
    """Return the rows as a Markdown table."""

    def number(value: float | None, places: int = 2) -> str:
        return "–" if value is None else f"{value:.{places}f}"

    titles = "swept | target | draft | bits (target/draft) | baseline tok/s | speed-up (95 % interval) | acceptance | "
    titles += "tokens a round | identical to its baseline | baseline as of f16 | leaves f16 at token"
    lines = [f"| {titles} |", "|" + " --- |" * len(titles.split(" | "))]
    for row in rows:
        interval = "" if row.low is None else f" ({number(row.low)} to {number(row.high)})"
        cells = [
            *(row.swept, row.target, row.draft, f"{number(row.target_bits)} / {number(row.draft_bits)}"),
            *(number(row.baseline_tok_per_sec, 1), f"{number(row.speedup)}×{interval}", number(row.acceptance, 3)),
            *(number(row.acceptance_length), f"{row.identical} of {row.prompts}", f"{row.as_f16} of {row.prompts}"),
            number(row.leaves_f16_at, 0),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def main() -> None:
    """Run the sweep and write its report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("draft", type=Path)
    parser.add_argument("--name", required=True)
    parser.add_argument("--suite", default="short.json")
    parser.add_argument("--limit", type=int, default=1, help="prompts of each task")
    parser.add_argument("--tokens", type=int, default=40)
    parser.add_argument("--blocks", type=int, default=3)
    parser.add_argument("--results", type=Path, default=Path("results/quantization-sweep"))
    parser.add_argument("--reports", type=Path, default=Path("reports/quantization-sweep"))
    options = parser.parse_args()
    pairs = dict.fromkeys([*((FIXED, kind) for kind in TYPES), *((kind, FIXED) for kind in TYPES)])
    target, draft = options.target.absolute(), options.draft.absolute()
    runs = {pair: measured(recipe_of(options.name, target, draft, pair, options), options.results) for pair in pairs}
    whole = answers(runs["f16", FIXED])
    rows = [row_of("draft", runs[FIXED, kind], (FIXED, kind), whole) for kind in TYPES]
    rows += [row_of("target", runs[kind, FIXED], (kind, FIXED), whole) for kind in TYPES]
    options.reports.mkdir(parents=True, exist_ok=True)
    with (options.reports / "sweep.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Row)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)
    draw(rows, options.reports / "sweep")
    lines = [*table(rows), "", "![acceptance and speed-up by bits per weight](sweep.svg)"]
    (options.reports / "table.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    keep("quantization_sweep", {"rows": [asdict(row) for row in rows]})


if __name__ == "__main__":
    main()
