"""A run for a model's page: metadata that a hub reads, the table of all arms, and nothing that acts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub.repocard_data import model_index_to_eval_results
from markdown_it import MarkdownIt

from benchctl.analysis.results import Analysis
from benchctl.data.store import RunData, open_run
from benchctl.errors import UsageError
from benchctl.lossless.judge.run import analyse_run
from benchctl.reports.paste import card
from tests.analysis.conditions.simulated import Sweep, write_sweep
from tests.reports.handmade import build_analysis, decided


def parts(text: str) -> tuple[dict[str, Any], str]:
    _, front, page = text.split("---\n", 2)
    return yaml.safe_load(front), page


def test_the_hub_reads_every_arms_results(run_data: RunData, analysis: Analysis) -> None:
    judged = decided(analysis)
    data, page = parts(card(run_data, judged))
    _, results = model_index_to_eval_results(data["model-index"])
    of_arms = [(result.metric_args or {}, result) for result in results]
    speedups = {args["arm"]: (args, result) for args, result in of_arms if result.metric_type == "speedup"}
    verdicts = {verdict.arm: verdict for verdict in judged.verdicts if verdict.arm in speedups}
    assert len(verdicts) == len(speedups) > 3
    for arm, (args, result) in speedups.items():
        assert result.metric_value == round(verdicts[arm].speedup or 0.0, 3)
        assert args["output"] == verdicts[arm].lossless
        assert args["engine"].startswith("llama.cpp") and "cores" in args["hardware"]
    assert all(f"| `{arm}` |" in page for arm in speedups) and analysis.run in page
    accepted = page.partition("### Acceptance")[2]
    assert run_data.manifest is not None
    arms = {arm.name: arm for arm in run_data.manifest.arms}
    arms["spec_d2"] = arms["spec_d2"].model_copy(
        update={"speculation": {"type": "draft-simple", "max": 2, "p_min": 0.5}}
    )
    shallow = card(replace(run_data, manifest=run_data.manifest.model_copy(update={"arms": [*arms.values()]})), judged)
    row = next(line for line in shallow.partition("### Acceptance")[2].splitlines() if line.startswith("| `spec_d2`"))
    assert "| draft-simple, p_min 0.5 | 2 |" in row and "% |  |  |" in row, "there is no position 3"
    assert "Position 1 | Position 2" in accepted and all(f" {task} |" in accepted for task in analysis.tasks)


def test_names_form_no_markup_and_no_keys(run_data: RunData) -> None:
    hostile = "x\n---\nlicense: mit\x1b[2J <img src=x>"
    data, page = parts(card(run_data, build_analysis(["baseline", hostile])))
    assert list(data) == ["model-index"]
    assert "<img" not in MarkdownIt("commonmark", {"html": True}).enable("table").render(page)
    assert "\x1b" not in page


def test_acceptance_stands_by_task_position_depth_and_load(tmp_path: Path) -> None:
    """One row an arm and condition, over several runs; a run of another target is refused."""
    write_sweep(tmp_path / "run", Sweep(concurrency=(1, 4), prompts=12))
    run = open_run(tmp_path / "run")
    analysed = analyse_run(run)
    page = parts(card(run, analysed, [(run, analysed)]))[1]
    table = page.partition("### Acceptance\n\n")[2].partition("\n\n")[0].splitlines()
    header = [cell.strip() for cell in table[0].strip("|").split("|")]
    assert header == ["Arm", "Draft", "Type", "Depth", "T", "In flight", "Accepted", "Length"]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table[2:]]
    arms = [(f"`spec_d4-c{load}`", "draft-simple", "4", "0", load) for load in "1414"]
    assert [(row[0], *row[2:6]) for row in rows] == arms
    assert all(row[6].endswith("%") for row in rows)
    assert run.manifest is not None
    longer = {**run.manifest.recipe, "sampling": {"temperature": 0, "max_tokens": 1024}}
    of_code = run.manifest.model_copy(update={"recipe": longer, "suite": {"name": "code.json"}})
    further = card(run, analysed, [(replace(run, manifest=of_code), analysed)]).splitlines()
    assert any("| In flight | Prompts | Answers up to | Accepted |" in line for line in further)
    assert any("| 4 | `code.json` | 1024 |" in line for line in further), "other work than the rows above"
    target = run.manifest.target.model_copy(update={"source": "other.gguf"})
    other = replace(run, manifest=run.manifest.model_copy(update={"target": target}))
    with pytest.raises(UsageError, match=r"several targets: .* \(SHA-256 "):
        card(run, analysed, [(other, analysed)])
