"""How long `benchctl --help` takes as a whole process, beside Python importing nothing but typer and its rich half.

python -m benchmarks.startup

The two alternate, so that the ratio holds on a machine whose speed drifts; it should stay below 2.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Sequence

from benchmarks.keep import keep

RUNS = 20
FLOOR = ("-c", "import typer, typer.rich_utils")
COMMANDS = (("--help",), ("--version",), ("run", "--help"))


def seconds(arguments: Sequence[str]) -> float:
    """Return how long Python takes with `words`, from start to exit."""
    began = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def main() -> None:
    """Time the commands that a user waits for without anything being measured."""
    results = {}
    for arguments in COMMANDS:
        pairs = [(seconds(("-m", "benchctl", *arguments)), seconds(FLOOR)) for _ in range(RUNS)]
        times = [ours for ours, _ in pairs]
        results[f"benchctl {' '.join(arguments)}"] = {
            "runs": RUNS,
            "min_s": min(times),
            "median_s": statistics.median(times),
            "max_s": max(times),
            "median_ratio_to_importing_typer_and_rich": statistics.median(ours / floor for ours, floor in pairs),
        }
    keep("startup", results)


if __name__ == "__main__":
    main()
