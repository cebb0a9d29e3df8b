"""What a run advises: the fastest arm, whether to run with it, and what inactive arms say of the run itself."""

from __future__ import annotations

import io
import json
import shlex

import pytest
from rich.console import Console

from benchctl.analysis.advice import added_options, inactive_arms, launch_command, resolution
from benchctl.analysis.decision_results import GroupDecision
from benchctl.analysis.result import Interval
from benchctl.analysis.results import Analysis
from benchctl.data.store import RunData
from benchctl.reports.render import render_html, render_markdown
from benchctl.reports.run_summary import print_decision
from benchctl.words.conclusion import headline, null_control
from benchctl.words.notices import grouped_warnings
from tests.reports.handmade import build_analysis, build_manifest, decided


def decision_of(analysis: Analysis) -> GroupDecision:
    decision = decided(analysis).decision
    assert decision is not None
    (group,) = decision.groups
    return group


def test_the_fastest_arm_and_its_own_command() -> None:
    analysis = build_analysis(["baseline", "spec_d4", "ngram_simple"])
    group = decision_of(analysis)
    assert group.overall.arm == "ngram_simple"
    assert (group.action, group.overall.setting, group.overall.for_others) == ("run", "ngram-simple", True)
    assert shlex.split(group.overall.command or "")[-4:] == ["--port", "8080", "-np", "1"]
    open_interval = Interval(low=0.98, high=1.25, method="")
    verdicts = [
        verdict.model_copy(update={"like_these": open_interval}) if verdict.arm == "ngram_simple" else verdict
        for verdict in analysis.verdicts
    ]
    group = decision_of(analysis.model_copy(update={"verdicts": verdicts}))
    assert (group.overall.for_others, group.overall.few_prompts) == (False, False)


def test_slower_arms_are_not_advised() -> None:
    group = decision_of(build_analysis(["baseline", "spec_d2", "spec_d4"]))
    assert (group.overall.arm, group.action) == (None, "do not speculate")


def test_a_damaged_arm_is_not_advised_however_fast() -> None:
    analysis = build_analysis(["baseline", "ngram_simple"])
    judged = [arm.model_copy(update={"counts": {"violation": 2}}) for arm in analysis.losslessness]
    group = decision_of(analysis.model_copy(update={"losslessness": judged}))
    assert [row.arm for row in (group.overall, *group.tasks)] == [None] * 4


def test_every_place_shows_the_same_decision(run_data: RunData, analysis: Analysis) -> None:
    assert analysis.decision is not None and analysis.decision.next is not None
    console = Console(record=True, width=400, file=io.StringIO())
    print_decision(console, analysis)
    shown = [console.export_text(), render_markdown(run_data, analysis, []), render_html(run_data, analysis, [])]
    for text in shown:
        assert analysis.decision.next.command in text
    stored = json.loads(json.dumps(analysis.model_dump(by_alias=True)))["decision"]
    assert stored["next"]["command"] == analysis.decision.next.command
    assert [row["arm"] for row in stored["groups"][0]["tasks"]] == [row.arm for row in analysis.decision.rows[1:]]


def test_an_arm_that_never_drafted_is_a_null_control() -> None:
    analysis = build_analysis(["baseline", "spec_d4", "ngram_mod"])
    idle = analysis.verdicts[-1]
    assert inactive_arms(analysis) == ["ngram_mod"]
    assert idle.interval is not None
    apart = max(abs(idle.interval.low - 1), abs(idle.interval.high - 1))
    assert resolution(analysis) == pytest.approx(apart)
    words = f"cannot show one below ±{100 * apart:.0f} %"
    assert words in (null_control(analysis) or "")
    assert "ngram_mod" not in headline(analysis)
    assert null_control(build_analysis(["baseline", "spec_d4"])) is None


def slower(analysis: Analysis, *arms: str) -> Analysis:
    verdicts = [verdict.model_copy(update={"speed": "slower" if verdict.arm in arms else "undecided"})
                for verdict in analysis.verdicts]  # fmt: skip
    return analysis.model_copy(update={"verdicts": verdicts, "decision": None})


def test_the_headline_says_what_is_known() -> None:
    drafts = ("spec_d2", "spec_d4", "spec_d8", "spec_d16")
    mixed = slower(build_analysis(["baseline", *drafts, "ngram_simple"]), *drafts)
    assert headline(mixed) == (
        "Fastest shown: the target without speculation (baseline), 16.6 tok/s; ngram_simple may be faster. "
        "Speculation is faster on some tasks, not on all together: 1.15× on ja_chat and 1.18× on translation_en_ja "
        "with ngram_simple. Slower: all four draft-simple arms (0.29 to 0.71×). Undecided: ngram_simple (1.12×)."
    )
    many = slower(build_analysis(["baseline", *drafts, "ngram_simple", "ngram_mod"]), "spec_d2")
    assert headline(many).endswith("Slower: spec_d2 (0.71×). Undecided: 4 of 6 arms (0.29 to 1.12×).")
    all_slower = slower(build_analysis(["baseline", "spec_d4"]), "spec_d4")
    assert headline(all_slower) == (
        "Fastest: the target without speculation (baseline), 16.6 tok/s. "
        "The one setting tried is slower: spec_d4 (0.57×)."
    )
    both = slower(build_analysis(["baseline", "spec_d4", "spec_d8"]), "spec_d4", "spec_d8")
    assert headline(both).endswith("Both settings tried are slower, the best spec_d4 (0.57×).")


def test_what_to_do_stands_on_the_first_screen(run_data: RunData, analysis: Analysis) -> None:
    assert analysis.decision is not None
    (group,) = analysis.decision.groups
    added = "--spec-type ngram-simple"
    rows = group.overall.model_copy(update={"added": added})
    changed = analysis.model_copy(
        update={"decision": analysis.decision.model_copy(
            update={"groups": [group.model_copy(update={"overall": rows})]})}
    )  # fmt: skip
    page, text = render_html(run_data, changed, []), render_markdown(run_data, changed, [])
    for shown, end in ((page, '<section id="arms">'), (text, "## Why")):
        first = shown.partition(end)[0]
        assert "Add to llama-server" in first and added in first
    assert all(f'<th scope="row">{task}</th>' in page for task in analysis.tasks)
    assert "--port 8080" in page


def test_the_terminal_ends_with_it_too(run_data: RunData, analysis: Analysis) -> None:
    console = Console(record=True, width=200, file=io.StringIO())
    print_decision(console, analysis, verbose=True)
    shown = console.export_text()
    assert "What to run" in shown
    assert shown.rstrip().rpartition("Next:")[1]


def test_what_is_added_to_a_command() -> None:
    manifest = build_manifest(build_analysis(["baseline", "spec_d4"]))
    target = ["llama-server", "-m", "my model.gguf", "--temp", "-1"]
    argv = {"baseline": [*target, "--spec-type", "none"], "spec_d4": [*target, "--spec-type", "draft", "-md", "a b"]}
    arms = [arm.model_copy(update={"argv": argv[arm.name]}) for arm in manifest.arms]
    manifest_of_arms = manifest.model_copy(update={"arms": arms})
    assert added_options(manifest_of_arms, "spec_d4", "baseline") == "--spec-type draft -md 'a b'"
    assert added_options(None, "spec_d4", "baseline") is None
    assert added_options(manifest_of_arms, "spec_d4", "elsewhere") is None


def test_a_command_finds_the_home_folder() -> None:
    manifest = build_manifest(build_analysis(["baseline"]))
    arm = manifest.arms[0].model_copy(update={"argv": ["~/my engines/server", "-m", "a b"], "env": ["LIB=~/x.so"]})
    assert launch_command(arm) == "LIB=~/x.so ~/'my engines/server' -m 'a b'"


def test_warnings_of_a_kind_stand_together() -> None:
    analysis = build_analysis(["baseline", "spec_d4"])
    warning = analysis.warnings[0]
    several = [
        warning,
        warning.model_copy(update={"where": "block 2", "seen": "again"}),
        warning.model_copy(update={"id": "x"}),
    ]
    groups = grouped_warnings(analysis.model_copy(update={"warnings": several}))
    assert [(group.id, len(group.observations)) for group in groups] == [(warning.id, 2), ("x", 1)]
