"""Losslessness: is an arm's output token-identical to the target's own, prompt by prompt and as a whole.

An answer is never equal by absence: what is missing, failed, cut off or damaged is `undetermined`. Answers are compared
within a block, over every block. Every prompt gets the first class that applies:

    undetermined   the prompt itself, or the baseline's own answer, is not the same in every block, or when asked again
    violation      an answer ends as greedy decoding never does (see `Endings`)
    violation      a token is not the target's likeliest in the arm's own batch (see `replay`)
    undetermined   an answer differs whose request constrains it (`response_format`, `tools`)
    exact          an answer differs, and every token of it is the target's likeliest in the arm's own batch
    degenerate     the answers differ, and either is empty, a loop, a run of reserved tokens, or does not end; where the
                   target's is sound, and noise does not explain where they part, it is a violation
    near-tie       an answer differs, where the target's own numeric noise may be the cause (see `divergence`)
    violation      an answer differs, and noise does not explain it
    differs        an answer differs, and no replay has explained it
    undetermined   a record is missing, failed, cut off or damaged, or the arm answers otherwise when asked again
    identical      text and tokens are equal in every block; where the target's own answer is degenerate, that is named

An arm whose every answer replays so is `exact`. Of the others, what their divergences are together is found by scoring
whole answers alone (see `audit`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from benchctl.analysis.answers import degeneration, find_divergence, runs_on, same_answer, same_text, same_tokens
from benchctl.analysis.cells import first_token_by_round, invariant_by, repeated_otherwise, speculates, verify_width
from benchctl.analysis.conditions.split import is_greedy
from benchctl.analysis.losslessness import (
    ArmAudit,
    ArmReplay,
    DetectionPower,
    FirstDivergence,
    NoiseFloor,
    Reason,
    ReplayDeviation,
    because,
)
from benchctl.analysis.output_results import Comparison, Losslessness, LosslessVerdict, PromptClass
from benchctl.data.record import Record
from benchctl.lossless.judge.audit import PROPOSED, power_of_equality, stated_nats
from benchctl.lossless.judge.divergence import Evidence, judge_divergence
from benchctl.lossless.judge.endings import Endings, endings_of
from benchctl.lossless.judge.selection import key_of, proposed_share
from benchctl.words.unscored import unscored

if TYPE_CHECKING:
    from benchctl.analysis.answers import Answers
    from benchctl.analysis.frame import Booleans, Frame

DOUBT = 0.05
"""The chance that the limit of an identical arm's differing prompts is passed."""

_GRAVITY: tuple[PromptClass, ...] = ("violation", "differs", "undetermined", "near-tie")
"""Which of several divergences stands for a prompt, the most serious first."""

Pair = tuple[Record, Record]
"""The baseline's answer and the arm's to a prompt in a block."""
Outcome = tuple[PromptClass, tuple[Reason, ...]]
Judged = tuple[PromptClass, Reason, FirstDivergence]
"""A divergence with its class and its numbers."""


def judge_arm(
    frame: Frame, answers: Answers, arm: int, *, evidence: Evidence | None = None, lost_lines: int = 0
) -> Losslessness:
    """Compare an arm with the baseline. `lost_lines`: unreadable records that may have been any arm's."""
    evidence = evidence or Evidence()
    plain = plainly_equal(frame, answers, arm)
    rules = Endings() if plain.all() or not greedy(frame) else endings_of(frame)
    replayed = evidence.replays.get(frame.arms[arm])
    deviations = replayed.deviations if replayed is not None else {}
    asked = frame.asked(arm)
    later = int((asked & frame.further).sum())
    comparisons = [
        _identical(frame, arm, number)
        if plain[number] and prompt not in deviations
        else _compare(frame, answers, arm, number, evidence, rules)
        for number, prompt in enumerate(frame.prompts)
        if asked[number]
    ]
    names = (frame.arms[frame.baseline], frame.arms[arm])
    repeats = [(name, repeated_otherwise(frame.manifest, name)) for name in names]
    comparisons = [_asked_again(comparison, repeats) for comparison in comparisons]
    counts = Counter(comparison.outcome for comparison in comparisons)
    total, differs = len(comparisons), any(_differs(comparison) for comparison in comparisons)
    replay = replayed.summary if replayed is not None else None
    by_replay = (because("replay"),) if replay is not None else ()
    fields: dict[str, Any] = {"verdict": "undetermined"}
    if speculates(frame, frame.baseline):
        fields["reasons"] = (because("baseline-speculates", identical=counts["identical"], prompts=total),)
    elif differs:
        audit = evidence.audits.get(frame.arms[arm])
        fields["verdict"], details = _of_differing(comparisons, audit, replay)
        fields["reasons"] = (_differing(comparisons), *details)
        fields |= {"audit": audit, "noise": _noise(frame, arm, comparisons, evidence)}
    elif deviations:
        fields |= {"verdict": "violation", "reasons": by_replay}
    elif counts["identical"] == total > 0 and not lost_lines:
        limit = 1 - DOUBT ** (1 / total)
        exact = replay is not None and replay.exact  # which shows more than a power does
        power = None if exact else _power(frame, arm, evidence)
        lacking = None if power or exact else _power_lacking(frame, arm, evidence)
        fields = {
            "verdict": "identical",
            "reasons": (_identical_throughout(frame, comparisons, limit, later), *_promised(frame, arm)),
            "differing_limit": limit,
            "noise": _noise(frame, arm, comparisons, evidence),
            "power": power,
            "power_lacking": unscored(lacking) if lacking else None,
        }
    else:
        fields["reasons"] = (because("undetermined", prompts=total, lost_lines=lost_lines), *by_replay)
    fields["replay"] = replay
    if later:
        fields["reasons"] = (*fields["reasons"], because("further", prompts=total - later, further=later))
    return Losslessness.model_validate(
        {"arm": frame.arms[arm], "counts": dict(sorted(counts.items())), "comparisons": comparisons, **fields}
    )


def _power(frame: Frame, arm: int, evidence: Evidence) -> DetectionPower | None:
    """Return the power of equal answers, where the target's margins at any are scored: a swapped token changes one.

    Answers to which nothing was drafted count among the prompts, and none of their tokens can have been swapped.
    """
    scored = {answer.answer: answer.margins for answer in evidence.scores.answers} if evidence.scores else {}
    records = [frame.records[row] for row in frame.rows(arm).tolist()]
    answers = {key_of(record) for record in records} & scored.keys()
    if not answers:
        return None
    drafted = answers & {key_of(record) for record in records if record.draft_n != 0}
    margins = np.array([margin for answer in drafted for margin in scored[answer]])
    nats, proposed = stated_nats(frame.manifest), proposed_share(frame, arm)
    return power_of_equality(margins, nats, len(answers), PROPOSED if proposed is None else proposed)


def _power_lacking(frame: Frame, arm: int, evidence: Evidence) -> Reason | None:
    """Return why an identical arm's answers cannot be scored; `None`: nothing has tried to."""
    if frame.manifest is None:
        return because("no-manifest")
    if any(frame.records[row].token_ids is None for row in frame.rows(arm).tolist()):
        return because("no-ids")
    return evidence.unscored


def _promised(frame: Frame, arm: int) -> tuple[Reason, ...]:
    setting = invariant_by(frame, frame.arms[arm])
    return () if setting is None else (because("batch-invariant", setting=setting),)


def _identical_throughout(frame: Frame, comparisons: list[Comparison], limit: float, further: int) -> Reason:
    degenerate = sum(any(item.code == "degenerate-alike" for item in answer.reasons) for answer in comparisons)
    return because(
        "identical",
        prompts=len(comparisons),
        without_ids=sum(answer.tokens_equal is None for answer in comparisons),
        blocks=frame.run_blocks,
        degenerate=degenerate,
        limit=limit,
        **({"further": further} if further else {}),
    )


def _asked_again(comparison: Comparison, repeats: Sequence[tuple[str, Mapping[tuple[str, int], int]]]) -> Comparison:
    """Return a comparison, undetermined where a process changed its answer to that prompt: first the baseline's, which
    then explains any difference; else the arm's, whose equal or near answers show nothing of its other answers."""
    for name, otherwise in repeats:
        requests = otherwise.get((comparison.task, comparison.prompt_idx))
        if requests is not None and (name != comparison.arm or comparison.outcome != "violation"):
            reason = because("repeated-otherwise", arm=name, requests=requests)
            return comparison.model_copy(update={"outcome": "undetermined", "reasons": (reason, *comparison.reasons)})
    return comparison


def plainly_equal(frame: Frame, answers: Answers, arm: int) -> Booleans:
    """Find the prompts whose answers are all there, plain, and the same in both arms and every block."""
    rows = np.concatenate([frame.row_at[frame.baseline], frame.row_at[arm]])
    never_asked = (rows < 0) & frame.pooled
    codes = np.where(never_asked, -1, answers.code[rows])
    plain: Booleans = np.all(never_asked | (answers.plain[rows] & (codes == codes.max(axis=0))), axis=0)
    return plain


def _identical(frame: Frame, arm: int, prompt: int) -> Comparison:
    task, index = frame.prompts[prompt]
    return Comparison(
        arm=frame.arms[arm],
        task=task,
        prompt_idx=index,
        outcome="identical",
        reasons=(_EQUAL,),
        text_equal=True,
        tokens_equal=True,
        blocks_compared=int((frame.row_at[arm, :, prompt] >= 0).sum()),
        blocks_differing=0,
    )


_EQUAL = because("equal")


def _compare(frame: Frame, answers: Answers, arm: int, prompt: int, evidence: Evidence, rules: Endings) -> Comparison:
    """Compare a prompt over all blocks."""
    task, index = frame.prompts[prompt]
    theirs, flaws = _sound_records(frame, answers, frame.baseline, prompt)
    ours, more_flaws = _sound_records(frame, answers, arm, prompt)
    flaws += more_flaws
    pairs = [(theirs[block], ours[block]) for block in theirs if block in ours]
    unequal = [pair for pair in pairs if not same_answer(*pair)]
    replayed = evidence.replays.get(frame.arms[arm])
    deviation = replayed.deviations.get((task, index)) if replayed is not None else None
    constraint, divergences = frame.constrained.get((task, index)), list[Judged]()
    if greedy(frame) and constraint is None:
        divergences = _judge_divergences(frame, unequal, evidence)
    if (doubt := _not_comparable(pairs, flaws, list(theirs.values()))) is not None:
        outcome: PromptClass = "undetermined"
        reasons: tuple[Reason, ...] = (doubt,)
    elif unequal or deviation is not None:
        stops = (task, index) in frame.stopped
        broken = partial(rules.broken_by, constrained=constraint is not None or stops)
        rule = next((broken_rule for pair in unequal if (broken_rule := broken(*pair))), None)
        if rule is None and deviation is not None:
            outcome, reasons = "violation", (_deviates(deviation),)
        elif rule is None and replayed is not None and (task, index) in replayed.exact:
            outcome, reasons = _of_exact([ours for _, ours in unequal], Endings() if stops else rules)
        else:
            outcome, reasons = _of_unequal(unequal[0], divergences, rule, constraint, is_greedy=greedy(frame))
    else:
        outcome, reasons = _of_equal(pairs, flaws)
    shown = [divergence for _, _, divergence in divergences] or list(
        filter(None, (find_divergence(*pair) for pair in unequal[:1]))
    )
    tokens = [same_tokens(*pair) for pair in pairs]
    return Comparison(
        arm=frame.arms[arm],
        task=task,
        prompt_idx=index,
        outcome=outcome,
        reasons=reasons,
        text_equal=all(same_text(*pair) for pair in pairs) if pairs else None,
        tokens_equal=False if False in tokens else None if None in tokens or not pairs else True,
        blocks_compared=len(pairs),
        blocks_differing=len(unequal),
        divergence=shown[0] if shown else None,
        other_divergences=tuple(shown[1:]),
        deviation=deviation,
    )


def _judge_divergences(frame: Frame, unequal: list[Pair], evidence: Evidence) -> list[Judged]:
    """Judge every distinct divergence of a prompt; the most serious first."""
    distinct: dict[tuple[int, int | None, int | None], Judged] = {}
    pairs: set[tuple[str | None, str | None, str | None, int | None]] = set()
    by_round = first_token_by_round(frame.manifest, unequal[0][1].label) if unequal else True
    invariant = invariant_by(frame, unequal[0][1].label) if unequal else None
    for theirs, ours in unequal:
        width = verify_width(frame.manifest, ours)
        pair = (theirs.token_sha, ours.token_sha, ours.content_sha, width)
        if None not in pair[:3] and pair in pairs:
            continue  # most blocks repeat each other
        pairs.add(pair)
        divergence = find_divergence(theirs, ours)
        if divergence is None:
            continue
        if width is not None and not divergence.index and not by_round and not evidence.noise_at(width).by_prefill:
            width = 1  # the prompt's own reading decided the first token
        key = (divergence.index, divergence.arm_token, width)
        distinct.setdefault(key, judge_divergence(divergence, theirs, width, evidence, invariant=invariant))
    return sorted(distinct.values(), key=lambda judged: _GRAVITY.index(judged[0]))


def _sound_records(frame: Frame, answers: Answers, arm: int, prompt: int) -> tuple[dict[int, Record], list[str]]:
    """Return an arm's comparable answers to a prompt by block, and a sentence for every other."""
    sound, flaws = {}, []
    for block, row in enumerate(frame.row_at[arm, :, prompt].tolist()):
        if row < 0 and frame.pooled:
            continue
        flaw = answers.flaw[row]
        if flaw is None:
            sound[block] = frame.records[row]
        else:
            flaws.append(f"The record of {frame.cell_name(block, arm)} {flaw}.")
    return sound, flaws


def _not_comparable(pairs: list[Pair], flaws: list[str], theirs: list[Record]) -> Reason | None:
    """Return why the arm's answers cannot be compared with the baseline's (`theirs`), whatever they are."""
    if not pairs:
        return _flawed(flaws)
    if len({record.prompt_sha for pair in pairs for record in pair}) > 1:
        return because("prompts-differ")
    changed = sum(not same_answer(theirs[0], later) for later in theirs[1:])
    return because("unstable", differing=changed, later=len(theirs) - 1) if changed else None


def _deviates(deviation: ReplayDeviation) -> Reason:
    """Return that a token is not the target's own, with its place in the answer and in its step."""
    return because("replay-deviates", **deviation.model_dump(exclude={"task", "prompt_idx"}))


def _of_exact(differing: list[Record], rules: Endings) -> Outcome:
    """Return the class of a prompt whose answers differ and replay exactly; its end token would be among them."""
    early = next(filter(None, map(rules.without_end, differing)), None)
    if early is not None:
        return "undetermined", (early,)
    fault = next(filter(None, map(degeneration, differing)), None)
    return "exact", (because("replayed"), *((because("degenerate-arm", fault=fault),) if fault else ()))


def _of_unequal(
    pair: Pair, divergences: list[Judged], rule: Reason | None, constraint: str | None, *, is_greedy: bool
) -> Outcome:
    """Return the class of a prompt whose answers differ, by the first `pair` that does.

    `rule`: of endings, that an answer of the arm breaks; `constraint`: the setting that constrains the answers.
    """
    if not is_greedy:
        return "undetermined", (because("sampled"),)
    if rule is not None:
        return "violation", (rule, because("never-by-noise"))
    if constraint is not None:
        return "undetermined", (because("constrained", constraint=constraint),)
    theirs, ours = pair
    if fault := degeneration(theirs):
        return "degenerate", (because("degenerate-target", fault=fault),)
    if fault := degeneration(ours) or runs_on(ours, theirs):
        broken, outcome = because("degenerate", fault=fault), divergences[0][0] if divergences else None
        if outcome == "violation":  # what is worse than a wrong token is no weaker evidence
            return outcome, (divergences[0][1], broken)
        return "degenerate", (broken, *(reason for _, reason, _ in divergences[:1]))
    if not divergences:
        return "differs", (because("other-ending"),)
    outcome, reason, _ = divergences[0]
    return outcome, (reason,)


def _of_equal(pairs: list[Pair], flaws: list[str]) -> Outcome:
    """Return the class of a prompt whose comparable answers are equal."""
    if flaws:
        return "undetermined", (_flawed(flaws),)
    gaps = [
        theirs.token_gap or ours.token_gap
        for theirs, ours in pairs
        if (theirs.token_ids is None) != (ours.token_ids is None)
    ]
    if None in gaps:
        return "undetermined", (because("one-sided-ids"),)
    for theirs, ours in pairs:
        if None in (theirs.token_ids, ours.token_ids) and theirs.n_predicted != ours.n_predicted:
            return "undetermined", (because("counts-differ", baseline=theirs.n_predicted, arm=ours.n_predicted),)
    equal = _EQUAL
    if gaps:
        equal = because("equal-but-gap", gap=gaps[0])
    elif any(theirs.token_ids is None for theirs, _ in pairs):
        equal = because("equal-texts")
    fault = degeneration(pairs[0][0])
    return "identical", (equal, because("degenerate-alike", fault=fault)) if fault else (equal,)


def _flawed(flaws: list[str]) -> Reason:
    return because("flawed", flaws="\n".join(flaws))


def _differs(comparison: Comparison) -> bool:
    return comparison.outcome != "undetermined" and comparison.blocks_differing > 0


def _differing(comparisons: list[Comparison]) -> Reason:
    """Return at how many prompts an arm differs, and of which classes they are."""
    differing = [comparison for comparison in comparisons if _differs(comparison)]
    counts = Counter(comparison.outcome for comparison in differing)
    return because(
        "differing",
        differing=len(differing),
        prompts=len(comparisons),
        near_ties=counts["near-tie"],
        violations=counts["violation"],
        undetermined=sum(comparison.outcome == "undetermined" for comparison in comparisons),
        diverging=any(comparison.divergence is not None for comparison in differing),
    )


def _of_differing(
    comparisons: list[Comparison], audit: ArmAudit | None, replay: ArmReplay | None = None
) -> tuple[LosslessVerdict, tuple[Reason, ...]]:
    """Return the verdict on an arm that differs somewhere, and what replay and its whole answers show."""
    outcomes = {comparison.outcome for comparison in comparisons}
    replayed = (because("replay"),) if replay is not None else ()
    if replay is not None and replay.first is not None:
        return "violation", replayed
    if outcomes <= {"identical", "exact"}:  # what was not replayed is the baseline's own answer
        decides = replay is not None and replay.decides
        return "exact", replayed if decides else (because("replayed-differing"), *replayed)
    if replay is not None and replay.decides:
        return "violation" if "violation" in outcomes else "undetermined", replayed
    if audit is None:
        not_audited = (because("not-audited"), *replayed)
        return ("violation", ()) if "violation" in outcomes else ("undetermined", not_audited)
    if "violation" in outcomes or audit.violates:
        return "violation", () if audit.lacking else (because("audit"),)
    if audit.lacking or outcomes & {"differs", "undetermined"}:
        return "undetermined", (because("audit"), *replayed)
    tested = (because("power"), because("audit"), *replayed)
    return "consistent with the target" if audit.shows else "undetermined", tested


def _noise(frame: Frame, arm: int, comparisons: list[Comparison], evidence: Evidence) -> tuple[NoiseFloor, ...]:
    """Return the noise at the widths of the divergences and of the arm itself."""
    if evidence.scores is None or not evidence.scores.positions:
        return ()
    widths = {divergence.width for comparison in comparisons for divergence in comparison.divergences}
    widths |= {verify_width(frame.manifest, frame.records[row]) for row in frame.rows(arm)[:1].tolist()}
    floors = [evidence.noise_at(width) for width in sorted(width for width in widths if width and width > 1)]
    return tuple(noise for noise in floors if noise.prefixes)


def greedy(frame: Frame) -> bool:
    """Whether the answers are the likeliest tokens, not drawn at random."""
    return is_greedy(frame.manifest)
