"""The sentences themselves. Tests of the analysis compare codes and numbers; wording is pinned here alone."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from benchctl.analysis.accuracy import Accuracy, ArmAccuracy
from benchctl.analysis.decision_results import Advice, Candidate, Experiment
from benchctl.analysis.frame import ALL_TASKS
from benchctl.analysis.result import Fact, Interval
from benchctl.analysis.results import Analysis, Caution, Stopping
from benchctl.analysis.speed_results import NoDraft
from benchctl.words import accuracy, advice, experiment, stopping, verdict, warnings
from tests.reports.handmade import build_analysis, decided

FASTER = Interval(low=1.1, high=1.4, method="")
WIDE = Interval(low=0.9, high=1.3, method="")
SLOWER = Interval(low=0.5, high=0.7, method="")


@pytest.fixture(scope="module")
def analysis() -> Analysis:
    """A run of a baseline and `spec_d4`, which is identical in what follows."""
    built = build_analysis(["baseline", "spec_d4"])
    same = [row.model_copy(update={"verdict": "identical", "reason": "Every prompt is identical."})
            for row in built.losslessness]  # fmt: skip
    return built.model_copy(update={"losslessness": same})


def changed(analysis: Analysis, **fields: Any) -> Analysis:
    """Return the analysis with other fields of its only verdict."""
    return analysis.model_copy(update={"verdicts": [analysis.verdicts[0].model_copy(update=fields)]})


SPEEDS: list[tuple[dict[str, Any], str]] = [
    ({"speed": "faster", "speedup": 1.25, "interval": FASTER, "like_these": FASTER},
     "Faster: 1.25× the baseline (95 % interval 1.10 to 1.40)."),
    ({"speed": "faster", "speedup": 1.25, "interval": FASTER, "like_these": WIDE},
     "Faster: 1.25× the baseline (95 % interval 1.10 to 1.40). For other prompts like these it is open."),
    ({"speed": "slower", "speedup": 0.6, "interval": SLOWER, "median": 1.2, "whole_answers": True},
     "Slower: 0.60× the baseline over whole answers (95 % interval 0.50 to 0.70); the median prompt gains (1.20×), but "
     "the prompts that lose cost more time than the others save."),
    ({"speed": "faster", "speedup": 1.25, "interval": FASTER, "median": 0.9, "like_these": None},
     "Faster: 1.25× the baseline (95 % interval 1.10 to 1.40); the median prompt loses (0.90×), but the prompts that "
     "gain save more time than the others cost."),
    ({"speed": "within", "speedup": 1.01, "interval": WIDE, "within": 0.0412},
     "Within ±4.2 % of the baseline: 1.01× the baseline (95 % interval 0.90 to 1.30)."),
    ({"speed": "undecided", "speedup": 1.1, "interval": WIDE, "more_blocks": 4},
     "Undecided: 1.10× the baseline (95 % interval 0.90 to 1.30); about 4 more repetitions would show a difference "
     "of 10 %."),
    ({"speed": "undecided", "speedup": 1.1, "interval": WIDE, "more_blocks": None},
     "Undecided: 1.10× the baseline (95 % interval 0.90 to 1.30)."),
    ({"speed": "unknown", "speedup": 1.1, "interval": None, "blocks": 1},
     "1.10× the baseline in one repetition; below three it is not known how far another run would differ."),
    ({"speed": "unknown", "speedup": None, "interval": None},
     "Its speed is not known: no prompt was timed in both arms."),
    ({"speed": "unknown", "speedup": 1.25, "interval": FASTER, "doubt": "unequal lengths", "length_matched": 0.86},
     "1.25× the baseline (95 % interval 1.10 to 1.40), but 0.86× when answers are cut to the length that both reached, "
     "so it is due to their lengths."),
    ({"speed": "unknown", "speedup": 1.25, "interval": FASTER, "doubt": "no equal pair"},
     "1.25× the baseline (95 % interval 1.10 to 1.40), but no answer is as long as the baseline's, so they are not the "
     "same work."),
    ({"speed": "unknown", "attestation": "idle"}, "Nothing was drafted, so no speed-up is reported."),
    ({"speed": "unknown", "reason": "refused", "refusal": "Add --spec-type."},
     "Its speed is not assessed: a cell of it or of the baseline did not run what the recipe requests."),
    ({"speed": "unknown", "speedup": None, "not_shown": ["spec_d4", "baseline"]},
     "Its speed is not known: no prompt was timed in both arms. Not verified: the endpoint does not show whether it "
     "speculated (spec_d4 and baseline)."),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "sentence"), SPEEDS)
def test_a_speed_is_concluded(analysis: Analysis, fields: dict[str, Any], sentence: str) -> None:
    run = changed(analysis, **({"median": fields.get("speedup")} | fields))
    assert verdict.conclusion(run, run.verdicts[0]) == f"{sentence} Its output is identical on all 12 prompts."


def test_a_selected_value_is_said_to_be_selected(analysis: Analysis) -> None:
    run = changed(analysis, selected=True, selected_of=3)
    assert verdict.conclusion(run, run.verdicts[0]).endswith(
        "It is the fastest of 3 arms, so its value is selected: expect somewhat less of a new run."
    )


def test_evidence_that_is_not_relied_on_concludes_nothing(analysis: Analysis) -> None:
    run = changed(analysis, reason="distrusted", refusal="records.jsonl was changed.")
    assert verdict.conclusion(run, run.verdicts[0]) == (
        "Neither its speed nor whether its output is the target's own is known. records.jsonl was changed."
    )
    assert verdict.explanation(run, run.verdicts[0]) == "records.jsonl was changed."


@pytest.mark.parametrize(
    ("judged", "sentence"),
    [
        ("consistent with the target", "Its output differs, consistently with the target: 2 of 12 prompts differ."),
        ("violation", "Its output is not the target's own: 2 of 12 prompts differ."),
        ("undetermined", "Whether its output is the target's own is undetermined: 2 of 12 prompts differ."),
        ("not judged", "Whether its output is the target's own is not assessed: 2 of 12 prompts differ.."),
    ],
)
def test_an_output_is_concluded(analysis: Analysis, judged: str, sentence: str) -> None:
    row = analysis.losslessness[0].model_copy(update={"verdict": judged, "reason": "2 of 12 prompts differ."})
    run = analysis.model_copy(update={"losslessness": [row]})
    assert verdict.conclusion(run, run.verdicts[0]).endswith(sentence)


@pytest.mark.parametrize(
    ("reason", "sentence"),
    [
        ("not timed", "Of this arm or of the baseline no answer was timed; the warnings say why."),
        ("not shown", "The endpoint does not show whether it speculated, so a difference may have any other cause."),
        ("off", "This arm does not speculate: a difference from the baseline is noise, or another setting."),
        ("never fired", "Speculation was on but never fired: nothing was drafted, so there was nothing to gain."),
        ("not reported", "What was drafted is not reported, or the counters contradict each other, so these records "
         "cannot explain the speed."),
        ("refused", "The attestation failed."),
        ("no rounds", "40.0 % of its draft tokens were accepted; the engine does not report verify rounds, so the cost "
         "of a round is not known."),
        ("no cost", "40.0 % of its draft tokens were accepted; drafts were too rare to measure what one costs."),
    ],
)  # fmt: skip
def test_a_speed_is_explained(analysis: Analysis, reason: str, sentence: str) -> None:
    rows = [row.model_copy(update={"rate": 0.4, "doubt": None}) for row in analysis.acceptance]
    run = changed(analysis.model_copy(update={"acceptance": rows}), reason=reason)
    assert verdict.explanation(run, run.verdicts[0]) == sentence


@pytest.mark.parametrize(
    ("speed", "break_even", "end"),
    [
        ("slower", None, "but a round (draft and verify) takes as long as 3.2 tokens without speculation and yields "
         "2.5."),
        ("faster", "every", "and a round (draft and verify) takes as long as 3.2 tokens without speculation and yields "
         "2.5. At this cost every acceptance pays."),
        ("slower", "none", "yields 2.5. At this cost no acceptance would pay."),
        ("slower", "nearly every", "For depth 4 to pay at this cost, nearly every draft token would have to be "
         "accepted."),
    ],
)  # fmt: skip
def test_the_cost_of_a_round_explains_a_speed(analysis: Analysis, speed: str, break_even: str, end: str) -> None:
    counted = {"rate": 0.4, "doubt": "unchecked", "acceptance_length": 2.5, "prompts": 12, "prompts_drafted": 5}
    rows = [row.model_copy(update=counted) for row in analysis.acceptance]
    idle = NoDraft(prompts=7, pooled=0.9, interval=SLOWER, counted=False)
    speeds = [row.model_copy(update={"no_draft": idle}) for row in analysis.speedups]
    run = changed(
        analysis.model_copy(update={"acceptance": rows, "speedups": speeds}),
        reason="cost", speed=speed, break_even=break_even,
    )  # fmt: skip
    explained = verdict.explanation(run, run.verdicts[0])
    assert explained.startswith(
        "It drafted for 5 of 12 prompts (the other 7 ran 0.90×, 0.50 to 0.70: to look for a draft has a price, too); "
        "40.0 % (unchecked) of its draft tokens were accepted, "
    )
    assert explained.endswith(end)


def row_of(task: str = ALL_TASKS, arm: str | None = "spec_d4", **fields: Any) -> Advice:
    defaults = {
        "task": task, "condition": "", "arm": arm, "setting": "draft-simple, depth 4", "speedup": 1.25,
        "interval": FASTER, "lossless": "identical", "for_others": True, "prompts": 20, "reason": "pays",
        "command": None,
    }  # fmt: skip
    return Advice.model_validate(defaults | fields)


OPEN: dict[str, Any] = {"for_others": False}
ACTIONS: list[tuple[str, Advice, list[Advice], str]] = [
    ("run", row_of(), [], "Use spec_d4 (draft-simple, depth 4)."),
    ("run", row_of(), [row_of("code"), row_of("chat", None)],
     "Use spec_d4 (draft-simple, depth 4) for these tasks together. By task it is spec_d4 for code, the target "
     "alone for the others."),
    ("run", row_of(lossless="consistent with the target"), [],
     "Use spec_d4 (draft-simple, depth 4): its output is consistent with the target, not identical."),
    ("run", row_of(lossless="undetermined", unviolated=0.36), [],
     "Use spec_d4 (draft-simple, depth 4): no fault found; a fault would be noticed 36 times in 100."),
    ("run", row_of(**OPEN), [],
     "For these prompts use spec_d4 (draft-simple, depth 4); whether it pays for others like them is open."),
    ("run", row_of(**OPEN, few_prompts=True), [],
     "For these prompts use spec_d4 (draft-simple, depth 4); whether it pays for others like them is open: fewer "
     "than 12 are too few to tell."),
    ("by task", row_of(arm=None), [row_of("code")],
     "For all tasks together no arm is advised. By task it is spec_d4 for code."),
    ("nothing drafted", row_of(arm=None), [], "Nothing was drafted: run the target alone."),
    ("none is sound", row_of(arm=None), [],
     "Run the target alone: every arm that drafted damages the output."),
    ("not shown to draft", row_of(arm=None), [],
     "No advice: it is not shown that a and b speculated; the difference may have another cause."),
    ("output not known", row_of(arm=None), [],
     "Run the target alone until it is known whether the faster arms' output is the target's own."),
    ("do not speculate", row_of(arm=None), [], "Do not speculate: run the target alone."),
    ("undecided", row_of(arm=None), [],
     "Run the target alone until it is decided: more repetitions (--blocks auto) would."),
    ("not comparable", row_of(arm=None), [],
     "No advice: at least three repetitions on equal terms are needed (--blocks auto)."),
]  # fmt: skip


@pytest.mark.parametrize(("action", "overall", "tasks", "sentence"), ACTIONS)
def test_what_to_do(action: str, overall: Advice, tasks: list[Advice], sentence: str) -> None:
    analysis = build_analysis(["baseline", "spec_d4"])
    decision = decided(analysis).decision
    assert decision is not None
    fields = {"action": action, "overall": overall, "tasks": tasks, "not_shown": ["a", "b"]}
    assert advice.action(analysis, decision.groups[0].model_copy(update=fields)) == sentence


def test_lossy_arms_are_named_only_where_there_are_any(analysis: Analysis) -> None:
    group = decided(analysis).decision.groups[0].model_copy(update={"action": "none is sound"})  # type: ignore[union-attr]
    said = advice.action(changed(analysis, lossy=["typical acceptance"]), group)
    assert said == "Run the target alone: every arm that drafted is lossy by design."


@pytest.mark.parametrize(
    ("command", "program"),
    [("A=/x/y /opt/bin/llama-server -m a.gguf", "llama-server"), ("vllm serve model", "vllm"),
     ("/usr/bin/python3 -m benchctl.serve", "your command"), (None, "your command")],
)  # fmt: skip
def test_options_are_added_to_the_engines_program(command: str | None, program: str) -> None:
    assert advice.added_to(row_of(command=command)) == program


BEST = Candidate(arm="spec_d4", speedup=1.1, interval=WIDE, lossless="violation")
RAN = "spec_d4, the fastest, ran 1.10× (0.90 to 1.30)"


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        (row_of(), "1.10 to 1.40 (95 %); it pays for prompts like these, too."),
        (row_of("code", jointly=True, lossless="consistent with the target", **OPEN),
         "1.10 to 1.40 for all arms and tasks together (95 %); open for other prompts like these; its output is "
         "consistent with the target, not identical."),
        (row_of(few_prompts=True, prompts=1, **OPEN),
         "1.10 to 1.40 (95 %); open for other prompts like these: 1 is too few."),
        (row_of(arm=None, reason="nothing drafted"), "Nothing was drafted, or no answer was timed in both arms."),
        (row_of(arm=None, reason="all slower", candidate=BEST), f"Every arm is slower; {RAN}."),
        (row_of(arm=None, reason="within", candidate=BEST), f"Within ±5 %: {RAN}."),
        (row_of(arm=None, reason="undecided", candidate=BEST), f"Undecided: {RAN}, which includes 1.00×."),
        (row_of(arm=None, reason="output not shown", candidate=BEST),
         f"{RAN}, but its output is not shown to be the target's own: violation."),
    ],
)  # fmt: skip
def test_what_shows_it(analysis: Analysis, row: Advice, sentence: str) -> None:
    assert advice.evidence(analysis, row) == sentence


YOURS = ' your-prompts.jsonl has lines of {"prompt": "…"}.'
EXPERIMENTS: list[tuple[dict[str, Any], str]] = [
    ({"kind": "quiet machine"}, "Repeat this once `benchctl engines doctor` finds nothing that disturbs:"),
    ({"kind": "unfinished"}, "This run is not finished. Finish it:"),
    ({"kind": "three blocks"}, "Measure at least three repetitions: fewer say nothing of another run."),
    ({"kind": "complete blocks"}, "Measure more repetitions: too few are complete for an interval."),
    ({"kind": "scores", "arms": ["a", "b"]},
     "Check the output of a and b: faster, but it may not be the target's own."),
    ({"kind": "power", "arms": ["a"], "power": 0.36, "prompts": 96},
     "Check the output of a on more prompts: a fault would be noticed 36 times in 100; about 96 prompts are needed."),
    ({"kind": "power", "arms": ["a"], "power": 0.36, "prompts": 1241, "prompts_file": "your-prompts.jsonl"},
     f"Check the output of a on more prompts: a fault would be noticed 36 times in 100; about 1,241 prompts are needed."
     f"{YOURS}"),
    ({"kind": "enough prompts", "arms": ["a"], "prompts": 4, "prompts_file": "your-prompts.jsonl"},
     f"Measure at least 12 prompts, or your own: a is faster on these 4.{YOURS}"),
    ({"kind": "more prompts", "arms": ["a"], "prompts_file": "your-prompts.jsonl"},
     f"Measure more prompts, or your own: a is faster on these; for others that is not known.{YOURS}"),
    ({"kind": "blocks of an arm", "arms": ["a"]},
     "Measure more repetitions of a: undecided so far, and the most likely to be faster."),
    ({"kind": "depth", "depth": 10, "type": "draft-simple", "predicted": 3.43},
     "Try depth 10 of draft-simple: 3.43× is predicted from the others, unless that width runs another kernel."),
    ({"kind": "depth", "depth": 32, "type": "draft-simple", "arms": ["d16"]},
     "Try depth 32 of draft-simple: the deepest so far, d16, is the fastest."),
    ({"kind": "copying", "type": "ngram-mod", "all_slower": True},
     "Try ngram-mod, a drafter that costs next to nothing: every arm here is slower."),
    ({"kind": "copying", "type": "ngram-mod"},
     "Try ngram-mod, a drafter that costs next to nothing: no arm here is shown to be faster."),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "sentence"), EXPERIMENTS)
def test_what_to_measure_next(fields: dict[str, Any], sentence: str) -> None:
    assert experiment.sentence(Experiment(command="benchctl run", **fields)) == sentence


STOPPED = {"max_blocks": 9, "budget_min": 5.0, "blocks": 4, "decided": {}, "rivals": [], "spent_s": 120.0}
STOPS: list[tuple[dict[str, Any], str]] = [
    ({"half_width": 0.05, "reason": "reached", "half_widths": {"a": 0.041, "b": 0.02}},
     "every arm's interval is within ±5 %. The widest interval is ±4.1 %, ±5 % was requested."),
    ({"half_width": 0.05, "reason": "no pairs", "half_widths": {"a": None}},
     "no arm has an answer that can be compared with the baseline's."),
    ({"half_width": None, "reason": "maximum", "half_widths": {"a": 0.1, "b": 0.1, "c": None},
      "decided": {"a": {"blocks": 3, "speed": "within"}}},
     "the recipe allows no more. a is within ±5 % after 3 repetitions; b and c are undecided."),
    ({"half_width": None, "reason": "budget", "half_widths": {"a": 0.1, "b": 0.1}, "rivals": ["a", "b"]},
     "another one would not fit into the budget of 5 min. which of a and b is the fastest is open."),
    ({"half_width": None, "reason": None, "half_widths": {"a": 0.1}, "rivals": ["a"]},
     "the run is not finished. a is faster; whether it is the fastest is open."),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "sentence"), STOPS)
def test_why_a_run_ended(fields: dict[str, Any], sentence: str) -> None:
    result = Stopping.model_validate(STOPPED | fields)
    assert stopping.sentence(result) == f"Stopped after 4 repetitions (2 min): {sentence}"


@pytest.mark.parametrize(
    ("detectable", "sentence"),
    [
        (None, "24 prompts are too few for McNemar's exact test to find even the largest loss in 8 of 10 runs."),
        (0.37, "With 24 prompts McNemar's exact test finds a loss of 37 percentage points in 8 of 10 runs; smaller "
         "losses may be missed."),
    ],
)  # fmt: skip
def test_the_loss_of_right_answers_that_is_found(detectable: float | None, sentence: str) -> None:
    counts: dict[str, Any] = {"correct": 9, "cut": 0, "baseline_correct": 9, "lost": [], "gained": []}
    first = ArmAccuracy(arm="baseline", baseline=None, prompts=24, **counts)
    arm = ArmAccuracy(arm="a", baseline="baseline", prompts=24, detectable=detectable, **counts)
    assert accuracy.sentence(Accuracy(arms=[first, arm])) == sentence
    assert accuracy.sentence(Accuracy(arms=[first])) == ""


ONE = {"count": 1, "first": ["block 1, a, code/0"]}
MANY = {"count": 5, "first": ["a/0", "b/1", "c/2"]}
NAMED = "5 records (a/0; b/1; c/2; and 2 more)"
SHARED = {"busy": 2, "cells": 6, "worst": "block 1, a", "used": 0.5, "stolen": 0.31, "cores": 2}
WARNINGS: list[tuple[str, str, dict[str, Any], str]] = [
    ("changed-evidence", "texts", {"texts": {"count": 4, "first": ["One.", "Two.", "Three."]}},
     "One. Two. Three. And 1 more."),
    ("failed-cell", "failed", {"reason": "It died.", "log": "logs/a.log"}, "It died. (log: logs/a.log)"),
    ("searched", "none yet", {"settings": 4, "blocks": 2, "chosen": None},
     "It searched 4 settings over 2 blocks; none is chosen yet."),
    ("missing-records", "missing", {"missing": 2, "planned": 18}, "2 of 18 answers are missing or failed."),
    ("damaged-records", "hashes", {"records": ONE}, "Text and hash do not match: 1 record (block 1, a, code/0)."),
    ("contradicted-count", "count", {"reason": "the usage differs", "records": MANY, "tokens": 7},
     f"The usage differs: {NAMED}; the first counts 7 tokens."),
    ("token-ids-withheld", "withheld for a reason", {"records": MANY, "reason": "broken UTF-8"},
     f"No complete list of token ids in {NAMED}: broken UTF-8."),
    ("first-event", "limit", {"unrated": 6, "answers": 18, "limit": 201.0},
     "6 of 18 answers have no decode rate; it is at least 201.0 tok/s (median)."),
    ("few-blocks", "one", {"blocks": 1}, "One block: no interval between runs."),
    ("baseline-not-reproducible", "differing", {"differing": MANY, "prompts": 8},
     "5 of 8 prompts are answered differently from block to block: a/0, b/1, c/2, …."),
    ("unequal-work", "matched", {"pairs": 9, "pairs_unequal": 3, "pooled": 1.2, "length_matched": 0.86},
     "In 3 of 9 comparisons the two answers differ in length or ending. The speed-up is 1.20×; over equal lengths it "
     "is 0.86×."),
    ("depth-without-effect", "same counts", {"arms": ["a (depth 2)", "b (depth 4)"], "answers": 6},
     "a (depth 2) and b (depth 4) drafted and accepted the same numbers in all 6 answers."),
    ("repeated-prompts", "acceptance", {"new": 0.25, "new_rate": None, "repeated": 0.875, "repeated_rate": 12.345},
     "Accepted: 25.0 % where a prompt was new, 87.5 % at 12.3 tok/s where it was repeated."),
    ("drift", "fell", {"before": 9.5, "after": 5.5, "percent": -42.1},
     "The baseline fell from 9.5 to 5.5 tok/s (-42 %) between its first and last prompts: heat, a battery or other "
     "work slows a machine so."),
    ("throttling", "gpu", {"cells": 1, "worst": "block 1, a", "value": 0.12},
     "Heat slowed the GPU in 1 cell, most in block 1, a: 12 % of the time."),
    ("swapping", "disk", {"cells": 3, "worst": "block 1, a", "value": 1234},
     "The engine waited for the disk in 3 cells, most in block 1, a: 1,234 times."),
    ("high-load", "both", SHARED,
     "2 of 6 cells had to share the cores; in the worst, block 1, a, other programs used 0.5 of 2 cores and the host "
     "of this virtual machine took 0.3."),
    ("high-load", "host", SHARED,
     "2 of 6 cells had to share the cores; in the worst, block 1, a, the host of this virtual machine took 0.3 of 2 "
     "cores."),
    ("rate-not-kept", "latency grew", {"rate": 2.0, "growth": 0.5, "growth_low": 0.25},
     "The server did not keep up with 2 requests per second: latency grew by 0.50 s (at least 0.25 s) for each second "
     "of sending."),
    ("from-the-future", "text", {"text": "Something {odd}."}, "Something {odd}."),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "code", "values", "sentence"), WARNINGS)
def test_a_warning_says_what_was_observed(kind: str, code: str, values: dict[str, Any], sentence: str) -> None:
    assert warnings.seen(Caution(id=kind, where="run", facts=[Fact(code=code, values=values)])) == sentence


def test_every_code_of_a_warning_has_its_text() -> None:
    """An observation with a literal kind and code names a template of warnings.toml."""
    folder = Path(__file__).parents[2] / "benchctl" / "analysis"
    calls = [
        [argument.value for argument in (node.args[0], node.args[2]) if isinstance(argument, ast.Constant)]
        for file in folder.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "observation"
    ]
    named = [(str(pair[0]), str(pair[1])) for pair in calls if len(pair) == 2]
    assert len(named) > 15
    assert [pair for pair in named if pair[1] not in {"text", *warnings.TEXTS[pair[0]].seen}] == []
