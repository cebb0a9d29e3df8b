"""benchctl from Python: a kept run as tables, the notebook of the documentation, and a run that is measured."""

from __future__ import annotations

import csv
import inspect
import json
import pydoc
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import benchctl
from benchctl import api
from benchctl.reports.write import all_tables
from tests.kept_runs import RUNS

TOP = Path(__file__).parents[1]


@pytest.mark.parametrize("folder", RUNS, ids=lambda run: run.name)
def test_every_kept_run_is_tables(folder: Path) -> None:
    run = api.open_run(folder)
    assert run.conclusion and len(run.records()) == len(run.data.records)
    tables = all_tables(run.analysis)
    for name, frame in (
        ("speedup", run.speedups()),
        ("acceptance", run.acceptance()),
        ("losslessness", run.losslessness()),
    ):
        rows = list(csv.reader(tables[f"{name}.csv"].splitlines()))
        assert list(frame.columns) == rows[0]
        assert {"arm", "task"} <= {*frame.columns}
    shown = run._repr_html_()
    assert all(arm in shown for arm in run.analysis.arms) and "<table" in shown


def test_the_notebook_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cells one after another, without a kernel; it has no output of the machine that wrote it."""
    monkeypatch.chdir(TOP)
    notebook = json.loads((TOP / "docs" / "notebook.ipynb").read_text("utf-8"))
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert code and not any(cell["outputs"] or cell["execution_count"] for cell in code)
    names: dict[str, object] = {}
    for cell in code:
        exec("".join(cell["source"]), names)
    assert len(names["overall"]) == 7 and len(names["measured"]) == 288  # type: ignore[arg-type]


def test_measure_is_a_function_that_help_explains() -> None:
    import benchctl.measurement.run  # the package that measures does not take the function's name

    assert inspect.isfunction(benchctl.measure) and "trust_recipe" in inspect.signature(benchctl.measure).parameters
    assert "show`: print progress to stderr" in pydoc.render_doc(benchctl.measure)


def test_importing_is_cheap() -> None:
    code = "import benchctl, sys; print([m for m in ('numpy', 'pandas', 'pydantic', 'httpx') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


LIGHT = """
import sys
from benchctl.__main__ import main
sys.argv = ["benchctl", *sys.argv[1:]]
try:
    main()
except SystemExit as status:
    assert not status.code
heavy = [name for name in ("numpy", "gguf", "scipy", "pandas", "matplotlib") if name in sys.modules]
print("loaded:", heavy, file=sys.stderr)
"""


@pytest.mark.parametrize("command", [["runs", "list"], ["recipes", "check", "recipes/quickstart.yaml"]], ids=" ".join)
def test_listing_and_checking_load_no_heavy_package(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Summaries of runs are in the cache from the second call on."""
    monkeypatch.setenv("BENCHCTL_CACHE", str(tmp_path / "cache"))
    results = tmp_path / "results"
    shutil.copytree(TOP / "results" / "vllm-hybrid", results / "vllm-hybrid")
    options = ["--results", str(results)] if command[0] == "runs" else []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", LIGHT, *command, *options], cwd=TOP, capture_output=True, text=True, check=True
        )
    assert "vllm-hybrid" in done.stdout or "good" in done.stdout
    assert "loaded: []" in done.stderr


def test_many_runs_are_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCHCTL_CACHE", str(tmp_path / "cache"))
    results = tmp_path / "results"
    shutil.copytree(TOP / "results" / "vllm-hybrid", results / "vllm-hybrid")
    damaged = shutil.copytree(next((TOP / "results" / "vllm-hybrid").glob("2*")), results / "damaged" / "20260101-a")
    (damaged / "manifest.json").write_text("{")
    runs = benchctl.open_runs(results)
    assert list(runs.arm) == ["baseline", "ngram"] and list(runs.is_baseline) == [True, False]
    run = benchctl.open_run(next((results / "vllm-hybrid").glob("2*")))
    speedups = run.speedups().query("task == 'all' and arm == 'ngram'").iloc[0]
    assert runs.speedup[1] == pytest.approx(speedups.pooled) and runs.verdict[1] == "violation"
    assert runs.low[1] < runs.speedup[1] < runs.high[1]
    assert list(runs.attrs["unreadable"]) == [str(damaged)]


def test_a_folder_without_runs_is_an_empty_table(tmp_path: Path) -> None:
    runs = benchctl.open_runs(tmp_path)
    assert runs.empty and "speedup" in runs.columns
