"""`benchctl predict`: numbers by hand in, a table and a recommendation out; nothing is measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.benchctl_process import benchctl

KEPT = Path(__file__).parents[2] / "data" / "kept" / "run"
UNTIMED = next(Path(__file__).parents[3].glob("results/qwen2.5-coder/*/manifest.json")).parent


def predicted(*words: object) -> Any:
    done = benchctl("predict", *words, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_numbers_by_hand() -> None:
    result = predicted("--alpha", 0.8, "--depth", "1:16", "--cost", 0.1)
    assert [row["depth"] for row in result["depths"]] == list(range(1, 17))
    assert result["depths"][4]["speedup"] == pytest.approx(2.46, abs=0.005)
    assert result["memory"] is None


def test_the_terminal_shows_the_best_depth() -> None:
    done = benchctl("predict", "--alpha", 0.8, "--depth", "2,5,9", "-c", 0.1, "--verify-cost", 0)
    assert done.returncode == 0
    assert done.stdout.startswith("Best predicted: depth 5, 2.46× the speed of no speculation.")


def test_what_cannot_pay_is_said_first() -> None:
    done = benchctl("predict", "-a", 0.2, "--depth", "4", "-c", 0.5, "--verify-cost", 0)
    assert done.stdout.startswith("Not predicted to pay at any of these depths: 0.42× at most (depth 4).")


def test_verification_that_is_not_priced_is_a_range() -> None:
    """On two CPU cores a draft of α 0.75 at c 0.65 was measured at 0.54×, where free verification says 1.0."""
    result = predicted("-a", 0.75, "--depth", 2, "-c", 0.65)
    bounds = {on: bound["depths"][0]["speedup"] for on, bound in result["verify_bounds"].items()}
    assert bounds["free"] == result["depths"][0]["speedup"] > bounds["GPU"] > bounds["CPU"]
    assert bounds["CPU"] == pytest.approx(2.3125 / (1 + 2 * 1.65))
    printed = benchctl("predict", "-a", 0.75, "--depth", 2, "-c", 0.65).stdout
    assert "0.54× (depth 2) to 1.01× (depth 2) on a CPU" in " ".join(printed.split())
    assert "--verify-cost" in printed and "--costs-of" in printed
    priced = predicted("-a", 0.75, "--depth", 2, "-c", 0.65, "--verify-cost", 1)
    assert priced["verify_bounds"] is None
    assert priced["depths"][0]["speedup"] == pytest.approx(bounds["CPU"])


def test_costs_are_those_that_a_run_was_timed_with() -> None:
    """The kept run's passes over 3 and 5 tokens took 0.88 and 1.11 steps where one token took 0.72."""
    result = predicted("-a", 0.8, "--costs-of", KEPT)
    assert result["verify_bounds"] is None
    assert result["costs"]["draft_step"] == pytest.approx(0.245, abs=0.001)
    assert result["costs"]["verify_token"] == pytest.approx((3 * 0.16 + 12 * 0.39) / (3 * 2 + 12 * 4), abs=0.005)


def test_the_cost_comes_from_what_both_models_read(tiny_target: Path, tiny_draft: Path) -> None:
    result = predicted(
        "-a", 0.9, "-t", tiny_target, "-d", tiny_draft, "--context", 512, "--memory", 1, "--bandwidth", 10
    )
    target, draft = result["memory"]["models"]
    assert result["costs"]["draft_step_from_bytes_read"]
    share = draft["read_per_step_bytes"] / target["read_per_step_bytes"]
    assert result["costs"]["draft_step"] == pytest.approx(share)
    assert target["step_s"] == pytest.approx(target["read_per_step_bytes"] / 10e9)
    assert target["state_bytes"] > 0 and target["cache_bytes"] > 0, "a hybrid has both"
    assert result["memory"]["fits"]


def test_a_verify_of_a_mixture_costs_what_its_further_experts_take(tmp_path: Path) -> None:
    sizes = {"hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32, "vocab_size": 151936}
    experts = {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "intermediate_size": 6144}
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model_type": "qwen3_moe", **sizes, **experts}))
    words = ("-a", 0.8, "--depth", "1,8", "-t", file, "-c", 0.1, "--context", 1)
    result = predicted(*words)
    read = result["experts"]["verify_bytes"]
    dearer = (read["8"] - result["experts"]["step_bytes"]) / result["memory"]["models"][0]["read_per_step_bytes"]
    assert result["depths"][1]["round_cost"] == pytest.approx(1 + 8 * 0.1 + dearer)
    assert dearer > 2, "nine tokens use more than three times as many experts as one"
    assert "mixture of experts" in benchctl("predict", *words).stdout


def test_sizes_by_hand_and_a_pair_that_does_not_fit() -> None:
    result = predicted("-a", 0.8, "-t", "70B@4.5", "-d", "1B@8", "--memory", 24)
    assert result["memory"]["models"][0]["weights_bytes"] == round(70e9 * 4.5 / 8)
    assert not result["memory"]["fits"]
    assert result["costs"]["draft_step"] == pytest.approx(8 / (70 * 4.5))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--alpha", 1.2, "--cost", 0.1), "expected 0 to 1, got 1.2"),
        (("--alpha", "nan", "--cost", 0.1), "α is a share"),
        (("--alpha", 0.8, "--cost", -0.1), "expected 0 or more, got -0.1"),
        (("--alpha", 0.8, "--cost", 0.1, "--overhead", "inf"), "overhead is a cost"),
        (("--alpha", 0.8), "The cost of a draft step is not known"),
        (("--alpha", 0.8, "--cost", 0.1, "--depth", "0"), "Expected draft depths from 1 to 256"),
        (("--alpha", 0.8, "--cost", 0.1, "--depth", "8:2"), "The range 8:2 is empty"),
        (("--alpha", 0.8, "--cost", 0.1, "--depth", "٣"), "Expected draft depths"),
        (("--alpha", 0.8, "-t", "missing.gguf", "-d", "1B"), "missing.gguf"),
        (("--alpha", 0.8, "-t", "0B", "-d", "1B"), "The target has no weights"),
        (("--alpha", 0.8, "--costs-of", UNTIMED), "No verify pass"),
    ],
)
def test_bad_input_is_one_message(words: tuple[object, ...], message: str, tmp_path: Path) -> None:
    done = benchctl("predict", *words, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr and "Traceback" not in done.stderr


def test_the_timed_width_curve_decides_the_depth(tmp_path: Path) -> None:
    """On an H100 17 tokens are verified in 0.78 steps and 16 in 2.14: a line through all would choose depth 8."""
    steps = json.loads((Path(__file__).parents[2] / "analysis/h100-widths.json").read_text())
    of_width = {"arm": "free_drafts", "what": "verify", "seconds": 0.007, "count": 5, "source": "traced"}
    widths = [{**of_width, "width": width, "steps": cost} for width, cost in enumerate(steps, 1)]
    file = tmp_path / "widths.json"
    file.write_text(json.dumps({"widths": widths}))
    result = predicted("-a", 0.95, "-c", 0.15, "--depth", "4,8,15,16,24", "--costs-of", file)
    assert max(result["depths"], key=lambda row: row["speedup"])["depth"] == 16
    assert result["depths"][3]["round_cost"] == pytest.approx(0.7799 + 16 * 0.15)
    file.write_text("[]")
    refused = benchctl("predict", "-a", 0.9, "--costs-of", file)
    assert refused.returncode == 2
    assert "These are no verify widths" in refused.stderr
