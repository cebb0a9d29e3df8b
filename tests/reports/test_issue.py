"""A run as an engine's bug form: the most serious finding in its smallest case, without benchctl, secrets or markup."""

from __future__ import annotations

import json
import re
import shlex
import tarfile
from itertools import pairwise
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from benchctl.analysis.reportable import Reportable, find_reportable
from benchctl.analysis.results import Analysis
from benchctl.data.integrity import Integrity
from benchctl.data.record import Record
from benchctl.data.store import RunData, open_run
from benchctl.errors import UsageError
from benchctl.lossless.judge.run import analyse_run
from benchctl.lossless.judge.whole_answers import kept_prompts
from benchctl.recipes.schema import Sampling
from benchctl.reports.issue import form_of, issue
from benchctl.text import for_strangers
from benchmarks.keep import RESULTS
from benchmarks.lossy_engines.replayed import NAME
from benchmarks.restore_runs import unpack
from tests.benchctl_process import benchctl
from tests.kept_runs import ROOT
from tests.reports.handmade import HOSTILE
from tests.reports.test_hostile import ACTING

VLLM = "vllm-hybrid/20261121-180606-c5c1"
QWEN = "qwen2.5-coder/20261122-191218-f263"
BREAKEVEN = "qwen2.5-coder-breakeven/20261122-171557-87cd"
PADDED = "padded-cuda/20261127-204443-ee1d"


def kept(name: str) -> tuple[RunData, Analysis]:
    run = open_run(ROOT / "results" / name)
    return run, analyse_run(run)


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunData, Analysis]:
    """Engines with planted faults, replayed."""
    folder = tmp_path_factory.mktemp("faulty")
    with tarfile.open(RESULTS / f"{NAME}.tar.xz") as archive:
        unpack(archive, folder)
    (manifest,) = folder.rglob("manifest.json")
    run = open_run(manifest.parent)
    return run, analyse_run(run)


def case_of(run: RunData, analysis: Analysis, arm: str | None = None) -> Reportable:
    case = find_reportable(run, analysis, arm)
    assert case is not None
    return case


def filled(run: RunData, analysis: Analysis, arm: str | None = None, project: str | None = None) -> str:
    assert run.manifest is not None
    return issue(run, run.manifest, analysis, case_of(run, analysis, arm), form_of(run.manifest, project))


def parsed(text: str) -> list[Token]:
    return MarkdownIt("commonmark", {"html": True}).enable("table").parse(text)


def headings(text: str) -> list[str]:
    tokens = parsed(text)
    return [after.content for token, after in pairwise(tokens) if token.type == "heading_open"]


def commands(text: str) -> list[str]:
    return [token.content.strip() for token in parsed(text) if token.type == "fence" and token.info == "sh"]


def test_a_violation_has_its_token_both_commands_and_what_the_target_prefers(faulty: tuple[RunData, Analysis]) -> None:
    text = filled(*faulty, arm="bonus_row")
    assert headings(text)[1:] == [
        "Name and Version",
        "Operating systems",
        "GGML backends",
        "Hardware",
        "Models",
        "Problem description & steps to reproduce",
        "First Bad Commit",
        "Relevant log output",
    ]
    assert headings(text)[0] == "Eval bug: speculative decoding (draft-simple, depth 4) changes the output"
    assert "Token 26 is 275, and the target alone prefers 1293 by 19.690 nats there (step 6, a batch of 5" in text
    assert "There it is token id 1293 without speculation, and token id 275 with it." in text
    assert "numbered/10, 25 tokens, the shortest of 6 that show it" in text
    assert "| this answer: drafted | not reported | 43 |" in text, "what an engine does not report is no 0"
    assert "| all answers: accepted | not reported | 271 |" in text
    alone, with_draft = commands(text)
    for command in (alone, with_draft):
        assert "llama-server -m ~/" in command and "--port 8080" in command and "{port}" not in command
    assert "--spec-type none" in alone and "--spec-draft-n-max 4 --fault bonus=row,every=16" in with_draft
    assert "0ee9090f4cd3ce40f9523986ff714b65837d242ae54796b6fda18866f67652c3" in text
    assert "The text of prompt numbered/10 is not kept" in text, "its suite is another machine's file"


def test_an_arm_that_is_sound_is_not_reported(faulty: tuple[RunData, Analysis]) -> None:
    run, analysis = faulty
    sound = next(row for row in analysis.verdicts if row.arm == "sound_d4")
    quick = sound.model_copy(update={"speed": "undecided"})
    changed = [quick if row is sound else row for row in analysis.verdicts]
    assert find_reportable(run, analysis.model_copy(update={"verdicts": changed}), "sound_d4") is None
    with pytest.raises(UsageError, match="No arm that is compared is called 'nobody'"):
        find_reportable(run, analysis, "nobody")


def test_the_request_is_the_prompt_and_the_sampling_that_were_measured() -> None:
    run, analysis = kept(VLLM)
    text = filled(run, analysis)
    assert headings(text)[1:] == ["Your current environment", "🐛 Describe the bug"]
    assert "Add the output of `python collect_env.py`" in text
    alone, with_draft, request = commands(text)
    assert "vllm serve ~/" in alone and "--speculative-config '{" not in alone
    assert '"method": "ngram"' in with_draft
    record = case_of(run, analysis).arm
    assert record is not None
    words = shlex.split(request)
    assert words[2] == "http://127.0.0.1:8080/v1/chat/completions"
    body = json.loads(words[-1])
    prompt = kept_prompts(run.manifest)[record.task, record.prompt_idx]
    assert [message["content"] for message in body["messages"]] == [turn.content for turn in prompt.messages or ()]
    assert {body[key] for key in ("temperature", "top_k", "max_tokens", "seed")} == {0.0, 1, 96}
    assert request.isascii() and body["model"] in alone.split()


def test_near_ties_are_no_bug_and_the_smallest_depth_shows_a_slow_down() -> None:
    run, analysis = kept(QWEN)
    deepest_first = analysis.model_copy(update={"verdicts": analysis.verdicts[::-1]})
    case = case_of(run, deepest_first)
    assert (case.finding, case.verdict.arm) == ("slower", "spec_d2")
    text = filled(run, analysis)
    assert headings(text)[0].startswith("Misc. bug: ") and "Command line" in headings(text)
    assert "Decoding is 0.54× as fast (95 % interval 0.47 to 0.62×, 3 fresh processes of each)" in text
    assert '"samplers": ["top_k", "temperature"]' in text and '"n_predict": 128' in text
    assert case.without is not None and case.arm is not None and case.without.block == case.arm.block


def test_what_nothing_explains_comes_before_a_slow_down_and_a_violation_before_both() -> None:
    run, analysis = kept(QWEN)
    classes = {"spec_d8": "differs", "spec_d16": "violation"}
    rows = {
        judged.arm: [
            row.model_copy(update={"outcome": classes.get(judged.arm, "near-tie")}) if row.divergence else row
            for row in judged.comparisons
        ]
        for judged in analysis.losslessness
    }
    judged = [row.model_copy(update={"comparisons": rows[row.arm]}) for row in analysis.losslessness]
    analysis = analysis.model_copy(update={"losslessness": judged})
    open_case = case_of(run, analysis)
    assert (open_case.finding, open_case.verdict.arm) == ("divergence", "spec_d8")
    verdicts = [
        row.model_copy(update={"lossless": "violation"}) if row.arm == "spec_d16" else row for row in analysis.verdicts
    ]
    worse = case_of(run, analysis.model_copy(update={"verdicts": verdicts}))
    assert (worse.finding, worse.verdict.arm) == ("violation", "spec_d16")
    assert worse.without is not None and worse.showing == 5
    shown = [row for row in run.records if row.label == "baseline" and row.phase == "measure"]
    lengths = {(row.task, row.prompt_idx): row.prompt_tokens or 0 for row in shown}
    diverging = [(row.task, row.prompt_idx) for row in rows["spec_d16"] if row.divergence]
    assert worse.without.prompt_tokens == min(lengths[prompt] for prompt in diverging)
    assert run.manifest is not None
    text = issue(run, run.manifest, analysis, worse, form_of(run.manifest, None))
    assert "To this prompt other arms answer as without speculation: spec_d2 (verify width 3), ngram_simple" in text
    assert "; as spec_d16: spec_d4 (verify width 5) and spec_d8 (verify width 9)." in text


def test_what_is_lossy_by_design_and_what_changed_is_not_reported() -> None:
    run, analysis = kept(BREAKEVEN)
    assert find_reportable(run, analysis, "synth_d2_a0") is None
    run, analysis = kept(VLLM)
    changed = RunData(**vars(run) | {"integrity": Integrity(True, ("records.jsonl was changed.",))})
    assert find_reportable(changed, analysis) is None


def test_of_a_run_over_builds_the_first_bad_one_is_named() -> None:
    """A run over quantizations of the draft stands in for one over builds: its axis is called so."""
    run, analysis = kept("quantization-sweep/20261122-155209-0c94")
    assert run.manifest is not None
    setups = [
        setup.model_copy(
            update={"axes": {"engine.binary" if "draft" in axis else axis: label for axis, label in setup.axes.items()}}
        )
        for setup in run.manifest.setups
    ]
    over_builds = RunData(**vars(run) | {"manifest": run.manifest.model_copy(update={"setups": setups})})
    text = filled(over_builds, analysis)
    assert "- spec_d4-q8_0: no build has other answers; none is shown to be slower, 0.67x stays possible." in text


def test_nothing_to_report_is_a_sentence_beside_an_empty_output() -> None:
    done = benchctl("report", str(ROOT / "results" / PADDED), "--format", "issue")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == (
        "There is nothing to report: no arm that ran as requested is shown to be slower, or has an output that is "
        "wrong or unexplained.\n"
    )


def test_a_divergence_that_was_not_replayed_is_said_to_be_possible_rounding() -> None:
    done = benchctl("report", str(ROOT / "results" / BREAKEVEN), "--format", "issue")
    assert done.returncode == 0 and headings(done.stdout)[0].endswith("and what explains it is not known")
    assert "may be rounding. `benchctl verify-lossless 20261122-171557-87cd` shows that" in done.stderr


def test_a_run_is_reported_to_its_own_engine_and_servers_that_ran_to_either() -> None:
    run, analysis = kept(VLLM)
    manifest = run.manifest
    assert manifest is not None
    with pytest.raises(UsageError, match="so sglang cannot reproduce it"):
        form_of(manifest, "sglang")
    with pytest.raises(UsageError, match="no bug form of ollama"):
        form_of(manifest, "ollama")
    engine = manifest.engine.model_copy(update={"kind": "openai", "binary": None})
    arms = [arm.model_copy(update={"argv": [], "url": "http://10.0.0.7:8000/v1"}) for arm in manifest.arms]
    served = manifest.model_copy(update={"engine": engine, "arms": arms})
    with pytest.raises(UsageError, match="no bug form of openai"):
        form_of(served, None)
    text = issue(run, served, analysis, case_of(run, analysis), form_of(served, "sglang"))
    assert headings(text)[1:] == ["Describe the bug", "Reproduction", "Environment"]
    assert "python3 -m sglang.check_env" in text and "10.0.0.7" not in text
    assert "The servers ran already, so their command lines are not known." in text
    (request,) = commands(text)
    assert json.loads(shlex.split(request)[-1])["model"] == "bundled:tiny-hybrid"


def test_strange_text_forms_no_markup_and_no_secret_is_shown(run_data: RunData, analysis: Analysis) -> None:
    manifest = run_data.manifest
    assert manifest is not None
    (run_data.folder / "logs").mkdir()
    log = f"{HOSTILE}\n```\n# free\n/home/somebody/models/x.gguf\nAuthorization: Bearer abc.def-123\nEOS token = 151645"
    (run_data.folder / "logs" / "0-spec_d4.log").write_text(log, "utf-8", "surrogatepass")
    secrets = ["--api-key", "k-1234567", "--x", HOSTILE, "-m", "/home/somebody/m.gguf", "http://me:pw99@host/x"]
    arms = [
        arm.model_copy(update={"argv": [*arm.argv, *secrets], "env": ["HF_TOKEN=hf_abcdefghijklmnop", "A=/root/b"]})
        for arm in manifest.arms
    ]
    recipe = manifest.recipe | {"sampling": Sampling().model_dump(), "prompts": {"suite": HOSTILE}}
    verdicts = [row.model_copy(update={"setting": HOSTILE}) for row in analysis.verdicts]
    records = [
        Record(label=name, task="code", prompt_idx=1, rep=0, content=f"use {text}", prompt_tokens=9)
        for name, text in (("baseline", "Arc"), ("spec_d4", HOSTILE))
    ]
    judged = [row.model_copy(update={"reason": HOSTILE}) for row in analysis.losslessness]
    changed = {"arms": arms, "recipe": recipe, "machine": {"cpu": HOSTILE, "os": HOSTILE}}
    run = RunData(run_data.folder, manifest.model_copy(update=changed), records, [])
    strange = {"verdicts": verdicts, "losslessness": judged, "run": HOSTILE}
    text = filled(run, analysis.model_copy(update=strange), arm="spec_d4")
    assert not ACTING.search(text)
    tokens = parsed(text)
    inline = [child for token in tokens for child in token.children or []]
    kinds = {token.type for token in [*tokens, *inline]}
    assert {"fence", "heading_open", "table_open"} <= kinds
    assert not kinds & {"html_block", "html_inline", "link_open", "image", "hr"}
    assert headings(text)[1:] == [label for label, _ in form_of(manifest, None).output.fields]
    for secret in ("k-1234567", "hf_abcdefghijklmnop", "abc.def-123", "pw99", "somebody", "/root/"):
        assert secret not in text, secret
    assert "EOS token = 151645" in text and "~/models/x.gguf" in text and "A=~/b" in text


@pytest.mark.parametrize("plain", ["--spec-draft-n-max 8 -ctk q8_0", "print_info: EOS token = 151645", "a/home/x/y"])
def test_what_is_no_secret_stays(plain: str) -> None:
    assert for_strangers(plain) == plain


def test_a_log_elsewhere_is_not_read(run_data: RunData, analysis: Analysis, tmp_path: Path) -> None:
    manifest = run_data.manifest
    assert manifest is not None
    (tmp_path / "logs").mkdir(exist_ok=True)
    outside = tmp_path / "secret.log"
    outside.write_text("not yours")
    cells = [cell.model_copy(update={"log": "../secret.log"}) for cell in manifest.cells]
    run = RunData(run_data.folder, manifest.model_copy(update={"cells": cells}), run_data.records, [])
    assert not re.search("not yours", filled(run, analysis, arm="spec_d4"))
