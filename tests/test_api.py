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
        assert list(frame.columns[: len(rows[0])]) == rows[0]
        assert {"arm", "task"} <= {*frame.columns}
    shown = run._repr_html_()
    assert all(arm in shown for arm in run.analysis.arms) and "<table" in shown


def test_an_arm_is_a_row_with_its_setting_and_its_verdict() -> None:
    run = api.open_run(TOP / "results/qwen2.5-coder-bf16/20261125-232328-f38a")
    arms = run.arms().set_index("arm")
    draft, copying = arms.loc["spec_d8-t_q8_0"], arms.loc["ngram-t_bf16"]
    assert (draft.type, draft.depth, draft.quantization, draft.verdict) == ("draft-simple", 8, "q8_0", "identical")
    assert copying.draft != copying.draft and copying.power < 0.01 < arms.loc["spec_d8-t_bf16"].power
    assert arms.loc["baseline-t_q4_k_m"].tok_per_sec == max(arms.tok_per_sec)
    rows = run.speedups()
    assert all(isinstance(blocks, list) for blocks in rows.by_block)
    assert set(rows[rows.depth == 4].arm) == {"spec_d4-t_bf16"} and rows.tok_per_sec.notna().all()
    records = run.records(prompts=True)
    assert records[records.task == "code"].prompt.str.contains("Python").any()


@pytest.mark.parametrize("folder", [TOP, pytest.param(TOP / "docs", marks=pytest.mark.engine)], ids=["root", "docs"])
def test_the_notebook_runs(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Its cells one after another, without a kernel, where it lies; what is stored are outputs and a plot.

    Elsewhere the first, which looks for the run, is enough.
    """
    monkeypatch.chdir(folder)
    notebook = json.loads((TOP / "docs" / "notebook.ipynb").read_text("utf-8"))
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    stored = [output for cell in code for output in cell["outputs"]]
    assert any("image/png" in output.get("data", {}) for output in stored), "a plot"
    assert len(stored) >= len(code) - 1 and "/home/" not in json.dumps(stored)
    names: dict[str, object] = {}
    for cell in code if folder.name == "docs" else code[:1]:
        exec("".join(cell["source"]), names)
    if folder.name == "docs":
        assert len(names["arms"]) == 8 and len(names["measured"]) == 288  # type: ignore[arg-type]
        assert len(names["small"].data.records) > 30  # type: ignore[attr-defined]


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
