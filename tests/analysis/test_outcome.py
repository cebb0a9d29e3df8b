"""What a run comes to: the fastest setting whatever it is, tasks that differ, and what a person feels."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from benchctl.analysis.outcome import ANSWER_TOKENS, find_outcome, task_effects
from benchctl.analysis.results import ALL_TASKS, Analysis
from benchctl.data.store import open_run
from benchctl.lossless.judge.run import analyse_run
from benchctl.reports.run_summary import print_decision, print_summary
from benchctl.words import outcome as words
from benchctl.words.conclusion import headline, sentences_of_sweep
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
    assert "The machine was unsteady: repeat" in first
    (bf16, *others) = sentences_of_sweep(flagship)
    tasks = "1.78× on editing, no clear difference on code, chat and translation"
    assert f"ngram-t_bf16 is 1.16× as fast (1.10 to 1.22, 95 %): {tasks}; it drafted in only 11 of 32 prompts" in bf16
    assert "Its output may differ: this check would miss almost any fault." in bf16
    assert others == ["q8_0 and q4_k_m: the one setting tried is slower: 0.45× and 0.39×."]


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
        "Measured with ngram-t_bf16: whole request 1.14× as fast, first token no later, RAM +19.2 MiB (20.1 GiB free), "
        "energy not reported. 200 tokens (projected) take 15.4 s, without it 17.9 s, with q4_k_m alone 8.92 s. "
        "Prompts of 39 to 99 tokens, answers of 8 to 32, one at a time, temperature 0."
    )


@pytest.mark.parametrize(
    ("first_token", "energy", "said"),
    [
        (0.965, 0.196, "first token 4 % sooner, {free}, 80 % less energy a token (GPU)"),
        (1.02, 1.0, "first token about as early, {free}, about the same energy a token (GPU)"),
        (2.69, 1.5, "first token 169 % later, {free}, 50 % more energy a token (GPU)"),
    ],
)  # fmt: skip
def test_what_changes_is_said_in_plain_comparisons(
    flagship: Analysis, first_token: float, energy: float, said: str
) -> None:
    outcome = find_outcome(flagship)
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
    assert "4 warnings (see -v): unequal work (ngram-t_bf16), drift, 2 from before the run." in words
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    shown = readme.partition("$ benchctl report qwen2.5-coder-bf16\n")[2].partition("```")[0].splitlines()
    assert shown == [line.rstrip() for line in text.splitlines()][: len(shown)], "the README's example"


def test_tasks_are_told_apart_only_where_they_are_shown_to_differ(flagship: Analysis) -> None:
    assert {row.task: row.speed for row in task_effects(flagship, "ngram-t_bf16")}["editing"] == "faster"
    cuda = analyse_run(open_run(REPOSITORY / "results/padded-cuda/20261127-204443-ee1d"))
    assert "8.20× on code" in headline(cuda), "all faster, and by how much differs"
    assert task_effects(cuda, "ngram") == [] or "ngram" not in headline(cuda).partition("Within")[0]
