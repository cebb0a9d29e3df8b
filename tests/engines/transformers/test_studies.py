"""The recipes of the two studies, run on the bundled stand-ins as their first lines say, and what a run tells."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from benchctl.engines.transformers.methods import METHODS
from tests.benchctl_process import benchctl

pytestmark = [pytest.mark.torch, pytest.mark.slow]
SMALL = ("--prompts", "tiny", "--set", "engine.dtype=float32", "--set", "engine.threads=1")
SHORT = ("--set", "sampling.max_tokens=16", "--limit", "1", "--blocks", "1", "--yes")


def run(folder: Path, *words: str) -> dict[str, Any]:
    done = benchctl("run", *words, *SMALL, *SHORT, "-o", folder, "--json")
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def test_the_ablation_study(tmp_path: Path) -> None:
    """A part of each kind of target that is a draft: every arm starts a server of its own."""
    arms = {"ssm_d4-t_tiny-parallel-t0", "layerskip_d4-t_tiny-transformer-t0"}
    result = run(tmp_path, "self-speculation-ablation", "-k", "code", *(word for arm in arms for word in ("-k", arm)))
    verdicts = {row["arm"]: row["lossless"] for row in result["analysis"]["verdicts"]}
    assert verdicts == dict.fromkeys(arms, "identical")


def test_the_study_of_methods_that_choose(tmp_path: Path) -> None:
    target = ("--set", "models.target.source=bundled:tiny-transformer", "--set", "engine.context=2048")
    contexts = ("--set", "matrix.context_length=[null, 1024]", "-k", "code")
    result = run(tmp_path, "self-speculation-knapspec", *target, *contexts, "-k", "swift*", "-k", "knapspec*")
    assert {row["lossless"] for row in result["analysis"]["verdicts"]} == {"identical"}
    (folder,) = (file.parent for file in tmp_path.rglob("manifest.json"))
    report = benchctl("report", folder, "--output", tmp_path / "reports", "--json")
    files = json.loads(report.stdout)["files"]
    assert {"tokens-per-time.png", "left-out.png"} <= {Path(name).name for name in files["figures"]}
    tables = {Path(name).name: list(csv.DictReader(Path(name).read_text().splitlines())) for name in files["tables"]}
    searching = {name.removeprefix("self-") for name, method in METHODS.items() if method.searches}
    skipped = {row["arm"].partition("-")[0] for row in tables["left-out.csv"] if row["attention"]}
    assert "swift" in skipped & searching, "what the others leave out depends on what is timed"
    assert all(float(row["tokens_per_time"]) > 0 for row in tables["rounds.csv"])
    assert {int(row["context"]) for row in tables["left-out.csv"]} >= {64, 2048}
