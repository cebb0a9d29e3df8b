"""What `benchctl verify-stress` shows of vLLM on a CPU, on the bundled transformer and on the bundled hybrid.

    benchctl verify-stress recipes/vllm-control.yaml --budget 22m --set engine.threads=1 -o FOLDER
    benchctl verify-stress recipes/vllm-hybrid.yaml --budget 18m --set engine.threads=1 \\
        --set engine.prefix_caching=false -o FOLDER      # with its prefix cache on, this vLLM ends
    python -m benchmarks.stressed_vllm FOLDER/*/stress/*

The verdicts of these stored tests are computed again and kept in `results/stressed_vllm.json`, with the seconds that
each took; of a scenario that was run again the last one stands.
"""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path

from benchctl.experiments.stress.judge import judge_stress
from benchctl.experiments.stress.scoring import find_divergences
from benchctl.experiments.stress.stored import read_stress
from benchmarks.keep import keep

KEPT = {"verdict", "apart", "units", "changed", "changed_control", "arm_alone", "adjusted", "limit", "largest", "shown"}


def main() -> None:
    """Judge the stored tests and keep what they show."""
    rows = {}
    for folder in sorted(map(Path, sys.argv[1:]), key=lambda path: path.name):
        test = read_stress(folder)
        find_divergences(test)
        begun, ended = (datetime.fromisoformat(str(at)) for at in (test.manifest.created_at, test.manifest.finished_at))
        seconds = round((ended - begun).total_seconds())
        for result in judge_stress(test):
            if not result.exercised.requests:
                continue
            rows[f"{test.manifest.recipe_name}: {result.scenario}"] = {
                "status": test.status,
                "command": [word for word in test.manifest.command[1:] if word != "-o" and not word.startswith("/")],
                "engine": test.manifest.engine.version,
                "size": test.plan.size,
                "noise": test.noise,
                "seconds": seconds,
                **result.model_dump(include=KEPT),
                "failures": len(result.failures),
                "invalid": sorted({each.code for each in result.invalid}),
                "exercised": result.exercised.model_dump(),
                "control": result.control.model_dump(),
                "left_out": test.skipped,
                "reproduced": [shortest.model_dump(exclude={"requests"}) for shortest in test.reproductions],
            }
    keep("stressed_vllm", rows)


if __name__ == "__main__":
    main()
