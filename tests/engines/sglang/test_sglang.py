"""The SGLang adapter against the recorded facts of SGLang 0.5.23 and a scripted server."""

from __future__ import annotations

import json
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import httpx
import psutil
import pytest

from benchctl.engines.base import Ledger
from benchctl.engines.common.drafts import verified_ledger
from benchctl.engines.common.process import EngineProcess
from benchctl.engines.registry import make_engine
from benchctl.engines.sglang.adapter import SglangSpec
from benchctl.engines.sglang.command import recipe_problems, with_schedule
from benchctl.engines.sglang.engine import SglangEngine
from benchctl.engines.sglang.server import GenerateReader, SglangServer, drafts_are_counted, launch_cause
from benchctl.errors import EngineError, UsageError
from benchctl.experiments.explain.session import with_synthetic_arms
from benchctl.models.files import ResolvedPair
from benchctl.prompts.suite import Message, Prompt
from benchctl.recipes.adapters import SYNTHETIC, lossy_settings
from benchctl.recipes.schema import Arm, Sampling
from benchctl.recipes.speculation import Speculation
from tests.engines.cells import arm_of, at_once, complete, read, recipe_of
from tests.engines.sglang.conftest import Start, spec_of

RAW = Prompt(prompt="abc")
GREEDY = Sampling(max_tokens=5)


def test_the_installed_package_is_probed(python: Path) -> None:
    result = SglangEngine(spec_of(python)).probe()
    assert (result.kind, result.version, result.binary) == ("sglang", "SGLang 0.5.23", python)
    assert result.speculation_types[:6] == (
        "draft-simple",
        "draft-eagle3",
        "draft-mtp",
        "draft-dflash",
        "draft-dspark",
        "ngram-simple",
    )
    assert set(result.speculation_types[6:]) == {"EAGLE", "FROZEN_KV_MTP", "UNO"}
    flags = result.details["flags"]
    assert isinstance(flags, list)
    assert {"--speculative-ngram-max-trie-depth", "--speculative-accept-threshold-acc"} <= set(flags)


@pytest.mark.parametrize(
    ("fault", "message"), [("not-installed", "No module named 'sglang'"), ("chatters", "cannot be read")]
)
def test_a_package_that_cannot_be_probed(python: Path, fault: str, message: str) -> None:
    with pytest.raises(EngineError, match=message) as caught:
        SglangEngine(spec_of(python, fault)).probe()
    assert caught.value.kind == "launch"


def test_no_sglang_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:

    monkeypatch.delenv("BENCHCTL_SGLANG", raising=False)
    with pytest.raises(EngineError, match="no SGLang was found") as caught:
        SglangEngine(SglangSpec(kind="sglang")).probe()
    assert "BENCHCTL_SGLANG" in str(caught.value.fix)
    with pytest.raises(UsageError, match="no such program"):
        SglangEngine(SglangSpec(kind="sglang"), binary="/nowhere/python").probe()


def command(python: Path, pair: ResolvedPair, arm: Arm, **keys: Any) -> str:
    launch = SglangEngine(spec_of(python, **keys)).launch(arm, pair)
    return " ".join(launch.argv).replace(f"{pair.target.path.parent}/", "")


def test_the_target_alone(python: Path, pair: ResolvedPair) -> None:
    assert command(python, pair, arm_of()) == (
        "python3 -m sglang.launch_server --model-path target --served-model-name benchctl --host 127.0.0.1 "
        "--port {port} --context-length 512 --dtype auto --max-running-requests 1 --random-seed 0 --disable-radix-cache"
    )
    swept = Arm(name="c", concurrency=4)
    text = command(python, pair, swept, device="cpu", dtype="float32")
    assert "--dtype float32 --max-running-requests 4" in text
    assert "radix" not in command(python, pair, arm_of(), prefix_caching=True)
    assert text.endswith("--device cpu")
    in_use = SglangEngine(spec_of(python)).launch_in_use(arm_of(), pair)
    assert in_use.overlapping and "--enable-metrics" in in_use.argv
    assert {"--disable-radix-cache", "--max-running-requests"}.isdisjoint(in_use.argv), "SGLang's own defaults"


@pytest.mark.parametrize(
    ("keys", "flags"),
    [
        (
            {"type_": "draft-simple", "max": 4},
            "--speculative-algorithm STANDALONE --speculative-draft-model-path draft --speculative-num-steps 4 "
            "--speculative-eagle-topk 1 --speculative-num-draft-tokens 5",
        ),
        (
            {"type_": "draft-eagle3"},
            "--speculative-algorithm EAGLE3 --speculative-draft-model-path draft",
        ),
        (
            {"type_": "eagle", "max": 3, "options": {"speculative_eagle_topk": 4, "speculative_num_draft_tokens": 16}},
            "--speculative-algorithm EAGLE --speculative-draft-model-path draft --speculative-num-steps 3 "
            "--speculative-eagle-topk 4 --speculative-num-draft-tokens 16",
        ),
        (
            {"type_": "draft-dspark", "max": 7},
            "--speculative-algorithm DSPARK --speculative-draft-model-path draft --speculative-dspark-block-size 7",
        ),
        (
            {"type_": "ngram-simple", "max": 8, "options": {"speculative_ngram_match_type": "PROB"}},
            "--speculative-algorithm NGRAM --speculative-num-draft-tokens 9 --speculative-ngram-match-type PROB",
        ),
        (
            {
                "type_": "draft-mtp",
                "options": {"speculative_use_rejection_sampling": True, "speculative_adaptive": False},
            },
            "--speculative-algorithm NEXTN --speculative-draft-model-path draft --speculative-use-rejection-sampling",
        ),
    ],
)
def test_benchctls_words_and_sglangs_own(python: Path, pair: ResolvedPair, keys: dict[str, Any], flags: str) -> None:
    arm = arm_of(**keys)
    assert command(python, pair, arm).endswith(flags)
    recipe = recipe_of(arm, engine=spec_of(python))
    make_engine(recipe.engine).check(recipe, pair)


def test_depths_by_load_are_a_file_that_sglang_reads(
    python: Path, pair: ResolvedPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BENCHCTL_CACHE", str(tmp_path / "cache"))
    engine, steps = SglangEngine(spec_of(python)), [(1, 2, 4), (3, 8, 0)]
    setting = engine.with_schedule(Speculation(type="draft-eagle3"), steps)
    assert setting is not None and engine.has_schedule(setting)
    assert not engine.has_schedule(Speculation(type="draft-eagle3", max=4))
    arm = Arm(name="schedule", speculation=setting)
    engine.check(recipe_of(arm, engine=spec_of(python)), pair)
    chain, _, file = command(python, pair, arm).partition(" --speculative-adaptive --speculative-adaptive-config ")
    assert chain.endswith("--speculative-num-steps 4 --speculative-eagle-topk 1 --speculative-num-draft-tokens 5")
    assert json.loads((tmp_path / file).read_text()) == {"1": {"candidate_steps": [4]}, "3": {"candidate_steps": [0]}}
    assert engine.with_schedule(Speculation(type="ngram-simple"), steps) is None, "EAGLE's alone"
    older = replace(engine._probe.facts, version="0.5.22")
    assert with_schedule(Speculation(type="draft-eagle3"), steps, older) is None, "it may ignore batch sizes"


@pytest.mark.parametrize(
    ("arm", "message"),
    [
        (arm_of("ngram-cache"), "SGLang has nothing like `ngram-cache`. Of benchctl's types it has draft-simple"),
        (arm_of("EAGEL3"), "no algorithm `EAGEL3`"),
        (arm_of(["draft-simple", "ngram-simple"]), "one method at a time"),
        (arm_of("draft-simple", p_min=0.5), "`p_min` has no effect on SGLang"),
        (arm_of("NGRAM", options={"speculative_ngram_max_tri_depth": 3}), "Did you mean"),
        (arm_of("NGRAM", options={"speculative_draft_model_path": "x"}), "models.draft"),
        (arm_of("NGRAM", options={"mem_fraction_static": 0.3}), "options.mem-fraction-static"),
        (arm_of(args=["--port", "1"]), "--port may not be among a recipe's arguments"),
        (arm_of(args=["--incremental-streaming-output"]), "benchctl sets it for its measurement"),
        (arm_of(args=["--frobnicate"]), "no option --frobnicate"),
        (arm_of(args=["stray"]), "is not an option"),
    ],
)
def test_what_this_sglang_cannot_do_is_refused(python: Path, pair: ResolvedPair, arm: Arm, message: str) -> None:
    recipe = recipe_of(arm, engine=spec_of(python))
    with pytest.raises(UsageError) as caught:
        make_engine(recipe.engine).check(recipe, pair)
    assert message in caught.value.what


def test_a_draft_is_needed_and_must_speak_for_the_target(python: Path, pair: ResolvedPair) -> None:
    recipe = recipe_of(arm_of("draft-simple"), engine=spec_of(python))
    with pytest.raises(UsageError, match="needs a draft model"):
        make_engine(recipe.engine).check(recipe, ResolvedPair(pair.target, None))
    assert pair.draft is not None
    (pair.draft.path / "tokenizer.json").write_text('{"model": {"vocab": {"b": 0, "a": 1}}}')
    with pytest.raises(UsageError, match="does not fit the target"):
        make_engine(recipe.engine).check(recipe, pair)


@pytest.mark.parametrize("name", ["SGLANG_SIMULATE_ACC_LEN", "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION"])
def test_nothing_fakes_a_measurement(
    python: Path, pair: ResolvedPair, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "3")
    engine = SglangEngine(spec_of(python))
    assert engine.launch(arm_of("NGRAM"), pair).env.get(name) != "3"
    recipe = recipe_of(arm_of(), engine=spec_of(python, env={name: "3"}))
    with pytest.raises(UsageError, match=name):
        make_engine(recipe.engine).check(recipe, pair)


def test_only_break_even_simulates_acceptance(python: Path, pair: ResolvedPair) -> None:
    real = recipe_of(arm_of(), arm_of("draft-simple", max=2), engine=spec_of(python))
    recipe = with_synthetic_arms(real, (), [0.5])
    arm = next(arm for arm in recipe.arms if arm.name == "synth_d2_a50")
    launch = SglangEngine(spec_of(python)).launch(arm, pair)
    named = {name: launch.env[name] for name in launch.set_by_us}
    assert named["SGLANG_SIMULATE_ACC_LEN"] == "1.75"
    assert not any(argument.startswith("--simulate") for argument in launch.argv)
    assert lossy_settings("sglang", launch.argv, named) == [SYNTHETIC]
    make_engine(recipe.engine).check(recipe, pair)
    assert arm.speculation is not None
    assert any("breakeven" in problem for problem in recipe_problems(arm.speculation))


def test_a_lower_threshold_is_lossy_by_design(python: Path, pair: ResolvedPair) -> None:
    exact, lossy = (
        SglangEngine(spec_of(python)).launch(
            arm_of("draft-eagle3", options={"speculative_accept_threshold_single": value}), pair
        )
        for value in (1.0, 0.9)
    )
    assert lossy_settings("sglang", exact.argv, exact.env) == []
    assert lossy_settings("sglang", lossy.argv, lossy.env) == ["acceptance threshold"]


def ask(server: SglangServer, sampling: Sampling = GREEDY) -> Any:
    return complete(server, server.render(RAW), sampling)


def test_a_cumulative_stream_is_read_as_what_was_added(start: Start) -> None:
    server = start(arm_of())
    assert server.attest(None).state == "off"
    prompt = server.render(Prompt(messages=(Message(role="user", content="hi"),)))
    assert '"content": "hi"' in prompt.text
    counts: list[int] = []
    answer = complete(server, server.render(RAW), GREEDY, counts.append)
    assert (answer.text, answer.token_ids, answer.n_predicted) == ("one two three four five", (1, 2, 3, 4, 5), 5)
    assert (answer.finish_reason, answer.prompt_tokens, answer.ledger) == ("length", 3, Ledger())
    assert counts == sorted(set(counts)), "several events may come at once"
    assert counts[-1] == 5
    assert 0 < answer.ttft_s <= answer.ttft_s + answer.decode_s <= answer.e2e_s
    assert server.attest(None).state == "off"
    assert server.stop() is not None
    assert not server.alive()


@pytest.mark.parametrize(("kind", "drafted"), [("draft-simple", 8), ("NGRAM", None)])
def test_a_ledger_has_no_nominal_number_in_it(start: Start, kind: str, drafted: int | None) -> None:
    server = start(arm_of(kind, max=4))
    assert server.attest(None).state == "idle"
    answer = ask(server)
    assert answer.ledger == Ledger(drafted=drafted, accepted=2, rounds=2, accepted_by_position=(1, 1))
    result = server.attest(answer.ledger.drafted)
    assert result.state == "active"
    assert any("bonus token included): 2.500" in line for line in result.evidence)
    assert any("drafted tokens" in line for line in result.evidence) == (drafted is None)


def test_what_is_counted_and_what_is_not() -> None:
    assert drafts_are_counted({"speculative_algorithm": "EAGLE3"})
    assert not drafts_are_counted({"speculative_algorithm": "EAGLE3", "speculative_adaptive": True})
    assert not drafts_are_counted({"speculative_algorithm": "SOME_PLUGIN"})
    assert not drafts_are_counted({"speculative_algorithm": None})
    meta = {"spec_verify_ct": 2, "spec_num_correct_drafts": 3, "spec_correct_drafts_histogram": [0, 2]}
    assert verified_ledger(meta, counted=True) == Ledger(accepted=3, rounds=2)
    assert verified_ledger({"spec_verify_ct": 0}, counted=True) == Ledger()


def test_tokens_that_came_together_at_first_took_no_time() -> None:
    last = {"finish_reason": {"type": "length"}, "completion_tokens": 5, "prompt_tokens": 3}
    events = [("a b c", [1, 2, 3], {}), ("a b c d e", [1, 2, 3, 4, 5], last)]
    chunks = [
        f"data: {json.dumps({'text': text, 'output_ids': ids, 'meta_info': meta})}\n\n".encode()
        for text, ids, meta in events
    ]
    times, counts = iter([1.0, 2.0]), list[int]()
    answer = read(GenerateReader(), chunks, times=times, on_tokens=counts.append)
    assert counts == [3, 5]
    assert answer is not None
    assert (answer.ttft_s, answer.decode_s, answer.first_tokens) == (1.0, 1.0, 3)


def test_requests_that_stopping_broke_off_do_not_wait_for_its_end(tmp_path: Path) -> None:
    waits: list[float] = []

    class Process:
        log_path, access = tmp_path / "log", None

        def wait(self, timeout: float) -> bool:
            waits.append(timeout)
            return False

        def stop(self, **_: float) -> None:
            assert "still runs" in server._broken_off("The connection broke").what

    spec = SglangSpec(kind="sglang")
    server = SglangServer(cast("EngineProcess", Process()), "http://127.0.0.1:9", spec, {})
    server.stop()
    assert waits == [0.0]  # each wait would hold up the SIGTERM


def test_requests_without_the_key_are_refused_and_it_is_written_nowhere(start: Start, tmp_path: Path) -> None:
    server = start(Arm(name="baseline"))
    assert server.access is not None
    key, url = server.access.key, str(server.http._base)
    for headers in ({}, {"Authorization": "Bearer guessed"}):
        assert httpx.get(f"{url}/server_info", headers=headers, trust_env=False).status_code == 401
    assert server.attest(None).state == "off"
    assert key not in " ".join(psutil.Process(server.pid).cmdline())
    log = server.log_path
    assert "api_key='****" in log.read_text()
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    server.stop()
    assert not [file for file in tmp_path.rglob("*") if file.is_file() and key.encode() in file.read_bytes()]
    assert not server.access.folder.exists()


def test_a_start_that_fails_reveals_no_key(start: Start, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="not healthy after") as caught:
        start(Arm(name="baseline"), "never-healthy", health_timeout_s=4.0)
    assert caught.value.kind == "health"
    assert "api_key='****" in caught.value.log_tail[-1]
    assert "api_key='****" in (tmp_path / "0.log").read_text()


def test_several_requests_may_be_in_flight(start: Start) -> None:
    server = start(Arm(name="c4", concurrency=4, speculation=Speculation(type="draft-simple", max=4)))
    prompt = server.render(RAW)
    answers = at_once(server, [prompt] * 12, GREEDY, 4)
    ledgers = {(answer.ledger.drafted, answer.ledger.accepted) for answer in answers}
    assert ledgers == {(8, 2)}, "drafts are counted before any attestation: verify-stress makes none"
    assert any("24 rounds, 96 drafted" in line for line in server.attest(96).evidence)


@pytest.mark.parametrize(
    ("kind", "fault", "message"),
    [
        (None, "speculating", "requests no speculation, but SGLang has it on"),
        (None, "cache-on", "its prefix cache is on"),
        (None, "cached", "3 prompt tokens were taken from a cache"),
        (None, "other-server", "serves /elsewhere"),
        (None, "no-info", "does not report its settings"),
        ("draft-simple", "not-speculating", "STANDALONE was requested, but SGLang runs without speculation"),
        ("draft-simple", "other-depth", "speculative_num_draft_tokens = 99; 5 was requested"),
        ("draft-simple", "nothing-verified", "nothing was verified"),
    ],
)
def test_what_was_not_requested_fails(start: Start, kind: str | None, fault: str, message: str) -> None:
    server = start(arm_of(kind, max=4) if kind else arm_of(), fault)
    ask(server)
    result = server.attest(None)
    assert result.state == "failed"
    assert message in str(result.reason)


def test_a_prefix_cache_that_is_requested(start: Start) -> None:
    server = start(arm_of(), "cached", prefix_caching=True)
    assert ask(server).cached_tokens == 3
    assert server.attest(None).state == "off"
    refused = start(arm_of(), prefix_caching=True, args=["--disable-radix-cache"]).attest(None)
    assert "engine.prefix_caching requests it" in str(refused.reason)


@pytest.mark.parametrize(("fault", "state"), [("nothing-accepted", "unverified"), ("nothing-verified", "idle")])
def test_a_lookup_that_found_nothing(start: Start, fault: str, state: str) -> None:
    server = start(arm_of("ngram-simple"), fault)
    ask(server)
    assert server.attest(None).state == state


@pytest.mark.parametrize(
    ("fault", "kind", "message"),
    [
        ("http-400", "http", "longer than the model's context"),
        ("error-event", "http", "out of luck"),
        ("aborts", "http", "the scheduler gave up"),
        ("takes-back", "protocol", "retracted tokens"),
        ("miscounts", "protocol", "5 tokens were received, and the engine counts 6"),
        ("stalls", "timeout", "sent nothing"),
        ("dies-mid-answer", "crash", "lacks its compiled kernels"),
    ],
)
def test_failures(start: Start, fault: str, kind: str, message: str) -> None:
    server = start(arm_of(), fault, **({"stall_timeout_s": 0.5} if fault == "stalls" else {}))
    with pytest.raises(EngineError, match=message) as caught:
        ask(server)
    assert caught.value.kind == kind
    assert server.alive() == (kind != "crash")


def test_a_launch_that_fails(start: Start) -> None:
    with pytest.raises(EngineError, match="--frobnicate") as caught:
        start(arm_of(), "exits-at-once")
    assert caught.value.kind == "launch"


def test_status_137_is_not_memory() -> None:
    killed = "[2026-11-21 10:00:00] Received sigquit from a child process. It usually means the child failed."
    cause = launch_cause(["loading", killed])
    assert cause is not None
    assert "SIGKILL" in cause[0]
    raised = launch_cause([killed, "[2026-11-21 10:00:00] ValueError: attention backend must be fa3"])
    assert raised == ("ValueError: attention backend must be fa3", "Read the engine's log.")
    assert launch_cause(["loading"]) is None
