"""`benchctl breakeven` as a user runs it, on the real engine's synthetic acceptance, and what may be wrong."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchctl.analysis.round_results import UnitCost
from benchctl.experiments.explain.references import read_references
from benchctl.measurement.widths import Widths
from tests.benchctl_process import benchctl

pytestmark = pytest.mark.slow

RECIPE = """
name: tiny
engine: {device: cpu, context: 1024, threads: 1}
models: {target: {source: "bundled:tiny-hybrid"}, draft: {source: "bundled:tiny-hybrid-draft"}}
prompts: {suite: tiny.json, tasks: [code], limit: 1}
sampling: {max_tokens: 24}
blocks: 1
preflight: "off"
arms:
  - name: baseline
  - {name: spec_d3, speculation: {type: draft-simple, max: 3}}
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    (tmp_path / "tiny.yaml").write_text(RECIPE)
    return tmp_path


@pytest.mark.engine
def test_the_curve_is_measured_and_shown_again(recipe: Path) -> None:
    (recipe / "ref.yaml").write_text("Somebody: {eagle3: {3: 2.5}}\n")
    done = benchctl(
        "breakeven", "tiny.yaml", "--acceptance", "0,1", "--reference", "ref.yaml",
        "--write-reference", "own.yaml",
        cwd=recipe,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "not a model's output" in done.stdout
    assert "Somebody, eagle3, depth 3" in done.stdout
    folder = next((recipe / "results" / "tiny-breakeven").glob("2*"))
    records = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    assert {record["label"] for record in records if record["synthetic"]} == {"synth_d3_a0", "synth_d3_a100"}
    measured = [record for record in records if record["phase"] == "measure"]
    none_accepted, all_accepted = (
        next(record for record in measured if record["label"] == label) for label in ("synth_d3_a0", "synth_d3_a100")
    )
    assert none_accepted["draft_n_accepted"] == 0
    assert all_accepted["draft_n_accepted"] == all_accepted["draft_n"] > 0
    manifest = json.loads((folder / "manifest.json").read_text())
    lots = next(arm for arm in manifest["arms"] if arm["name"] == "synth_d3_a100")
    assert lots["argv"][lots["argv"].index("--spec-synth-rates") + 1] == "1,1,1"
    report = next((recipe / "reports" / "tiny-breakeven").glob("2*"))
    assert (report / "figures" / "breakeven.png").is_file()
    assert "not a model's output" in (report / "report.md").read_text()
    assert len(read_references(recipe / "own.yaml")) == 1, "the real draft alone"

    shown_again = json.loads(benchctl("breakeven", "tiny-breakeven", "--json", cwd=recipe).stdout)
    kinds = [point["kind"] for point in shown_again["points"]]
    assert kinds == ["synthetic", "synthetic", "draft"]
    judged = benchctl("verify-lossless", "tiny-breakeven", "--offline", "--json", cwd=recipe)
    assert judged.returncode == 1
    verdicts = {arm["arm"]: arm["verdict"] for arm in json.loads(judged.stdout)["arms"]}
    assert {verdicts[arm] for arm in verdicts if arm.startswith("synth")} == {"violation"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--acceptance", "0,1.5"], "An acceptance is a share from 0 to 1."),
        (["--acceptance", "-0.1,1"], "An acceptance is a share from 0 to 1."),
        (["--acceptance", "many"], "Expected numbers with commas"),
        (["--depth", "0"], "from 1 to 64"),
        (["--depth", "4.5"], "Expected draft depths"),
        (["--set", "engine.kind=transformers"], "has no synthetic acceptance"),
        (["--set", "arms=[{name: baseline}, {name: n, speculation: {type: ngram-simple}}]"], "No arm of this recipe"),
    ],
)
def test_what_cannot_be_measured_is_one_message(recipe: Path, options: list[str], message: str) -> None:
    done = benchctl("breakeven", "tiny.yaml", *options, cwd=recipe)
    assert done.returncode == 2, done.stdout
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not (recipe / "results").exists()


def _legacy(folder: Path) -> str:
    """A llama-server of a build that knows neither synthetic acceptance nor n-grams."""
    old = Path(__file__).parents[2] / "engines" / "data" / "help_legacy.txt"
    server = folder / "llama-server"
    server.write_text(
        f"#!{sys.executable}\nimport sys, pathlib\n"
        f"if sys.argv[1] == '--help': print(pathlib.Path({str(old)!r}).read_text())\n"
        "elif sys.argv[1] == '--version': print('version: 4820 (1a24c462)', file=sys.stderr)\n"
    )
    server.chmod(0o755)
    return str(server)


def test_a_binary_without_synthetic_acceptance_is_one_message(recipe: Path) -> None:
    done = benchctl("breakeven", "tiny.yaml", "--engine-binary", _legacy(recipe), cwd=recipe)
    assert done.returncode == 2, done.stdout
    assert "no synthetic acceptance" in done.stderr
    assert done.stderr.count("synthetic acceptance") == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("A: {mtp: {4: 6}}", "lies between 1 and 5; this is 6"),
        (b"\xff\xfe\x00", "not UTF-8"),
    ],
)
def test_a_reference_that_cannot_be_read_is_one_message(recipe: Path, text: str | bytes, message: str) -> None:
    (recipe / "ref.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    done = benchctl("breakeven", "tiny.yaml", "--reference", "ref.yaml", cwd=recipe)
    assert done.returncode == 2, done.stdout
    assert message in done.stderr


def test_a_run_without_synthetic_arms_is_told_apart(recipe: Path) -> None:
    from tests.reports.made_run import write_run

    write_run(recipe / "results" / "tiny" / "20261121-110500-3fa9")
    done = benchctl("breakeven", "results/tiny/20261121-110500-3fa9", cwd=recipe)
    assert done.returncode == 2
    assert "no synthetic arms" in done.stderr


def test_acceptance_lengths_of_a_run_without_synthetic_arms_are_written_beside_published_ones(recipe: Path) -> None:
    from tests.reports.made_run import write_run

    write_run(recipe / "results" / "tiny" / "20261121-110500-3fa9")
    (recipe / "ref.yaml").write_text("Somebody: {eagle3: {4: 2.5}}\n")
    words = ("breakeven", "tiny", "--reference", "ref.yaml", "--write-reference", "mine.yaml")
    done = benchctl(*words, cwd=recipe)
    assert done.returncode == 0, done.stderr
    assert "Somebody" in done.stdout
    shown = json.loads(benchctl(*words, "--json", cwd=recipe).stdout)
    measured = [(row["depth"], row["acceptance_length"]) for row in shown["measured"]]
    assert measured and [row["model"] for row in shown["reference"]] == ["Somebody"]
    rows = [(row.depth, row.acceptance_length) for row in read_references(recipe / "mine.yaml")]
    assert rows == [(depth, round(length, 2)) for depth, length in measured]


@pytest.mark.engine
def test_of_a_target_alone_every_width_is_timed(tmp_path: Path) -> None:
    done = benchctl(
        "breakeven", "bundled:tiny-hybrid", "--depth", "1,3,8", "--set", "engine.device=cpu", "--json",
        cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert [(row["width"], row["count"]) for row in result["widths"]] == [(1, 5), (2, 5), (4, 5), (9, 5)]
    assert result["widths"][0]["steps"] == 1
    assert "ngram-mod" in result["command"]
    assert not (tmp_path / "results").exists()


def test_a_busy_machine_names_no_cliff() -> None:
    jump = [1.0, 1.1, 1.2, 1.3, 2.6, 2.7]
    curve = [
        UnitCost(arm="a", what="verify", width=width, seconds=steps, steps=steps, count=5, source="traced")
        for width, steps in enumerate(jump, 1)
    ]
    assert Widths("", (), curve, 0.02).statements[0].startswith("Verify width 5")
    assert not any("Verify width" in statement for statement in Widths("", (), curve, 0.5).statements)


def test_widths_need_a_look_up_that_the_binary_has(recipe: Path) -> None:
    old = _legacy(recipe)
    done = benchctl("breakeven", "bundled:tiny-hybrid", "--engine-binary", old, cwd=recipe)
    assert done.returncode == 2, done.stdout
    assert "ngram-mod" in done.stderr
    assert "Traceback" not in done.stderr
