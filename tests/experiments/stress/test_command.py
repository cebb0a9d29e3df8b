"""`benchctl verify-stress` as a user runs it: two open faults of the pinned llama-server, and wrong command lines.

EAGLE-3 fails where a conversation goes on after another one, with the host cache that llama-server has by default; and
every type of speculation leaves out log probabilities. A build that mends either needs another fault here.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import typer

from benchctl.cli.verify_stress import verify_stress
from benchctl.experiments.stress.issue import stress_issue
from benchctl.experiments.stress.judge import judge_stress
from benchctl.experiments.stress.stored import ListedFault, Reproduction, read_stress, write_stress
from tests.benchctl_process import benchctl
from tests.experiments.stress.test_judge import PLAIN, PROMPTS, REPEATED, STOP, answers, changed, request, stress_test

verify = partial(benchctl, "verify-stress")
PAIR = ("bundled:tiny-sequential", "bundled:tiny-sequential-eagle3", "--type", "draft-eagle3")


@pytest.mark.engine
@pytest.mark.slow
def test_conversations_and_log_probabilities_of_eagle3(tmp_path: Path) -> None:
    small = ("--only", "sessions,constraint", "--budget", "40s", "--set", "engine.threads=1")
    done = verify(*PAIR, *small, "--json", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    document = json.loads(done.stdout)
    sessions, constraint = document["results"]
    assert (sessions["scenario"], sessions["verdict"]) == ("sessions", "fails")
    assert sessions["control"]["errors"] == 0
    assert (constraint["scenario"], constraint["verdict"]) == ("constraint", "known fault")
    assert {item["code"] for item in constraint["invalid"]} == {"log probabilities"}
    shortest = {plan["scenario"]: plan for plan in document["reproductions"]}
    assert "speculative batch" in shortest["sessions"]["shows"]
    assert len(shortest["sessions"]["requests"]) <= 4
    assert shortest["sessions"]["shown"] == shortest["sessions"]["attempts"] >= 1
    played = read_stress(tmp_path / document["folder"]).played.values()
    assert max(answer.started_s for each in played for answer in each.answers.values()) < 0.8 * 40, "then come scores"
    command = shortest["sessions"]["command"]
    assert not {"-np", "-b", "--cache-ram", "--no-context-shift"} & {*command}, "the server's own defaults"
    offline = verify("--offline", document["folder"], cwd=tmp_path)
    assert offline.returncode == 1
    assert "llama.cpp#27972" in done.stderr and "llama.cpp#27972" in offline.stdout
    assert "curl -s http://127.0.0.1:8080/completion" in offline.stdout
    assert "lossless" not in offline.stdout
    form = verify("--offline", document["folder"], "--issue", cwd=tmp_path).stdout
    assert form.startswith("# ") and "requests fail in a conversation" in form.splitlines()[0]
    fields = ["### Name and Version", "SHA-256 of the program", "llama-server -m", "speculative batch", "curl -s"]
    assert not [field for field in fields if field not in form], form
    assert str(Path.home()) not in form


@pytest.mark.engine
@pytest.mark.slow
def test_pressure_meets_the_fault_that_is_on_the_list(tmp_path: Path) -> None:
    """Look-ups abort at a context shift (llama.cpp#21815): the control is shifted and answers."""
    lookup = ("bundled:tiny-transformer", "--type", "ngram-map-k", "--set", "engine.threads=1")
    done = verify(*lookup, "--only", "context shift", "--budget", "30s", "--json", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    document = json.loads(done.stdout)
    (result,) = document["results"]
    assert (result["verdict"], result["aborts"] > 0, result["control"]["errors"]) == ("fails", True, 0)
    assert "shifted" not in result["control"]["lacking"]
    (shortest,) = document["reproductions"]
    assert "--context-shift" in shortest["command"] and len(shortest["requests"]) == 1


@pytest.mark.parametrize(("text", "plain", "accepted"), [("a", 1, 0), ("abc", 1, 1)])
def test_a_known_fault_counts_unless_it_is_accepted(tmp_path: Path, text: str, plain: int, accepted: int) -> None:
    """Another invalid answer beside it, a stop string that is passed, counts in either case."""
    requests = [PLAIN, request(1, None, listed=True), request(2, "p0"), request(3, None, stop=STOP)]
    arm, control = answers(requests), answers(requests)
    for side in (arm, control):
        side.answers["r3"].stop, side.answers["r3"].text = "b", "a"
    arm.answers["r1"].listed, control.answers["r1"].listed, arm.answers["r3"].text = (5, 0), (5, 5), text
    fault = ListedFault(arms=("spec",), sentence="Lists are empty.", lacks="log probabilities")
    write_stress(tmp_path, stress_test(arm, control, requests, "constraint", faults=[fault]))
    assert (exit_code(tmp_path), exit_code(tmp_path, accept_known=True)) == (plain, accepted)


def test_without_a_plan_that_shows_it_again_there_is_nothing_to_send(tmp_path: Path) -> None:
    requests = [PLAIN, request(1, "p0"), request(2, None)]
    write_stress(tmp_path, stress_test(answers(requests), answers(requests), requests, "canary"))
    done = verify("--offline", str(tmp_path), "--issue", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "") and "nothing to report" in done.stderr


def test_a_form_has_the_title_of_what_its_plan_shows(tmp_path: Path) -> None:
    """Beside a wrong answer a request failed: the shortest plan is that of the failure."""
    arm = answers(REPEATED, changed("r15"))
    arm.answers["r14"].error = "HTTP 500"
    test = stress_test(arm, gaps={"r15": 1.0})
    shortest: dict[str, Any] = {"command": ("llama-server",), "requests": [("/completion", "{}")], "together": [1]}
    test.reproductions = [
        Reproduction(arm="spec", scenario="canary", shows="request 1: HTTP 500", attempts=1, shown=1, **shortest)
    ]
    (result,) = judge_stress(test)
    form = stress_issue(tmp_path, test, [result])
    assert result.verdict == "violation" and form is not None
    assert "requests fail asked again" in form.splitlines()[0]


def test_an_interrupted_test_is_judged_by_what_was_answered(tmp_path: Path) -> None:
    names = [f"r{number}" for number in range(PROMPTS, PROMPTS + 7)]
    test = stress_test(answers(REPEATED, changed(*names)))
    test.status, test.played["spec"].divergences = "interrupted", []
    write_stress(tmp_path, test)
    assert exit_code(tmp_path) == 1


def exit_code(folder: Path, *, accept_known: bool = False) -> int:
    """Judge a stored test."""
    try:
        verify_stress([str(folder)], offline=True, accept_known=accept_known, quiet=True)
    except typer.Exit as ended:
        return ended.exit_code
    return 0


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ((*PAIR, "--only", "canary,crowds"), 2, "There is no scenario 'crowds'"),
        ((*PAIR, "--type", "ngram-simple,draft-simple"), 2, "`type: [ngram-simple,draft-simple]`"),
        ((*PAIR, "--budget", "soon"), 2, "Expected a time such as 10m"),
        (("--offline", "."), 2, "no stress test here"),
        (("--offline", "a", "b"), 2, "one stored test"),
        (("--offline", "a", "--only", "canary"), 2, "--only would have no effect"),
        (("--offline", "damaged/stress.json"), 4, "stress test"),
        ((*PAIR, "--arm", "nope"), 2, "--arm: There is no arm"),
        (("--arm-url", "http://127.0.0.1:1/v1"), 2, "the server without speculation"),
        ((), 2, "Name either a recipe or a target"),
        (("plain.yaml",), 2, "no arm that speculates"),
        (("--url", "http://127.0.0.1:1/v1"), 2, "--arm-url"),
        (("--offline", "damaged"), 4, "stress test"),
    ],
)
def test_a_wrong_command_line(tmp_path: Path, words: tuple[str, ...], code: int, message: str) -> None:
    plain = 'name: plain\nmodels: {target: {source: "bundled:tiny-hybrid"}}\nprompts: {suite: tiny.json}\n'
    (tmp_path / "plain.yaml").write_text(plain + "arms: [{name: baseline}]\n")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "stress.json").write_text('{"schema": 1}')
    done = verify(*words, cwd=tmp_path)
    assert (done.returncode, message in done.stderr) == (code, True), done.stderr
