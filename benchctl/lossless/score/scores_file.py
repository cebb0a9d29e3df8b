"""The scores of a run while they grow: begun with what reads them, and written soon after every reading."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from benchctl import __version__
from benchctl.data.identity import home_relative
from benchctl.data.scores import SCORES, Replays, TargetScores, of_part
from benchctl.data.store import MANIFEST
from benchctl.data.writer import write_scores
from benchctl.engines.scoring import Scorer
from benchctl.lossless.score.relaunch import Target
from benchctl.measurement.recording import now

KEPT_EVERY_S = 5.0
"""The file is written whole; a killed benchctl loses no more than this."""
Show = Callable[[str, int, int], None]
"""Called with what comes next, and how many answers or prompts of how many are done."""


class ScoresFile:
    """A run's scores; everything that is read is kept in the run's folder, however reading ends."""

    def __init__(self, target: Target, stored: TargetScores | None) -> None:
        self.scores = stored
        """With everything that was there before; `None` when nothing is known."""
        self.target = target
        self.changed = False
        """Whether something was read that is not written yet."""
        self._replays: Replays | None = None
        """Of scores that are not begun."""
        self._written_at = time.monotonic()

    def note_lacks(self, lacks: dict[str, str]) -> None:
        """Keep by arm why answers cannot be replayed, in place of what was known; written with the next reading."""
        self._replays = Replays(lacks=lacks)
        if self.scores is None:
            return
        self.scores.replays = self.scores.replays or Replays()
        self.changed = self.changed or self.scores.replays.lacks != lacks
        self.scores.replays.lacks = lacks

    def scores_read_by(self, scorer: Scorer) -> TargetScores:
        """Return the run's scores, begun with what reads them where there are none."""
        if self.scores is None:
            manifest = self.target.run.manifest
            assert manifest is not None, "a run without a manifest cannot be launched again"
            self.scores = TargetScores(
                run=manifest.run,
                benchctl_version=__version__,
                made_at=now(),
                baseline=self.target.baseline,
                command=[home_relative(word) for word in scorer.command],
                engine_sha256=manifest.engine.details.get("sha256"),
                siblings=manifest.engine.details.get("siblings") or {},
                model=manifest.target.files,
                replays=self._replays,
            )
        return self.scores

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Write what was read meanwhile when this is left, however it is."""
        try:
            yield
        finally:
            if self.changed:
                self._write()

    def write_soon(self) -> None:
        """Write what was read, unless that was done a moment ago."""
        self.changed = True
        if time.monotonic() - self._written_at > KEPT_EVERY_S:
            self._write()

    def _write(self) -> None:
        """Replace the scores of a run, or of a part of it, atomically. Raises StorageError."""
        run = self.target.run
        assert run.manifest is not None and self.scores is not None, "begun before it is written"
        text = self.scores.model_dump_json(by_alias=True)
        write_scores(run.folder / MANIFEST, of_part(SCORES, run.part), text)
        self.changed, self._written_at = False, time.monotonic()
