"""Does `benchctl verify-stress` find faults that only show in use, and where?

    python -m benchmarks.lossy_engines.stressed FOLDER --only stop_passed    # FOLDER takes what is measured
    python -m benchmarks.lossy_engines.stressed FOLDER --public              # public bugs of other engines

Every arm is the bundled hybrid pair with a fault of its own: a `--fault` of `benchmarks.lossy_engines.build`, or with
`--public` a bug of `benchmarks.public_bugs` that a proxy before the sound server has. Each is stressed in the scenarios
that show it and in those that do not exercise it; its log says how often it happened in each. The rows are kept in
`results/stressed_faults.json` or `results/public_bugs.json`, in place of earlier ones of the same fault and scenario.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchctl.engines.llama_cpp.adapter import LlamaCppSpec
from benchctl.recipes.schema import Arm, PromptsSpec
from benchmarks.bundled_runs import bundled_recipe, drafting, engine_spec, faulty_engine, plain
from benchmarks.keep import keep_more
from benchmarks.lossy_engines.build import build
from benchmarks.public_bugs import BUGS

LEAK = "state=kept"
FAULTS = {
    "after_20_requests": (f"{LEAK},requests=20", "canary"),
    "behind_a_cached_prefix": (f"{LEAK},cached=20", "cache"),
    "two_in_flight": (f"{LEAK},flight=2", "crowd"),
    "above_1000_tokens": (f"{LEAK},context=1000", "long"),
    "state_of_the_prompt_before": ("prompt=kept", "canary"),
    "batch_mixed_up": ("rows=swapped,every=2", "crowd"),
    "grammar_late": ("grammar=late", "constraint"),
    "stop_passed": ("stop=passed", "constraint"),
}
"""By arm its `--fault`, and the scenario that is meant for it."""
SCENARIOS = ("canary", "cache", "crowd", "sessions", "constraint", "cancel", "long")
SEEN = ("requests", "cached", "most_at_once", "longest", "drafted", "accepted")
"""What is kept of the causes."""


def main() -> None:
    """Stress the arms and keep the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--public", action="store_true")
    parser.add_argument("--only", nargs="+", help="faults, or `sound` (all)")
    parser.add_argument("--scenarios", nargs="+", default=SCENARIOS)
    parser.add_argument("--budget", default="4m")
    parser.add_argument("--binary", type=Path, help="what `benchmarks.lossy_engines.build` built")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    faults = {name: (name, bug.scenario) for name, bug in BUGS.items()} if options.public else FAULTS
    names = options.only or ["sound", *faults]
    if options.public:
        engine, _ = faulty_engine(options.folder, {name: (name, 0.0) for name in BUGS})
        arms = [drafting(name, "--alias", name) for name in names]
    else:
        engine = engine_spec(options.binary or build())
        arms = [drafting(name, *(["--fault", faults[name][0]] if name in faults else [])) for name in names]
    rows = stressed(options.folder, arms, engine, options.scenarios, options.budget)
    for name, row in rows.items():
        row["fault"], row["meant"] = faults.get(row.pop("arm"), (None, None))
        print(name, row)
    keep_more("public_bugs" if options.public else "stressed_faults", rows)


def stressed(
    folder: Path, arms: Sequence[Arm], engine: LlamaCppSpec, scenarios: Sequence[str], budget: str
) -> dict[str, dict[str, Any]]:
    """Return the rows by arm and scenario."""
    recipe = bundled_recipe(
        [plain("baseline"), *arms], name="stressed-engines", engine=engine, prompts=PromptsSpec(suite="many.json")
    )
    file = folder / "stressed-engines.json"
    file.write_text(recipe.model_dump_json(exclude_defaults=True), encoding="utf-8")
    command = [sys.executable, "-m", "benchctl", "verify-stress", str(file), "--only", ",".join(scenarios)]
    command += ["--budget", budget, "--json", "--trust-recipe", "-o", str(folder)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    document: dict[str, Any] = json.loads(done.stdout)
    test, rows = Path(document["folder"]), {}
    for result in document["results"]:
        arm, scenario = result["arm"], result["scenario"]
        shortest = [plan for plan in document["reproductions"] if (plan["arm"], plan["scenario"]) == (arm, scenario)]
        rows[f"{arm}: {scenario}"] = {
            "arm": arm,
            "happened": _happened(test, arm, scenario),
            **summary(result),
            "shortest": [[len(plan["requests"]), plan["shown"], plan["attempts"]] for plan in shortest],
        }
    return rows


def _happened(folder: Path, arm: str, scenario: str) -> int:
    """Return how often the fault happened in a scenario, by the engine's logs."""
    logs = folder.glob(f"logs/{scenario}*-{arm}.log")
    return sum(log.read_text(encoding="utf-8", errors="replace").count("| fault: ") for log in logs)


def summary(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is kept of a verdict, with the causes that were seen, and were not."""
    exercised = result["exercised"]
    return {
        "verdict": result["verdict"],
        "apart": result["apart"],
        "changed": [result["changed"], result["changed_control"], result["units"]],
        "arm_alone": result["arm_alone"],
        "control_alone": result["control_alone"],
        "adjusted": result["adjusted"],
        "largest": result["largest"],
        "limit": result["limit"],
        "failures": len(result["failures"]),
        "invalid": sorted({entry["code"] for entry in result["invalid"]}),
        **{name: exercised[name] for name in (*SEEN, "lacking")},
    }


if __name__ == "__main__":
    main()
