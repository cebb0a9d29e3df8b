"""A run for a model's page: metadata that a hub reads, the table of all arms, and nothing that acts."""

from __future__ import annotations

from typing import Any

import yaml
from huggingface_hub.repocard_data import model_index_to_eval_results
from markdown_it import MarkdownIt

from benchctl.analysis.results import Analysis
from benchctl.data.store import RunData
from benchctl.reports.paste import card
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
    assert all(f"| `{arm}` |" in page for arm in speedups) and analysis.run in page


def test_names_form_no_markup_and_no_keys(run_data: RunData) -> None:
    hostile = "x\n---\nlicense: mit\x1b[2J <img src=x>"
    data, page = parts(card(run_data, build_analysis(["baseline", hostile])))
    assert list(data) == ["model-index"]
    assert "<img" not in MarkdownIt("commonmark", {"html": True}).enable("table").render(page)
    assert "\x1b" not in page
