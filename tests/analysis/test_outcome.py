"""What a run comes to: the fastest setting whatever it is, tasks that differ, and what a person feels."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from benchctl.analysis.frame import ALL_TASKS
from benchctl.analysis.outcome import ANSWER_TOKENS, find_outcome, task_effects
from benchctl.analysis.result import Interval
from benchctl.analysis.results import Analysis
from benchctl.data.store import open_run
from benchctl.lossless.judge.run import analyse_run
from benchctl.reports.first_screen import decisive
from benchctl.reports.run_summary import print_decision, print_run, print_summary
from benchctl.words import outcome as words
from benchctl.words.conclusion import fidelity, headline, sentences_of_sweep
from tests.kept_runs import REPOSITORY

FLAGSHIP = "qwen2.5-coder-bf16/20261125-232328-f38a"


@pytest.fixture(scope="module")
def flagship() -> Analysis:
    return analyse_run(open_run(REPOSITORY / "results" / FLAGSHIP))


def test_the_fastest_of_all_may_be_a_target_without_speculation(flagship: Analysis) -> None:
    outcome = find_outcome(flagship)
    assert outcome.fastest is not None
    assert (outcome.fastest.arm, outcome.fastest.speculates) == ("baseline-t_q4_k_m", False)
    rates = [row.pooled_rate or 0.0 for row in flagship.throughput if row.task == ALL_TASKS]
    assert outcome.fastest.rate == max(rates)
    assert [target.faster for target in outcome.targets] == [["ngram-t_bf16"], [], []]
    first = headline(flagship)
    assert first.startswith("Fastest: q4_k_m without speculation (baseline-t_q4_k_m), 23.3 tok/s")
    assert first.endswith(
        "tok/s (its answers may be worse: not compared). The machine was unsteady: repeat on a quiet one."
    )
    (bf16, *others) = sentences_of_sweep(flagship)
    tasks = "1.78× on editing, unclear on code, chat and translation"
    prompts = "over all 32 prompts (11 with a draft)"
    assert bf16.startswith(f"bf16: ngram-t_bf16 is 1.16× as fast (1.10 to 1.22, 95 %) {prompts}: {tasks}. ")
    assert bf16.endswith(
        "Its output is not proven the same: 31 of 32 prompts get the answer of bf16 alone, and the check would miss "
        "almost any fault. Nor is that of spec_d8-t_q4_k_m."
    )
    assert others == ["q8_0 and q4_k_m: spec_d8 is slower (0.45×, 0.39×); ngram was not tried."]


def test_a_target_whose_every_arm_damages_the_output_has_no_empty_sentence(flagship: Analysis) -> None:
    damaged = {"verdict": "violation", "counts": {"violation": 3}}
    rows = [row.model_copy(update=damaged if row.arm == "spec_d8-t_q8_0" else {}) for row in flagship.losslessness]
    (_, *others) = sentences_of_sweep(flagship.model_copy(update={"losslessness": rows}))
    assert others == ["q4_k_m: spec_d8 is slower (0.39×); ngram was not tried."]


def test_an_output_is_compared_with_that_of_the_same_target(flagship: Analysis) -> None:
    def judged(verdict: str, arms: set[str]) -> Analysis:
        rows = [row.model_copy(update={"lossless": verdict} if row.arm in arms else {}) for row in flagship.verdicts]
        return flagship.model_copy(update={"verdicts": rows})

    exact = sentences_of_sweep(judged("exact", {"ngram-t_bf16"}))[0]
    assert exact.endswith("Its output is exact: it differs from that of bf16 alone by rounding only.")
    identical = judged("identical", {row.arm for row in flagship.verdicts})
    assert fidelity(identical) == "Every answer of every arm is identical to its own baseline's."
    assert "baselines are not compared with each other" in decisive(flagship)[0].note


def test_what_a_person_feels_is_said_of_a_single_arm(flagship: Analysis) -> None:
    outcome = find_outcome(flagship)
    best, *others = outcome.felt
    assert [best.arm, *(row.arm for row in others)] == ["ngram-t_bf16", "spec_d8-t_q8_0", "spec_d8-t_q4_k_m"]
    speed = flagship.speedup_of(best.arm)
    assert speed is not None and speed.baseline_rate is not None and speed.decode_rate is not None
    assert best.answer_s is not None
    alone, with_arm = best.answer_s
    decoding = (ANSWER_TOKENS - 1) / speed.baseline_rate - (ANSWER_TOKENS - 1) / speed.decode_rate
    assert alone - with_arm == pytest.approx(decoding, abs=0.2), "the first token comes as soon"
    assert (best.request, best.first_token) == (speed.end_to_end, speed.ttft_ratio)
    resident = {row.arm: row.resident_bytes or 0 for row in flagship.resources}
    assert [row.memory_added for row in outcome.felt] == [
        resident[row.arm] - resident[flagship.compared[row.arm].baseline] for row in outcome.felt
    ]


def test_the_fastest_setting_comes_first_even_where_another_target_gains_more(flagship: Analysis) -> None:
    speeds = {"spec_d8-t_q4_k_m": ("faster", 1.1), "ngram-t_bf16": ("faster", 1.2)}
    verdicts = [
        row.model_copy(update=dict(zip(("speed", "speedup"), speeds.get(row.arm, ("slower", 0.5)), strict=True)))
        for row in flagship.verdicts
    ]
    speedups = [
        row.model_copy(update={"pooled": speeds.get(row.arm, ("", 0.5))[1], "decode_rate": None})
        for row in flagship.speedups
    ]
    outcome = find_outcome(flagship.model_copy(update={"verdicts": verdicts, "speedups": speedups}))
    assert outcome.fastest is not None and outcome.fastest.arm == "spec_d8-t_q4_k_m"
    assert [row.arm for row in outcome.felt][:2] == ["spec_d8-t_q4_k_m", "ngram-t_bf16"]


def test_a_reader_who_decides_sees_a_number_for_each_setting_that_he_may_run(flagship: Analysis) -> None:
    outcome = find_outcome(flagship)
    line = words.felt(outcome, flagship)
    assert outcome.felt[0].answer_s == pytest.approx((17.85, 15.43), abs=0.005)
    assert 1.155 < 17.85 / 15.43 < 1.165, "the ratio that a reader computes"
    assert line == (
        "Costs of ngram-t_bf16 (measured): whole request 1.14× as fast, first token no later, RAM +19.2 MiB (20.1 GiB "
        "free), energy not reported. 200 tokens (projected) take 15.4 s, without it 17.9 s, with q4_k_m alone 8.92 s. "
        "Prompts of 39 to 99 tokens, answers of 8 to 32, one at a time, temperature 0."
    )


@pytest.mark.parametrize(
    ("first_token", "ends", "energy", "said"),
    [
        (0.965, (0.95, 0.98), 0.196, "first token 4 % sooner, {free}, 80 % less energy a token (GPU)"),
        (0.965, (0.85, 1.09), 0.196, "first token unclear, {free}, 80 % less energy a token (GPU)"),
        (1.02, (0.9, 1.1), 1.0, "first token about as early, {free}, about the same energy a token (GPU)"),
        (2.69, None, 1.5, "first token 169 % later, {free}, 50 % more energy a token (GPU)"),
    ],
)
def test_what_changes_is_said_in_plain_comparisons(
    flagship: Analysis, first_token: float, ends: tuple[float, float] | None, energy: float, said: str
) -> None:
    outcome = find_outcome(flagship)
    interval = ends and Interval(low=ends[0], high=ends[1], method="")
    speedups = [row.model_copy(update={"ttft_interval": interval}) for row in flagship.speedups]
    flagship = flagship.model_copy(update={"speedups": speedups})
    changed = {"first_token": first_token, "energy": energy, "energy_of": ["gpu"]}
    best = outcome.felt[0].model_copy(update=changed)
    said = said.format(free="RAM +19.2 MiB (20.1 GiB free)")
    assert f", {said}. " in words.felt(outcome.model_copy(update={"felt": [best]}), flagship)


def test_the_screen_of_three_targets_is_one_of_24_lines(flagship: Analysis) -> None:
    console = Console(file=io.StringIO(), width=80, color_system=None)
    manifest = open_run(REPOSITORY / "results" / FLAGSHIP).manifest
    print_summary(console, flagship, "results/a/b", manifest)
    print_decision(console, flagship)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert len(text.splitlines()) < 24, "with the line of the report; a command is a line, however long"
    words = " ".join(text.split())
    assert "4 warnings (see -v): unequal work (ngram-t_bf16), drift, 2 about the set-up." in words
    assert (
        "Target qwen2.5-coder-1.5b-instruct in bf16, q8_0 and q4_k_m; draft qwen2.5-coder-0.5b-instruct-q4_k_m."
        in words
    )
    assert "Demonstration" not in words, "of real models"
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    shown = readme.partition("$ benchctl report qwen2.5-coder-bf16\n")[2].partition("```")[0].splitlines()
    assert shown == [line.rstrip() for line in text.splitlines()][: len(shown)], "the README's example"


@pytest.fixture
def screen_of(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[[str], str]:
    """What prints the first screen of a kept run, and returns it on a line."""
    monkeypatch.setenv("COLUMNS", "80")

    def shown(run: str) -> str:
        folder = REPOSITORY / "results" / run
        data = open_run(folder)
        print_run(analyse_run(data), folder, data.manifest, Path("index.html"))
        text = capsys.readouterr().out
        assert len(text.splitlines()) <= 24
        return " ".join(text.split())

    return shown


def test_models_of_the_demonstration_say_nothing_of_others(screen_of: Callable[[str], str]) -> None:
    """The run's target is a file of its own, made of a bundled model, whose name it keeps."""
    screen = screen_of("padded-cuda/20261127-204443-ee1d")
    assert "Demonstration models: none of this carries over to yours. Arm " in screen
    assert "Target padded-hybrid (f16); draft bundled:tiny-hybrid-draft (bf16)." in screen
    assert "Add to llama-server (spec_d16): -md " in screen
    assert "Next: Try depth 32 of draft-simple: the deepest so far, spec_d16, is the fastest." in screen
    assert "--type draft-simple --depth 32" in screen and "Accepted: share of drafted tokens kept." in screen


def test_after_damage_no_speed_is_praised_and_nothing_is_ordered_twice(screen_of: Callable[[str], str]) -> None:
    screen = screen_of("vllm-hybrid/20261121-180606-c5c1")
    assert screen.startswith(
        "ngram (12 of 12 prompts) damages the output, beyond what numeric noise explains. "
        "No safe setting is faster than the target without speculation (baseline), 53.8 tok/s. "
        "The machine was busy and unsteady: the speeds are unreliable. Demonstration models: "
    )
    assert "Prompts of 15 to 62 tokens, answers of 2 to 96, one at a time, temperature 0." in screen
    assert "high load, 1 more, 1 about ngram, 3 about the set-up." in screen
    assert (
        "Run the target alone: every arm that drafted damages the output. To repeat it on a quiet machine: " in screen
    )
    assert screen.count("quiet") == 1


def test_memory_that_an_engine_reserves_is_no_cost_of_an_arm(screen_of: Callable[[str], str]) -> None:
    """vLLM held 73 GiB of an H100 for a model of 7 MB, with drafts and without: "GPU memory as before"."""
    screen = screen_of("vllm-gpu/20261126-203918-4fb8")
    assert "Costs of ngram (measured): whole request 0.89× as fast" in screen and "memory" not in screen
    used = analyse_run(open_run(REPOSITORY / "results/vllm-gpu/20261126-203918-4fb8")).resources
    assert all(row.device_reserved and row.device_bytes == 78_754_349_056 for row in used), (
        "it was measured all the same"
    )


def test_a_speed_up_that_unequal_answers_change_is_said_over_equal_ones() -> None:
    run = analyse_run(open_run(REPOSITORY / "results/vllm-hybrid/20261121-180606-c5c1"))
    assert words.gain(run, "ngram").endswith("; 1.13× over answers of equal length")


def test_tasks_are_told_apart_only_where_they_are_shown_to_differ(flagship: Analysis) -> None:
    assert {row.task: row.speed for row in task_effects(flagship, "ngram-t_bf16")}["editing"] == "faster"
    cuda = analyse_run(open_run(REPOSITORY / "results/padded-cuda/20261127-204443-ee1d"))
    assert "8.20× on code" in headline(cuda), "all faster, and by how much differs"
    assert task_effects(cuda, "ngram") == [] or "ngram" not in headline(cuda).partition("Within")[0]
