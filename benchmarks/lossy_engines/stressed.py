"""Does `benchctl verify-stress` find every fault that only shows in use, in the scenario meant for it and nowhere else?

    python -m benchmarks.lossy_engines.stressed FOLDER canary cache      # scenarios; FOLDER takes what is measured

Every arm is the bundled hybrid pair on the llama-server of `benchmarks.lossy_engines.build` with another `--fault`. The
rows are kept in `results/stressed_faults.json`, in place of earlier ones of the same fault and scenario.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchctl.recipes.schema import PromptsSpec
from benchmarks.bundled_runs import bundled_recipe, drafting, engine_spec, plain
from benchmarks.keep import RESULTS, keep
from benchmarks.lossy_engines.build import build

NAME = "stressed_faults"
LEAK = "state=kept"
FAULTS = {
    "sound": (None, ()),
    "after_20_requests": (f"{LEAK},requests=20", ("canary", "cache", "crowd", "sessions", "constraint")),
    "behind_a_cached_prefix": (f"{LEAK},cached=1", ("cache", "sessions", "crowd")),
    "two_in_flight": (f"{LEAK},flight=2", ("crowd",)),
    "above_250_tokens": (f"{LEAK},context=250", ("sessions",)),
    "state_of_the_prompt_before": ("prompt=kept", ("canary", "cache", "crowd", "sessions", "constraint")),
    "batch_mixed_up": ("rows=swapped,every=4", ("crowd",)),
    "grammar_late": ("grammar=late", ("constraint",)),
    "stop_passed": ("stop=passed", ("constraint",)),
}
"""By arm its `--fault`, and the scenarios in which it can happen."""


def main() -> None:
    """Stress the arms and keep the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("scenarios", nargs="+")
    parser.add_argument("--only", nargs="+", choices=list(FAULTS), default=list(FAULTS))
    parser.add_argument("--budget", default="4m")
    options = parser.parse_args()
    file = RESULTS / f"{NAME}.json"
    rows: dict[str, dict[str, Any]] = json.loads(file.read_text("utf-8"))["found"] if file.is_file() else {}
    for result in _stress(options)["results"]:
        scenario, arm = result["scenario"], result["arm"]
        fault, meant = FAULTS[arm]
        log = _log(options.folder, arm, scenario)
        rows[f"{arm}: {scenario}"] = {"fault": fault, "can_happen": scenario in meant, "fired": log, **_summary(result)}
    keep(NAME, dict(sorted(rows.items())))


def _stress(options: argparse.Namespace) -> dict[str, Any]:
    arms = [drafting(name, *(["--fault", fault] if (fault := FAULTS[name][0]) else [])) for name in options.only]
    recipe = bundled_recipe(
        [plain("baseline"), *arms],
        name="stressed-engines",
        engine=engine_spec(build()),
        prompts=PromptsSpec(suite="many.json"),
    )
    options.folder.mkdir(parents=True, exist_ok=True)
    file = options.folder / "stressed-engines.json"
    file.write_text(recipe.model_dump_json(exclude_defaults=True), encoding="utf-8")
    command = [sys.executable, "-m", "benchctl", "verify-stress", str(file), "--only", ",".join(options.scenarios)]
    command += ["--budget", options.budget, "--json", "--trust-recipe", "-o", str(options.folder)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    document: dict[str, Any] = json.loads(done.stdout)
    options.folder = Path(document["folder"])
    return document


def _log(folder: Path, arm: str, scenario: str) -> int:
    """Return how often the fault happened in a scenario, by the engine's logs."""
    logs = folder.glob(f"logs/{scenario}*-{arm}.log")
    return sum(log.read_text(encoding="utf-8", errors="replace").count("| fault: ") for log in logs)


def _summary(result: dict[str, Any]) -> dict[str, Any]:
    return {
        "verdict": result["verdict"],
        "units": result["units"],
        "changed": result["changed"],
        "changed_control": result["changed_control"],
        "arm_alone": result["arm_alone"],
        "failures": len(result["failures"]),
        "invalid": sorted({entry["code"] for entry in result["invalid"]}),
        "adjusted": result["adjusted"],
        "largest": result["largest"],
        "limit": result["limit"],
    }


if __name__ == "__main__":
    main()
