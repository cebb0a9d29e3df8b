"""Endpoints that show nothing: the run goes on, and the report says what could not be verified."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from benchctl.data.store import open_run
from benchctl.lossless.judge.run import analyse_run
from tests.engines.openai.fake_endpoint import Script
from tests.engines.openai.test_real_endpoint import benchctl, written

pytestmark = pytest.mark.slow
Endpoint = Callable[..., Script]
UNSEEN = "the endpoint does not show whether it speculated"


def measured(tmp_path: Path, plain: Script, drafting: Script) -> Path:
    """Run the two endpoints; return the run's folder."""
    recipe = written(tmp_path, (f"{plain.url}/v1", f"{drafting.url}/v1"))
    run = benchctl(tmp_path, "run", str(recipe), "--output", str(tmp_path / "results"))
    assert run.returncode == 0, run.stdout + run.stderr
    (folder,) = (tmp_path / "results" / "endpoint").iterdir()
    return folder


def test_the_verdict_is_not_verified(endpoint: Endpoint, tmp_path: Path) -> None:
    plain, drafting = endpoint(ids=True), endpoint(ids=True)
    folder = measured(tmp_path, plain, drafting)
    manifest = (folder / "manifest.json").read_text("utf-8")
    assert manifest.count('"state": "unverified"') == 2
    report = benchctl(tmp_path, "report", str(folder))
    assert report.returncode == 0, report.stdout + report.stderr
    pages = [path for path in tmp_path.rglob("*") if path.suffix in (".md", ".html") and path.parent != tmp_path]
    assert len(pages) >= 2
    for page in pages:
        text = " ".join(page.read_text("utf-8").split())
        assert "whether it speculated" in text
        if page.suffix == ".html":  # the Markdown has each arm's reason alone
            assert "whether it speculated" in text
            assert f"Not verified: {UNSEEN} (spec_d4 and baseline)" in text


def test_a_baseline_that_drafts_fails(endpoint: Endpoint, tmp_path: Path) -> None:
    pages = {"/props": {"build_info": "b1"}}
    plain, drafting = endpoint(pages=pages), endpoint(pages=pages)
    plain.extra = drafting.extra = {
        "timings": {"prompt_ms": 1.0, "predicted_ms": 2.0, "draft_n": 2, "draft_n_accepted": 1}
    }
    recipe = written(tmp_path, (f"{plain.url}/v1", f"{drafting.url}/v1"))
    run = benchctl(tmp_path, "run", str(recipe), "--output", str(tmp_path / "results"))
    assert run.returncode == 3, run.stdout + run.stderr
    assert "the endpoint drafted" in run.stdout + run.stderr


@pytest.mark.parametrize(
    ("extra", "shape"),
    [
        ({"timings": {"draft_n": 2, "draft_n_accepted": 1}}, "`timings` (llama.cpp's shape)"),
        (
            {
                "metrics": {
                    "speculative_decoding": {
                        "num_spec_steps": 1,
                        "num_draft_tokens": 2,
                        "num_accepted_draft_tokens": 1,
                    }
                }
            },
            "`metrics.speculative_decoding` (vLLM's shape)",
        ),
    ],
)
def test_a_run_against_a_gateway_has_its_drafts(
    endpoint: Endpoint, tmp_path: Path, extra: dict[str, object], shape: str
) -> None:
    plain, drafting = endpoint(ids=True), endpoint(ids=True)
    drafting.extra = extra
    folder = measured(tmp_path, plain, drafting)
    manifest = (folder / "manifest.json").read_text("utf-8")
    assert manifest.count('"state": "active"') == 1
    assert f"drafts read from {shape}" in manifest
    accepted = {row.arm: row.rate for row in analyse_run(open_run(folder)).acceptance if row.task == "all"}
    assert accepted["spec_d4"] == 0.5
