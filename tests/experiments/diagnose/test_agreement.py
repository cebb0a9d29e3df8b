"""A diagnosis beside the run of its recipe: the kept ones, other models, and what cannot be read."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from benchctl.cli.app import app
from benchctl.data.store import open_run
from benchctl.experiments.diagnose.judge import Agreement, Predicted
from benchctl.experiments.diagnose.tables import agreement_table
from benchctl.lossless.judge.run import analyse_run
from tests.cli.calls import answer
from tests.kept_runs import ROOT

RECIPE, RUN = "self-speculation-parallel", "20261122-161725-0f47"
pytestmark = pytest.mark.integration


@pytest.fixture
def diagnosis(tmp_path: Path) -> Path:
    """A copy of the kept diagnosis, the kept run beside it."""
    shutil.copytree(ROOT / "results" / RECIPE, tmp_path / RECIPE)
    (folder,) = (tmp_path / RECIPE / "diagnosis").iterdir()
    return folder


def judged(diagnosis: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(answer(app, "diagnose", str(diagnosis), "--offline", "--json"))
    return document


def test_what_is_predicted_stands_beside_what_the_run_measured(diagnosis: Path) -> None:
    result = judged(diagnosis)
    payoff = {
        (draft["draft"], prediction["depth"]): prediction
        for draft in result["drafts"]
        for prediction in draft["payoff"]
        if prediction["temperature"] == 0
    }
    measured = {row.arm: row for row in analyse_run(open_run(ROOT / "results" / RECIPE / RUN)).acceptance
                if row.task == "all"}  # fmt: skip
    agreement = result["agreement"]
    assert agreement["run"] == RUN
    assert [row["arm"] for row in agreement["arms"]] == ["ssm_d2", "ssm_d4", "layerskip", "early-exit"]
    for row in agreement["arms"]:
        predicted = payoff[row["draft"], row["depth"]]
        assert (row["tokens"], row["speedup"]) == (predicted["measured_tokens"], predicted["speedup_measured"])
        assert row["tokens_measured"] == measured[row["arm"]].acceptance_length
        assert row["speedup_measured"] > 0
    assert agreement["tokens_r"] is None, "four points"
    shown = answer(app, "diagnose", str(diagnosis), "--offline")
    assert RUN in shown
    assert "off by" in shown


def test_another_model_and_an_unreadable_run_are_not_compared(diagnosis: Path) -> None:
    manifest = diagnosis.parents[1] / RUN / "manifest.json"
    document = json.loads(manifest.read_text())
    document["target"]["files"][0]["sha256"] = "0" * 64
    manifest.write_text(json.dumps(document))
    broken = diagnosis.parents[1] / "20261123-000000-0000"
    broken.mkdir()
    (broken / "manifest.json").write_text("{")
    assert judged(diagnosis)["agreement"] is None


def test_a_correlation_is_told_where_there_is_one() -> None:
    arm = Predicted(draft="d", arm="a", depth=2, temperature=0, tokens=2.2, tokens_measured=2.0, speedup=None,
                    speedup_measured=0.5)  # fmt: skip
    table = agreement_table(Agreement(run="r", arms=[arm] * 5, tokens_r=0.871, speedup_r=None))
    assert "0.87" in table.explanation
    assert [column.text(arm) for column in table.columns[2:]] == ["2.20", "2.00", "+10.0 %", "–", "0.50×", "–"]
    assert not agreement_table(Agreement(run="r", arms=[arm], tokens_r=None, speedup_r=None)).note
