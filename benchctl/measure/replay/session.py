"""The replay: prefixes of a baseline's answers, scored on the target alone, in one engine process."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchctl import __version__
from benchctl.analysis.audit.selection import Answer
from benchctl.analysis.replay.wanted import WantedAnswer
from benchctl.data.identity import home_relative
from benchctl.data.record import sha256_text
from benchctl.data.replays import REPLAYS, Replays
from benchctl.data.store import RunData
from benchctl.data.writer import write_whole
from benchctl.engines.base import Scorer
from benchctl.errors import BenchctlError, EngineError, StorageError
from benchctl.measure.recording import now
from benchctl.measure.replay.plan import AnswerPlan, make_plan, widths_of
from benchctl.measure.replay.reading import read_answer
from benchctl.measure.replay.relaunch import Relaunch, RelaunchError, relaunch
from benchctl.measure.run import signals_interrupt

KEPT_EVERY_S = 5.0
"""The file is written whole; a killed benchctl loses no more than this."""

Tell = Callable[[int, int, str], None]
"""Told how many answers of how many are done, and what comes next."""


@dataclass
class Outcome:
    """What a replay brought."""

    replays: Replays | None
    """With everything that was there before; `None` when nothing is known."""
    reason: str | None = None
    """Why nothing, or nothing more, could be replayed; the end of a sentence."""
    error: EngineError | None = None
    """The engine's failure, where that was it."""
    by_answer: dict[tuple[str, int], str] = field(default_factory=dict)
    """Why single answers could not be replayed, by task and index."""


def replay(
    run: RunData,
    wanted: Sequence[WantedAnswer],
    *,
    baseline: str,
    stored: Replays | None,
    binary: str | None = None,
    models_dir: Path | None = None,
    trusted: bool = False,
    tell: Tell | None = None,
) -> Outcome:
    """Score the wanted forks and a sample of prefixes without one; keep everything in the run's folder.

    Raises StorageError, and KeyboardInterrupt; what was replayed until then is kept.
    """
    outcome = Outcome(stored)
    try:
        with signals_interrupt():
            again = relaunch(run, baseline, binary=binary, models_dir=models_dir, trusted=trusted)
            _replay(run, again, wanted, baseline, outcome, tell or _silent)
    except RelaunchError as error:
        outcome.reason = str(error)
    except EngineError as error:
        outcome.reason, outcome.error = f"the engine failed: {error.what}", error
    except StorageError:
        raise
    except BenchctlError as error:
        outcome.reason = error.what
    return outcome


def _silent(done: int, total: int, what: str) -> None:
    """Tell nothing."""


def _replay(
    run: RunData, again: Relaunch, wanted: Sequence[WantedAnswer], baseline: str, outcome: Outcome, tell: Tell
) -> None:
    usable = []
    for answer in wanted:
        if (answer.task, answer.prompt_idx) in again.prompts:
            usable.append(answer)
        else:
            outcome.by_answer[answer.task, answer.prompt_idx] = again.prompts_lack
    sampled = outcome.replays.sampled if outcome.replays else []
    plans = make_plan(usable, sampled)
    if not plans:
        return
    tell(0, len(plans), "starting the target alone")
    with again.scorer(run.folder, "replay") as scorer:
        _read(run, again, scorer, plans, baseline, outcome, tell)
        if outcome.replays is not None:
            outcome.replays.sampled = sorted({*sampled, *widths_of(usable)})
            write_replays(run.folder, outcome.replays)
    tell(len(plans), len(plans), "done")


def _read(
    run: RunData,
    again: Relaunch,
    scorer: Scorer,
    plans: Sequence[AnswerPlan],
    baseline: str,
    outcome: Outcome,
    tell: Tell,
) -> None:
    """Read answer after answer; what was read is kept every few seconds, and when this is left, however it is."""
    kept_at, unkept = time.monotonic(), False
    try:
        replays = outcome.replays or _empty(run, baseline, scorer)
        outcome.replays = replays
        for number, plan in enumerate(plans):
            answer = plan.answer
            tell(number, len(plans), f"{answer.task}/{answer.prompt_idx}")
            rendered = scorer.render(again.prompts[answer.task, answer.prompt_idx])
            if is_other(rendered.text, rendered.token_ids, answer):
                outcome.by_answer[answer.task, answer.prompt_idx] = "the engine now renders the prompt otherwise"
                continue
            positions, decoded = read_answer(scorer, rendered.token_ids, plan)
            replays.add(positions)
            replays.add_decoded(decoded)
            unkept = True
            if time.monotonic() - kept_at > KEPT_EVERY_S:
                write_replays(run.folder, replays)
                kept_at, unkept = time.monotonic(), False
    finally:
        if unkept:
            write_replays(run.folder, replays)


def _empty(run: RunData, baseline: str, scorer: Scorer) -> Replays:
    return Replays.model_validate(origin_of(run, baseline, scorer))


def origin_of(run: RunData, baseline: str, scorer: Scorer) -> dict[str, object]:
    """Return what `Origin` says of something that `scorer` scored of a run."""
    manifest = run.manifest
    assert manifest is not None, "a run without a manifest cannot be launched again"
    return {
        "run": manifest.run,
        "benchctl_version": __version__,
        "made_at": now(),
        "baseline": baseline,
        "command": [home_relative(word) for word in scorer.command],
        "engine_sha256": manifest.engine.details.get("sha256"),
        "siblings": manifest.engine.details.get("siblings") or {},
        "model": manifest.target.files,
    }


def is_other(text: str, token_ids: Sequence[int], answer: WantedAnswer | Answer) -> bool:
    """Whether the prompt is not the one that was answered."""
    if answer.prompt_sha is not None and sha256_text(text) != answer.prompt_sha:
        return True
    return answer.prompt_tokens is not None and len(token_ids) != answer.prompt_tokens


def write_replays(folder: Path, replays: Replays) -> None:
    """Replace `replays.json` atomically. Raises StorageError."""
    write_whole(folder / REPLAYS, replays.model_dump_json(by_alias=True))
