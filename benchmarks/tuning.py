"""Does `benchctl tune` find what an exhaustive grid finds?

    python -m benchmarks.tuning FOLDER --models-dir DIR

On the real pair (Qwen2.5-Coder 1.5B and 0.5B, Q4_K_M): the six arms of the recipe `qwen2.5-coder`, searched within the
budget, against the kept run of that recipe, which measured every arm in three whole blocks. The interval of what was
chosen, on fresh data, is held against that of the grid's best arm. The search's answers are shorter (40 tokens, not
128), and the two ran on different days; the load average stands beside both. A folder that holds a finished search is
judged again without measuring.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from benchctl.analysis.decision_results import Verdict
from benchctl.analysis.results import Analysis
from benchctl.data.store import RunData, latest_run, open_run
from benchctl.lossless.judge.run import analyse_run
from benchmarks.keep import keep

GRID = Path("results/qwen2.5-coder")
SOURCE = "hf:Qwen/Qwen2.5-Coder-{size}-Instruct-GGUF/qwen2.5-coder-{name}-instruct-q4_k_m.gguf"
NAME = "qwen2.5-coder-tuning"
RECIPE: dict[str, Any] = {
    "name": NAME,
    "engine": {"kind": "llama.cpp", "context": 4096},
    "models": {
        "target": {"source": SOURCE.format(size="1.5B", name="1.5b")},
        "draft": {"source": SOURCE.format(size="0.5B", name="0.5b")},
    },
    "prompts": {"suite": "short.json", "tasks": ["ja_chat", "translation_en_ja", "code"], "limit": 4},
    "sampling": {"temperature": 0, "max_tokens": 40},
    "preflight": "off",
    "arms": [
        {"name": "baseline"},
        {"name": "ngram_mod", "speculation": {"type": "ngram-mod"}},
        {"name": "spec_d2", "speculation": {"type": "draft-simple", "max": 2}},
        {"name": "ngram_simple", "speculation": {"type": "ngram-simple"}},
        *({"name": f"spec_d{depth}", "speculation": {"type": "draft-simple", "max": depth}} for depth in (4, 8, 16)),
    ],
}


def main() -> None:
    """Search unless that is done, and keep what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the runs lie")
    parser.add_argument("--models-dir", type=Path, required=True)
    parser.add_argument("--budget", default="15m")
    options = parser.parse_args()
    results, models = ["--output", str(options.folder)], ["--models-dir", str(options.models_dir)]
    if not (options.folder / f"{NAME}-tuned").exists():
        recipe = options.folder / f"{NAME}.yaml"
        recipe.parent.mkdir(parents=True, exist_ok=True)
        recipe.write_text(yaml.safe_dump(RECIPE, sort_keys=False))
        _benchctl("tune", str(recipe), "--only-arms", "--budget", options.budget, *results, *models)
    folder = latest_run(options.folder / f"{NAME}-search")
    document = json.loads(_benchctl("tune", "--resume", str(folder), *models, "--json", stdout=subprocess.PIPE))
    keep("tuning", found(document, open_run(folder), open_run(latest_run(GRID))))


def _benchctl(*arguments: str, stdout: int | None = None) -> bytes:
    done = subprocess.run([sys.executable, "-m", "benchctl", *arguments], check=True, stdout=stdout)
    return done.stdout or b""


def found(document: dict[str, Any], search: RunData, grid: RunData) -> dict[str, Any]:
    """Hold the fresh interval of what was chosen against the grid's best."""
    fresh, grid_analysis = Analysis.model_validate(document["analysis"]), analyse_run(grid)
    fresh_run = open_run(Path(document["fresh"]))
    assert search.manifest is not None and search.manifest.tuning is not None and fresh_run.manifest is not None
    tuning = search.manifest.tuning
    (chosen,) = (verdict for verdict in fresh.verdicts if verdict.arm == document["chosen"])
    ranked = sorted(
        (verdict for verdict in grid_analysis.verdicts if verdict.arm != grid_analysis.baseline),
        key=lambda verdict: -(verdict.speedup or 0.0),
    )
    best, ours = ranked[0], next(verdict for verdict in ranked if verdict.arm == chosen.arm)
    return {
        "budget_s": tuning.budget_s,
        "took_s": tuning.timing_s + search.manifest.spent_s + fresh_run.manifest.spent_s,
        "load_before": [cell.load_before for cell in search.manifest.cells[:1] + fresh_run.manifest.cells[:1]],
        "left_out": tuning.left_out,
        "searched": document["searched"],
        "rungs": [rung.model_dump() for rung in tuning.rungs],
        "chosen": _summary(chosen),
        "fresh_blocks": fresh_run.manifest.blocks,
        "winner": document["winner"],
        "grid_run": grid.name,
        "grid": [_summary(verdict) for verdict in ranked],
        "grid_best": best.arm,
        "overlaps_best_of_grid": _overlap(chosen, best),
        "overlaps_itself_in_grid": _overlap(chosen, ours),
        "cores": os.cpu_count(),
    }


def _overlap(verdict: Verdict, best: Verdict) -> bool | None:
    if verdict.interval is None or best.interval is None:
        return None
    return verdict.interval.low <= best.interval.high and best.interval.low <= verdict.interval.high


def _summary(verdict: Verdict) -> dict[str, Any]:
    ends = None if verdict.interval is None else [verdict.interval.low, verdict.interval.high]
    return {
        "arm": verdict.arm,
        "speedup": verdict.speedup,
        "interval": ends,
        "speed": verdict.speed,
        "acceptance": verdict.acceptance,
    }


if __name__ == "__main__":
    main()
