"""What is advised per task, what never is, and the experiment that would most likely change it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchctl.analysis import next_experiment as next_experiment_module
from benchctl.analysis.decision_results import Advice, Experiment
from benchctl.analysis.frame import ALL_TASKS
from benchctl.analysis.losslessness import ArmAudit, DetectionPower
from benchctl.analysis.result import Interval
from benchctl.analysis.results import Analysis
from benchctl.analysis.round_results import RoundFit, RoundModel, UnitCost
from benchctl.analysis.speed_results import SpeedUp
from benchctl.data.manifest import Manifest
from benchctl.prompts.load import load_suite
from benchctl.words.conclusion import headline
from tests.reports.handmade import build_analysis, build_manifest, decided

ARMS = ["baseline", "spec_d4", "ngram_simple"]
"""In the hand-made analysis `spec_d4` is slower and undetermined, `ngram_simple` some 12 % faster and identical."""


def with_speeds(analysis: Analysis, arm: str, ends: dict[str, tuple[float, float]]) -> Analysis:
    """Set the intervals of an arm by task."""

    def changed(row: SpeedUp) -> SpeedUp:
        if row.arm != arm or row.task not in ends:
            return row
        low, high = ends[row.task]
        return row.model_copy(update={"pooled": (low * high) ** 0.5, "length_matched": (low * high) ** 0.5,
                                      "interval": Interval(low=low, high=high, method="")})  # fmt: skip

    return analysis.model_copy(update={"speedups": [changed(row) for row in analysis.speedups]})


def with_verdict(analysis: Analysis, arm: str, **fields: Any) -> Analysis:
    verdicts = [verdict.model_copy(update=fields) if verdict.arm == arm else verdict for verdict in analysis.verdicts]
    return analysis.model_copy(update={"verdicts": verdicts})


@pytest.fixture
def analysis() -> Analysis:
    """`ngram_simple` pays for code, not for chat; of translation its interval includes 1."""
    ends = {"code": (1.2, 1.4), "ja_chat": (0.8, 0.95), "translation_en_ja": (0.97, 1.5)}
    slow = dict.fromkeys(ends, (0.4, 0.6))
    return with_speeds(with_speeds(build_analysis(ARMS), "ngram_simple", ends), "spec_d4", slow)


def rows_of(analysis: Analysis, manifest: Manifest | None = None) -> list[Advice]:
    decision = decided(analysis, manifest).decision
    return decision.rows if decision else []


def next_experiment(analysis: Analysis, manifest: Manifest | None = None) -> Experiment | None:
    decision = decided(analysis, manifest).decision
    return decision.next if decision else None


def by_task(analysis: Analysis) -> dict[str, Advice]:
    return {row.task: row for row in rows_of(analysis)}


def test_each_task_has_its_own_arm_or_none(analysis: Analysis) -> None:
    rows = by_task(analysis)
    assert {task: row.arm for task, row in rows.items()} == {
        ALL_TASKS: "ngram_simple", "code": "ngram_simple", "ja_chat": None, "translation_en_ja": None}  # fmt: skip
    decision = decided(analysis).decision
    assert decision is not None
    assert decision.groups[0].action == "run"
    assert (rows["code"].reason, rows["code"].jointly, rows["code"].for_others) == ("pays", True, False)
    assert [rows[task].reason for task in ("ja_chat", "translation_en_ja")] == ["all slower", "undecided"]
    candidate = rows["translation_en_ja"].candidate
    assert candidate is not None and candidate.interval is not None
    assert (candidate.arm, candidate.interval.low, candidate.interval.high) == ("ngram_simple", 0.97, 1.5)
    assert "--port 8080" in (rows["code"].command or "")


@pytest.mark.parametrize("for_others", [True, False])
def test_a_gain_for_some_tasks_alone_is_the_conclusion(analysis: Analysis, for_others: bool) -> None:
    like_these = Interval(low=1.1 if for_others else 0.9, high=1.5, method="")
    rows = [row.model_copy(update={"like_these": like_these}) for row in analysis.speedups]
    open_overall = with_verdict(analysis.model_copy(update={"speedups": rows}), "ngram_simple", speed="undecided")
    sentence = headline(decided(open_overall))
    assert "faster on some tasks, not on all together: 1.30× on code with ngram_simple" in sentence
    assert "ja_chat" not in sentence and "Fastest shown: the target without speculation" in sentence


def test_the_command_is_that_of_what_is_advised(analysis: Analysis) -> None:
    manifest = build_manifest(analysis)
    arms = [arm.model_copy(update={"argv": ["server", "--as", arm.name, "--port", "{port}"]}) for arm in manifest.arms]
    rows = rows_of(analysis, manifest.model_copy(update={"arms": arms}))
    commands = {row.task: (row.command or "").partition("server ")[2] for row in rows}
    assert commands["code"] == "--as ngram_simple --port 8080"
    assert commands["ja_chat"] == "--as baseline --port 8080", "where no arm pays, the target alone"


@pytest.mark.parametrize(
    "fields",
    [
        {"lossless": "violation"},
        {"lossless": "undetermined"},
        {"lossless": "not judged"},
        {"lossy": ["typical acceptance"]},
        {"attestation": "unverified"},
        {"attestation": "failed"},
        {"speed": "unknown"},
    ],
)
def test_what_is_never_advised(analysis: Analysis, fields: dict[str, Any]) -> None:
    row = by_task(with_verdict(analysis, "ngram_simple", **fields))["code"]
    assert (row.arm, row.setting, row.speedup, row.interval, row.lossless) == (None, "no speculation", None, None, None)
    assert not row.for_others


def test_consistent_output_is_marked(analysis: Analysis) -> None:
    row = by_task(with_verdict(analysis, "ngram_simple", lossless="consistent with the target"))["code"]
    assert (row.arm, row.lossless) == ("ngram_simple", "consistent with the target")


def test_lengths_that_decide_are_not_taken_for_speed(analysis: Analysis) -> None:
    rows = [row.model_copy(update={"length_matched": 0.9}) if row.arm == "ngram_simple" else row
            for row in analysis.speedups]  # fmt: skip
    assert by_task(analysis.model_copy(update={"speedups": rows}))["code"].arm is None


def test_without_intervals_nothing_is_certain() -> None:
    few = build_analysis(ARMS, blocks=2)
    fewer = [verdict.model_copy(update={"speed": "unknown", "interval": None}) for verdict in few.verdicts]
    few = few.model_copy(update={"verdicts": fewer})
    rows = rows_of(few)
    assert all(row.arm is None and row.reason == "no interval" for row in rows)
    result = next_experiment(few)
    assert result is not None
    assert result.command is not None
    assert result.command.endswith("--blocks auto")


def test_a_baseline_that_speculates_is_no_ground_for_advice(analysis: Analysis) -> None:
    warned = analysis.warnings[0].model_copy(update={"id": "baseline-speculates"})
    assert decided(analysis.model_copy(update={"warnings": [warned]})).decision is None


def experiment(analysis: Analysis) -> Experiment:
    result = next_experiment(analysis)
    assert result is not None
    return result


def test_a_faster_arm_whose_output_is_undetermined_is_to_be_scored(analysis: Analysis) -> None:
    result = experiment(with_verdict(analysis, "ngram_simple", lossless="undetermined"))
    assert (result.kind, result.arms) == ("scores", ["ngram_simple"])
    assert result.command == f"benchctl verify-lossless results/{analysis.recipe}/{analysis.run}"


def test_the_suite_of_many_prompts_is_what_its_command_takes_it_for() -> None:
    suite = load_suite(next_experiment_module._SHIPPED, recipe_folder=Path())
    assert sum(len(prompts) for prompts in suite.tasks.values()) == next_experiment_module._SHIPPED_PROMPTS


@pytest.mark.parametrize(
    ("prompts", "options"),
    [
        (96, "--more --prompts many"),
        (241, "--more --prompts your-prompts.jsonl"),
        (2001, None),
        (None, None),
    ],
)
def test_power_that_lacks_is_to_be_had_from_more_prompts(
    analysis: Analysis, prompts: int | None, options: str | None
) -> None:
    power = DetectionPower(nats=0.3, chance=0.36, prompts=prompts)
    audit = ArmAudit.model_construct(lacking=None, stated=power, p=0.5, p_adjusted=0.5, beyond=0)
    rows = [
        row.model_copy(update={"verdict": "undetermined", "audit": audit}) if row.arm == "ngram_simple" else row
        for row in analysis.losslessness
    ]
    unshown = with_verdict(analysis, "ngram_simple", lossless="undetermined", unviolated=0.36)
    result = experiment(unshown.model_copy(update={"losslessness": rows}))
    assert (result.kind == "power") == (options is not None)
    if options is not None:
        assert (result.power, result.prompts) == (0.36, prompts)
        assert result.command.endswith(options)


def test_an_open_question_needs_more_blocks(analysis: Analysis) -> None:
    open_ = Interval(low=0.9, high=1.2, method="")
    result = experiment(with_verdict(analysis, "ngram_simple", speed="undecided", interval=open_))
    assert (result.kind, result.arms) == ("blocks of an arm", ["ngram_simple"])
    assert result.command.endswith("--only ngram_simple --blocks auto")


def test_of_several_open_questions_the_one_most_likely_to_be_a_gain_is_asked(analysis: Analysis) -> None:
    wide, likely = Interval(low=0.4, high=2.4, method=""), Interval(low=1.2, high=1.7, method="")
    first = with_verdict(analysis, "spec_d4", speed="undecided", speedup=0.9, interval=wide)
    run = with_verdict(first, "ngram_simple", speed="undecided", speedup=1.4, interval=likely)
    assert (experiment(run).kind, experiment(run).arms) == ("blocks of an arm", ["ngram_simple"])


def test_what_no_number_of_blocks_would_show_is_not_asked(analysis: Analysis) -> None:
    open_ = Interval(low=0.6, high=1.6, method="")
    result = experiment(with_verdict(analysis, "ngram_simple", speed="undecided", speedup=0.99, interval=open_))
    assert result.kind != "blocks of an arm"


def test_a_depth_that_the_line_promises_is_to_be_tried(analysis: Analysis) -> None:
    fit = RoundFit(setting="draft-simple", depths=[4], intercept=1.0, slope=0.1, r2=1.0, worst=0.0, refused=None)
    costs = [row.model_copy(update={"alpha": 0.9, "measured": 1.1}) for row in analysis.costs]
    changed = analysis.model_copy(update={"rounds": RoundModel(fits=[fit]), "costs": costs})
    result = experiment(changed)
    assert (result.kind, result.type, result.depth, result.width_timed) == ("depth", "draft-simple", 10, False)
    assert result.predicted == pytest.approx(3.43, abs=0.005)
    assert "--type draft-simple --depth 10" in result.command


def test_twice_the_depth_is_to_be_tried_where_the_deepest_is_the_fastest(analysis: Analysis) -> None:
    built = build_analysis(["baseline", "spec_d4", "spec_d8"])

    def deeper(alpha: float, **speeds: float) -> Experiment:
        verdicts = [row.model_copy(update={"speed": "faster", "speedup": speeds[row.arm], "lossless": "identical",
                                           "like_these": Interval(low=1.1, high=3, method="")})
                    for row in built.verdicts]  # fmt: skip
        costs = [row.model_copy(update={"alpha": alpha}) for row in built.costs]
        return experiment(built.model_copy(update={"verdicts": verdicts, "costs": costs}))

    result = deeper(0.9, spec_d4=1.5, spec_d8=2.0)
    assert (result.kind, result.depth, result.arms, result.predicted) == ("depth", 16, ["spec_d8"], None)
    assert result.command.endswith("--type draft-simple --depth 16")
    assert deeper(0.9, spec_d4=2.0, spec_d8=1.5).kind != "depth"
    assert deeper(0.5, spec_d4=1.5, spec_d8=2.0).kind != "depth", "nearly no draft token would be accepted there"


def test_what_is_settled_depends_on_the_prompts(analysis: Analysis) -> None:
    result = experiment(analysis)
    assert (result.kind, result.prompts_file) == ("your prompts", "your-prompts.jsonl")
    assert result.command.endswith("--prompts your-prompts.jsonl")
    result = experiment(with_verdict(build_analysis(["baseline", "spec_d4"]), "spec_d4", speed="slower"))
    assert "--type ngram-mod" in result.command


@pytest.mark.parametrize(
    ("status", "warned", "kind"),
    [("finished", "high-load", "quiet machine"), ("finished", "drift", "quiet machine"),
     ("interrupted", "pause", "unfinished"), ("started", "high-load", "unfinished")],
)  # fmt: skip
def test_what_a_machine_disturbed_or_a_run_lacks_comes_first(
    analysis: Analysis, status: Any, warned: str, kind: str
) -> None:
    warnings = [analysis.warnings[0].model_copy(update={"id": warned})]
    disturbed = analysis.model_copy(update={"warnings": warnings})
    result = next_experiment(disturbed, build_manifest(disturbed, status))
    assert result is not None and result.kind == kind
    assert ("--resume" in result.command) == (kind == "unfinished")
    said = headline(decided(disturbed))
    assert ("repeat on a quiet one" in said) == (warned != "pause")


def test_below_twelve_prompts_nothing_is_said_of_others(analysis: Analysis) -> None:
    rows = [row.model_copy(update={"prompts": 4 if row.task != ALL_TASKS else 11}) for row in analysis.speedups]
    few = analysis.model_copy(update={"speedups": rows})
    assert list(by_task(few)) == [ALL_TASKS], "a task of four prompts gets no advice of its own"
    overall = by_task(few)[ALL_TASKS]
    assert overall.arm == "ngram_simple" and not overall.for_others
    assert (overall.prompts, overall.few_prompts) == (11, True)
    assert "at least 12 are needed" in headline(decided(few)) and "are needed" not in headline(decided(analysis))
    result = next_experiment(few)
    assert result is not None and (result.kind, result.prompts) == ("enough prompts", 11)


def test_a_gain_that_rests_on_a_few_prompts_asks_for_more_of_them(analysis: Analysis) -> None:
    wide = Interval(low=0.98, high=1.25, method="")
    rows = [
        row.model_copy(update={"like_these": wide}) if row.arm == "ngram_simple" else row for row in analysis.speedups
    ]
    fewer = with_verdict(analysis, "ngram_simple", like_these=wide).model_copy(update={"speedups": rows})
    row = by_task(fewer)["code"]
    assert (row.arm, row.jointly, row.for_others) == ("ngram_simple", True, False)
    result = next_experiment(fewer)
    assert result is not None
    assert (result.kind, result.arms) == ("more prompts", ["ngram_simple"])
    assert result.command.endswith("--prompts your-prompts.jsonl")


def test_an_arm_that_is_not_shown_to_have_drafted_is_concluded_once(analysis: Analysis) -> None:
    """An endpoint that reports no drafts: neither does it pay, nor does it cost more than it gains."""
    unseen = with_verdict(build_analysis(["baseline", "ngram_simple"]), "ngram_simple", attestation="unverified")
    result = decided(unseen)
    assert "not shown" in headline(result)
    assert "Fastest: the target without speculation" in headline(result)
    assert result.decision is not None
    (group,) = result.decision.groups
    assert (group.overall.arm, group.action, group.not_shown) == (None, "not shown to draft", ["ngram_simple"])
    assert result.decision.next is None


def test_no_claim_of_a_fallback_is_made_up(analysis: Analysis) -> None:
    """ "Every arm is slower" is said only where every arm is."""
    two = build_analysis(["baseline", "spec_d2", "spec_d4"])
    assert experiment(two).all_slower
    within = with_verdict(two, "spec_d2", speed="within")
    assert not experiment(within).all_slower
    (group,) = decided(within).decision.groups  # type: ignore[union-attr]
    assert group.overall.reason == "within" and group.overall.candidate is not None
    assert group.overall.candidate.arm == "spec_d2"


def test_damaged_output_is_never_to_be_measured_further(analysis: Analysis) -> None:
    built = build_analysis(["baseline", "ngram_simple"])
    judged = [row.model_copy(update={"verdict": "violation", "counts": {"violation": 2}}) for row in built.losslessness]
    decision = decided(built.model_copy(update={"losslessness": judged})).decision
    assert decision is not None
    assert (decision.next, decision.groups[0].fastest, decision.groups[0].overall.arm) == (None, None, None)


@pytest.mark.parametrize(("slope", "alpha", "suggested"), [(0.05, 0.8, True), (0.4, 0.1, False)])
def test_another_depth_is_suggested_only_where_it_would_pay(slope: float, alpha: float, suggested: bool) -> None:
    fit = SimpleNamespace(setting="draft-simple", depths=[4, 8], intercept=1.1, slope=slope)
    costs = {"overhead": 0.4, "alpha": alpha, "measured": 0.3}
    arms = {depth: SimpleNamespace(arm=f"d{depth}", depth=depth, **costs) for depth in fit.depths}
    settings = [SimpleNamespace(arm=f"d{depth}", setting=f"draft-simple, depth {depth}", lossy=[]) for depth in arms]
    rounds = SimpleNamespace(fits=[fit], units=[])
    analysis: Any = SimpleNamespace(sweep=None, verdicts=settings, rounds=rounds, costs=[*arms.values()])
    assert (next_experiment_module._another_depth(analysis) is not None) == suggested


def test_a_depth_behind_a_fall_is_suggested_where_its_width_was_timed() -> None:
    """On an H100 17 tokens cost 0.78 steps to verify and 16 cost 2.14; depth 16 ran at 4.17x."""
    fit = SimpleNamespace(setting="draft-simple", depths=[4, 8], intercept=2.34, slope=0.104)
    measured = {4: (2.72, 0.957, 1.65), 8: (3.17, 0.960, 2.36)}
    arms = [SimpleNamespace(arm=f"d{depth}", depth=depth, overhead=cost - 1, alpha=alpha, measured=speed)
            for depth, (cost, alpha, speed) in measured.items()]  # fmt: skip
    settings = [SimpleNamespace(arm=row.arm, setting=f"draft-simple, depth {row.depth}", lossy=[]) for row in arms]
    curve = {5: 1.94, 9: 2.06, 16: 2.14, 17: 0.78}
    widths = [UnitCost(arm="baseline", what="verify", width=width, seconds=steps, steps=steps, count=5, source="traced")
              for width, steps in curve.items()]  # fmt: skip
    step = UnitCost(arm="baseline", what="target step", width=1, seconds=1, steps=1, count=9, source="run")

    def suggested(units: list[UnitCost]) -> Any:
        rounds = SimpleNamespace(fits=[fit], units=units)
        analysis: Any = SimpleNamespace(sweep=None, verdicts=settings, rounds=rounds, costs=arms)
        return next_experiment_module._another_depth(analysis)

    assert suggested([step]) == (pytest.approx(3.14, abs=0.05), 16, "draft-simple", False)
    assert suggested([step, *widths]) == (pytest.approx(4.91, abs=0.01), 16, "draft-simple", True)
