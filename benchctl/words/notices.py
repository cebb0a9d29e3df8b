"""The limits of a run and its warnings, as every report shows them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchctl.analysis.warnings import NOTED
from benchctl.text import listed, plural
from benchctl.words import warnings

if TYPE_CHECKING:
    from benchctl.analysis.results import Analysis
    from benchctl.data.store import RunData

_UNFINISHED = {
    "started": "This run is not finished: it is still running, or benchctl was killed. Finish it with: "
    "benchctl run --resume {run}",
    "interrupted": "This run was interrupted; the report covers what was measured. Finish it with: "
    "benchctl run --resume {run}",
    "failed": "This run failed; the report covers what was measured.",
}


_GRAVE = {
    *("changed-evidence", "changed-scores", "damaged-records", "contradicted-count"),
    *("baseline-speculates", "preflight-failed", "dead-drafter"),
}

_MOST_NAMED = 2
"""Kinds of warnings that a line names, of the first also where: they are in the order of `words/warnings.toml`."""


@dataclass(frozen=True)
class WarningGroup:
    """All warnings of a kind, which share their reason and remedy."""

    id: str
    reason: str
    todo: str
    observations: list[tuple[str, str]]
    """(where, what was observed there)."""

    @property
    def grave(self) -> bool:
        """Whether it puts the evidence, or what was measured, in doubt: it is shown whole wherever the run is."""
        return self.id in _GRAVE


def grouped_warnings(analysis: Analysis) -> list[WarningGroup]:
    """The warnings by kind, in their order; their number is the one that every report tells."""
    groups: dict[tuple[str, str, str, str], list[tuple[str, str]]] = {}
    for warning in analysis.warnings:
        observed = warnings.seen(warning)
        key = (warning.id, warnings.why(warning), warnings.todo(warning), observed if warning.id == NOTED else "")
        groups.setdefault(key, []).append((warning.where, observed))
    return [WarningGroup(*key[:3], observations) for key, observations in groups.items()]


def counted(groups: Sequence[WarningGroup]) -> str:
    """How many warnings there are and of which kind, the most serious first; empty where there is none."""
    notes = Counter(_subject(group.observations[0][1]) for group in groups if group.id == NOTED)
    named = [group for group in groups if group.id != NOTED]
    kinds = [group.id.replace("-", " ") for group in named[:_MOST_NAMED]]
    kinds[:1] = [f"{kind} ({named[0].observations[0][0]})" for kind in kinds[:1]]
    kinds += [f"{len(named) - _MOST_NAMED} more"] if len(named) > _MOST_NAMED else []
    kinds += [f"{number} about {subject}" for subject, number in notes.items()]
    count = f"{len(groups)} {plural(len(groups), 'warning')}"
    if notes and not named:
        return f"{count} about {listed(notes)} (see -v)."
    return f"{count} (see -v): {', '.join(kinds)}." if groups else ""


def _subject(note: str) -> str:
    """Return what was noted of: an arm, which such a note begins with, or else the set-up (machine, engine, models)."""
    arm = re.match(r"Arm (\S+?):? ", note)
    return arm[1] if arm else "the set-up"


def notices(run: RunData, analysis: Analysis) -> list[str]:
    """The limits of this run, a sentence each; empty for a finished run without damage."""
    sentences = []
    if run.manifest is None:
        sentences.append(
            "These are records without a manifest, as in the published study: hardware, builds, commands and "
            "attestations are unknown."
        )
    elif run.manifest.status in _UNFINISHED:
        sentences.append(_UNFINISHED[run.manifest.status].format(run=run.manifest.run))
    sentences += [f"A cell failed: {cell}" for cell in analysis.failed_cells]
    sentences += [*run.integrity.findings, *run.damaged]
    for group in filter(lambda group: group.grave, grouped_warnings(analysis)):
        sentences += [f"{observed} ({where})" for where, observed in group.observations] + [
            f"{group.reason} {group.todo}"
        ]
    return sentences
