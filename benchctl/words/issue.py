"""What the bug form of an engine's project is told: what happened, in which case, and what is not known."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchctl.analysis.frame import ALL_TASKS
from benchctl.analysis.outcome import find_outcome
from benchctl.analysis.result import MIN_BLOCKS
from benchctl.text import listed, plural
from benchctl.words import numbers
from benchctl.words.lossless import consistency_sentence
from benchctl.words.outcome import machine
from benchctl.words.verdict import explanation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchctl.analysis.losslessness import FirstDivergence, ShapeMargin
    from benchctl.analysis.reportable import Finding, Reportable
    from benchctl.analysis.results import Analysis
    from benchctl.data.manifest import ArmIdentity
    from benchctl.prompts.suite import Prompt

_TITLES: Mapping[Finding, str] = {
    "violation": "speculative decoding ({setting}) changes the output",
    "divergence": "speculative decoding ({setting}) gives another answer, and what explains it is not known",
    "slower": "speculative decoding ({setting}) is slower than no speculation, {speed}",
}
NOT_SEARCHED = "First bad commit: not searched. `benchctl bisect` finds the first bad build among runs of several."
NO_COMMAND = "The servers ran already, so their command lines are not known. Write them here."
LOG_END = "The end of the log with speculation:"
NO_LOG = "The log of this engine is not beside the run."
SAME_REQUEST = "The request, the same for both servers:"
ONE_AT_A_TIME = "Start one server, send the request, stop the server. Then do the same with the other."


def title(case: Reportable) -> str:
    """Return the end of the title."""
    return _TITLES[case.finding].format(setting=case.verdict.setting, speed=numbers.ratio(case.verdict.speedup))


def nothing(analysis: Analysis, arm: str | None, refusal: str | None) -> str:
    """Return that there is nothing to report, and why."""
    verdict = next((row for row in analysis.verdicts if row.arm == arm), None)
    reason = "no arm that ran as requested is shown to be slower, or has an output that is wrong or unexplained."
    if refusal is not None:
        reason = f"the files cannot be relied on. {refusal}"
    elif verdict is not None and verdict.lossy:
        reason = f"{arm} is lossy by design ({', '.join(verdict.lossy)})."
    elif verdict is not None and verdict.attestation in ("failed", "off"):
        reason = f"{arm} did not run as requested."
    elif verdict is not None:
        reason = f"{arm} is not shown to be slower, and no answer of it is wrong or unexplained."
    if analysis.blocks < MIN_BLOCKS:
        reason += f" Fewer than {MIN_BLOCKS} repetitions show no slow-down."
    return f"There is nothing to report: {reason}"


def not_replayed(case: Reportable, run: str) -> str:
    """Return that a divergence may be rounding, and what shows it; empty where that was tried."""
    divergence = case.comparison.divergence if case.comparison else None
    if case.finding != "divergence" or divergence is None or divergence.margin is not None:
        return ""
    return f"This divergence may be rounding. `benchctl verify-lossless {run}` shows that; send the form after it."


def expected(case: Reportable) -> str:
    """Return what should have been."""
    if case.finding == "slower":
        return "The same request decodes no slower with speculation than without it."
    return "The same request gets the same tokens with speculation as without it."


def actual(case: Reportable, analysis: Analysis) -> list[str]:
    """Return what was instead, with its evidence, a sentence or several an entry."""
    judged, comparison = case.judged, case.comparison
    if case.finding == "slower":
        cost = "A draft may cost more than it saves on this hardware, and then nothing is wrong."
        state = machine(find_outcome(analysis))
        return [*filter(None, [_speed(case, analysis), state, explanation(analysis, case.verdict), cost])]
    reasons = [comparison.reason if comparison else "", judged.reason if judged else ""]
    divergence = comparison.divergence if comparison else None
    reasons += [_reading(shape) for shape in divergence.shapes] if divergence else []
    names = (case.baseline, case.verdict.arm)
    reasons += [consistency_sentence(row) for row in analysis.consistency if row.arm in names and row.prompts]
    return list(dict.fromkeys(filter(None, reasons)))


def _speed(case: Reportable, analysis: Analysis) -> str:
    verdict, row = case.verdict, analysis.speedup_of(case.verdict.arm)
    measured = "Whole requests are" if verdict.whole_answers else "Decoding is"
    blocks = f"{verdict.blocks} fresh {plural(verdict.blocks, 'process', 'processes')} of each"
    ends = f"95 % interval {numbers.interval(verdict.interval)}, {blocks}" if verdict.interval else blocks
    sentence = f"{measured} {numbers.ratio(verdict.speedup)} as fast ({ends})"
    if row is None or verdict.whole_answers:
        return f"{sentence}."
    tasks = [entry for entry in analysis.speedups if entry.arm == verdict.arm and entry.task != ALL_TASKS]
    by_task = ", ".join(f"{entry.task} {numbers.ratio(entry.pooled)}" for entry in tasks) if len(tasks) > 1 else ""
    rates = f"{numbers.rate(row.baseline_rate)} tok/s without speculation, {numbers.rate(row.decode_rate)} with it"
    whole = f" Whole requests, prompt included: {numbers.ratio(row.end_to_end)}." if row.end_to_end else ""
    return f"{sentence}: {rates}.{f' By task: {by_task}.' if by_task else ''}{whole}"


def _reading(shape: ShapeMargin) -> str:
    how = {"decode": "token by token", "verify": f"{shape.width} tokens at once", "prefill": "everything at once"}
    choice = {"baseline": "the token without speculation", "arm": "the token with speculation", "another": "a third"}
    by = "" if shape.margin is None else f" (margin {numbers.nats(shape.margin)} nats)"
    return f"Reading {how[shape.shape]}, the target alone prefers {choice[shape.prefers]}{by}."


def chosen_case(case: Reportable) -> str:
    """Return which prompt it is, how long, and of how many; empty where no prompt is known."""
    record = case.without
    if record is None:
        return ""
    length = "" if record.prompt_tokens is None else f", {numbers.count(record.prompt_tokens)} tokens"
    shortest = "" if record.prompt_tokens is None else "the shortest "
    among = f"{shortest}of {case.showing} that show it" if case.showing > 1 else "the only one that shows it"
    return f"The case is prompt {record.task}/{record.prompt_idx}{length}, {among}."


def first_difference(divergence: FirstDivergence) -> str:
    """Return where two answers part, with both tokens."""
    sentence = f"The answers are equal up to {divergence.unit} {divergence.index}, counted from 0"
    if divergence.unit == "character":
        return f"{sentence}; token ids were not reported."
    ids = [
        "the end of the answer" if token is None else f"token id {token}"
        for token in (divergence.baseline_token, divergence.arm_token)
    ]
    return f"{sentence}. There it is {ids[0]} without speculation, and {ids[1]} with it."


def agreement(case: Reportable) -> str:
    """Return whose answer the other arms give to the prompt, with their verify widths; empty without others."""
    sides = {"without": "as without speculation", "arm": f"as {case.verdict.arm}", "neither": "unlike both"}
    groups = [
        f"{sides[side]}: {listed(names)}"
        for side in sides
        if (
            names := [
                f"{arm}{f' (verify width {width})' if width else ''}" for arm, width, s in case.others if s == side
            ]
        )
    ]
    return f"To this prompt other arms answer {'; '.join(groups)}." if groups else ""


def caveats(identity: ArmIdentity | None, prompt: Prompt | None) -> list[str]:
    """Return in what a single request from a shell is not what was measured."""
    sentences = []
    if identity is not None and identity.overlapping:
        load = f"{identity.rate:g} requests a second came" if identity.rate else f"{identity.concurrency} requests ran"
        sentences.append(f"In the run {load} at a time; one alone may not show it.")
    if identity is not None and identity.remembers:
        sentences.append("This speculation drafts from earlier requests of the process, so their order matters.")
    if prompt is not None and (prompt.tools is not None or prompt.response_format is not None):
        sentences.append(
            "The run sent the rendered text, and its constraint beside it; the chat route may use another."
        )
    return sentences


def too_long(characters: int) -> str:
    """Return why a request is not shown."""
    return f"The request has {numbers.count(characters)} characters, too many for an issue."


def no_request(identity: ArmIdentity | None, task: str, index: int) -> str:
    """Return why there is no request to paste."""
    if identity is not None and identity.context_length is not None:
        return f"The prompt was padded or cut to {identity.context_length} tokens, and that text is not kept."
    return f"The text of prompt {task}/{index} is not kept with the run. Write it here."
