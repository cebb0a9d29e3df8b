"""Does `benchctl isolate` find the tensors that break a model, when only the damage is known, not where it is?

Random trials on bundled:tiny-hybrid. Each makes a model whose full precision is sound and whose quantization is not
(`outliers.py`), runs `benchctl isolate` on the file as a user does, and compares its answer with what was
damaged, which it does not know. Three kinds: one family damaged, two damaged, none. Afterwards each damaged family is
quantized alone, to say whether its damage shows at all, and of two each is kept alone, to say whether it takes both.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from benchctl.experiments.isolate.search import Measure
from benchctl.experiments.isolate.search import damage as reasons
from benchctl.experiments.isolate.session import isolate
from benchctl.experiments.isolate.source import find_source_model
from benchctl.experiments.isolate.stored import Measurement
from benchctl.measurement.progress import Display
from benchctl.measurement.requested import named_recipe
from benchctl.recipes.source import bundled_folder
from benchmarks.keep import keep
from benchmarks.outliers import FAMILIES, Outliers, random_outliers, write_model

RESULTS = Path(__file__).resolve().parent / "results" / "isolation-trials"
TYPES = ("q8_0", "q8_0", "q5_0", "q4_0", "q4_k_m")
_DAMAGED = {"one": 1, "two": 2, "none": 0}
_RECIPE = """\
name: trial
engine: {device: cpu, context: 1024, threads: 1}
models: {target: {source: model.gguf}}
prompts: {suite: tiny.json}
arms: [{name: baseline}]
"""


def trial(number: int, damaged: int, folder: Path, seed: int) -> dict[str, Any]:
    """Make a model, have it searched, and say what was damaged and what was found."""
    import numpy as np

    generator = np.random.default_rng([seed, damaged, number])
    families = [str(name) for name in generator.choice(FAMILIES, size=max(1, damaged), replace=False)]
    damage = [random_outliers(name, generator, severe=damaged == 2) for name in families]
    base = str(generator.choice(TYPES))
    source = bundled_folder() / "tiny-hybrid.gguf"
    write_model(source, folder / "model.gguf", damage, generator, loud=damaged > 0)
    (folder / "recipe.yaml").write_text(_RECIPE)
    command = [sys.executable, "-m", "benchctl", "isolate", "recipe.yaml", "--type", base, "--json"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode > 1:
        raise SystemExit(f"trial {number} with {damaged} damaged: {done.stderr}")
    document = json.loads(done.stdout)
    expected = damage if damaged else []
    truth = _truth(folder, base, [family.family for family in expected], document)
    return _assessed(number, expected, base, document, truth)


def _truth(
    folder: Path, base: str, families: Sequence[str], document: dict[str, Any]
) -> dict[str, tuple[Measurement, Measurement | None]]:
    """Quantize each damaged family alone, and of several keep each alone, unless the search has done so."""
    if document["finding"]["verdict"] == "source damaged":
        return {}

    def ask(measure: Measure) -> dict[str, tuple[Measurement, Measurement | None]]:
        names = frozenset(family.name for family in source.families)
        return {
            name: (measure(names - {name}), measure(frozenset({name})) if len(families) > 1 else None)
            for name in families
        }

    with contextlib.chdir(folder):
        source = find_source_model(named_recipe("recipe.yaml", Path("results")), base=base)
        return isolate(source, ask, Path("results"), Display(Console(quiet=True)))[2]


def _assessed(
    number: int,
    damage: list[Outliers],
    base: str,
    document: dict[str, Any],
    truth: dict[str, tuple[Measurement, Measurement | None]],
) -> dict[str, Any]:
    finding, rows = document["finding"], document["rows"]
    full = next((row for row in rows if row["kept"] == []), None)
    expected = sorted(family.family for family in damage)
    verdict = finding["verdict"]
    breaks_alone = {name: bool(reasons(measured, finding["limit"])) for name, (measured, _) in truth.items()}
    one_will_do = any(
        repaired is not None and not reasons(repaired, finding["limit"]) for _, repaired in truth.values()
    )
    shows = (all(breaks_alone.values()) if len(damage) == 1 else not one_will_do) and bool(full and full["damage"])
    right: bool | None = None  # what was made is no sound model, or not damaged as meant: nothing can be asked of it
    if verdict != "source damaged" and not damage:
        right = verdict == "healthy"
    elif verdict != "source damaged" and shows:
        right = verdict == ("one family" if len(damage) == 1 else "several families")
        right = right and sorted(finding["repair"]) == expected
    return {
        "trial": number,
        "damaged": [asdict(family) for family in damage],
        "type": base,
        "verdict": verdict,
        "repair": finding["repair"],
        "breaking": finding["breaking"],
        "shows": bool(damage) and shows,
        "shows_alone": breaks_alone,
        "right": right,
        "full_kl": None if full is None or full["severity"] is None else full["severity"]["divergence"],
        "full_is_damaged": None if full is None else bool(full["damage"]),
        "limit": finding["limit"],
        "alone_kl": {name: measured.severity and measured.severity.divergence for name, (measured, _) in truth.items()},
        "evaluations": finding["evaluations"],
        "one_by_one": finding["one_by_one"],
    }


def summary(trials: list[dict[str, Any]]) -> dict[str, Any]:
    """Count what was found."""
    assessed = [trial for trial in trials if trial["right"] is not None]
    searched = [trial for trial in assessed if trial["verdict"] != "healthy"]
    return {
        "trials": len(trials),
        "source_not_sound": sum(trial["verdict"] == "source damaged" for trial in trials),
        "damage_shows": sum(trial["shows"] for trial in trials),
        "right": sum(trial["right"] for trial in assessed),
        "wrong": [trial["trial"] for trial in assessed if not trial["right"]],
        "evaluations_a_search": sum(trial["evaluations"] for trial in searched) / len(searched) if searched else None,
        "one_by_one": trials[0]["one_by_one"] if trials else None,
    }


def main() -> None:
    """Run the trials requested, and save them with earlier ones."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--one", type=int, default=20, help="trials with one family damaged; 0: those of before")
    options.add_argument("--two", type=int, default=10)
    options.add_argument("--none", type=int, default=8)
    options.add_argument("--seed", type=int, default=5)
    chosen = options.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    for name, damaged in _DAMAGED.items():
        trials = []
        for number in range(getattr(chosen, name)):
            with tempfile.TemporaryDirectory(prefix="benchctl-") as folder:
                trials.append(trial(number, damaged, Path(folder), chosen.seed))
            sys.stderr.write(f"{name} {trials[-1]}\n")
            (RESULTS / f"{name}.json").write_text(json.dumps(trials, indent=1) + "\n", encoding="utf-8")
    results = {name: json.loads((RESULTS / f"{name}.json").read_text("utf-8")) for name in _DAMAGED}
    keep("isolation_trials", {name: {**summary(trials), "each": trials} for name, trials in results.items()})


if __name__ == "__main__":
    main()
