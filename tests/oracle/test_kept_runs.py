"""Every kept run, rendered by the code of today: each number, text and claim is its own arm's own value."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchctl.cli.app import app
from tests.cli.calls import answer
from tests.oracle.pages import terminal_tables
from tests.oracle.render import WIDE, kept, rendered

QUICK = [
    "qwen2.5-coder-axes/",
    "quantization-sweep/",
    "self-speculation-control/20261122-1626",
    "qwen2.5-coder-breakeven/",
    "qwen2.5-coder-vllm/",
    "vllm-hybrid/",
    "qwen2.5-coder-bf16/",
    "padded-cuda/",
]
SLOW = [
    "qwen2.5-coder/",
    "self-speculation-control/20261122-1654",
    "self-speculation-parallel/",
    "self-speculation-sequential/",
    "qwen2.5-coder-vllm-float32/",
    "vllm-control/",
    "vllm-gpu-hybrid/",
    "assisted-universal/",
]
EVERY_ARM = ("pooled", "median", "end_to_end", "length_matched", "by_block", "pairs", "pairs_missing",
             "tokens_per_step", "median_rate", "decode_rate", "ttft_median_s", "comparison")  # fmt: skip


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_what_is_shown_of_an_arm_is_its_own(name: str, tmp_path: Path) -> None:
    report = rendered(kept(name), tmp_path)
    assert not report.complaints(), "\n".join(report.complaints())
    for quantity in EVERY_ARM:  # so that a renamed header or key cannot empty the check
        assert report.looked_at[quantity] >= set(report.reading.speculating), quantity
    if report.analysis["blocks"] >= 3:
        for quantity in ("pointwise", "interval", "like_these"):
            assert report.looked_at[quantity] >= set(report.reading.speculating), quantity
    assert report.looked_at["sentence"]
    assert report.looked_at["identical"] | report.looked_at["answer"]
    if report.looked_at["answer"] and report.reading.scores(next(iter(report.reading.parts))):
        assert report.looked_at["margin"] and report.looked_at["probability"]


def test_one_number_in_one_place(tmp_path: Path) -> None:
    """Arms that were measured in three, four and five blocks, and a sum that contradicts the median prompt."""
    report = rendered(kept("qwen2.5-coder-bf16/"), tmp_path)
    checks = (report.check_intervals, report.check_warnings, report.check_rates, report.check_directions)
    complaints = [complaint for check in (*checks, report.check_weights) for complaint in check()]
    assert not complaints, "\n".join(complaints)
    for quantity in ("interval", "quotient"):
        assert report.looked_at[quantity] >= set(report.reading.speculating), quantity
    assert report.looked_at["warnings"] == {"terminal", "index.html"}
    assert report.looked_at["direction"] == {"spec_d4-t_bf16", "spec_d8-t_bf16"}


def test_the_commands_answer_is_the_stored_one(tmp_path: Path) -> None:
    run = kept("qwen2.5-coder-axes/")
    printed = json.loads(answer(app, "report", str(run), "--no-figures", "--output", str(tmp_path), "--json"))
    assert printed["analysis"] == json.loads(Path(printed["files"]["analysis"]).read_text())


def test_the_second_reading_is_independent() -> None:
    """It imports nothing of benchctl, nor do its checks: a fault that both shared would agree with itself."""
    for name in ("reading", "pages", "checks"):
        tree = ast.parse((Path(__file__).parent / f"{name}.py").read_text())
        imported = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        imported += [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
        assert not [module for module in imported if module.startswith("benchctl")]


def test_explain_gives_a_rate_its_own_name(tmp_path: Path) -> None:
    """α, the chance of one draft token, is not the share of draft tokens that were accepted."""
    run = kept("quantization-sweep/")
    report = rendered(run, tmp_path)
    report.terminal = CliRunner().invoke(app, ["explain", str(run), "--offline"], env=WIDE).stdout
    report.shown = terminal_tables(report.terminal)
    assert not [*report.check_tables(), *report.check_sentences()]
    assert "spec_d4-t_q8_0-d_q4_0" in report.terminal
    assert report.looked_at["seconds"] >= set(report.reading.speculating)
