"""`benchctl verify-lossless` on a run whose answers differ: the real target alone explains why."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchctl.cli.app import app
from benchctl.data.record import sha256_text, sha256_tokens
from benchctl.data.scores import SCORES, TargetScores, read_scores
from benchctl.errors import EngineError, UsageError
from benchctl.lossless.score import asking, continuing
from tests.cli.calls import call
from tests.resealed import reseal, write_sealed

pytestmark = [pytest.mark.slow, pytest.mark.engine]

RECIPE = """\
name: kquant
engine: {device: cpu, context: 1024, threads: 1}
models:
  target: {source: "bundled:tiny-hybrid", quantize: {type: q2_k}}
  draft: {source: "bundled:tiny-hybrid-draft"}
prompts: {suite: tiny.json, tasks: [code, summarisation], limit: 3}
sampling: {max_tokens: 48, ignore_eos: true}
blocks: 1
warmup: 0
arms:
  - name: baseline
  - name: spec
    speculation: {type: draft-simple, max: 4}
"""
PLACE = 20
"""Where a test forges a token."""

Forge = Callable[..., Path]
Judged = tuple[Path, dict[str, Any]]
"""A run, and the document of its verdicts."""


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a target with 2-bit weights."""
    folder = tmp_path_factory.mktemp("kquant")
    (folder / "kquant.yaml").write_text(RECIPE)
    result = call(app, "run", str(folder / "kquant.yaml"), "--output", str(folder / "results"), "--quiet")
    assert result.exit_code == 0, result.output
    (run,) = (file.parent for file in folder.glob("results/*/*/manifest.json"))
    return run


def without_steps(run: Path) -> Path:
    """Take the steps from a run's records, as of an engine that does not report them: scores then decide."""
    lines = [json.loads(line) for line in (run / "records.jsonl").read_text("ascii").splitlines()]
    text = "".join(json.dumps(line | {"target_steps": None}) + "\n" for line in lines)
    (run / "records.jsonl").write_text(text, "ascii")
    return reseal(run)


def forged(measured: Path, folder: Path, index: int, token: int) -> Path:
    """Copy the run without its steps, and put another token into the arm's answer to the first code prompt."""
    run = folder / f"forged-{index}-{token}"
    shutil.copytree(measured, run, ignore=shutil.ignore_patterns(SCORES))
    lines = [json.loads(line) for line in (run / "records.jsonl").read_text("ascii").splitlines()]
    base, arm = (
        next(line for line in lines if (line["label"], line["task"], line["prompt_idx"]) == (label, "code", 0))
        for label in ("baseline", "spec")
    )
    ids = [*base["token_ids"][:index], token, *base["token_ids"][index + 1 :]]
    text = f"{base['content']}!"
    arm |= {
        "n_predicted": len(ids),
        "token_ids": ids,
        "token_sha": sha256_tokens(ids),
        "content": text,
        "content_sha": sha256_text(text),
        "tok_per_sec": (len(ids) - 1) / arm["engine_decode_s"],
        "client_tok_per_sec": (len(ids) - 1) / arm["decode_s"],
    }
    (run / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), "ascii")
    return without_steps(run)


@pytest.fixture
def forge(measured: Path, tmp_path: Path) -> Forge:
    return partial(forged, measured, tmp_path)


@pytest.fixture(scope="module")
def scored(measured: Path, tmp_path_factory: pytest.TempPathFactory) -> Judged:
    """A far token was put into that run, and the target has scored it."""
    run = forged(measured, tmp_path_factory.mktemp("scored"), PLACE, 3000)
    return run, verify(run)


@pytest.fixture
def judged(scored: Judged, tmp_path: Path) -> Judged:
    """A test's own copy of it, and what `verify-lossless` said."""
    run, document = scored
    return Path(shutil.copytree(run, tmp_path / run.name)), document


def verify(run: Path, *words: str, code: int = 1) -> dict[str, Any]:
    minutes = () if "--offline" in words else ("--audit-minutes", "5")
    result = call(app, "verify-lossless", str(run), *minutes, "--json", *words)
    assert result.exit_code == code, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def forged_prompt(document: dict[str, Any]) -> dict[str, Any]:
    (arm,) = document["arms"]
    return next(row for row in arm["comparisons"] if (row["task"], row["prompt_idx"]) == ("code", 0))


def stored(run: Path) -> TargetScores:
    audit = read_scores(run)
    assert audit is not None
    return audit


def test_answers_replay_exactly_and_a_token_that_is_put_in_is_a_violation(measured: Path, tmp_path: Path) -> None:
    """The target alone reads every answer in its own steps; nothing is scored, and judging again starts nothing."""
    run = Path(shutil.copytree(measured, tmp_path / "replayed"))
    document = verify(run, code=0)
    (arm,) = document["arms"]
    assert document["lossless"]
    differs = any(row["blocks_differing"] for row in arm["comparisons"])
    assert (arm["verdict"], arm["audit"], arm["power"]) == ("exact" if differs else "identical", None, None)
    replay = arm["replay"]
    assert (replay["answers"], replay["of"], replay["control"], replay["control_of"]) == (6, 6, 6, 6)
    assert (replay["tokens"], replay["deviating"], replay["lacking"]) == (6 * 48, 0, None)
    assert replay["rounds"] > 20
    scores = stored(run)
    assert not scores.answers and not scores.positions
    stamp = (run / SCORES).stat().st_mtime_ns
    assert verify(run, code=0)["arms"] == verify(run, "--offline", code=0)["arms"] == [arm]
    assert (run / SCORES).stat().st_mtime_ns == stamp

    lines = [json.loads(line) for line in (run / "records.jsonl").read_text("ascii").splitlines()]
    row = next(line for line in lines if (line["label"], line["task"], line["prompt_idx"]) == ("spec", "code", 1))
    row["token_ids"][PLACE] = 3000
    row |= {"token_sha": sha256_tokens(row["token_ids"]), "content": "!", "content_sha": sha256_text("!")}
    (run / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), "ascii")
    (arm,) = verify(reseal(run))["arms"]
    deviation = arm["replay"]["first"]
    assert (arm["verdict"], deviation["task"], deviation["prompt_idx"]) == ("violation", "code", 1)
    assert (deviation["index"], deviation["token"]) == (PLACE, 3000)
    assert deviation["gap"] > 3 and deviation["step"] >= 1 and 1 <= deviation["width"] <= 5
    replays = stored(run).replays
    assert replays is not None
    assert len(replays.targets[0].answers) == 13, "what was read before is not read again"


def test_further_prompts_are_asked_untimed_and_replayed_with_the_runs_own(
    measured: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, file = Path(shutil.copytree(measured, tmp_path / "more")), tmp_path / "mine.jsonl"
    file.write_text('{"prompt": "Name three fruits."}\n{"prompt": "def double(number):"}\n', "utf-8")
    records = (run / "records.jsonl").read_bytes()
    more = ("--more", "--arm", "spec", "--prompts", str(file))
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(asking, "describe_machine", lambda: {"cpu": "another"})
        refused = call(app, "verify-lossless", str(run), *more)
        assert isinstance(refused.exception, UsageError) and "the machine changed" in str(refused.exception)
    document = verify(run, *more, code=0)
    (arm,) = document["arms"]
    assert (arm["replay"]["answers"], arm["replay"]["of"], arm["replay"]["control"]) == (8, 8, 8)
    assert "Evidence: 6 prompts of the run and 2 asked afterwards." in arm["reason"]
    assert document["integrity"]["state"] == "intact"
    assert document["asked"] == {"arms": ["spec"], "suites": {"mine.jsonl": 2}, "stopped": "prompts"}
    assert (run / "records.jsonl").read_bytes() == records
    lines = [json.loads(line) for line in (run / "further.jsonl").read_text("ascii").splitlines()]
    assert [line["label"] for line in lines] == ["baseline"] * 2 + ["spec"] * 2
    assert verify(run, "--offline", code=0)["arms"] == [arm]
    again = verify(run, *more, code=0)
    assert (again["asked"]["suites"], again["arms"]) == ({}, [arm]), "asking goes on where it stopped"
    with (run / "further.jsonl").open("a", encoding="ascii") as added:
        added.write(json.dumps(lines[-1]) + "\n")
    assert verify(run, "--offline")["arms"][0]["verdict"] == "undetermined", "evidence that was changed decides nothing"


def test_a_far_token_is_a_violation_and_stays_one_offline(judged: Judged, tmp_path: Path) -> None:
    run, document = judged
    row = forged_prompt(document)
    assert [log.name for log in (run / "logs").glob("scoring*")] == ["scoring.log"], "one process scores everything"
    assert row["outcome"] == "violation"
    fork = row["fork"]
    assert fork["index"] == PLACE
    assert fork["margin"] > 3 > fork["noise_floor"] >= 0  # widths differ by no nats, on some processors by nothing
    assert {shape["shape"] for shape in fork["shapes"]} == {"decode", "verify", "prefill"}
    assert [shape["width"] for shape in fork["shapes"]][:2] == [1, 5]
    scores = stored(run)
    assert "--ctx-checkpoints" in scores.command

    manifest = run / "manifest.json"
    raw = json.loads(manifest.read_text("utf-8"))
    raw["target"]["path"] = raw["engine"]["binary"] = str(tmp_path / "gone")
    write_sealed(manifest, raw)
    assert forged_prompt(verify(run, "--offline")) == row
    assert forged_prompt(verify(run)) == row  # what is stored needs no engine either


def test_genuine_divergences_of_low_bit_weights_are_no_violation(judged: Judged, forge: Forge) -> None:
    """Every fork that the engine itself made, and a runner-up put in where the target was least sure."""
    first, document = judged
    (arm,) = document["arms"]
    genuine = [row for row in arm["comparisons"] if (row["task"], row["prompt_idx"]) != ("code", 0)]
    assert "violation" not in {row["outcome"] for row in genuine}
    places = [row for row in stored(first).positions if not row.fork and row.prompt_idx == 0 and row.task == "code"]
    closest = min(places, key=lambda row: row.readings[0].margin or 99.0)
    row = forged_prompt(verify(forge(closest.index, closest.rival)))
    margin = row["fork"]["margin"]
    assert margin == closest.readings[0].margin  # the same shape gives the same bits in another process
    assert row["outcome"] == ("near-tie" if margin <= row["fork"]["noise_floor"] else "violation")


def test_whole_answers_are_scored_and_judging_again_starts_nothing(judged: Judged, tmp_path: Path) -> None:
    run, document = judged
    (arm,) = document["arms"]
    audit = arm["audit"]
    assert (arm["verdict"], audit["lacking"]) == ("violation", None)
    assert (audit["tokens"], audit["answers"], audit["of"]) == (6 * 48, 6, 6)
    assert audit["prefixes"] >= 1_000
    assert audit["beyond"] >= 1
    assert 0 <= audit["floor"] < 3
    assert audit["stated"]["nats"] == 0.3
    stamp = (run / SCORES).stat().st_mtime_ns
    manifest = run / "manifest.json"
    raw = json.loads(manifest.read_text("utf-8"))
    raw["target"]["path"] = raw["engine"]["binary"] = str(tmp_path / "gone")
    write_sealed(manifest, raw)
    assert verify(run, "--offline")["arms"] == verify(run, "--accept", "consistent")["arms"] == [arm]
    assert (run / SCORES).stat().st_mtime_ns == stamp


def test_noise_that_answers_are_too_short_for_is_measured_on_what_the_target_says_to_other_prompts(
    measured: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Path(shutil.copytree(measured, tmp_path / "short", ignore=shutil.ignore_patterns(SCORES)))
    lines = [json.loads(line) for line in (run / "records.jsonl").read_text("ascii").splitlines()]
    for line in lines:
        ids = line["token_ids"][:8]
        ids[5] = 3000 if line["label"] == "spec" else ids[5]
        text = f"{ids}"
        line |= {"token_ids": ids, "n_predicted": 8, "token_sha": sha256_tokens(ids)}
        line |= {"content": text, "content_sha": sha256_text(text)}
    (run / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), "ascii")
    monkeypatch.setattr(continuing, "PREFIXES", 250)
    audit = verify(without_steps(run))["arms"][0]["audit"]
    assert 0 < audit["continued"] < audit["prefixes"] and 250 <= audit["prefixes"] < 300
    assert {read.suite for read in stored(run).passes} == {None, continuing.SUITE}


def test_the_power_of_identical_arms_is_measured_once_and_a_missing_model_fails_nothing(tmp_path: Path) -> None:
    """Nothing else is to be scored: the baseline's own answers show what a swapped token would have changed."""
    plain = RECIPE.replace(", quantize: {type: q2_k}", "").replace("max_tokens: 48", "max_tokens: 24")
    (tmp_path / "equal.yaml").write_text(plain)
    result = call(app, "run", str(tmp_path / "equal.yaml"), "--output", str(tmp_path / "results"))
    assert result.exit_code == 0, result.output
    (run,) = (without_steps(file.parent) for file in tmp_path.glob("results/*/*/manifest.json"))
    gone = shutil.copytree(run, tmp_path / "gone")
    raw = json.loads((gone / "manifest.json").read_text("utf-8"))
    raw["target"]["path"], raw["target"]["files"][0]["name"] = str(tmp_path / "gone.gguf"), "gone.gguf"
    write_sealed(gone / "manifest.json", raw)
    (lacking,) = verify(gone, code=0)["arms"]
    assert (lacking["verdict"], lacking["power"]) == ("identical", None)
    assert "gone.gguf is not here" in lacking["power_lacking"]

    (arm,) = verify(run, code=0)["arms"]
    assert (arm["verdict"], arm["power_lacking"]) == ("identical", None)
    scores = stored(run)
    assert (len(scores.answers), scores.passes) == (6, []), "equal answers have no noise to measure"
    near = sum(margin <= 0.3 for answer in scores.answers for margin in answer.margins)
    assert near, "without a near-tie the power is 0 for any engine"
    assert 0 < arm["power"]["chance"] < 1
    stamp = (run / SCORES).stat().st_mtime_ns
    second = call(app, "verify-lossless", str(run))
    assert (second.exit_code, (run / SCORES).stat().st_mtime_ns) == (0, stamp)
    words = " ".join(second.output.split())
    assert "% of new prompts like these get another answer (95 %; power " in words


def test_requests_that_shared_batches_are_judged_both_ways(tmp_path: Path) -> None:
    """Of the arm at concurrency 2 no violation is found, and one is once a far token is put in."""
    (tmp_path / "shared.yaml").write_text(RECIPE.replace("blocks: 1", "blocks: 1\nconcurrency: 2"))
    result = call(app, "run", str(tmp_path / "shared.yaml"), "--output", str(tmp_path / "results"), "--quiet")
    assert result.exit_code == 0, result.output
    (run,) = (file.parent for file in tmp_path.glob("results/*/*/manifest.json"))
    (arm,) = verify(run, "--accept", "consistent")["arms"]
    assert (arm["verdict"], arm["audit"]["slots"], arm["audit"]["lacking"]) == ("undetermined", 2, None)
    assert "No violation found" in arm["reason"], "six short answers show little"
    assert arm["audit"]["prefixes"] >= 1_000
    assert "2 requests in a batch" in arm["reason"]
    lines = [json.loads(line) for line in (run / "records.jsonl").read_text("ascii").splitlines()]
    row = next(line for line in lines if line["label"] == "spec")
    row["token_ids"][PLACE] = 3000
    row |= {"token_sha": sha256_tokens(row["token_ids"]), "content": "!", "content_sha": sha256_text("!")}
    (run / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), "ascii")
    reseal(run)
    assert verify(run)["arms"][0]["verdict"] == "violation"


def test_offline_says_what_it_could_not_know(forge: Forge) -> None:
    run = forge(PLACE, 3000)
    row = forged_prompt(verify(run, "--offline"))
    assert row["outcome"] == "differs"
    assert "starts no engine" in row["reason"]
    assert not (run / SCORES).exists()


@pytest.mark.parametrize("lost", ["model", "hash", "engine"])
def test_what_cannot_be_launched_again_is_said_and_excuses_nothing(forge: Forge, lost: str, tmp_path: Path) -> None:
    run = forge(PLACE, 3000)
    manifest = run / "manifest.json"
    raw = json.loads(manifest.read_text("utf-8"))
    if lost == "model":
        raw["target"]["path"] = str(tmp_path / "gone.gguf")
        raw["target"]["files"][0]["name"] = "gone.gguf"
    elif lost == "hash":
        raw["target"]["files"][0]["sha256"] = "0" * 64
    else:
        raw["engine"]["details"]["sha256"] = "0" * 64
    write_sealed(manifest, raw)
    row = forged_prompt(verify(run))
    message = {
        "model": "gone.gguf is not here",
        "hash": "its hash differs",
        "engine": "the engine's binary or its libraries changed",
    }[lost]
    assert (row["outcome"], row["fork"]["margin"]) == ("differs", None)
    assert message in row["reason"]


@pytest.mark.parametrize("words", [["--props"], ["--host", "0"], ["--tools=all"]])
def test_a_command_line_that_was_changed_is_not_run_again(forge: Forge, words: list[str]) -> None:
    """A run may be somebody else's, and its manifest says what is launched."""
    run = forge(PLACE, 3000)
    manifest = json.loads((run / "manifest.json").read_text())
    for arm in manifest["arms"]:
        arm["argv"] += words
    write_sealed(run / "manifest.json", manifest)
    result = call(app, "verify-lossless", str(run))
    assert result.exit_code == 1
    message = " ".join(result.output.split())
    assert f"words that its recipe does not ask for: {' '.join(words)}" in message
    assert not (run / SCORES).exists()


def test_a_command_line_that_is_trusted_is_run_again(forge: Forge) -> None:
    run = forge(PLACE, 3000)
    manifest = json.loads((run / "manifest.json").read_text())
    for arm in manifest["arms"]:
        arm["argv"].append("--props")
    write_sealed(run / "manifest.json", manifest)
    result = call(app, "verify-lossless", str(run), "--trust-recipe")
    assert "does not ask for" not in result.output
    assert (run / SCORES).exists()


def test_an_engine_that_fails_is_told_apart(forge: Forge) -> None:
    run = forge(PLACE, 3000)
    manifest = run / "manifest.json"
    raw = json.loads(manifest.read_text("utf-8"))
    baseline = next(arm for arm in raw["arms"] if arm["baseline"])
    baseline["argv"] += ["-c", "999999999999"]
    write_sealed(manifest, raw)
    result = call(app, "verify-lossless", str(run), "--json")
    assert isinstance(result.exception, EngineError)
    assert "could not be replayed" in result.stdout


def test_a_report_launches_nothing_and_shows_every_fork(judged: Judged, tmp_path: Path) -> None:
    run, _ = judged
    stamp = (run / SCORES).stat().st_mtime_ns
    result = call(app, "report", str(run), "--output", str(tmp_path / "reports"), "--no-figures")
    assert result.exit_code == 0, result.output
    (page,) = (tmp_path / "reports").glob("*/*/index.html")
    text = page.read_text("utf-8")
    assert "first divergence" in text
    assert "violation" in text and "Null control" in text
    assert (run / SCORES).stat().st_mtime_ns == stamp
