"""Whether answers keep the form that their requests ask for: each alone, then beside the baseline's.

An answer of the arm that is invalid where the target alone is valid is a violation by itself where the rule is one that
the engine enforces token by token: no rounding makes it break. An engine does not enforce what the target alone breaks.
Of other rules, such as the arguments of a call that the model was free to make, the number of prompts counts: McNemar's
exact test.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from benchctl.analysis.answers import common_length
from benchctl.analysis.frame import Frame
from benchctl.analysis.losslessness import InvalidAnswer, LogprobCheck, Validity, ValidityCounts, because
from benchctl.analysis.output_results import Comparison, Losslessness
from benchctl.analysis.statistics import holm
from benchctl.data.counts import steps_contradiction
from benchctl.data.record import Record
from benchctl.lossless.judge.replay import find_step
from benchctl.prompts.rules import Kept, Rules

CERTAIN = 0.01
"""Nats: where the baseline's log probability is below minus this, one of exactly 0 is not the target's."""
Judged = tuple[Record, Kept]


def find_validity(conditions: Sequence[tuple[Frame, Sequence[int]]]) -> dict[str, Validity]:
    """Judge the answers of the arms of every condition; levels hold for all. Nothing where no request asks for a
    form."""
    rows = [row for frame, arms in conditions for row in _of_condition(frame, arms)]
    adjusted = holm([row.p for row in rows])
    return {row.arm: row.model_copy(update={"p_adjusted": p}) for row, p in zip(rows, adjusted, strict=True)}


def _of_condition(frame: Frame, arms: Sequence[int]) -> list[Validity]:
    rules = {(item.task, item.prompt_idx): item.rules for item in (frame.manifest.prompts if frame.manifest else ())}
    by_prompt = [rules.get(prompt) for prompt in frame.prompts]
    if not any(by_prompt):
        return []
    theirs = _judge(frame, frame.baseline, by_prompt)
    listing = [prompt for prompt, rule in enumerate(by_prompt) if rule is not None and rule.logprobs]
    return [
        _compare(frame, arm, _judge(frame, arm, by_prompt), theirs, _logprobs(_pairs(frame, arm, listing)))
        for arm in arms
    ]


def _judge(frame: Frame, arm: int, rules: Sequence[Rules | None]) -> dict[tuple[int, int], Judged]:
    """Return an arm's answers by (prompt, block), with what they keep; what failed is not judged."""
    judged = {}
    for prompt, rule in enumerate(rules):
        for block, row in enumerate(frame.row_at[arm, :, prompt].tolist()):
            record = frame.records[row]
            if rule is None or row < 0 or record.error is not None or record.content is None:
                continue
            if rule.asks_form:
                judged[prompt, block] = record, rule.kept(record.content, cut=record.finish_reason == "length")
    return judged


def _compare(
    frame: Frame,
    arm: int,
    ours: Mapping[tuple[int, int], Judged],
    theirs: Mapping[tuple[int, int], Judged],
    logprobs: LogprobCheck | None,
) -> Validity:
    from scipy.stats import binomtest

    invalid = [_invalid(frame, cell, judged, theirs.get(cell)) for cell, judged in ours.items() if _is_invalid(judged)]
    discordant = [
        cell
        for cell in ours.keys() & theirs.keys()
        if {ours[cell][1].status, theirs[cell][1].status} == {"valid", "invalid"}
    ]
    by_side: dict[bool, set[int]] = defaultdict(set)
    for prompt, block in discordant:
        by_side[_is_invalid(ours[prompt, block])].add(prompt)
    unsteady = by_side[True] & by_side[False]
    of_arm, of_baseline = (sorted(by_side[side] - unsteady) for side in (True, False))
    names = [f"{task}/{index}" for task, index in frame.prompts]
    differing = len(of_arm) + len(of_baseline)
    p = float(binomtest(len(of_arm), differing, alternative="greater").pvalue) if differing else 1.0
    cells = {(*frame.prompts[prompt], block) for prompt, block in discordant}
    alone = [row for row in invalid if (row.task, row.prompt_idx, row.block) in cells]
    not_enforced = {kept.code for _, kept in theirs.values() if kept.enforced}
    return Validity(
        arm=frame.arms[arm],
        counts=_counts(ours),
        baseline=_counts(theirs),
        arm_alone=[names[prompt] for prompt in of_arm],
        baseline_alone=[names[prompt] for prompt in of_baseline],
        p=p,
        broken=next((row for row in alone if row.enforced and row.code not in not_enforced), None),
        first=next(iter([*alone, *invalid]), None),
        logprobs=logprobs,
    )


def _is_invalid(judged: Judged) -> bool:
    return judged[1].status == "invalid"


def _counts(judged: Mapping[tuple[int, int], Judged]) -> ValidityCounts:
    return ValidityCounts.model_validate(Counter(kept.status for _, kept in judged.values()))


def _invalid(frame: Frame, cell: tuple[int, int], judged: Judged, baseline: Judged | None) -> InvalidAnswer:
    record, kept = judged
    task, prompt_idx = frame.prompts[cell[0]]
    answer = InvalidAnswer(
        task=task,
        prompt_idx=prompt_idx,
        block=cell[1],
        code=str(kept.code),
        detail=kept.detail,
        enforced=kept.enforced,
    )
    if baseline is None or baseline[1].status != "valid" or not record.token_ids or not baseline[0].token_ids:
        return answer
    index = common_length(record.token_ids, baseline[0].token_ids)
    place: dict[str, object] = {"index": index}
    steps, count = record.target_steps, len(record.token_ids)
    if steps is not None and index < count and _brings(steps, count):
        step, _, draft = find_step(steps, index)
        place |= {"step": step, "draft": draft}
    return answer.model_copy(update=place)


def _brings(steps: Sequence[Sequence[int]], tokens: int) -> bool:
    """Whether steps bring so many tokens, whatever the counters are."""
    return steps_contradiction(steps, tokens=tokens, drafted=None, accepted=None, rounds=None) is None


def _pairs(frame: Frame, arm: int, prompts: Sequence[int]) -> list[tuple[Record, Record]]:
    """Return the arm's answers to prompts with the baseline's in the same blocks, where both are there."""
    rows = [
        (int(frame.row_at[arm, block, prompt]), int(frame.row_at[frame.baseline, block, prompt]))
        for prompt in prompts
        for block in range(len(frame.blocks))
    ]
    return [(frame.records[ours], frame.records[theirs]) for ours, theirs in rows if min(ours, theirs) >= 0]


def _logprobs(pairs: Sequence[tuple[Record, Record]]) -> LogprobCheck | None:
    """Compare the log probabilities of tokens that both have; `None` where the baseline lists none."""
    listed = [pair for pair in pairs if pair[1].logprobs and None not in (pair[0].token_ids, pair[1].token_ids)]
    if not listed:
        return None
    values = [value for ours, theirs in listed for value in _beside(ours, theirs)]
    reported = [(ours, theirs) for ours, theirs in values if ours is not None and theirs is not None]
    zero = [(ours, theirs) for ours, theirs in reported if ours == 0.0 and theirs < -CERTAIN]
    others = [abs(ours - theirs) for ours, theirs in reported if ours != 0.0 or theirs >= -CERTAIN]
    return LogprobCheck(
        answers=len(listed),
        tokens=len(reported),
        absent=sum(ours is None and theirs is not None for ours, theirs in values),
        zero=len(zero),
        largest=max(others, default=None),
    )


def _beside(ours: Record, theirs: Record) -> Iterator[tuple[float | None, float | None]]:
    """Yield the log probabilities of each token that both answers begin with."""
    listed = [record.logprobs or [] for record in (ours, theirs)]
    for index in range(common_length(ours.token_ids or (), theirs.token_ids or ())):
        first, second = (values[index] if index < len(values) else None for values in listed)
        yield first, second


def with_validity(verdict: Losslessness, validity: Validity | None) -> Losslessness:
    """Return the verdict with what its answers keep: a violation where they break what the target alone keeps."""
    if validity is None:
        return verdict
    verdict = verdict.model_copy(update={"validity": validity})
    if not validity.violates:
        return verdict
    comparisons = [_comparison(comparison, validity) for comparison in verdict.comparisons]
    counts = dict(sorted(Counter(comparison.outcome for comparison in comparisons).items()))
    others = (reason for reason in verdict.reasons if reason.code not in ("undetermined", "control"))
    reasons = (because("invalid"), *others)
    return verdict.model_copy(
        update={"verdict": "violation", "reasons": reasons, "comparisons": comparisons, "counts": counts}
    )


def _comparison(comparison: Comparison, validity: Validity) -> Comparison:
    """Return a prompt's comparison, a violation where the arm's answer alone is invalid."""
    if f"{comparison.task}/{comparison.prompt_idx}" not in validity.arm_alone:
        return comparison
    reasons = (because("invalid-alone"), *comparison.reasons)
    return comparison.model_copy(update={"outcome": "violation", "reasons": reasons})
