"""What a run has for an engine's issue tracker: the most serious finding, in the smallest case that shows it.

A violation comes before an output that nothing explains, and that before a slow-down. Near-ties within the target's
noise, arms that are lossy by design and arms that did not run as requested are nobody's bug.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Literal

from benchctl.analysis.answers import find_divergence, same_answer
from benchctl.analysis.cells import identity_of, verify_width
from benchctl.analysis.decision_results import Verdict
from benchctl.analysis.output_results import Comparison, Losslessness, PromptClass
from benchctl.analysis.results import Analysis
from benchctl.data.pool import with_further
from benchctl.errors import UsageError

if TYPE_CHECKING:
    from benchctl.data.manifest import ArmIdentity
    from benchctl.data.record import Record
    from benchctl.data.store import RunData

Finding = Literal["violation", "divergence", "slower"]
_ORDER: tuple[Finding, ...] = ("violation", "divergence", "slower")
_SHOWING: tuple[PromptClass, ...] = ("violation", "degenerate", "differs", "undetermined")
"""Classes of prompts that show a faulty output, the clearest first."""
_NOT_SPECULATION = frozenset({"prompts-differ", "unstable"})
"""Reasons of a prompt's class under which a difference may be the baseline's own."""
Side = Literal["without", "arm", "neither"]
Answers = Mapping[tuple[str, str, int], Mapping[int, "Record"]]
"""The measured answers by (arm, task, prompt_idx) and block."""


@dataclass(frozen=True)
class Reportable:
    """A finding, and the prompt that shows it."""

    finding: Finding
    verdict: Verdict
    judged: Losslessness | None
    baseline: str
    comparison: Comparison | None
    """The prompt's; `None` for a slow-down, and where no single prompt shows the violation."""
    showing: int
    """How many prompts of the arm show it."""
    without: Record | None
    arm: Record | None
    """The two answers to the prompt, of one block; both `None` where there is no pair."""
    others: tuple[tuple[str, int | None, Side], ...] = ()
    """The other arms that answered the prompt: name, verify width, and whose tokens they have. Empty of a slow-down."""


def find_reportable(run: RunData, analysis: Analysis, arm: str | None = None) -> Reportable | None:
    """Return what to report, of `arm` alone where it is named; `None` where there is nothing.

    Raises UsageError where no arm that is compared has that name.
    """
    names = [verdict.arm for verdict in analysis.verdicts]
    if arm is not None and arm not in names:
        known = ", ".join(names) or "none"
        raise UsageError(
            f"No arm that is compared is called {arm!r}.", where="--arm", fix=f"Arms of this run: {known}."
        )
    if run.integrity.reason is not None:  # files that changed show nothing
        return None
    answers = _answers(with_further(run))
    cases = [
        case
        for verdict in analysis.verdicts
        if arm in (None, verdict.arm) and (case := _case(analysis, answers, verdict)) is not None
    ]

    def size(case: Reportable) -> tuple[float, ...]:
        identity = identity_of(run.manifest, case.verdict.arm)
        alone = identity is None or not identity.overlapping
        return _ORDER.index(case.finding), not alone, _depth(identity), _tokens(case.without)

    chosen = min(cases, key=size, default=None)
    return replace(chosen, others=tuple(_others(run, analysis, answers, chosen))) if chosen else None


def _others(
    run: RunData, analysis: Analysis, answers: Answers, case: Reportable
) -> Iterator[tuple[str, int | None, Side]]:
    if case.finding == "slower" or case.without is None or case.arm is None:
        return
    sides: tuple[tuple[Side, Record], ...] = (("without", case.without), ("arm", case.arm))
    for verdict in analysis.verdicts:
        shares = analysis.compared[verdict.arm].baseline == case.baseline
        by_block = answers.get((verdict.arm, case.without.task, case.without.prompt_idx), {})
        if verdict.arm == case.verdict.arm or verdict.lossy or not shares or not by_block:
            continue
        record = by_block[min(by_block)]
        side: Side = next((side for side, answer in sides if same_answer(record, answer)), "neither")
        yield verdict.arm, verify_width(run.manifest, record), side


def _depth(identity: ArmIdentity | None) -> float:
    depth = (identity.speculation or {}).get("max") if identity else None
    return depth if isinstance(depth, int) else math.inf


def _tokens(record: Record | None) -> float:
    return math.inf if record is None or record.prompt_tokens is None else record.prompt_tokens


def _answers(run: RunData) -> Answers:
    answers: dict[tuple[str, str, int], dict[int, Record]] = defaultdict(dict)
    for record in run.records:
        if record.phase == "measure" and record.error is None and record.content is not None:
            answers[record.label, record.task, record.prompt_idx][record.key[0]] = record
    return answers


def _case(analysis: Analysis, answers: Answers, verdict: Verdict) -> Reportable | None:
    if verdict.lossy or verdict.attestation in ("failed", "off") or verdict.reason == "off":
        return None
    judged = analysis.losslessness_of(verdict.arm)
    baseline = analysis.compared[verdict.arm].baseline
    compared = judged.comparisons if judged is not None else []
    unexplained = [row for row in compared if _shows(row)]
    prompts = {key[1:] for key in answers if key[0] == verdict.arm}
    if verdict.lossless == "violation":
        if unexplained:
            return _smallest(answers, "violation", verdict, judged, baseline, unexplained)
        return _shortest(answers, "violation", verdict, judged, baseline, prompts)
    if verdict.lossless == "undetermined" and unexplained:
        return _smallest(answers, "divergence", verdict, judged, baseline, unexplained)
    if verdict.speed == "slower":
        slower = {prompt for prompt in prompts if _slower(answers, verdict.arm, baseline, prompt)}
        return _shortest(answers, "slower", verdict, judged, baseline, slower)
    return None


def _shows(row: Comparison) -> bool:
    codes = {reason.code for reason in row.reasons}
    return row.outcome in _SHOWING and bool(row.divergence or row.deviation) and codes.isdisjoint(_NOT_SPECULATION)


def _smallest(
    answers: Answers,
    finding: Finding,
    verdict: Verdict,
    judged: Losslessness | None,
    baseline: str,
    comparisons: Sequence[Comparison],
) -> Reportable:
    """Of the clearest class of prompts the shortest, and of equally short ones the one that shows it first."""
    clearest = min(_SHOWING.index(row.outcome) for row in comparisons)
    comparisons = [row for row in comparisons if row.outcome == _SHOWING[clearest]]
    cases = [
        Reportable(
            finding, verdict, judged, baseline, row, len(comparisons), *_pair(answers, verdict.arm, baseline, row)
        )
        for row in comparisons
    ]

    def size(case: Reportable) -> tuple[float, ...]:
        row = case.comparison
        return _tokens(case.without), row.divergence.index if row and row.divergence else math.inf

    return min(cases, key=size)


def _pair(answers: Answers, arm: str, baseline: str, row: Comparison) -> tuple[Record | None, Record | None]:
    """The answers of the first block that differ where the comparison says; else of the first block."""
    key = (row.task, row.prompt_idx)
    without, with_arm = answers.get((baseline, *key), {}), answers.get((arm, *key), {})
    pairs = [(without[block], with_arm[block]) for block in sorted(without.keys() & with_arm.keys())]
    for pair in pairs:
        divergence = find_divergence(*pair)
        if row.divergence is not None and divergence is not None and _place(divergence) == _place(row.divergence):
            return pair
        ids = pair[1].token_ids or []
        if (
            row.divergence is None
            and row.deviation is not None
            and row.deviation.token in ids[row.deviation.index :][:1]
        ):
            return pair
    return pairs[0] if pairs else (None, None)


def _place(divergence: object) -> tuple[object, ...]:
    return tuple(getattr(divergence, name) for name in ("index", "unit", "baseline_token", "arm_token"))


def _shortest(
    answers: Answers,
    finding: Finding,
    verdict: Verdict,
    judged: Losslessness | None,
    baseline: str,
    prompts: set[tuple[str, int]],
) -> Reportable:
    pairs = []
    for prompt in sorted(prompts):
        without, with_arm = answers.get((baseline, *prompt), {}), answers[(verdict.arm, *prompt)]
        blocks = sorted(without.keys() & with_arm.keys())
        pairs += [(without[block], with_arm[block]) for block in blocks[:1]]
    pair = min(pairs, key=lambda pair: _tokens(pair[0]), default=(None, None))
    return Reportable(finding, verdict, judged, baseline, None, len(pairs), *pair)


def _slower(answers: Answers, arm: str, baseline: str, prompt: tuple[str, int]) -> bool:
    rates = [
        [
            rate
            for record in answers.get((name, *prompt), {}).values()
            if (rate := record.client_tok_per_sec) is not None
        ]
        for name in (arm, baseline)
    ]
    return all(rates) and median(rates[0]) < median(rates[1])
