"""How long `benchctl --help` takes as a whole process: it must feel instant.

python -m benchmarks.startup
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

from benchmarks.keep import keep

RUNS = 20


def main() -> None:
    """Time the commands that a user waits for without anything being measured."""
    found = {}
    for words in (["--help"], ["--version"], ["run", "--help"]):
        times = []
        for _ in range(RUNS):
            began = time.perf_counter()
            subprocess.run([sys.executable, "-m", "benchctl", *words], check=True, stdout=subprocess.DEVNULL)
            times.append(time.perf_counter() - began)
        found[f"benchctl {' '.join(words)}"] = {
            "runs": RUNS,
            "min_s": min(times),
            "median_s": statistics.median(times),
            "max_s": max(times),
        }
    keep("startup", found)


if __name__ == "__main__":
    main()
