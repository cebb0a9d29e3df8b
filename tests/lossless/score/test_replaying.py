"""Replaying a run's answers, with a target that exists only in the test: the order, what is kept, what is skipped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchctl.data.store import open_run
from benchctl.data.writer import RunWriter
from benchctl.engines.base import Launch, Rendered
from benchctl.engines.scoring import ReplayedToken
from benchctl.errors import EngineError
from benchctl.lossless.score import relaunch
from benchctl.lossless.score.relaunch import Relaunch
from benchctl.lossless.score.session import Request, Verified, verify
from benchctl.prompts.suite import Prompt
from benchctl.recipes.schema import GREEDY
from tests.analysis.conftest import build_manifest, build_record
from tests.lossless.judge.test_replay import COUNTERS, OTHER, STEPS

PROMPTS = 3
Replay = Callable[[Sequence[int], Sequence[Sequence[int]]], list[ReplayedToken]]


class ToyTarget:
    """Renders, and replays as a test scripts it; whole answers cannot be scored."""

    command = ("/nowhere/replay", "--model", "none.gguf")
    evidence = "a toy reads"
    in_batches = True

    def __init__(self, replay: Replay = lambda *_: [], no_replay: dict[str, str] | None = None) -> None:
        self.script = replay
        self.unreplayable = no_replay or {}
        self.own_launch: set[str] = set()
        self.settings: dict[str, Any] = {}
        self.steps: list[str] = []
        self.alive = 0

    def render(self, prompt: Prompt) -> Rendered:
        return Rendered(prompt.prompt or "", (int((prompt.prompt or "")[-1]), 2), self.settings)

    def start_scorer(self, launch: Launch, log_path: Path, sampling: Any = None) -> ToyTarget:
        return self._started("scorer")

    def no_replay(self, launch: Launch) -> str | None:
        return self.unreplayable.get(launch.argv[0])

    def replay_launch(self, launch: Launch) -> Launch:
        return launch if launch.argv[0] in self.own_launch else Launch(("baseline",), {})

    def start_replayer(self, launch: Launch, log_path: Path, sampling: Any = None) -> ToyTarget:
        return self._started(f"replayer of {launch.argv[0]}")

    def replay(self, prompt: Rendered, answer: Sequence[int], steps: Any) -> list[ReplayedToken]:
        drafted = "drafted" if any(step[0] for step in steps) else "plain"
        self.steps.append(f"{drafted} {prompt.token_ids[0]} {answer[-1]}")
        assert prompt.settings == self.settings
        return self.script(answer, steps)

    def read_prompt(self, prompt: Sequence[int], top: int) -> Any:
        self.steps.append("score")
        raise EngineError("Nothing is scored here.", kind="crash")

    read_on = read_whole = read_prompt

    def _started(self, part: str) -> ToyTarget:
        assert not self.alive, "the target is in memory once"
        self.steps.append(part)
        self.alive += 1
        return self

    def stop(self) -> int:
        self.alive -= 1
        return 0


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Three prompts: `equal` gives the baseline's answers, `other` another one to the second."""
    arms: dict[str, Any] = {
        "baseline": None, "equal": {"type": "draft-simple"}, "other": {"type": "draft-simple", "max": 4},
    }  # fmt: skip
    folder = tmp_path / "by-hand" / "20261121-110500-3fa9"
    with RunWriter(folder, build_manifest(arms, PROMPTS, 1)) as writer:
        for prompt in range(PROMPTS):
            writer.append(build_record("baseline", prompt))
            writer.append(build_record("equal", prompt, target_steps=STEPS, **COUNTERS))
            differing: dict[str, Any] = {"ids": OTHER, "text": "else"} if prompt == 1 else {}
            writer.append(build_record("other", prompt, target_steps=STEPS, **COUNTERS, **differing))
        writer.save()
    return folder


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Callable[[ToyTarget], ToyTarget]:
    def launch(target: ToyTarget) -> ToyTarget:
        prompts = {("code", index): Prompt(prompt=f"code/{index}") for index in range(PROMPTS)}
        engine: Any = target
        again = Relaunch(
            engine, Launch(("baseline",), {}), GREEDY, prompts, "", kind="toy", launch_of=lambda arm: Launch((arm,), {})
        )
        monkeypatch.setattr(relaunch, "relaunch", lambda *_, **__: again)
        return target

    return launch


def verified(run: Path, **request: Any) -> Verified:
    return verify(open_run(run), Request(quiet=True, **request))


def verdicts(run: Path, **request: Any) -> dict[str, str]:
    return {row.arm: row.verdict for row in verified(run, **request).verdicts}


CONTROL = ["plain 0 110", "plain 1 110", "plain 2 110"]
EQUAL = ["drafted 0 110", "drafted 1 110", "drafted 2 110"]


def test_the_control_is_read_first_equal_answers_once_and_nothing_is_scored(run: Path, launched: Any) -> None:
    target = launched(ToyTarget())
    assert verdicts(run) == {"equal": "identical", "other": "exact"}
    assert target.steps == ["scorer", "replayer of baseline", *CONTROL, *EQUAL, "drafted 1 10"]
    stored = open_run(run).scores
    assert stored is not None and stored.replays is not None and not stored.answers
    (kept,) = stored.replays.targets
    assert (kept.arms, kept.evidence, len(kept.answers)) == (["baseline", "equal", "other"], "a toy reads", 7)
    stamp = (run / "scores.json").stat().st_mtime_ns
    again = launched(ToyTarget())
    assert verified(run).only("identical", "exact")
    assert (again.steps, (run / "scores.json").stat().st_mtime_ns) == ([], stamp)
    assert {row.arm: row.verdict for row in verified(run, offline=True).verdicts}["other"] == "exact"


def test_a_prompt_is_replayed_with_the_settings_of_its_request_or_not_at_all(tmp_path: Path, launched: Any) -> None:
    target = launched(ToyTarget())
    target.settings = {"json_schema": {"type": "object"}}
    sent = Rendered("code/0", (), target.settings).sha256
    folder = tmp_path / "by-hand" / "20261121-110500-3fa9"
    with RunWriter(folder, build_manifest({"baseline": None, "spec": {"type": "draft-simple"}}, 1, 1)) as writer:
        writer.append(build_record("baseline", prompt_sha=sent))
        writer.append(build_record("spec", ids=OTHER, text="else", prompt_sha=sent, target_steps=STEPS, **COUNTERS))
        writer.save()
    assert verdicts(folder) == {"spec": "exact"}
    (folder / "scores.json").unlink()
    target.settings = {}
    (spec,) = verified(folder).verdicts
    assert "renders the prompt differently" in spec.reason


def test_the_last_answer_is_kept_where_each_takes_long(
    run: Path, launched: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchctl.lossless.score.scores_file.KEPT_EVERY_S", -1.0)
    launched(ToyTarget())
    verified(run)
    stored = open_run(run).scores
    assert stored is not None and stored.replays is not None
    assert [len(target.answers) for target in stored.replays.targets] == [7]


def test_what_was_cut_short_is_continued(run: Path, launched: Any) -> None:
    def interrupted(answer: Sequence[int], steps: Any) -> list[ReplayedToken]:
        if len(target.steps) == 7:
            raise KeyboardInterrupt
        return []

    target = launched(ToyTarget(interrupted))
    with pytest.raises(KeyboardInterrupt):
        verified(run)
    assert not target.alive
    again = launched(ToyTarget())
    assert verdicts(run) == {"equal": "identical", "other": "exact"}
    assert again.steps == ["scorer", "replayer of baseline", *EQUAL[1:], "drafted 1 10"]


def test_readings_of_another_program_are_read_again(run: Path, launched: Any) -> None:
    launched(ToyTarget())
    verified(run, arms=["equal"])
    another = launched(ToyTarget())
    another.evidence = "another program reads"
    assert verdicts(run) == {"equal": "identical", "other": "exact"}
    assert another.steps == ["scorer", "replayer of baseline", *CONTROL, *EQUAL, "drafted 1 10"]


def test_time_that_is_over_leaves_the_arm_undetermined(run: Path, launched: Any) -> None:
    target = launched(ToyTarget())
    (other,) = verified(run, budget_min=1e-9, arms=["other"]).verdicts
    assert (other.verdict, target.steps[:2]) == ("undetermined", ["scorer", "replayer of baseline"])
    assert other.replay is not None
    assert "the time was over" in str(other.replay.lacking)


def test_an_inexact_control_ends_replay_and_says_how_many(run: Path, launched: Any) -> None:
    def noisy(answer: Sequence[int], steps: Any) -> list[ReplayedToken]:
        return [ReplayedToken(2, 7, 0.01)] if target.steps[-1] == CONTROL[1] else []

    target = launched(ToyTarget(noisy))
    rows = {row.arm: row for row in verified(run).verdicts}
    assert target.steps[:5] == ["scorer", "replayer of baseline", *CONTROL]
    assert target.steps[5:7] == ["scorer", "score"], "the other tests follow"
    assert rows["other"].verdict == "undetermined"
    assert rows["other"].replay is not None and rows["other"].replay.control_deviating == 1
    assert "since 1 of 3 answers of the baseline do not replay" in rows["other"].reason


def test_a_deviation_is_a_violation_and_a_failure_is_said(run: Path, launched: Any) -> None:
    def faulty(answer: Sequence[int], steps: Any) -> list[ReplayedToken]:
        return [ReplayedToken(2, 7, 0.01)] if answer[-1] == 10 else []

    launched(ToyTarget(faulty))
    assert verdicts(run) == {"equal": "identical", "other": "violation"}


def test_a_launch_of_its_own_and_reasons_by_arm(run: Path, launched: Any) -> None:
    target = launched(ToyTarget(no_replay={"equal": "its drafts are trees"}))
    target.own_launch = {"other"}
    rows = {row.arm: row for row in verified(run).verdicts}
    assert target.steps[:6] == ["scorer", "replayer of baseline", *CONTROL, "replayer of other"]
    assert rows["other"].verdict == "exact"
    assert rows["equal"].replay is not None
    assert "its drafts are trees" in str(rows["equal"].replay.lacking)


def test_an_engine_that_fails_or_cannot_replay_leaves_the_others_to_decide(run: Path, launched: Any) -> None:
    def failing(answer: Sequence[int], steps: Any) -> list[ReplayedToken]:
        raise EngineError("It is gone.", kind="crash")

    launched(ToyTarget(failing))
    (other,) = verified(run, arms=["other"]).verdicts
    assert (other.verdict, other.replay is not None and other.replay.answers) == ("undetermined", 0)
    assert "the engine failed: It is gone." in other.reason
    target = launched(ToyTarget())
    target.no_replay = lambda _: "its build is another"
    (other,) = verified(run, arms=["other"]).verdicts
    assert "its build is another" in other.reason
