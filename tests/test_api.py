"""benchctl from Python: a kept run as tables, the notebook of the documentation, and a run that is measured."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest

import benchctl
from benchctl import api
from benchctl.errors import UsageError
from benchctl.reports.write import all_tables
from tests.kept_runs import RUNS

TOP = Path(__file__).parents[1]


@pytest.mark.parametrize("kept", RUNS, ids=lambda run: run.name)
def test_every_kept_run_is_tables(kept: Path) -> None:
    run = api.open_run(kept)
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


def test_importing_is_cheap() -> None:
    code = "import benchctl, sys; print([m for m in ('numpy', 'pandas', 'pydantic', 'httpx') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_without_pandas_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UsageError) as refused:
        api.open_run(RUNS[0]).records()
    assert "benchctl[pandas]" in (refused.value.fix or "")


@pytest.mark.parametrize("name", ["nowhere", "results"])
def test_no_run_is_an_error_of_its_own(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        api.open_run(tmp_path / name)


@pytest.mark.engine
def test_a_recipe_is_measured(llama_server: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    recipe = {
        "name": "from-python",
        "engine": {"kind": "llama.cpp", "device": "cpu", "context": 512},
        "models": {"target": {"source": "bundled:tiny-hybrid"}},
        "prompts": {"suite": "tiny.json", "tasks": ["code"], "limit": 1},
        "sampling": {"max_tokens": 8},
        "blocks": 1,
        "arms": [{"name": "baseline"}, {"name": "ngram", "speculation": {"type": "ngram-simple"}}],
    }
    run = benchctl.measure(recipe, out=tmp_path, engine_binary=str(llama_server))
    assert isinstance(run, api.Run) and run.path.parent.parent == tmp_path
    assert set(run.records().arm) == {"baseline", "ngram"} and not run.analysis.failed_cells
    assert capfd.readouterr() == ("", "")
    with pytest.raises(UsageError, match="arms"):
        benchctl.measure({**recipe, "arms": 3}, out=tmp_path)
