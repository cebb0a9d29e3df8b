"""How often does `benchctl verify-stress` find the same in the same engine, with other seeds?

    python -m benchmarks.stress_repeats FOLDER faulty --more 10       # the next ten seeds that are not kept yet

Settings: `faulty` has two open faults of the pinned llama-server (EAGLE-3 on a hybrid: wrong text in a crowd, and
conversations that fail), `hybrid` (draft-simple) and `transformer` (ngram-simple) are sound. All are run as by default,
one thread an engine. Every test is kept as soon as it is done, in `results/stress_repeats.json`.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from itertools import count, islice
from pathlib import Path
from typing import Any

from benchmarks.keep import RESULTS, keep_more
from benchmarks.lossy_engines.stressed import summary

NAME = "stress_repeats"
SETTINGS = {
    "faulty": ("bundled:tiny-sequential", "bundled:tiny-sequential-eagle3", "draft-eagle3"),
    "hybrid": ("bundled:tiny-hybrid", "bundled:tiny-hybrid-draft", "draft-simple"),
    "transformer": ("bundled:tiny-transformer", "ngram-simple"),
}
"""Target, draft and type."""


def main() -> None:
    """Stress a setting with the next seeds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="for answers and logs")
    parser.add_argument("setting", choices=SETTINGS)
    parser.add_argument("--more", type=int, default=1)
    options = parser.parse_args()
    file = RESULTS / f"{NAME}.json"
    kept = json.loads(file.read_text("utf-8"))["found"] if file.is_file() else {}
    names = (f"{options.setting}, seed {seed}" for seed in count(1))
    for name in islice((name for name in names if name not in kept), options.more):
        keep_more(NAME, {name: repeated(options.folder, options.setting, int(name.split()[-1]))})


def repeated(folder: Path, setting: str, seed: int) -> dict[str, Any]:
    """Return what a test of a seed shows, by scenario, and the time that it took."""
    *models, kind = SETTINGS[setting]
    command = [sys.executable, "-m", "benchctl", "verify-stress", *models, "--type", kind, "--seed", str(seed)]
    command += ["--set", "engine.threads=1", "--json", "-o", str(folder)]
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    document = json.loads(done.stdout)
    return {
        "exit_code": done.returncode,
        "seconds": round(time.monotonic() - began, 1),
        "cpu_seconds": round(used.ru_utime - before.ru_utime + used.ru_stime - before.ru_stime, 1),
        "size": document["size"],
        "skipped": document["skipped"],
        "scenarios": {result["scenario"]: summary(result) for result in document["results"]},
        "shortest": [
            [plan["scenario"], len(plan["requests"]), plan["shown"], plan["attempts"]]
            for plan in document["reproductions"]
        ],
    }


if __name__ == "__main__":
    main()
