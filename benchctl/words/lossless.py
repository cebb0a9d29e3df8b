"""What is said of an arm's output: the reasons of its verdict, its tests, its power and its replay."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from benchctl.analysis.losslessness import TIMES_BEHIND
from benchctl.text import counted, first, plural
from benchctl.words import validity
from benchctl.words.divergence import deviation, prompt_sentence
from benchctl.words.sweep import OVERLAPPING, SAMPLED

if TYPE_CHECKING:
    from benchctl.analysis.losslessness import ArmAudit, ArmReplay, ControlTest, NoiseFloor, Reason
    from benchctl.analysis.output_results import Losslessness, SelfConsistency

PROMPTS_NAMED = 6
"""Prompts that a sentence on an arm's own answers names."""

ARMS = {
    "baseline-speculates": "The baseline speculates itself, so it is not the target alone; {identical} of "
    "{of_prompts} got the same answer from both.",
    "nothing-judged": "{not_compared}, and nothing was measured one request at a time.",
    "not-compared": "{not_compared}, so that answers are not compared here.",
    "judged-elsewhere": "{not_compared}; whether the arm is lossless is judged where {judged_where}.",
    "unfit-answers": "{answers_are} missing, failed or damaged ({first}).",
    "degenerate-answers": "{answers_are} degenerate where the baseline's is sound ({first}).",
    "servers-differ": "It differs, and does not speculate: the servers differ in something else{reports}.",
    "replayed-differing": "Every answer that differs was replayed, and every token of it is the target's likeliest in "
    "the arm's own batches.",
    "not-audited": "Its whole answers were not scored, so there is no verdict on them.",
    "vouched": "That speculation alone differs between the servers is taken from engine.{key}.",
    "control-is-target": "Without speculation its server gives the target's answers ({control}).",
    "further": "Evidence: {of_prompts} of the run and {further} asked afterwards.",
    "damaged-evidence": "{message}",
    "batch-invariant": "{setting} promises the same numbers in any batch: no numeric noise can make a difference.",
}
"""The reasons of an arm's verdict that are a sentence of their values."""


def worded(judged: Losslessness) -> Losslessness:
    """Return a verdict with its reasons, and those of its prompts, in words."""
    comparisons = [
        comparison.model_copy(update={"reason": " ".join(map(prompt_sentence, comparison.reasons))})
        for comparison in judged.comparisons
    ]
    judged = judged.model_copy(update={"comparisons": comparisons})
    return judged.model_copy(update={"reason": " ".join(arm_sentence(reason, judged) for reason in judged.reasons)})


def noise_sentence(noise: NoiseFloor) -> str:
    """Return the numeric noise at a width, with its control."""
    floor = "unknown" if noise.floor is None else f"{noise.floor:.3g} nats"
    reading = "everything" if noise.by_prefill else f"{noise.width} tokens"
    control = f"diverges from itself at {noise.null_divergences} of {noise.null_places:,} prefixes"
    return (
        f"Numeric noise of the target at verify width {noise.width}: {floor}. Reading {reading} at once instead of "
        f"one, it {control}."
    )


def consistency_sentence(row: SelfConsistency) -> str:
    """Return whether an arm repeats its own answers from block to block."""
    if not row.prompts:
        return f"Whether {row.arm} repeats itself was not tested: no prompt was run in two blocks."
    if not row.differing:
        return f"{row.arm} repeats itself: {counted(row.prompts, 'prompt')}, identical in every block."
    varying = f"{len(row.differing)} of {counted(row.prompts, 'prompt')} vary from block to block"
    return f"{row.arm} does not repeat itself: {varying} ({first(row.differing, PROMPTS_NAMED)})."


def arm_sentence(reason: Reason, judged: Losslessness) -> str:
    """Return a reason of an arm's verdict in a sentence or several."""
    if reason.code in ARMS:
        return ARMS[reason.code].format(**reason.values, **_derived(reason.values))
    if reason.code in ("audit", "power") and judged.audit is not None:
        return audit_sentence(judged.audit) if reason.code == "audit" else power_sentence(judged.audit)
    if reason.code == "replay" and judged.replay is not None:
        return replayed_sentence(judged.replay)
    if reason.code == "control" and judged.control is not None:
        return control_sentence(judged.control)
    return _ARMS[reason.code](reason.values, judged)


def _derived(values: dict[str, Any]) -> dict[str, str]:
    """Return the parts of sentences that values decide."""
    derived = {}
    if "overlapping" in values:
        derived["not_compared"] = OVERLAPPING if values["overlapping"] else SAMPLED
        derived["judged_where"] = "one request at a time was measured" if values["overlapping"] else "they are greedy"
    if "prompts" in values:
        derived["of_prompts"] = counted(values["prompts"], "prompt")
    if "count" in values:
        derived["answers_are"] = "1 answer is" if values["count"] == 1 else f"{values['count']} answers are"
    if "reported" in values:
        derived["reports"] = _reports(values)
    return derived


def _differing(values: dict[str, Any], _: Losslessness) -> str:
    differing, near, damage = values["differing"], values["near_ties"], values["violations"]
    weight = ""
    if near == differing:
        weight = ", which first diverges at a near-tie that the target's own noise may decide"
    elif damage:
        weight = f"; the target's numeric noise does not explain {'any' if damage == differing else damage} of them"
        weight += f", and {near} are near-ties" if near else ""
    elif near:
        weight = f", {near} of them near-ties"
    open_prompts = f"; {values['undetermined']} could not be determined" if values["undetermined"] else ""
    part = "answer" if values["diverging"] else "ending"
    start = f"{differing} of {counted(values['prompts'], 'prompt')} got another {part} than from the target alone"
    return f"{start}{weight}{open_prompts}."


def _identical(values: dict[str, Any], _: Losslessness) -> str:
    prompts, by_text, blocks, degenerate = (values[name] for name in ("prompts", "without_ids", "blocks", "degenerate"))
    equal = "text and tokens" if not by_text else f"text (token ids are absent on both sides for {by_text})"
    times = f"in each of {blocks} blocks" if blocks > 1 else "in the one block measured"
    times += " (those asked afterwards once)" if values.get("further") else ""
    return (
        f"{prompts} of {counted(prompts, 'prompt')} got the target's own answer, by {equal}, {times}; of prompts like "
        f"these at most {100 * values['limit']:.2g} % get a different one (95 % limit)."
        + (f" For {counted(degenerate, 'prompt')} the target's own answer is degenerate." if degenerate else "")
    )


def _undetermined(values: dict[str, Any], judged: Losslessness) -> str:
    parts = []
    unknown = [comparison for comparison in judged.comparisons if comparison.outcome == "undetermined"]
    if unknown:
        example = f"{unknown[0].task}/{unknown[0].prompt_idx}: {unknown[0].reason.partition('. ')[0].rstrip('.')}"
        parts.append(f"{len(unknown)} of {counted(values['prompts'], 'prompt')} could not be determined ({example})")
    if lost := values["lost_lines"]:
        parts.append(f"{lost} damaged {plural(lost, 'line')} may have been of this arm")
    return f"{'; '.join(parts) or 'There is nothing to compare'}."


def _two_causes(values: dict[str, Any], _: Losslessness) -> str:
    advice = (
        f"To tell them apart measure a server that is started as the arm's without speculation, as arm "
        f"{values['control']}, or vouch that speculation alone differs: engine.{values['key']}: true."
    )
    if values["measured"]:
        advice = (
            f"Its server differs without speculation, too ({values['control']}); start the baseline's as the arm's."
        )
    start = "It differs: speculation, or another difference between the servers"
    return f"{start}{_reports(values)}. {advice}"


def _reports(values: dict[str, Any]) -> str:
    if values["reported"] is None:
        return ""
    return f" (it reports {values['reported']}; the baseline's {values['baseline_reported']})"


def _widths(values: dict[str, Any], _: Losslessness) -> str:
    same = f"The same answers: {values['same']}. " if values["same"] else ""
    first_difference = f"The first difference is at token {values['index']} of {values['prompt']}."
    return f"{same}Other answers: {values['other']}. {first_difference}"


def _lossy(values: dict[str, Any], _: Losslessness) -> str:
    equal = " Equal answers are coincidence." if values["equal"] else ""
    output = "its text is not a model's output" if values["synthetic"] else "its output is not the target's own"
    return f"Lossy by design: {values['settings']}; {output}.{equal}"


def _invalid(_: dict[str, Any], judged: Losslessness) -> str:
    return "" if judged.validity is None else validity.violation(judged.validity)


_ARMS: dict[str, Callable[[dict[str, Any], Losslessness], str]] = {
    "differing": _differing,
    "invalid": _invalid,
    "identical": _identical,
    "undetermined": _undetermined,
    "widths": _widths,
    "speculation-or-servers": _two_causes,
    "lossy-by-design": _lossy,
}
"""The other reasons of an arm's verdict."""


def audit_sentence(audit: ArmAudit) -> str:
    """Return what scoring whole answers showed, or what is missing, in a sentence or two."""
    if audit.lacking is not None:
        return f"There is no verdict on its whole answers: {audit.lacking}."
    answers = f"{audit.tokens:,} tokens of {counted(audit.answers, 'answer')}"
    if audit.answers < audit.of:
        answers += f", sampled from {audit.of},"
    reading = "read at once" if audit.by_prefill else "token by token"
    width = "the arm's verify width" + (f", {audit.slots} requests in a batch," if audit.slots > 1 else "")
    noise = "the change between prefill and decode" if audit.by_prefill else f"its own noise at {width}"
    if audit.continued:
        noise += (
            f" ({audit.prefixes:,} prefixes, {audit.continued:,} of them in what it says to prompts of the suite many)"
        )
    times = "once" if audit.diverged == 1 else f"{audit.diverged:,} times"
    scored = (
        f"Scored on the target alone, {reading}, {answers} diverge from its likeliest token {times}; "
        f"{noise} explains {audit.expected or 0:.1f}"
    )
    if audit.violates:
        return f"{scored}. It does not explain {_unexplained(audit)}."
    limit = f"the arm adds at most {audit.excess_limit or 0:.2g} divergences per 1,000 tokens, at 95 %"
    return f"{scored} (p = {_p_value(audit.p)}; {limit})."


def _unexplained(audit: ArmAudit) -> str:
    parts = []
    if audit.beyond:
        parts.append(f"{counted(audit.beyond, 'divergence')} at margins above {audit.floor or 0:.3g} nats")
    if audit.p_adjusted is not None and (audit.p_adjusted <= 0.005 or not parts):
        parts.append(f"where and how often the arm diverges (p = {_p_value(audit.p)})")
    return ", nor ".join(parts)


def power_sentence(audit: ArmAudit) -> str:
    """Return how likely a wrong engine would have been detected where no violation was, in a sentence."""
    stated = audit.stated
    power = f"No violation found, and {_noticed('a fault', 0.0 if stated is None else stated.chance)} (power)"
    if audit.shows or stated is None:
        return f"{power}."
    if stated.prompts is None:
        return f"{power}: too seldom, and how many prompts would be enough on this target is not known."
    return f"{power}: too seldom, about {stated.prompts:,} prompts like these are needed."


def _noticed(fault: str, power: float) -> str:
    """Return the power of a test as a part of a sentence."""
    return f"{fault} would be noticed {100 * power:.0f} times in 100"


def control_sentence(test: ControlTest) -> str:
    """Return what the test against a control showed, or what it lacks, in a sentence or two."""
    differ = f"{test.outside} of {test.prompts} prompts got an answer that the baseline never gave"
    if test.repeated > 1:
        differ += f"; the baseline's own {test.repeated} answers vary at {test.varying}"
    if test.p is None:
        return (
            f"{differ}. A violation cannot be told from rounding: the run has no control of the same verify width. "
            "Measure another arm of the same depth."
        )
    control = {
        "arm": f"against {test.control}, an arm of the same verify width",
        "noise": "against the baseline repeated, on a target without noise at this verify width",
        "scores": f"for a token over {TIMES_BEHIND:g} times as far behind the likeliest as in any of the "
        "baseline's answers",
    }[test.against or "arm"]
    p = f"exact test by prompt {control}: {test.differing} of {test.tested} prompts, p = {test.p:.2g}"
    if test.violates:
        return f"{differ}, and noise does not explain it ({p})."
    one_in_four = "a fault that changes one answer in four"
    chance = f", and {_noticed(one_in_four, test.power)}" if test.power is not None else ""
    return f"{differ}. No violation found{chance} ({p})."


def replayed_sentence(replay: ArmReplay) -> str:
    """Return what replaying an arm's steps showed, or why it decides nothing, in a sentence or two."""
    if replay.first is not None:
        further = replay.deviating - 1
        deviate = plural(further, "deviates", "deviate")
        others = f"; {further:,} further {plural(further, 'token')} {deviate}, too" if further else ""
        place = f"{replay.first.task}/{replay.first.prompt_idx}"
        return f"Replayed in its own batches, {place} is not the target's own. {deviation(vars(replay.first))}{others}."
    if replay.lacking is not None:
        return f"The steps of {replay.arm} were not {'all ' if replay.answers else ''}replayed: {replay.lacking}."
    return (
        f"Replayed in its own batches on the target alone, all {counted(replay.tokens, 'token')} of "
        f"{counted(replay.answers, 'answer')} ({counted(replay.rounds, 'round')}) are the likeliest: what differs is "
        f"rounding, which depends on the width of a batch. The baseline's own {counted(replay.control, 'answer')}, the "
        "control, replay exactly, too."
    )


def _p_value(p: float | None) -> str:
    return "–" if p is None else f"{p:.2g}" if p > 0 else "0: this target has no noise"
