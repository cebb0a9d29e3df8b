"""What digests cost: microseconds to write a record, seconds to read 100 runs of 10,000 records and to check them.

    python -m benchmarks.evidence_cost [--runs 100] [--records 10000] [--tokens 128]

Writes one run with a chain and the same without, five times each in turn, and keeps the least of each (wall time). Then
reads them so many times, in turn: without digests; with digests that are not checked, as a run reads what it wrote; and
checked, as `verify-lossless`, `report` and `compare` do (CPU time).
"""

from __future__ import annotations

import argparse
import gc
import os
import tempfile
import time
from pathlib import Path

from benchctl.data.manifest import Manifest
from benchctl.data.record import Record
from benchctl.data.store import open_run
from benchctl.data.writer import RunWriter
from benchmarks.keep import keep
from benchmarks.records_scale import write_run

REPEATS = 5


def written(folder: Path, manifest: Manifest, records: list[Record], *, digests: bool) -> float:
    """Write a run; return microseconds a record."""
    manifest = manifest.model_copy(update={"digests": digests, "run": "scale", "cells": []})
    with RunWriter(folder, manifest) as writer:
        began = time.perf_counter()
        for record in records:
            writer.append(record)
        return (time.perf_counter() - began) / len(records) * 1e6


def read(folder: Path, *, check: bool) -> float:
    """Read a run; return CPU seconds."""
    gc.unfreeze()
    gc.collect()
    began = time.process_time()
    open_run(folder, check=check)
    return time.process_time() - began


def main() -> None:
    """Measure and keep what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--records", type=int, default=10_000)
    parser.add_argument("--tokens", type=int, default=128)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        source = Path(temporary) / "source"
        write_run(source, options.records, options.tokens)
        run = open_run(source)
        assert run.manifest is not None
        micros: dict[bool, list[float]] = {False: [], True: []}
        for number in range(REPEATS):
            for digests in micros:
                folder = Path(temporary) / f"{number}-{digests}"
                micros[digests].append(written(folder, run.manifest, run.records, digests=digests))
        seconds = dict.fromkeys(("without", "unchecked", "checked"), 0.0)
        for _ in range(options.runs):
            seconds["without"] += read(Path(temporary) / "0-False", check=False)
            seconds["unchecked"] += read(Path(temporary) / "0-True", check=False)
            seconds["checked"] += read(Path(temporary) / "0-True", check=True)
        size = os.path.getsize(Path(temporary) / "0-True" / "records.jsonl") / len(run.records)  # noqa: PTH202
    least = {digests: min(found) for digests, found in micros.items()}
    keep(
        "evidence_cost",
        {
            "records": len(run.records),
            "bytes_a_record": round(size),
            "write_us_without": least[False],
            "write_us_with": least[True],
            "write_us_more": least[True] - least[False],
            "runs_read": options.runs,
            "read_s": seconds,
            "unchecked_share_more": seconds["unchecked"] / seconds["without"] - 1,
            "checked_share_more": seconds["checked"] / seconds["without"] - 1,
        },
    )


if __name__ == "__main__":
    main()
