"""What `benchctl verify-lossless` does between reading a run and showing its verdicts: replay what is not explained."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from benchctl.analysis.analyse import OutputComparison
from benchctl.analysis.replay.judge import Evidence
from benchctl.analysis.replay.wanted import find_wanted
from benchctl.analysis.results import Losslessness, SelfConsistency
from benchctl.data.replays import Replays
from benchctl.data.store import RunData
from benchctl.errors import EngineError
from benchctl.measure.replay.session import Tell, replay
from benchctl.text import one_line

OFFLINE = "it was not replayed before, and --offline starts no engine"


@dataclass(frozen=True)
class Explained:
    """The verdicts on a run's arms, with every difference explained as far as it can be."""

    outputs: OutputComparison
    found: list[Losslessness]
    consistency: list[SelfConsistency]
    replays: Replays | None
    failure: EngineError | None
    """The engine's failure, where it left nothing explained."""

    def baseline_of(self, arm: str) -> str:
        """Return the arm that `arm` is compared with."""
        return next(frame.arms[frame.baseline] for frame in self.outputs.frames if arm in frame.arms)

    @property
    def lossless(self) -> bool:
        """Whether every arm that can be judged is lossless; where none can be, none is shown to be."""
        judged = [one.verdict for one in self.found if one.verdict != "not judged"]
        return bool(judged) and all(verdict == "lossless" for verdict in judged)


def explain(
    run: RunData,
    *,
    baseline: str | None,
    arms: list[str] | None,
    offline: bool,
    binary: str | None,
    models_dir: Path | None,
    quiet: bool,
) -> Explained:
    """Compare, replay the forks that no stored replay explains, and judge. Raises UsageError, StorageError."""
    outputs = OutputComparison(run, baseline=baseline, arms=arms)
    frame, stored, consistency = outputs.frame, outputs.stored, outputs.consistency()
    if offline:
        reason = OFFLINE if stored.replays or not run.replays else stored.reason
        found = outputs.judge(Evidence(stored.replays, reason=reason))
        return Explained(outputs, found, consistency, stored.replays, None)
    found = outputs.judge()
    here = [one for one in found if one.arm in frame.arms]
    wanted = find_wanted(frame, here)
    if not any(one.forks for one in wanted) or _is_explained(here):
        return Explained(outputs, found, consistency, stored.replays, None)
    with _progress(quiet) as tell:
        outcome = replay(
            run,
            wanted,
            baseline=frame.arms[frame.baseline],
            stored=stored.replays,
            binary=binary,
            models_dir=models_dir,
            tell=tell,
        )
    reason = f"it could not be replayed: {outcome.reason}" if outcome.reason else "it was not replayed"
    by_answer = {answer: f"it could not be replayed: {why}" for answer, why in outcome.by_answer.items()}
    found = outputs.judge(Evidence(outcome.replays, reason=reason, by_answer=by_answer))
    nothing = not any(one.fork and one.fork.margin is not None for arm in found for one in arm.comparisons)
    return Explained(outputs, found, consistency, outcome.replays, outcome.error if nothing else None)


def _is_explained(found: list[Losslessness]) -> bool:
    """Whether every fork that can be scored has been."""
    forks = [fork for arm in found for one in arm.comparisons if one.fork for fork in (one.fork, *one.other_forks)]
    scorable = [fork for fork in forks if fork.unit == "token" and fork.arm_token is not None and fork.width]
    return all(fork.noise_floor is not None for fork in scorable)


@contextmanager
def _progress(quiet: bool) -> Iterator[Tell | None]:
    """Show a live line on a terminal, a few plain ones elsewhere."""
    console = Console(stderr=True)
    if quiet:
        yield None
    elif not console.is_terminal:

        def say(done: int, total: int, what: str) -> None:
            if done in (0, total):
                console.print(f"Explaining what differs, {done} of {total} answers: {one_line(what)}", soft_wrap=True)

        yield say
    else:
        columns = (TextColumn("Explaining what differs: {task.description}", markup=False), BarColumn(bar_width=24))
        with Progress(*columns, MofNCompleteColumn(), TimeElapsedColumn(), console=console, transient=True) as bar:
            task = bar.add_task("", total=None)

            def tell(done: int, total: int, what: str) -> None:
                bar.update(task, completed=done, total=total, description=Text(one_line(what, 60)).plain)

            yield tell
