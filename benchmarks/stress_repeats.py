"""How often does `benchctl verify-stress` find the same in the same engine, with other seeds?

    python -m benchmarks.stress_repeats FOLDER faulty --more 10       # the next ten seeds that are not kept yet
    python -m benchmarks.stress_repeats FOLDER "real pair" -- T.gguf D.gguf --type draft-simple --only canary,cache

Settings: `faulty` has two open faults of the pinned llama-server (EAGLE-3 on a hybrid: wrong text in a crowd, and
conversations that fail), `hybrid` (draft-simple) and `transformer` (ngram-simple) are sound. All are run as by default,
one thread an engine. Another setting names what `verify-stress` is to be called with. Every test is kept as soon as it
is done, in `results/stress_repeats.json`.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import count, islice
from pathlib import Path
from typing import Any

from benchctl.data.identity import home_relative
from benchmarks.keep import RESULTS, keep_more
from benchmarks.lossy_engines.stressed import summary

NAME = "stress_repeats"
SETTINGS = {
    "faulty": ("bundled:tiny-sequential", "bundled:tiny-sequential-eagle3", "--type", "draft-eagle3"),
    "hybrid": ("bundled:tiny-hybrid", "bundled:tiny-hybrid-draft", "--type", "draft-simple"),
    "transformer": ("bundled:tiny-transformer", "--type", "ngram-simple"),
}
"""What `verify-stress` is called with."""


def main() -> None:
    """Stress a setting with the next seeds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="for answers and logs")
    parser.add_argument("setting", help=", ".join(SETTINGS))
    parser.add_argument("words", nargs="*", help="after `--`, of another setting")
    parser.add_argument("--more", type=int, default=1)
    options = parser.parse_args()
    file = RESULTS / f"{NAME}.json"
    kept = json.loads(file.read_text("utf-8"))["found"] if file.is_file() else {}
    words = options.words or [*SETTINGS[options.setting], "--set", "engine.threads=1"]
    seeds = (seed for seed in count(1) if f"{options.setting}, seed {seed}" not in kept)
    for seed in islice(seeds, options.more):
        keep_more(NAME, {f"{options.setting}, seed {seed}": repeated(options.folder, words, seed)})


def repeated(folder: Path, words: Sequence[str], seed: int) -> dict[str, Any]:
    """Return what a test of a seed shows, by scenario, and the time that it took."""
    command = [sys.executable, "-m", "benchctl", "verify-stress", *words, "--seed", str(seed)]
    command += ["--json", "-o", str(folder)]
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    document = json.loads(done.stdout)
    return {
        "words": [home_relative(word) for word in words],
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
