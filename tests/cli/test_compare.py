"""`benchctl compare` as a user runs it: exit codes, gates, the table, the JSON document, hostile names."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from benchctl.cli.app import main
from benchctl.data.cell import UNCHECKED_ACCEPTANCE
from benchctl.data.manifest import MANIFEST_FORMAT
from benchctl.data.record import sha256_text, sha256_tokens
from benchctl.data.store import open_run, resolve_run
from tests.benchctl_process import benchctl
from tests.resealed import reseal

Line = dict[str, Any]
RATES = {"baseline": 10.0, "spec": 12.0}


def answer(label: str, idx: int, block: int, rate: float, text: str = "fine") -> Line:
    ids = [1, 2, 3, 4, 5]
    return {
        "label": label,
        "task": "code",
        "prompt_idx": idx,
        "rep": block,
        "tok_per_sec": rate,
        "n_predicted": len(ids),
        "content": text,
        "content_sha": sha256_text(text),
        "schema": 1,
        "block": block,
        "prompt_sha": sha256_text(str(idx)),
        "token_ids": ids,
        "token_sha": sha256_tokens(ids),
        "finish_reason": "stop",
    }


Change = Callable[[Line], object]


def write_run(folder: Path, change: Change | None = None, **manifest: Any) -> Path:
    """A run of two arms, two prompts and three blocks that differ by a percent."""
    lines = [
        answer(label, idx, block, rate * (1 + (block if label == "spec" else block**2) / 100))
        for block in range(3)
        for label, rate in RATES.items()
        for idx in range(2)
    ]
    for line in lines:
        if change is not None:
            change(line)
    folder.mkdir(parents=True)
    (folder / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="ascii")
    model = {"source": "t", "path": "t.gguf", "files": [{"name": "t.gguf", "size": 1, "sha256": "a" * 64}]}
    engine = {"kind": "llama.cpp", "binary": "llama-server", "found_in": "PATH", "version": None, "build": None}
    arm: Line = {"speculation": None, "argv": [], "env": []}
    document = {
        "schema": MANIFEST_FORMAT.version,
        "run": folder.name,
        "benchctl_version": "0",
        "status": "finished",
        "created_at": "2026-11-21T11:05:00+00:00",
        "recipe_name": "by-hand",
        "recipe": {},
        "recipe_sha256": "0",
        "workload_sha256": "0",
        "baseline": "baseline",
        "blocks": 3,
        "engine": engine | {"commit": "abc", "speculation_types": []},
        "target": model,
        "draft": None,
        "arms": [arm | {"name": name, "baseline": name == "baseline"} for name in RATES],
        "prompts": [{"task": "code", "prompt_idx": idx, "sha256": str(idx) * 64} for idx in range(2)],
    }
    (folder / "manifest.json").write_text(json.dumps(document | manifest))
    return reseal(folder)


def slower(line: Line) -> None:
    line["tok_per_sec"] *= 0.9 if line["label"] == "spec" else 1.0


@dataclass(frozen=True)
class Shown:
    returncode: int
    stdout: str
    stderr: str


REPOSITORY = Path(__file__).parents[2]
Compare = Callable[..., Shown]


@pytest.fixture
def compare(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Compare:
    """Run the command in this process, as a pipe would see it: a process for each would take most of the time."""
    return _in_process("compare", capsys, monkeypatch, tmp_path)


@pytest.fixture
def baseline(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Compare:
    """Run `benchctl baseline` likewise."""
    return _in_process("baseline", capsys, monkeypatch, tmp_path)


@pytest.fixture
def bisect(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Compare:
    """Run `benchctl bisect` likewise."""
    return _in_process("bisect", capsys, monkeypatch, tmp_path)


def _in_process(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Compare:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FORCE_COLOR", raising=False)

    def run(*arguments: str | Path) -> Shown:
        monkeypatch.setattr(sys, "argv", ["benchctl", command, *map(str, arguments)])
        with pytest.raises(SystemExit) as exited:
            main()
        out, err = capsys.readouterr()
        return Shown(int(exited.value.code or 0), out, err)

    return run


@pytest.fixture
def before(tmp_path: Path) -> Path:
    return write_run(tmp_path / "results" / "by-hand" / "before")


def test_a_slower_arm_is_shown_and_fails_its_gate_only(before: Path, tmp_path: Path, compare: Compare) -> None:
    after = write_run(before.with_name("after"), slower)
    shown = compare("before", "after")  # both found by their ids below results/
    assert (shown.returncode, shown.stderr) == (0, "")
    row = next(line for line in shown.stdout.splitlines() if line.startswith("spec "))
    assert re.search(r"1\.19× → 1\.07×\s+0\.90×\s+0\.8\d to 0\.9\d×\s+slower\s+12\.1 → 10\.9", row)
    assert "no clear difference" in next(line for line in shown.stdout.splitlines() if line.startswith("baseline "))
    gated = compare(before, after, "--fail-if", "slower:3%", "--fail-if", "lossy")
    assert gated.returncode == 1
    assert "✗ slower:3%: failed." in gated.stdout and "✓ lossy: passed." in gated.stdout
    assert gated.stderr.startswith(
        "error: before and after: 1 of 2 gates failed.\n  slower:3%: spec: 0.900× A's speed-up"
    )
    assert compare(before, after, "--fail-if", "slower:15%").returncode == 0
    assert compare(after, before, "--fail-if", "slower:3%").returncode == 0
    assert compare(before, after, "--fail-if", "slower-absolute:15%", "--arm", "baseline").returncode == 0


def test_quiet_says_only_what_failed(before: Path, tmp_path: Path, compare: Compare) -> None:
    after = write_run(tmp_path / "after", slower)
    assert compare(before, after, "-q").stdout == ""
    failed = compare(before, after, "-q", "--fail-if", "slower:3%")
    assert (failed.returncode, failed.stdout) == (1, "")
    assert "by more than 3 %" in failed.stderr


def test_another_answer_is_lossy_and_named(before: Path, tmp_path: Path, compare: Compare) -> None:
    def other(line: Line) -> None:
        if (line["label"], line["prompt_idx"]) == ("spec", 1):
            line.update(content="wrong", content_sha=sha256_text("wrong"))

    after = write_run(tmp_path / "after", other)
    shown = compare(before, after, "--fail-if", "lossy")
    assert shown.returncode == 1
    assert "identical → violation" in shown.stdout  # equal tokens, another text
    assert "Output of B. Scope: greedy, one request at a time, at most " in shown.stdout
    assert "differ from A: code/1" in shown.stdout
    assert "lossy: spec: violation." in shown.stderr


KEPT = next((Path(__file__).parents[2] / "results" / "qwen2.5-coder").glob("*/manifest.json")).parent


def test_arms_of_a_real_run_that_show_little_do_not_pass_as_consistent(tmp_path: Path, compare: Compare) -> None:
    copy = tmp_path / KEPT.name
    shutil.copytree(KEPT, copy, ignore=shutil.ignore_patterns("logs"))
    gate = (KEPT, copy, "--fail-if", "lossy", "--json")
    strict = compare(*gate)
    verdicts = {arm["arm"]: arm["verdict"] for arm in json.loads(strict.stdout)["lossless_b"]}
    assert set(verdicts.values()) == {"identical", "undetermined"}
    assert strict.returncode == 1
    assert all(name in strict.stderr for name, verdict in verdicts.items() if verdict != "identical")
    accepting = compare(*gate, "--accept", "consistent")
    assert accepting.returncode == 1, "with 12 prompts no arm excludes an engine that accepts runners-up"
    assert json.loads(accepting.stdout)["gates"][0]["passed"] is False


def test_what_is_not_consistent_fails_however_much_is_accepted(before: Path, tmp_path: Path, compare: Compare) -> None:
    def other(line: Line) -> None:
        if (line["label"], line["prompt_idx"]) == ("spec", 1):
            line.update(content="wrong", content_sha=sha256_text("wrong"))

    after = write_run(tmp_path / "after", other)
    assert compare(before, after, "--fail-if", "lossy", "--accept", "consistent").returncode == 1
    without_gate = compare(before, after, "--accept", "consistent")
    assert without_gate.returncode == 2 and "--fail-if lossy" in without_gate.stderr


def test_what_is_not_known_fails_the_gates(before: Path, tmp_path: Path, compare: Compare) -> None:
    def lost(line: Line) -> None:
        if line["label"] == "spec" and line["block"] == 2:
            line["error"] = {"kind": "crash", "message": "gone"}

    after = write_run(tmp_path / "after", lost)
    failed = compare(before, after, "--fail-if", "slower:3%", "--fail-if", "lossy")
    assert failed.returncode == 1
    assert "2 of 2 gates failed." in failed.stderr
    assert "B 2 blocks" in failed.stderr
    assert "spec: undetermined" in failed.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("before", "nowhere"), "There is no such run."),
        (("before",), "Missing argument"),
        (("before", "before"), "Both are the same run."),
        (("before", "after", "--fail-if", "slowr:3%"), "Did you mean 'slower'?"),
        (("before", "after", "--fail-if", "slower"), "slower:3%"),
        (("before", "after", "--arm", "spek"), "The arms are: baseline, spec."),
        (("before", "after", "--baseline", "nobody"), "'nobody'"),
        (("before", "other"), "sampling.temperature: 0.0 and 0.8"),
    ],
)
def test_what_is_wrong_with_the_command_line_is_two(
    before: Path, compare: Compare, arguments: tuple[str, ...], message: str
) -> None:
    write_run(before.with_name("after"))
    recipe = {"sampling": {"temperature": 0.8}}
    write_run(before.with_name("other"), workload_sha256="1", recipe=recipe)
    (before / "manifest.json").write_text(
        (before / "manifest.json").read_text().replace('"recipe": {}', '"recipe": {"sampling": {"temperature": 0.0}}')
    )
    reseal(before)
    shown = compare(*arguments)
    assert (shown.returncode, shown.stdout) == (2, "")
    assert message in shown.stderr


def test_the_document_has_stable_keys(before: Path, tmp_path: Path, compare: Compare) -> None:
    after = write_run(tmp_path / "after", slower, machine={"cpu": "another"})
    shown = compare(before, after, "--json", "--fail-if", "slower:3%")
    assert shown.returncode == 1
    document = json.loads(shown.stdout)
    assert (document["document"], document["schema"]) == ("compare", 2)
    assert list(document)[3:] == [
        "a",
        "b",
        "more_a",
        "more_b",
        "claims",
        "level",
        "on_trust",
        "changed",
        "arms",
        "only_in_a",
        "only_in_b",
        "lossless_b",
        "gates",
    ]
    assert document["changed"] == [{"what": "machine cpu", "a": "none", "b": "another"}]
    assert [(row["arm"], row["change"]) for row in document["arms"]] == [
        ("baseline", "no clear difference"),
        ("spec", "slower"),
    ]
    assert document["gates"][0]["passed"] is False


def test_a_kept_baseline_is_written_and_gated_against(before: Path, tmp_path: Path, baseline: Compare) -> None:
    result = baseline("write", "baseline.json", "before")
    assert (result.returncode, result.stdout) == (0, "Baseline: baseline.json\n")
    rewritten = json.loads(baseline("write", "again.json", "before", "--json").stdout)
    assert rewritten["file"] == "again.json" and rewritten["baseline"]["arms"].keys() == {"baseline", "spec"}
    assert baseline("check", "baseline.json", "before", "--fail-if", "slower:3%").returncode == 0
    write_run(before.with_name("next"), slower)  # the latest run of the results, which is taken where none is named
    failed = baseline("check", "baseline.json", "--fail-if", "slower:3%", "--fail-if", "lossy", "--junit", "g.xml")
    assert failed.returncode == 1
    assert failed.stderr.startswith("error: before and next: 1 of 2 gates failed.\n  slower:3%: spec: 0.900× A's")
    suite = ElementTree.parse(tmp_path / "g.xml").getroot()
    assert (suite.attrib["tests"], suite.attrib["failures"]) == ("2", "1")
    assert [case.find("failure") is None for case in suite] == [False, True]
    document = json.loads(baseline("check", "baseline.json", "next", "--json", "--fail-if", "slower:3%").stdout)
    assert (document["document"], document["gates"][0]["passed"]) == ("compare", False)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("check", "none.json", "before"), 2, "There is no such baseline."),
        (("check", "results/by-hand/before/records.jsonl", "before"), 4, "kept baseline"),
        (("check", "x.json", "before", "--junit", "x.xml"), 2, "no gates"),
        (("write", "nowhere/x.json", "before"), 4, "cannot write here"),
    ],
)
def test_a_kept_baseline_that_cannot_be_used(
    before: Path, baseline: Compare, arguments: tuple[str, ...], code: int, message: str
) -> None:
    shown = baseline(*arguments)
    assert shown.returncode == code and message in shown.stderr


def test_records_without_a_manifest(before: Path, tmp_path: Path, compare: Compare) -> None:
    after = write_run(tmp_path / "after", slower)
    for run in (before, after):
        (tmp_path / f"{run.name}.jsonl").write_bytes((run / "records.jsonl").read_bytes())
    shown = compare("before.jsonl", "after.jsonl")
    assert shown.returncode == 0
    assert "not checked" in shown.stdout
    assert "before.jsonl" in shown.stdout
    assert compare("before.jsonl", "before.jsonl").returncode == 2


def test_names_do_nothing_to_a_terminal(before: Path, tmp_path: Path) -> None:
    after = write_run(tmp_path / "after", machine={"cpu": "[red]x[/]\x1b[2J\u202e"}, recipe_name="\x1b[2J[bold]")
    shown = benchctl("compare", before, after, FORCE_COLOR="1", NO_COLOR="1", COLUMNS="60")
    assert shown.returncode == 0
    assert "\x1b[2J" not in shown.stdout and "\u202e" not in shown.stdout
    assert "\x1b[3" not in shown.stdout, "NO_COLOR: bold stays, colours do not"
    assert "[bold]" in shown.stdout
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown.stdout)
    assert max(map(len, plain.splitlines())) <= 60


@pytest.mark.engine
def test_two_real_runs_of_one_recipe(tmp_path: Path, compare: Compare) -> None:
    recipe = tmp_path / "small.yaml"
    recipe.write_text(
        "name: small\n"
        "engine: {device: cpu, context: 512, threads: 1}\n"
        'models: {target: {source: "bundled:tiny-hybrid"}, draft: {source: "bundled:tiny-hybrid-draft"}}\n'
        "prompts: {suite: tiny.json, tasks: [code], limit: 2}\n"
        "sampling: {max_tokens: 16, ignore_eos: true}\n"
        "arms: [{name: baseline}, {name: spec, speculation: {type: draft-simple, max: 2}}]\n"
    )
    for out, blocks in (("one", 1), ("two", 2)):
        assert benchctl("run", recipe, "-o", out, "--blocks", blocks, "-q", cwd=tmp_path).returncode == 0
    shown = compare("one", "two", "--json", "--fail-if", "slower:3%", "--fail-if", "lossy")
    document = json.loads(shown.stdout)
    assert [change["what"] for change in document["changed"]] == ["blocks"]
    for arm in document["arms"]:
        assert (arm["outputs"]["same"], arm["prompts"], arm["change"]) == (2, 2, "unknown")
        assert arm["rate"]["ratio"] > 0
    slower_gate, lossy_gate = document["gates"]
    assert (slower_gate["passed"], lossy_gate["passed"], shown.returncode) == (False, True, 1)
    run = open_run(resolve_run("two", tmp_path))
    assert run.manifest is not None
    for cell in run.manifest.cells:
        assert cell.watch is not None and cell.watch.own_cpu_s is not None and cell.watch.other_cpu_s is not None
        assert 0 < cell.watch.own_cpu_s <= cell.watch.wall_s * (cell.watch.cores or 0) + 0.5


def test_three_runs_of_which_one_has_another_target(before: Path, tmp_path: Path, compare: Compare) -> None:
    after = write_run(tmp_path / "after", slower)
    model = {"source": "u", "path": "u.gguf", "files": [{"name": "u.gguf", "size": 1, "sha256": "b" * 64}]}
    third = write_run(tmp_path / "other", target=model, workload_sha256="1")
    shown = compare(before, after, third)
    assert shown.returncode == 0
    assert "target: t (run 1, 2); u (run 3)" in shown.stdout
    assert "target differs" in shown.stdout
    document = json.loads(compare(before, after, third, "--json").stdout)
    spec = [row for row in document["rows"] if row["arm"] == "spec"]
    assert [row["change"] for row in spec] == [None, "slower", "no clear difference"]
    assert compare(before, third).returncode == 0
    refused = compare(before, third, "--fail-if", "slower:3%")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "different work" in refused.stderr
    many = compare(before, after, third, "--fail-if", "slower:3%")
    assert many.returncode == 2 and "two settings" in many.stderr
    assert "named twice" in compare(before, after, before).stderr


def test_three_runs_of_two_settings_are_compared_with_gates(before: Path, tmp_path: Path, compare: Compare) -> None:
    after = write_run(tmp_path / "after", slower, machine={"cpu": "another"})
    second_a = write_run(tmp_path / "again")
    shown = compare(before, after, second_a, "--fail-if", "slower:3%")
    assert shown.returncode == 1 and "spec: 0.900×" in shown.stderr
    assert "1.19×, 1.19× → 1.07×" in shown.stdout
    document = json.loads(compare(before, after, second_a, "--json").stdout)
    assert ([run["run"] for run in document["more_a"]], document["more_b"]) == (["again"], [])


def test_a_changed_run_is_summarised_anew(before: Path, tmp_path: Path, compare: Compare) -> None:
    after, third = write_run(tmp_path / "after"), write_run(tmp_path / "third")
    first = json.loads(compare(before, after, third, "--json").stdout)
    shutil.copy(write_run(tmp_path / "slow", slower) / "records.jsonl", after)
    reseal(after)
    changed = json.loads(compare(before, after, third, "--json").stdout)
    assert [row["change"] for row in first["rows"] if row["arm"] == "spec"][1] == "no clear difference"
    assert [row["change"] for row in changed["rows"] if row["arm"] == "spec"][1] == "slower"


def test_the_first_slower_build_is_named_and_a_run_without_builds_is_refused(bisect: Compare, tmp_path: Path) -> None:
    def slow(line: Line) -> None:
        line["tok_per_sec"] /= 3

    builds = [write_run(tmp_path / name, change) for name, change in (("a", None), ("b", None), ("c", slow))]
    document = json.loads(bisect(*builds, "--json").stdout)
    assert [change["slower"] for change in document["bisect"] if change["arm"] == "baseline"] == [2]
    refused = bisect(builds[0])
    assert refused.returncode == 2 and "engine.binary" in refused.stderr


def test_acceptance_that_nothing_confirms_is_marked_in_a_comparison(tmp_path: Path, compare: Compare) -> None:
    (run,) = (REPOSITORY / "results" / "padded-cuda").glob("2*")
    runs = [shutil.copytree(run, tmp_path / name) for name in ("a", "b", "c")]
    assert "(unchecked)" not in compare(*runs[:2]).stdout, "the steps confirm it"
    for manifest in (copy / "manifest.json" for copy in runs):  # as an engine whose log has no rounds is attested
        text = manifest.read_text("utf-8")
        manifest.write_text(re.sub(r"(log: \d+ drafted, \d+ accepted)", rf"\1: {UNCHECKED_ACCEPTANCE}", text), "utf-8")
        reseal(manifest.parent)
    assert "91.6 % (unchecked)" in compare(*runs[:2]).stdout
    several = json.loads(compare(*runs, "--json").stdout)
    assert {row["acceptance_doubt"] for row in several["rows"] if row["arm"] == "spec_d4"} == {"unchecked"}
