"""Warnings: everything that makes a number less trustworthy, as a closed set, each with its reason and its advice.

A check yields at most one `Observation` an arm, with the worst cases; the table adds why it matters and what to do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from benchctl.analysis.record_checks import (
    Observation,
    check_cells,
    check_depths,
    check_disturbances,
    check_integrity,
    check_records,
    check_repeats,
    check_repetitions,
    check_replication,
    check_speculation,
    check_work,
)
from benchctl.analysis.results import Caution, SelfConsistency, SpeedUp
from benchctl.data.integrity import Integrity

if TYPE_CHECKING:
    from benchctl.analysis.acceptance import CounterColumns
    from benchctl.analysis.answers import Answers
    from benchctl.analysis.frame import Frame
    from benchctl.data.record import Record


class WarningText(NamedTuple):
    """Why a kind of warning matters, and what to do."""

    why: str
    todo: str


ADVICE: dict[str, WarningText] = {
    "changed-evidence": WarningText(
        "Whether the files are what was measured is not known, so nothing is concluded from them.",
        "Restore the run's folder from a copy, or measure again in a new run.",
    ),
    "changed-scores": WarningText(
        "Scores that are not as they were written are not used, so what rests on them is undetermined.",
        "Score again: benchctl verify-lossless RUN.",
    ),
    "degenerate-target": WarningText(
        "Such answers are easy to draft for: the speed-up is that of a broken model.",
        "Check the model's file and its quantization (`benchctl models inspect`); try the unquantized model.",
    ),
    "unsure-target": WarningText(
        "A sound model is sure of its own tokens; else its weights are broken, or these languages are not its own.",
        "Check the model's file and its quantization (`benchctl models inspect`); try the unquantized model.",
    ),
    "quantization-damage": WarningText(
        "This quantization changes the model's output: the model that is measured is not its source.",
        "Quantize with more bits, or find the tensors to keep: `quantize: {tensors: {ssm_out: bf16}}`.",
    ),
    "quantization-differs": WarningText(
        "llama-quantize chose other types than the recipe requests: the model is not what its name says.",
        "Choose a base type whose blocks divide the rows, such as q8_0; `benchctl models inspect` shows them.",
    ),
    "vocabulary-differs": WarningText(
        "Token ids that mean something else to the draft are never accepted, without any error.",
        "Use a draft of the same family, or convert both models with the same version of the converter.",
    ),
    "context-too-short": WarningText(
        "Answers that meet the end of the context are cut off, or shifted: they are other work.",
        "Raise `engine.context`, shorten the prompts, or lower `sampling.max_tokens`.",
    ),
    "preflight-failed": WarningText(
        "Whether the target is sound could not be determined.",
        "Read logs/preflight.log in the run's folder.",
    ),
    "failed-cell": WarningText(
        "Its prompts are missing from every comparison.",
        "Read the cell's log, in the run's folder, then finish the run with `benchctl run --resume`.",
    ),
    "missing-records": WarningText(
        "An arm is compared over fewer prompts; whether its output on the others is lossless is undetermined.",
        "Finish the run with `benchctl run --resume`.",
    ),
    "searched": WarningText(
        "Arms were eliminated early, blocks differ in prompts, and the largest of many noisy values is too high.",
        "Take the speed-up from the run that measured the chosen setting again: `benchctl tune` prints its name.",
    ),
    "damaged-records": WarningText(
        "A record that cannot be trusted is left out of every comparison.",
        "Find out what changed the file, then measure what is missing with `benchctl run --resume`.",
    ),
    "few-blocks": WarningText(
        "Fresh processes differ from each other by more than the requests within one; so few cannot show by how much.",
        "Measure at least three blocks: `blocks: 3` in the recipe, or `--blocks 3`.",
    ),
    "unverified": WarningText(
        "Whether the comparison shows the effect of speculation depends on what the endpoint did.",
        "Ask its operator how it was started; one with /slots, /metrics or /server_info is verified by them.",
    ),
    "baseline-speculates": WarningText(
        "It shows neither the target's own output nor its speed: no arm can be called lossless against it.",
        "Compare with an arm without speculation (`--baseline NAME`), or measure one.",
    ),
    "baseline-not-reproducible": WarningText(
        "If the target alone does not repeat itself, a difference of an arm proves nothing.",
        "Fix what makes it vary: one slot, no prompt cache, fixed batch sizes and threads, temperature 0.",
    ),
    "baseline-endings": WarningText(
        "Greedy decoding never ends an answer so. No arm's fault of this kind is found.",
        "Check the server's limits, its stop tokens and the model's end token; then measure again.",
    ),
    "unequal-work": WarningText(
        "Answers of other lengths are other work; the speed-up then compares two different things.",
        "Read the length-matched value, or set `ignore_eos: true` to make all answers equally long.",
    ),
    "empty-answer": WarningText(
        "An answer of less than two tokens has no decode rate and is left out of the speed-up.",
        "Check the prompt's template and whether the model is sound; empty answers are often a broken quantization.",
    ),
    "never-fired": WarningText(
        "Speculation was on but found nothing to draft, so the arm measures the cost of searching for drafts alone.",
        "Try prompts with repetition, or a shorter n-gram key.",
    ),
    "depth-ignored": WarningText(
        "The engine drafted deeper than the recipe allows, so the arm does not match its name.",
        "Check how this engine build reads its depth option, and use another build if it ignores it.",
    ),
    "depth-without-effect": WarningText(
        "They were most likely the same depth: the engine ignored the setting, or another limit comes first.",
        "Look for such a limit (p_min, the engine's own cap) and at the command lines in the manifest.",
    ),
    "repeated-prompts": WarningText(
        "This drafter remembers earlier requests and drafts from its own earlier answer, as real users rarely allow.",
        "Take repetitions out of the prompts file. Of an endpoint believe the first block; restart the server.",
    ),
    "repeating-answers": WarningText(
        "Text that repeats itself is easy to draft, above all for n-grams: its speed-up is not that of other answers.",
        "Ask these prompts otherwise, ask for shorter answers, or use a larger target; then measure again.",
    ),
    "contradictory-counters": WarningText(
        "Counters that contradict each other cannot be averaged; these records are left out of the acceptance.",
        "Report it to the engine's project, with the records named here.",
    ),
    "token-ids-withheld": WarningText(
        "Without token ids two answers can be compared by their text only.",
        "Nothing to do where the text is complete; otherwise configure the engine to return token ids.",
    ),
    "first-event": WarningText(
        "How many tokens came before the clock of the decode rate started is not known.",
        "Use a server that streams token ids or has /tokenize; else compare the times from end to end.",
    ),
    "clock-mismatch": WarningText(
        "The two clocks should agree within 1 %; otherwise one of them times something besides decoding.",
        "Look for a busy client, a slow network or proxy, or an engine that counts its time differently.",
    ),
    "spilled": WarningText(
        "Layers that the processor computes change speed and batch cost: a model that fits behaves otherwise.",
        "Use a smaller model, a coarser quantization or a shorter context, or measure on the processor alone.",
    ),
    "swapping": WarningText(
        "Reading a page from disk takes as long as many tokens, and which answer it delays is chance.",
        "Close programs that use memory, or use smaller models or a shorter context; then measure again.",
    ),
    "throttling": WarningText(
        "A processor that is slowed by heat slows the cells that come late, whatever their arm.",
        "Let the machine cool, improve its cooling, or fix a lower clock; then measure again.",
    ),
    "high-load": WarningText(
        "Other work on the machine slows some cells and not others.",
        "Stop other work and measure again; `benchctl engines doctor` lists what disturbs measurements.",
    ),
    "clock-jump": WarningText(
        "The machine was suspended or its clock set: the measurement was disturbed, and records are out of order.",
        "Keep the machine from suspending while it measures; measure again.",
    ),
    "drift": WarningText(
        "The baseline drafts nothing, so its rate should be nearly steady: either the machine changed its speed while "
        "measuring, or the last prompts are much longer than the first.",
        "Where the prompts are alike: fix the clock frequency, let the machine cool, plug it in; then measure again.",
    ),
    "not-filled": WarningText(
        "Total throughput and latency are those of fewer requests at once than the condition says.",
        "Use more prompts: at least five times as many as the highest concurrency.",
    ),
    "rate-not-kept": WarningText(
        "The queue grows for as long as the cell lasts: latencies depend on how many requests there were.",
        "Compare latencies at rates that all arms keep up with; total throughput is then the server's capacity.",
    ),
    "late-client": WarningText(
        "Latencies count from the intended send time, so they include benchctl's own delay.",
        "Stop other work on the machine, set a lower rate, or send from another machine than the engine's.",
    ),
}


_NEWER = WarningText(
    "This version of benchctl does not know this kind of preflight finding.",
    "Read the run with the version of benchctl that made it, or a newer one.",
)


def find_warnings(
    frame: Frame,
    counters: CounterColumns,
    answers: Answers,
    speedups: Sequence[SpeedUp],
    consistency: Sequence[SelfConsistency],
    damaged: Sequence[str],
    warm_ups: Sequence[Record] = (),
    integrity: Integrity | None = None,
) -> list[Caution]:
    """Return every warning of a run, the most serious kinds first."""
    observations = [
        *check_integrity(integrity),
        *check_cells(frame),
        *check_records(frame, answers, damaged),
        *check_replication(frame, consistency),
        *check_work(frame, speedups),
        *check_speculation(frame, counters),
        *check_depths(frame, counters),
        *check_repetitions(frame),
        *check_repeats(frame, counters, warm_ups),
        *check_clocks(frame),
        *check_disturbances(frame),
        *check_drift(frame),
    ]
    return in_order(cautions(observations))


def cautions(observations: Iterable[Observation]) -> list[Caution]:
    """Return observations as warnings, with why each matters and what to do."""
    return [
        Caution(id=kind, where=where, seen=what, **ADVICE.get(kind, _NEWER)._asdict())
        for kind, where, what in observations
    ]


def in_order(found: Iterable[Caution]) -> list[Caution]:
    """Return warnings with the most serious kinds first."""
    rank = {kind: place for place, kind in enumerate(ADVICE)}
    return sorted(found, key=lambda warning: rank.get(warning.id, len(rank)))


CLOCKS_AGREE = 0.01
WAKING_S = 0.002
"""The time that a client may need to wake up when a token arrives; over 1 % of a short answer."""
DRIFT = 0.10


def check_clocks(frame: Frame) -> Iterator[Observation]:
    """Compare the client's clock with the engine's."""
    engine = frame.column("tok_per_sec")
    client = frame.column("client_tok_per_sec")
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = client / engine - 1
        gap = np.abs(frame.decoded / client - frame.decoded / engine)
    for number, arm in enumerate(frame.arms):
        here = (frame.arm == number) & np.isfinite(ratio) & np.isfinite(gap) & frame.answered
        known = ratio[here]
        if len(known) and abs(np.median(known)) > CLOCKS_AGREE and np.median(gap[here]) > WAKING_S:
            what = f"The client's decode rate is {100 * np.median(known):+.1f} % off the engine's (median)."
            yield "clock-mismatch", arm, what


def check_drift(frame: Frame) -> Iterator[Observation]:
    """Compare the first and last third of the baseline's answers within every block; the worst block is reported."""
    worst, found = DRIFT, None
    timed = [row for row in frame.rows(frame.baseline).tolist() if np.isfinite(frame.rate[row])]
    for block in range(len(frame.blocks)):
        rows = [row for row in timed if frame.block[row] == block]
        rows.sort(key=lambda row: frame.records[row].started_at or "")
        third = len(rows) // 3
        if third < 2:
            continue
        before, after = np.median(frame.rate[rows[:third]]), np.median(frame.rate[rows[-third:]])
        change = float(after / before) - 1
        if abs(change) > worst:
            worst, how = abs(change), f"{100 * change:+.0f} %"
            sentence = f"From {before:.1f} to {after:.1f} tok/s ({how}) between its first and last prompts."
            found = (frame.cell_name(block, frame.baseline), sentence)
    if found:
        yield ("drift", *found)
