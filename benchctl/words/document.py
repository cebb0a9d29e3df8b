"""An analysis as JSON: the codes and numbers of every finding, and beside them what is said of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchctl.analysis.outcome import find_outcome
from benchctl.words import accuracy, breakeven, stopping, warnings
from benchctl.words import advice as advice_words
from benchctl.words import experiment as experiment_words
from benchctl.words import outcome as outcome_words
from benchctl.words import sweep as sweep_words
from benchctl.words import verdict as verdict_words

if TYPE_CHECKING:
    from benchctl.analysis.results import Analysis
    from benchctl.analysis.round_results import BreakEven


def analysis_document(analysis: Analysis) -> dict[str, Any]:
    """Return everything that was found in a run, and beside each finding what is said of it."""
    document = analysis.model_dump(by_alias=True)
    for entry, verdict in zip(document["verdicts"], analysis.verdicts, strict=True):
        entry["sentence"] = verdict_words.conclusion(analysis, verdict)
        entry["why"] = verdict_words.explanation(analysis, verdict)
    for entry, warning in zip(document["warnings"], analysis.warnings, strict=True):
        entry |= {"seen": warnings.seen(warning), "why": warnings.why(warning), "todo": warnings.todo(warning)}
    if analysis.decision is not None:
        for entry, group in zip(document["decision"]["groups"], analysis.decision.groups, strict=True):
            entry["sentence"] = advice_words.action(analysis, group)
            rows = zip((entry["overall"], *entry["tasks"]), (group.overall, *group.tasks), strict=True)
            for advice, row in rows:
                advice["evidence"] = advice_words.evidence(analysis, row)
                advice["output"] = advice_words.output(row)
        if analysis.decision.next is not None:
            document["decision"]["next"]["sentence"] = experiment_words.sentence(analysis.decision.next)
    if analysis.sweep is not None:
        unjudged = analysis.sweep.unjudged
        document["sweep"]["unjudged"] = None if unjudged is None else sweep_words.not_judged(unjudged)
        sentences = sweep_words.crossings(analysis.sweep)
        for crossing, sentence in zip(document["sweep"]["crossings"], sentences, strict=True):
            crossing["sentence"] = sentence
    if analysis.stopping is not None:
        document["stopping"]["decided"] = stopping.decisions(analysis.stopping.decided)
        document["stopping"]["sentence"] = stopping.sentence(analysis.stopping)
    if analysis.accuracy is not None:
        document["accuracy"]["sentence"] = accuracy.sentence(analysis.accuracy)
    if analysis.breakeven is not None:
        fill_breakeven(document["breakeven"], analysis.breakeven)
    outcome = find_outcome(analysis)
    said = {"fastest_sentence": outcome_words.fastest(outcome, analysis)}
    said["felt_sentence"] = outcome_words.felt(outcome, analysis)
    document["outcome"] = outcome.model_dump() | said
    return document


def fill_breakeven(document: dict[str, Any], result: BreakEven) -> None:
    """Add its sentences to a break-even as JSON."""
    for need, sentence in zip(document["needs"], breakeven.needs(result), strict=True):
        need["sentence"] = sentence
    for entry, point in zip(document["points"], result.points, strict=True):
        entry["note"] = breakeven.off_curve(point)
    document["notes"] = breakeven.notes(result)
