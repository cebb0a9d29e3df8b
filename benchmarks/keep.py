"""Keeping a benchmark's result: the numbers, the command and the machine, as JSON below benchmarks/results/."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchctl import __version__
from benchctl.data.identity import home_relative
from benchctl.machine.describe import describe_machine

RESULTS = Path(__file__).resolve().parent / "results"


def command() -> list[str]:
    """Return the command line of the benchmark that runs, without this machine's folders."""
    module = sys.modules["__main__"].__spec__
    assert module is not None, "benchmarks are run by `python -m`"
    return ["python", "-m", module.name, *map(_without_folders, sys.argv[1:])]


def _without_folders(word: str) -> str:
    """Return an absolute path as its last two parts, one below the user's home with `~`; other words as they are."""
    word = home_relative(word)
    return str(Path(*Path(word).parts[-2:])) if Path(word).is_absolute() else word


def keep(name: str, results: dict[str, Any]) -> None:
    """Print `found` and write it to `benchmarks/results/<name>.json`."""
    RESULTS.mkdir(exist_ok=True)
    document = {
        "benchmark": name,
        "command": command(),
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "benchctl": __version__,
        "load_average": os.getloadavg(),
        "machine": describe_machine(),
        "found": results,
    }
    print(json.dumps(results, indent=1))
    (RESULTS / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def keep_more(name: str, rows: Mapping[str, Any]) -> None:
    """Keep rows in place of earlier ones with the same keys; the others stay."""
    file = RESULTS / f"{name}.json"
    earlier: dict[str, Any] = json.loads(file.read_text("utf-8"))["found"] if file.is_file() else {}
    keep(name, dict(sorted({**earlier, **rows}.items())))
