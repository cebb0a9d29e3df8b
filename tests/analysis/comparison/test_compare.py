"""Two runs side by side: what may be compared, what is called faster or slower, and which gates fall."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from benchctl.analysis.comparison import compare
from benchctl.analysis.comparison.changes import Doubt
from benchctl.analysis.comparison.compare import RunComparison
from benchctl.analysis.comparison.gates import Gate, GateFailure, GateResult, check_gates, parse_gate
from benchctl.analysis.comparison.workload import two_sides
from benchctl.analysis.output_results import Accepted
from benchctl.analysis.statistics import Variance, block_variance, change_interval, repeated_variance
from benchctl.data.manifest import FileIdentity, ModelIdentity, PromptIdentity
from benchctl.data.store import RunData
from benchctl.errors import UsageError
from benchctl.lossless.judge.run import judge
from benchctl.words.comparison import baseline_and_runs


def check_gate(gate: Gate, comparison: RunComparison, accept: Accepted = "identical") -> GateResult:
    return check_gates([gate], comparison, accept)[0]


def lossy_verdicts(comparison: RunComparison) -> dict[str, str]:
    """By arm for which the gate `lossy` fails, its verdict."""
    failures = check_gate(Gate("lossy"), comparison).failures
    return {failure.arm: failure.verdict.verdict for failure in failures if failure.verdict is not None}


compare_runs = partial(compare.compare_runs, judge=judge)

ARMS = {"baseline": None, "spec": {"type": "draft-simple", "max": 4}}
RATES = {"baseline": 10.0, "spec": 12.0}
WOBBLE = {"baseline": (0.99, 1.0, 1.01, 1.0), "spec": (1.0, 1.01, 0.99, 1.0)}


class Runs:
    """Makes runs of two arms whose blocks differ by a percent."""

    def __init__(self, make_record: Any, make_manifest: Any) -> None:
        self.make_record, self.make_manifest = make_record, make_manifest

    def __call__(
        self,
        name: str,
        *,
        factor: float = 1.0,
        only: str | None = None,
        blocks: int = 3,
        arms: dict[str, Any] | None = None,
        change: Any = None,
        **manifest: Any,
    ) -> RunData:
        arms = arms or ARMS
        records = [
            self.make_record(
                arm,
                index,
                block=block,
                rate=RATES[arm] * (5 + index) / 5 * WOBBLE[arm][block] * (factor if only in (None, arm) else 1.0),
            )
            for block in range(blocks)
            for arm in arms
            for index in range(4)
        ]
        records = [changed for record in records if (changed := change(record) if change else record) is not None]
        run_manifest = self.make_manifest(arms, 4, blocks, run=name, **manifest)
        return RunData(folder=Path(name), manifest=run_manifest, records=records, damaged=[])


@pytest.fixture
def runs(make_record: Any, make_manifest: Any) -> Runs:
    return Runs(make_record, make_manifest)


def arm(comparison: RunComparison, name: str) -> Any:
    return next(arm for arm in comparison.arms if arm.arm == name)


def mean_of(run: list[float]) -> Variance:
    result = block_variance(run)
    assert result is not None
    return Variance(result.value / len(run), result.freedom)


def test_the_interval_of_two_runs_is_welchs() -> None:
    ours, theirs = [9.0, 10.0, 11.0, 10.5], [10.0, 10.4, 9.8]
    result = change_interval(1.0, [mean_of(theirs)], [mean_of(ours)])
    expected = stats.ttest_ind(np.log(ours), np.log(theirs), equal_var=False).confidence_interval(0.95)
    centre = np.mean(np.log(ours)) - np.mean(np.log(theirs))
    assert np.log([result.low, result.high]) == pytest.approx([expected.low - centre, expected.high - centre])
    assert block_variance(theirs[:2]) is None
    same = change_interval(0.9, [mean_of([10.0] * 3)], [mean_of([9.0] * 3)])
    assert (same.low, same.high) == (0.9, 0.9)


def test_the_interval_of_repeated_runs_is_student_t_between_runs() -> None:
    before, after = [10.0, 10.4, 9.8], [9.0, 9.3]
    repeated = repeated_variance([before, after])
    quiet = [Variance(1e-9, 2)]
    result = change_interval(1.0, quiet * 3, quiet * 2, repeated=repeated)
    expected = stats.ttest_ind(np.log(after), np.log(before)).confidence_interval(0.95)
    centre = np.mean(np.log(after)) - np.mean(np.log(before))
    assert np.log([result.low, result.high]) == pytest.approx([expected.low - centre, expected.high - centre])
    loud = change_interval(1.0, [Variance(1.0, 2)] * 3, quiet * 2, repeated=repeated)
    assert loud.high > result.high, "blocks that lie further apart than runs decide"
    assert repeated_variance([[1.0], [2.0]]) is None


def test_runs_that_were_monitored_are_compared_with_wider_intervals(runs: Runs) -> None:
    auto = {"blocks": {"half_width": 0.02, "max": 20}}
    fixed = arm(compare_runs(runs("a"), runs("b")), "spec").rate
    sequential = arm(compare_runs(runs("a"), runs("b", recipe=auto)), "spec").rate
    # Two arms of equal spread, which share: 2 + 2 degrees of freedom a run, 8 in all; two intervals at once.
    quantile = stats.t(8).ppf
    widened = np.log(sequential.interval.high / sequential.ratio) / np.log(fixed.interval.high / fixed.ratio)
    assert widened == pytest.approx(quantile(1 - 0.03 / 4) / quantile(1 - 0.05 / 4), abs=0.001)


def test_equal_runs_show_no_difference(runs: Runs) -> None:
    result = compare_runs(runs("a"), runs("b"))
    assert (result.changed, result.only_in_a, result.only_in_b, result.on_trust) == ([], [], [], [])
    for row in result.arms:
        assert row.rate.ratio == pytest.approx(1.0)
        assert (row.change, row.prompts, row.prompts_left_out) == ("no clear difference", 4, 0)
        assert (row.outputs.same, row.outputs.differing, row.outputs.undetermined) == (4, [], [])
    assert arm(result, "baseline").is_baseline and arm(result, "baseline").speedup.ratio is None
    assert arm(result, "spec").speedup.a == pytest.approx(1.2)
    assert all(check_gate(gate, result).passed for gate in (Gate("slower", 0.03), Gate("lossy")))


def test_an_arm_that_got_slower_is_found_and_the_others_are_not(runs: Runs) -> None:
    result = compare_runs(runs("a"), runs("b", factor=0.9, only="spec"))
    spec = arm(result, "spec")
    assert (spec.change, arm(result, "baseline").change) == ("slower", "no clear difference")
    assert spec.rate.ratio == pytest.approx(0.9)
    assert spec.rate.interval.high < 0.97
    assert (spec.speedup.a, spec.speedup.b) == (pytest.approx(1.2), pytest.approx(1.08))
    assert spec.speedup.interval.high < 1, "the baseline stayed, so speculation itself got worse"
    for gate, judged in (("slower", spec.speedup), ("slower-absolute", spec.rate)):
        (failure,) = check_gate(Gate(gate, 0.03), result).failures
        assert (failure.code, failure.arm, failure.change) == ("worse", "spec", judged)
    (unsure,) = check_gate(Gate("slower", 0.09), result).failures
    assert (unsure.code, unsure.blocks) == ("cannot tell", 4), "its interval reaches above 0.91"
    wide = check_gate(Gate("slower", 0.15), result)
    assert wide.passed and wide.at_worst is not None
    assert (wide.at_worst.arm, round(wide.at_worst.share, 3), wide.at_worst.confidence) == ("spec", 0.127, 0.95)
    assert compare_runs(runs("b", factor=0.9, only="spec"), runs("a")).arms[1].change == "faster"


def test_a_baseline_that_got_slower_is_told_apart_from_its_arms(runs: Runs) -> None:
    result = compare_runs(runs("a"), runs("b", factor=0.9))
    baseline, spec = result.arms
    assert (baseline.change, spec.change) == ("slower", "no clear difference")
    assert check_gate(Gate("slower", 0.03), result).passed, "the speed-up stayed"
    failures = check_gate(Gate("slower-absolute", 0.03), result).failures
    assert [(failure.code, failure.arm) for failure in failures] == [("worse", "baseline"), ("worse", "spec")]
    assert baseline_and_runs(result)[0].startswith("The baseline itself (baseline) is 0.90× as fast in B as in A")
    hidden = compare_runs(runs("a"), runs("b", factor=0.9, only="baseline"))
    assert [row.change for row in hidden.arms] == ["slower", "faster"], "an arm's speed-up rose as its baseline fell"


def test_intervals_hold_together_over_the_arms(runs: Runs) -> None:
    one_arm = arm(compare_runs(runs("a"), runs("b"), arms=["spec"]), "spec").speedup.interval
    result = compare_runs(runs("a"), runs("b"))
    assert result.claims == 2
    assert arm(result, "spec").speedup.interval.high > one_arm.high


def test_an_arm_that_is_a_baseline_in_one_run_alone_has_no_change_of_speed_up(runs: Runs) -> None:
    b = runs("b", factor=0.5)
    assert b.manifest is not None
    b.manifest.baseline = "spec"
    for planned in b.manifest.arms:
        planned.baseline = planned.name == "spec"
    baseline, spec = compare_runs(runs("a"), b).arms
    assert (spec.is_baseline, spec.change) == (True, "slower"), "judged by its decode rate"
    assert (baseline.is_baseline, baseline.change, baseline.speedup.ratio) == (False, "unknown", None)
    assert baseline.doubt is not None and baseline.doubt.code == "a baseline"


def test_speed_ups_are_of_the_prompts_that_both_runs_timed(runs: Runs) -> None:
    """One run lost the slowest prompt, on which alone the arm is no faster."""

    def only_sometimes(record: Any) -> Any:
        return record.changed(client_tok_per_sec=10.0) if record.prompt_idx == 0 else record

    def lost(record: Any) -> Any:
        return None if record.label == "spec" and record.prompt_idx == 0 else only_sometimes(record)

    spec = arm(compare_runs(runs("a", change=only_sometimes), runs("b", change=lost)), "spec")
    assert spec.speedup.ratio == pytest.approx(1.0)
    assert (spec.prompts, spec.prompts_left_out) == (3, 1)


def test_a_second_run_of_the_first_setting_shows_what_changes_from_run_to_run(runs: Runs) -> None:
    a, b, second_a = runs("a"), runs("b", factor=0.94, only="spec"), runs("c", factor=0.9, only="spec")
    assert arm(compare_runs(a, b), "spec").change == "slower"
    result = compare_runs(a, b, more_a=[second_a])
    spec = arm(result, "spec")
    assert spec.change == "no clear difference", "A itself moved by more"
    assert spec.speedup.values_a == [pytest.approx(1.2), pytest.approx(1.08)]
    assert spec.speedup.a == pytest.approx((1.2 * 1.08) ** 0.5)
    assert spec.speedup.interval.method.startswith("Student's t over the logarithms of whole runs")
    assert "11.1 %" in baseline_and_runs(result)[-1]
    assert "Measure A again" in baseline_and_runs(compare_runs(a, b))[-1]
    steady = compare_runs(a, runs("b", factor=0.5, only="spec"), more_a=[runs("c", factor=1.001, only="spec")])
    assert arm(steady, "spec").change == "slower"
    assert not check_gate(Gate("slower", 0.03), steady).passed


def test_runs_of_two_settings_are_told_apart(runs: Runs) -> None:
    def of(*threads: int, **manifest: Any) -> list[Any]:
        of_threads = [
            runs(str(number), recipe={"engine": {"threads": count}}, **manifest) for number, count in enumerate(threads)
        ]
        return [run.manifest for run in of_threads]

    assert two_sides(of(2, 4, 2)) == ([0, 2], [1])
    assert two_sides(of(2, 4, 2, 4, 2)) == ([0, 2, 4], [1, 3])
    assert two_sides(of(2, 4, 4)) == ([0], [1, 2])
    assert two_sides(of(2, 2, 2)) is None
    assert two_sides(of(2, 4, 8)) is None
    other_work = of(4, workload_sha256="1" * 64)
    assert two_sides([*of(2), *other_work, *of(2)]) is None


def test_a_slow_down_within_the_noise_is_not_claimed(runs: Runs) -> None:
    def noisy(record: Any) -> Any:
        return record.changed(client_tok_per_sec=record.client_tok_per_sec * (0.8, 1.0, 1.25)[record.block])

    result = compare_runs(runs("a"), runs("b", factor=0.9, change=noisy))
    assert {arm.change for arm in result.arms} == {"no clear difference"}
    judged = check_gate(Gate("slower", 0.03), result)
    assert judged.passed and judged.at_worst is not None


def test_below_three_blocks_nothing_is_claimed_and_the_gate_fails(runs: Runs) -> None:
    result = compare_runs(runs("a"), runs("b", blocks=2))
    assert {arm.change for arm in result.arms} == {"unknown"}
    assert arm(result, "spec").rate.ratio == pytest.approx(1.0, abs=0.02)
    assert check_gate(Gate("slower", 0.03), result).failures == check_gate(Gate("slower-absolute"), result).failures[1:]
    assert check_gate(Gate("slower", 0.03), result).failures[0] == (
        GateFailure("undetermined", "spec", doubt=Doubt(code="few blocks", counts=(3, 2)))
    )
    assert check_gate(Gate("lossy"), result).passed


def test_prompts_that_a_block_lacks_are_left_out_of_both_runs(runs: Runs) -> None:
    def without_the_slowest(record: Any) -> Any:
        return None if (record.block, record.label, record.prompt_idx) == (1, "spec", 0) else record

    spec = arm(compare_runs(runs("a"), runs("b", change=without_the_slowest)), "spec")
    assert (spec.prompts, spec.prompts_left_out) == (3, 1)
    assert spec.rate.ratio == pytest.approx(1.0)
    assert spec.outputs.undetermined == ["code/0"]


def test_a_cell_that_broke_off_early_costs_its_block_only(runs: Runs) -> None:
    def breaks_off(record: Any) -> Any:
        return None if record.block == 3 and record.prompt_idx > 0 else record

    spec = arm(compare_runs(runs("a", blocks=4), runs("b", blocks=4, change=breaks_off)), "spec")
    assert (spec.blocks_a, spec.blocks_b, spec.prompts) == (4, 3, 4)


def test_an_arm_without_a_single_answer_is_unknown(runs: Runs) -> None:
    result = compare_runs(runs("a"), runs("b", change=lambda record: None if record.label == "spec" else record))
    spec = arm(result, "spec")
    assert (spec.change, spec.rate.ratio, spec.doubt) == (
        "unknown",
        None,
        Doubt(code="not timed"),
    )
    assert not check_gate(Gate("slower", 0.03), result).passed
    assert lossy_verdicts(result) == {"spec": "undetermined"}


def test_lengths_that_decide_the_sign_leave_it_open(runs: Runs) -> None:
    def shorter(record: Any) -> Any:
        if record.label == "baseline":
            return record
        if record.prompt_idx != 3:
            return record.changed(client_tok_per_sec=record.client_tok_per_sec * 0.95)
        quick = {"client_tok_per_sec": 400.0, "token_ids": list(range(100, 200)), "n_predicted": 100}
        return record.changed(**quick)

    spec = arm(compare_runs(runs("a"), runs("b", change=shorter)), "spec")
    assert spec.rate.interval.low > 1 and spec.speedup.interval.low > 1
    assert spec.rate_length_matched == pytest.approx(0.95)
    assert (spec.change, spec.doubt.code, spec.doubt.matched) == ("unknown", "unequal lengths", pytest.approx(0.95))


def test_another_answer_is_named_and_an_unsteady_one_is_undetermined(runs: Runs, make_record: Any) -> None:
    def says_otherwise(record: Any) -> Any:
        if record.prompt_idx == 1 or (record.prompt_idx == 2 and record.block == 0):
            return make_record(record.label, record.prompt_idx, block=record.block, rate=10.0, text="pass")
        return record

    result = compare_runs(runs("a"), runs("b", change=says_otherwise))
    outputs = arm(result, "baseline").outputs
    assert (outputs.same, outputs.differing, outputs.undetermined) == (2, ["code/1"], ["code/2"])


def test_another_rendered_prompt_is_reported_and_its_answers_are_not_compared(runs: Runs) -> None:
    result = compare_runs(runs("a"), runs("b", change=lambda changed: changed.changed(prompt_sha="f" * 64)))
    assert [changed.what for changed in result.changed] == ["rendered prompt text"]
    assert arm(result, "baseline").outputs.same == 0


def test_arms_of_one_run_only_are_named_and_fail_a_gate_on_speed(runs: Runs) -> None:
    result = compare_runs(runs("a"), runs("b", arms={"baseline": None}))
    assert (result.only_in_a, result.only_in_b) == (["spec"], [])
    assert check_gate(Gate("slower", 0.03), result).failures == (GateFailure("not in B", "spec"),)
    assert check_gate(Gate("lossy"), result).failures == (GateFailure("not judged"),)
    limited = compare_runs(runs("a"), runs("b", arms={"baseline": None}), arms=["baseline"])
    assert check_gate(Gate("slower-absolute", 0.03), limited).passed
    assert check_gate(Gate("slower", 0.03), limited).failures == (GateFailure("no compared arm"),)
    reversed_runs = compare_runs(runs("a", arms={"baseline": None}), runs("b"))
    assert [row.arm for row in reversed_runs.lossless_b] == ["spec"], (
        "an arm that only B has is judged by B's own baseline"
    )
    with pytest.raises(UsageError, match="has an arm 'spek'"):
        compare_runs(runs("a"), runs("b"), arms=["spek"])


def test_an_arm_that_differs_from_its_baseline_is_lossy(runs: Runs, make_record: Any) -> None:
    def wrong(record: Any) -> Any:
        if (record.label, record.prompt_idx) != ("spec", 2):
            return record
        return make_record("spec", 2, block=record.block, rate=12.0, text="pass", ids=[1, 2, 3])

    result = compare_runs(runs("a"), runs("b", change=wrong))
    assert (arm(result, "spec").lossless_a, arm(result, "spec").lossless_b) == ("identical", "undetermined")
    assert lossy_verdicts(result) == {"spec": "undetermined"}


def test_an_arm_that_is_lossy_by_design_is_labelled_and_never_lossless(runs: Runs) -> None:
    b = runs("b")
    assert b.manifest is not None
    b.manifest.arms[1].lossy = ["synthetic acceptance"]
    result = compare_runs(runs("a"), b)
    assert (arm(result, "spec").lossy, arm(result, "baseline").lossy) == (["synthetic acceptance"], [])
    assert lossy_verdicts(result) == {"spec": "violation"}


def test_other_work_is_refused_with_every_part_named(runs: Runs) -> None:
    def model(name: str) -> ModelIdentity:
        return ModelIdentity(source=name, path=name, files=[FileIdentity(name=name, size=1, sha256=name[0] * 64)])

    prompts = [PromptIdentity(task="code", prompt_idx=index, sha256="1" * 64) for index in (0, 1, 2, 3, 4)]
    b = runs(
        "b",
        workload_sha256="1" * 64,
        recipe={"sampling": {"temperature": 0.8, "top_k": 1}},
        target=model("b.gguf"),
        draft=None,
    )
    assert b.manifest is not None
    b.manifest.prompts = prompts
    a = runs("a", recipe={"sampling": {"temperature": 0.0, "top_k": 1}}, target=model("a.gguf"), draft=model("d.gguf"))
    with pytest.raises(UsageError) as refused:
        compare_runs(a, b)
    assert refused.value.what.splitlines()[1:] == [
        "  prompts with different text: code/0, code/1, code/2 and 1 more",
        "  prompts that only the second run has: code/4",
        "  sampling.temperature: 0.0 and 0.8",
        f"  target model: a.gguf (SHA-256 {'a' * 12}) and b.gguf (SHA-256 {'b' * 12})",
        f"  draft model: d.gguf (SHA-256 {'d' * 12}) and none",
    ]
    with pytest.raises(UsageError, match="although no part does"):
        compare_runs(runs("a"), runs("b", workload_sha256="1" * 64))


def test_the_same_run_twice_is_refused(runs: Runs) -> None:
    with pytest.raises(UsageError, match="Both are the same run"):
        compare_runs(runs("a"), runs("a"))


def test_engine_machine_and_settings_may_differ_and_are_listed(runs: Runs, make_manifest: Any) -> None:
    engine = make_manifest(ARMS, 1, 1).engine.model_copy(update={"commit": "abc1234"})
    a = runs("a", recipe={"engine": {"threads": 2, "args": []}}, machine={"cpu": "X", "memory_available_bytes": 1})
    b = runs(
        "b",
        engine=engine,
        recipe={
            "engine": {"threads": 4, "args": []},
            "arms": [{"name": "spec", "speculation": {"max": 4, "min": None}}],
        },
        machine={"cpu": "Y\x1b[31m", "memory_available_bytes": 2},
    )
    assert [(changed.what, changed.a, changed.b) for changed in compare_runs(a, b).changed] == [
        ("engine commit", "none", "abc1234"),
        ("engine.threads", "2", "4"),
        ("machine cpu", "X", "Y␛[31m"),
        ("arm spec", "none", "speculation max 4"),
    ]


def study(runs: Runs, name: str, **settings: Any) -> RunData:
    run = runs(name, **settings)
    return RunData(folder=Path(), manifest=None, records=run.records, damaged=[])


def test_records_without_a_manifest_are_compared_over_the_same_prompts_only(runs: Runs) -> None:
    result = compare_runs(study(runs, "a"), study(runs, "b", factor=0.8, only="spec"), names=("a.jsonl", "b.jsonl"))
    assert (result.a.run, result.b.run) == ("a.jsonl", "b.jsonl")
    assert len(result.on_trust) == 1
    assert arm(result, "spec").change == "slower"
    with pytest.raises(UsageError, match="only the first run"):
        compare_runs(
            study(runs, "a"), study(runs, "b", change=lambda record: record if record.prompt_idx < 3 else None)
        )
    with pytest.raises(UsageError, match="different text: code/0"):
        compare_runs(runs("a"), study(runs, "b", change=lambda record: record.changed(prompt_sha="f" * 64)))


@pytest.mark.parametrize(
    ("text", "gate"),
    [
        ("slower:3%", Gate("slower", 0.03)),
        (" slower : 2.5 % ", Gate("slower", 0.025)),
        ("slower:0%", Gate("slower", 0.0)),
        ("slower-absolute:5%", Gate("slower-absolute", 0.05)),
        ("lossy", Gate("lossy")),
    ],
)
def test_gates_are_read(text: str, gate: Gate) -> None:
    assert parse_gate(text) == gate
    assert parse_gate(str(gate)) == gate


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("slowr:3%", "There is no gate 'slowr'. Did you mean 'slower'?"),
        ("losy", "Did you mean 'lossy'?"),
        ("faster:3%", "There is no gate 'faster'."),
        ("slower", "needs 0 to 100 %, not ''"),
        ("slower:3", "not '3'"),
        ("slower:-3%", "not '-3%'"),
        ("slower:100%", "not '100%'"),
        ("slower:nan%", "not 'nan%'"),
        ("lossy:3%", "`lossy` takes no amount."),
        ("", "There is no gate ''."),
    ],
)
def test_a_malformed_gate_is_a_usage_error(text: str, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_gate(text)
    assert message in refused.value.what
    assert "slower:3%" in (refused.value.fix or "")
