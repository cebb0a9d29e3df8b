"""Losslessness: is an arm's output token-identical to the target's own, prompt by prompt and as a whole.

An answer is never equal by absence: what is missing, failed, cut off or damaged is `undetermined`. Answers are compared
within a block, over every block. Every prompt gets the first class that applies:

    undetermined   the prompt itself, or the baseline's own answer, is not the same in every block
    violation      an answer ends as greedy decoding never does (see `Endings`)
    undetermined   an answer differs whose request constrains it (`response_format`, `tools`)
    degenerate     the answers differ, and either is empty, a loop, a run of reserved tokens, or does not end
    near-tie       an answer differs, where the target's own numeric noise may be the cause (see `divergence`)
    violation      an answer differs, and noise does not explain it
    differs        an answer differs, and no replay has explained it
    undetermined   a record is missing, failed, cut off or damaged
    identical      text and tokens are equal in every block; where the target's own answer is degenerate, that is named

What an arm's divergences are together is found by scoring its whole answers alone (see `audit`).
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from benchctl.analysis.answers import (
    degeneration,
    find_divergence,
    runs_on,
    same_answer,
    same_text,
    same_tokens,
)
from benchctl.analysis.cells import first_token_by_round, speculates, verify_width
from benchctl.analysis.conditions.split import is_greedy
from benchctl.analysis.losslessness import ArmAudit, DetectionPower, FirstDivergence, NoiseFloor
from benchctl.analysis.results import Comparison, Losslessness, LosslessVerdict, PromptClass
from benchctl.data.record import Record
from benchctl.lossless.judge.audit import PROPOSED, audit_summary, power_of_equality, power_sentence, stated_nats
from benchctl.lossless.judge.divergence import Evidence, judge_divergence
from benchctl.lossless.judge.endings import Endings, endings_of
from benchctl.lossless.judge.selection import key_of, proposed_share

if TYPE_CHECKING:
    from benchctl.analysis.answers import Answers
    from benchctl.analysis.frame import Booleans, Frame

IDENTICAL = "Text and tokens are equal in every block."

DOUBT = 0.05
"""The chance that the limit of an identical arm's differing prompts is passed."""

_GRAVITY: tuple[PromptClass, ...] = ("violation", "differs", "undetermined", "near-tie")
"""Which of several divergences stands for a prompt, the most serious first."""


def find_losslessness(
    frame: Frame,
    answers: Answers,
    arm: int,
    *,
    evidence: Evidence | None = None,
    lost_lines: int = 0,
) -> Losslessness:
    """Compare an arm with the baseline. `lost_lines`: unreadable records that may have been any arm's."""
    evidence = evidence or Evidence()
    plain = plainly_equal(frame, answers, arm)
    rules = Endings() if plain.all() or not greedy(frame) else endings_of(frame)
    comparisons = [
        _identical(frame, arm, prompt) if plain[prompt] else _compare(frame, answers, arm, prompt, evidence, rules)
        for prompt in range(len(frame.prompts))
    ]
    counts = Counter(comparison.outcome for comparison in comparisons)
    differing = [answer for answer in comparisons if answer.outcome != "undetermined" and answer.blocks_differing]
    unknown = [answer for answer in comparisons if answer.outcome == "undetermined"]
    found: dict[str, object] = {"verdict": "undetermined"}
    total = len(comparisons)
    if speculates(frame, frame.baseline):
        same = f"{counts['identical']} of {_prompts(total)} got the same answer from both"
        found["reason"] = f"The baseline speculates itself, so it is not the target alone; {same}."
    elif differing:
        audit = evidence.audits.get(frame.arms[arm])
        found["verdict"], explanation = _of_differing(comparisons, audit)
        rest = f"; {len(unknown)} could not be determined" if unknown else ""
        other = "answer" if any(answer.divergence for answer in differing) else "ending"
        what = f"{len(differing)} of {_prompts(total)} got another {other} than from the target alone"
        found["reason"] = f"{what}{_weight(differing)}{rest}. {explanation}"
        found |= {"audit": audit, "noise": _noise(frame, arm, comparisons, evidence)}
    elif counts["identical"] == total > 0 and not lost_lines:
        limit = 1 - DOUBT ** (1 / total)
        found |= {"verdict": "identical", "differing_limit": limit, "noise": _noise(frame, arm, comparisons, evidence)}
        power = _power(frame, arm, evidence)
        found |= {"power": power, "power_lacking": None if power else _power_lacking(frame, arm, evidence)}
        found["reason"] = _how_identical(frame, comparisons, limit)
    else:
        found["reason"] = _why_unknown(unknown, total, lost_lines)
    return Losslessness.model_validate(
        {"arm": frame.arms[arm], "counts": dict(sorted(counts.items())), "comparisons": comparisons, **found}
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


def _power_lacking(frame: Frame, arm: int, evidence: Evidence) -> str | None:
    """Return why an identical arm's answers cannot be scored, as `Losslessness.power_lacking`."""
    if frame.manifest is None:
        return "the run has no manifest, so what it ran with is not known"
    if any(frame.records[row].token_ids is None for row in frame.rows(arm).tolist()):
        return "without token ids its answers cannot be scored"
    return evidence.unscored


def _how_identical(frame: Frame, comparisons: list[Comparison], limit: float) -> str:
    total, by_text = len(comparisons), sum(answer.tokens_equal is None for answer in comparisons)
    how = "text and tokens" if not by_text else f"text (token ids are absent on both sides for {by_text})"
    times = f"in each of {len(frame.blocks)} blocks" if len(frame.blocks) > 1 else "in the one block measured"
    broken = sum("own answer is degenerate" in answer.reason for answer in comparisons)
    return (
        f"{total} of {_prompts(total)} got the target's own answer, by {how}, {times}; of prompts like these "
        f"at most {100 * limit:.2g} % get a different one (95 % limit)."
        + (f" For {_prompts(broken)} the target's own answer is degenerate." if broken else "")
    )


def _why_unknown(unknown: list[Comparison], total: int, lost_lines: int) -> str:
    parts = []
    if unknown:
        first = unknown[0]
        like = f"{first.task}/{first.prompt_idx}: {first.reason.partition('. ')[0].rstrip('.')}"
        parts.append(f"{len(unknown)} of {_prompts(total)} could not be determined ({like})")
    if lost_lines:
        parts.append(f"{lost_lines} damaged {'line' if lost_lines == 1 else 'lines'} may have been of this arm")
    return f"{'; '.join(parts) or 'There is nothing to compare'}."


def plainly_equal(frame: Frame, answers: Answers, arm: int) -> Booleans:
    """Find the prompts whose answers are all there, plain, and the same in both arms and every block."""
    rows = np.concatenate([frame.row_at[frame.baseline], frame.row_at[arm]])
    codes = answers.code[rows]
    plain: Booleans = np.all(answers.plain[rows] & (codes == codes[:1]), axis=0)
    return plain


def _identical(frame: Frame, arm: int, prompt: int) -> Comparison:
    task, index = frame.prompts[prompt]
    return Comparison(
        arm=frame.arms[arm],
        task=task,
        prompt_idx=index,
        outcome="identical",
        reason=IDENTICAL,
        text_equal=True,
        tokens_equal=True,
        blocks_compared=len(frame.blocks),
        blocks_differing=0,
    )


def _compare(frame: Frame, answers: Answers, arm: int, prompt: int, evidence: Evidence, rules: Endings) -> Comparison:
    """Compare a prompt over all blocks."""
    task, index = frame.prompts[prompt]
    theirs, flaws = _sound_records(frame, answers, frame.baseline, prompt)
    ours, more_flaws = _sound_records(frame, answers, arm, prompt)
    pairs = [(theirs[block], ours[block]) for block in theirs if block in ours]
    unequal = [pair for pair in pairs if not same_answer(*pair)]
    explained = _explained(frame, unequal, evidence) if greedy(frame) and (task, index) not in frame.constrained else []
    broken = partial(rules.broken_by, constrained=(task, index) in frame.constrained)
    outcome, reason = _outcome(
        pairs,
        unequal,
        flaws + more_flaws,
        explained,
        unstable=_instability(list(theirs.values())),
        greedy=greedy(frame),
        constrained=frame.constrained.get((task, index)),
        broken=next((why for pair in unequal if (why := broken(*pair))), None),
    )
    forks = [fork for _, _, fork in explained] or [fork for pair in unequal[:1] if (fork := find_divergence(*pair))]
    tokens = [same_tokens(*pair) for pair in pairs]
    return Comparison(
        arm=frame.arms[arm],
        task=task,
        prompt_idx=index,
        outcome=outcome,
        reason=reason,
        text_equal=all(same_text(*pair) for pair in pairs) if pairs else None,
        tokens_equal=False if False in tokens else None if None in tokens or not pairs else True,
        blocks_compared=len(pairs),
        blocks_differing=len(unequal),
        divergence=forks[0] if forks else None,
        other_divergences=tuple(forks[1:]),
    )


def _explained(
    frame: Frame, unequal: list[tuple[Record, Record]], evidence: Evidence
) -> list[tuple[PromptClass, str, FirstDivergence]]:
    """Explain every distinct divergence of a prompt, the most serious first."""
    distinct: dict[tuple[int, int | None, int | None], tuple[PromptClass, str, FirstDivergence]] = {}
    pairs: set[tuple[str | None, str | None, str | None, int | None]] = set()
    by_round = first_token_by_round(frame.manifest, unequal[0][1].label) if unequal else True
    for theirs, ours in unequal:
        width = verify_width(frame.manifest, ours)
        pair = (theirs.token_sha, ours.token_sha, ours.content_sha, width)
        if None not in pair[:3] and pair in pairs:
            continue  # most blocks repeat each other
        pairs.add(pair)
        fork = find_divergence(theirs, ours)
        if fork is not None:
            decided = width if width is None or fork.index or by_round or evidence.noise_at(width).by_prefill else 1
            distinct.setdefault(
                (fork.index, fork.arm_token, decided), judge_divergence(fork, theirs, decided, evidence)
            )
    return sorted(distinct.values(), key=lambda class_found: _GRAVITY.index(class_found[0]))


def _instability(theirs: list[Record]) -> str | None:
    """Return how often the baseline's answers differ from its first, as a clause; `None` when they do not."""
    others = sum(not same_answer(theirs[0], other) for other in theirs[1:])
    if not others:
        return None
    return f"{others} of its {len(theirs) - 1} later answers {'differs' if others == 1 else 'differ'} from the first"


def _sound_records(frame: Frame, answers: Answers, arm: int, prompt: int) -> tuple[dict[int, Record], list[str]]:
    """Return an arm's comparable answers to a prompt by block, and a sentence for every other."""
    sound, flaws = {}, []
    for block, row in enumerate(frame.row_at[arm, :, prompt].tolist()):
        flaw = answers.flaw[row]
        if flaw is None:
            sound[block] = frame.records[row]
        else:
            flaws.append(f"The record of {frame.cell_name(block, arm)} {flaw}.")
    return sound, flaws


def _outcome(
    pairs: list[tuple[Record, Record]],
    unequal: list[tuple[Record, Record]],
    flaws: list[str],
    explained: list[tuple[PromptClass, str, FirstDivergence]],
    *,
    unstable: str | None,
    greedy: bool,
    constrained: str | None,
    broken: str | None,
) -> tuple[PromptClass, str]:
    """`broken`: the rule of endings that an answer of the arm breaks."""
    if not pairs:
        return "undetermined", _first_of(flaws)
    if len({record.prompt_sha for pair in pairs for record in pair}) > 1:
        return "undetermined", "The rendered prompt is not the same in every arm and block."
    if unstable:
        return "undetermined", f"The baseline does not reproduce its own answer from block to block: {unstable}."
    if unequal and not greedy:
        return "undetermined", (
            "The answers are sampled, not greedy: a different answer may also be the target's own, and "
            "`benchctl verify-sampling` compares their distributions."
        )
    if unequal and broken:
        return "violation", f"{broken} No noise of the target does that: its own answers never do."
    if unequal and constrained:
        return "undetermined", (
            f"The answers differ, and `{constrained}` constrains them: what the target scores without that constraint "
            "does not show which of them is its own."
        )
    theirs, ours = unequal[0] if unequal else pairs[0]
    target = degeneration(theirs)
    if target and unequal:
        return "degenerate", f"The target's own answer is degenerate: it {target}; the arm's differs."
    beside = f" The target's own answer is degenerate: it {target}." if target else ""
    if unequal:
        broken = degeneration(ours) or runs_on(ours, theirs)
        origin = f" {explained[0][1]}" if explained else ""
        if broken:
            return "degenerate", f"The arm's answer {broken}; the target's own is sound.{origin}"
        if not explained:
            return "differs", "The answer differs in length or finish reason, with no token to score."
        return explained[0][:2]
    if flaws:
        return "undetermined", _first_of(flaws)
    one_sided = [pair for pair in pairs if (pair[0].token_ids is None) != (pair[1].token_ids is None)]
    gaps = [theirs.token_gap or ours.token_gap for theirs, ours in one_sided]
    if None in gaps:
        return "undetermined", "The texts are equal, but only one side has token ids."
    without_ids = [(theirs, ours) for theirs, ours in pairs if None in (theirs.token_ids, ours.token_ids)]
    counts = [(theirs.n_predicted, ours.n_predicted) for theirs, ours in without_ids]
    if unequal_counts := [pair for pair in counts if pair[0] != pair[1]]:
        return "undetermined", (
            "The texts are equal, and the server's counts of their tokens are not: {} for the baseline, {} for the "
            "arm. No token ids show which is right.".format(*unequal_counts[0])
        )
    if gaps:
        return "identical", f"The texts and the numbers of tokens are equal in every block; {gaps[0]}.{beside}"
    if any(theirs.token_ids is None for theirs, _ in pairs):
        return "identical", f"The texts are equal in every block; token ids are absent on both sides.{beside}"
    return "identical", IDENTICAL + beside


def _of_differing(comparisons: list[Comparison], audit: ArmAudit | None) -> tuple[LosslessVerdict, str]:
    """Return the verdict on an arm that differs somewhere, and the reason in a sentence."""
    outcomes = {comparison.outcome for comparison in comparisons}
    if audit is None:
        summary = "Its whole answers were not scored, so there is no verdict on them."
        return ("violation", "") if "violation" in outcomes else ("undetermined", summary)
    summary = audit_summary(audit)
    if "violation" in outcomes or audit.violates:
        return "violation", "" if audit.lacking else summary
    if audit.lacking or outcomes & {"differs", "undetermined"}:
        return "undetermined", summary
    verdict: LosslessVerdict = "consistent with the target" if audit.shows else "undetermined"
    return verdict, f"{power_sentence(audit)} {summary}"


def _weight(differing: list[Comparison]) -> str:
    """Say what the differences are, as far as that is known."""
    near, damage = (sum(comparison.outcome == kind for comparison in differing) for kind in ("near-tie", "violation"))
    if near == len(differing):
        return ", each first at a near-tie that the target's own noise may have decided"
    if damage:
        beside = f", and {near} near-ties" if near else ""
        return f"; {damage} of them not explained by that noise{beside}"
    return f", {near} of them near-ties" if near else ""


def _noise(frame: Frame, arm: int, comparisons: list[Comparison], evidence: Evidence) -> tuple[NoiseFloor, ...]:
    """Return the noise at the widths of the divergences and of the arm itself."""
    if evidence.scores is None or not evidence.scores.positions:
        return ()
    widths = {fork.width for comparison in comparisons for fork in comparison.divergences}
    widths |= {verify_width(frame.manifest, frame.records[row]) for row in frame.rows(arm)[:1].tolist()}
    every = [evidence.noise_at(width) for width in sorted(width for width in widths if width and width > 1)]
    return tuple(noise for noise in every if noise.prefixes)


def greedy(frame: Frame) -> bool:
    """Whether the answers are the likeliest tokens, not drawn at random."""
    return is_greedy(frame.manifest)


def _first_of(flaws: list[str]) -> str:
    more = f" And {len(flaws) - 2} more." if len(flaws) > 2 else ""
    return " ".join(flaws[:2]) + more


def _prompts(count: int) -> str:
    return f"{count} prompt{'' if count == 1 else 's'}"
