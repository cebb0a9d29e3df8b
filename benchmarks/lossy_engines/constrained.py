"""Does `benchctl verify-lossless` find engines that break constraints: grammars, stop strings, penalties, logprobs?

    python -m benchmarks.lossy_engines.constrained RESULTS                                  # the bundled hybrid pair
    python -m benchmarks.lossy_engines.constrained RESULTS --target T.gguf --draft D.gguf   # another one

Every arm is one patched llama-server (`benchmarks.lossy_engines.build`) with another `--fault`, on the 48 requests of
the suite `constrained`, one block. The rows are kept in `results/constrained_faults.json`, in place of earlier ones of
the same target.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchctl.recipes.schema import ModelPair, ModelSpec, PromptsSpec, Sampling
from benchmarks.bundled_runs import bundled_recipe, drafting, engine_spec, measure, plain, verified
from benchmarks.keep import RESULTS, keep
from benchmarks.lossy_engines.build import build

NAME = "constrained_faults"
FAULTS = {
    "sound": None,
    "grammar_late": "grammar=late",
    "stop_passed": "stop=passed",
    "penalties_skipped": "penalties=skipped",
}
"""By arm its `--fault`."""


def main() -> None:
    """Measure and judge the arms, and keep the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--target", default="bundled:tiny-hybrid")
    parser.add_argument("--draft", default="bundled:tiny-hybrid-draft")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--only", nargs="+", choices=list(FAULTS), default=list(FAULTS))
    parser.add_argument("--tasks", nargs="+", help="of the suite (all)")
    parser.add_argument("--offline", action="store_true", help="judge the form of answers alone")
    parser.add_argument("--binary", type=Path, help="a llama-server that was built so before")
    options = parser.parse_args()
    options.results.mkdir(parents=True, exist_ok=True)
    arms = [drafting(name, *(["--fault", fault] if (fault := FAULTS[name]) else [])) for name in options.only]
    recipe = bundled_recipe(
        [plain("baseline"), *arms],
        name="constrained-engines",
        engine=engine_spec(options.binary or build(), env={"LLAMA_TRACE": "1"}),
        models=ModelPair(target=ModelSpec(source=options.target), draft=ModelSpec(source=options.draft)),
        prompts=PromptsSpec(suite="constrained", tasks=options.tasks),
        sampling=Sampling(max_tokens=options.max_tokens),
        blocks=1,
    )
    run = measure(recipe, options.results)
    code, document = verified(run.folder, *(["--offline"] if options.offline else []))
    file = RESULTS / f"{NAME}.json"
    rows: dict[str, Any] = json.loads(file.read_text("utf-8"))["found"] if file.is_file() else {}
    target = Path(options.target).name.removeprefix("bundled:")
    for judged in document["arms"]:
        name = judged["arm"]
        row = {
            "fault": FAULTS[name],
            "fired": _fired(run.folder, name),
            "exit_code": code,
            "prompts": document["prompts"],
        }
        of_tasks = f" ({', '.join(options.tasks)})" if options.tasks else ""
        rows[f"{target}: {name}{of_tasks}"] = row | {
            key: judged[key] for key in ("verdict", "reason", "counts", "validity")
        }
    keep(NAME, dict(sorted(rows.items())))


def _fired(run: Path, arm: str) -> int:
    """Return how often an arm's fault happened, by its engine's logs."""
    logs = [file for file in run.rglob("*.log") if arm in file.name]
    return sum(log.read_text(encoding="utf-8", errors="replace").count("| fault: ") for log in logs)


if __name__ == "__main__":
    main()
