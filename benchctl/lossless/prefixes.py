"""The prefixes that a replay has to score, so that every divergence of a run can be explained."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchctl.analysis.losslessness import FirstDivergence
from benchctl.analysis.results import Losslessness
from benchctl.data.record import Record, sha256_tokens
from benchctl.lossless.explain import Evidence

if TYPE_CHECKING:
    from benchctl.analysis.frame import Frame
    from benchctl.data.store import RunData


@dataclass(frozen=True)
class DivergenceToScore:
    """Where an arm's answer diverges from the baseline's, and with which token."""

    index: int
    rival: int
    width: int | None
    """Tokens that the arm verified in a round; `None` when not reported."""


@dataclass(frozen=True)
class AnswerToScore:
    """A baseline's answer and the divergences from it."""

    task: str
    prompt_idx: int
    prompt_sha: str | None
    prompt_tokens: int | None
    token_ids: tuple[int, ...]
    forks: tuple[DivergenceToScore, ...]


def find_evidence(run: RunData, baseline: str) -> Evidence:
    """Return what was replayed of a run, where it is of the run's own engine and model, and of that baseline."""
    replays, tokens = run.replays, count_tokens(run.records, baseline)
    if replays is None or run.manifest is None:
        return Evidence(tokens=tokens)
    if not replays.of(run.manifest):
        return Evidence(reason="what was replayed is of another run, engine or model")
    if replays.baseline != baseline:
        return Evidence(reason=f"what was replayed is of another baseline, {replays.baseline}")
    return Evidence(replays, audit=run.audit if run.audit and run.audit.of(run.manifest) else None, tokens=tokens)


def count_tokens(records: Iterable[Record], baseline: str) -> int:
    """Count the tokens of every distinct answer of every arm but the baseline."""
    distinct = {
        (record.label, record.task, record.prompt_idx, record.token_sha or record.content_sha): record.n_predicted
        for record in records
        if record.label != baseline and record.phase == "measure"
    }
    return sum(distinct.values())


def prefixes_to_score(frame: Frame, found: Iterable[Losslessness]) -> list[AnswerToScore]:
    """Return the baseline's sound answers, one per prompt, with the divergences from them that can be scored.

    Answers without a divergence come along: the sample of the noise is taken from all.
    """
    forks: dict[tuple[str, int], dict[DivergenceToScore, None]] = {}
    for arm in found:
        for comparison in arm.comparisons:
            if comparison.outcome in ("differs", "near-tie", "violation", "degenerate"):
                scorable = filter(None, map(_scorable, [comparison.fork, *comparison.other_forks]))
                forks.setdefault((comparison.task, comparison.prompt_idx), {}).update(dict.fromkeys(scorable))
    if not any(forks.values()):
        return []
    result = []
    for prompt, (task, index) in enumerate(frame.prompts):
        if (task, index) in frame.constrained:
            continue
        rows = frame.row_at[frame.baseline, :, prompt].tolist()
        record = next((frame.records[row] for row in rows if row >= 0 and _is_whole(frame.records[row])), None)
        if record is None or record.token_ids is None:
            continue
        ids, here = tuple(record.token_ids), tuple(forks.get((task, index), ()))
        result.append(AnswerToScore(task, index, record.prompt_sha, record.prompt_tokens, ids, here))
    return result


def _is_whole(record: Record) -> bool:
    return record.error is None and record.token_ids is not None and record.token_sha == sha256_tokens(record.token_ids)


def _scorable(fork: FirstDivergence | None) -> DivergenceToScore | None:
    if fork is None or fork.unit != "token" or None in (fork.baseline_token, fork.width) or fork.arm_token is None:
        return None
    return DivergenceToScore(fork.index, fork.arm_token, fork.width)
