"""When a timed training run logs, validates, saves and ends, and how its learning rate falls."""

import json
import math
import time
from pathlib import Path


def assistant_token(tokenizer: Path) -> int:
    """The id of the word `assistant`, which follows the start of turns that count fully; of a tokenizer's folder."""
    vocabulary = json.loads((tokenizer / "tokenizer.json").read_text("utf-8"))["model"]["vocab"]
    return int(vocabulary["assistant"])


class Clock:
    """Counts steps and tokens of one run and writes a log in its folder."""

    def __init__(
        self,
        folder: Path,
        minutes: float,
        warm_up: int,
        *,
        log: str = "log.jsonl",
        log_every: int = 50,
        minutes_between_saves: float = 5.0,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._log = folder / log
        self._total, self._warm_up = 60 * minutes, warm_up
        self._log_every, self._between_saves = log_every, 60 * minutes_between_saves
        self._began = self._saved = time.monotonic()
        self._elapsed = 0.0
        self._steps = self._tokens = 0
        self._loss = 0.0

    def step(self, loss: float, tokens: int) -> None:
        """Count one step; every so many, log the smoothed training loss."""
        self._loss = loss if self._steps == 0 else 0.98 * self._loss + 0.02 * loss
        self._steps += 1
        self._tokens += tokens
        self._elapsed = self.seconds()
        if self._steps % self._log_every == 0:
            self.note(train_loss=round(self._loss, 4))

    def seconds(self) -> float:
        """Wall time since the run began."""
        return time.monotonic() - self._began

    def note(self, **facts: object) -> None:
        """Append a line with the run's progress and these facts."""
        progress = {"step": self._steps, "tokens": self._tokens, "seconds": round(self._elapsed)}
        with self._log.open("a", encoding="utf-8") as lines:
            print(json.dumps({**progress, **facts}), file=lines)

    def done(self) -> bool:
        """Whether the time is up."""
        return self._elapsed >= self._total

    def due_to_validate(self) -> bool:
        """At the end and after every tenth log line."""
        return self.done() or (self._steps > 0 and self._steps % (10 * self._log_every) == 0)

    def due_to_save(self) -> bool:
        """At the end and every few minutes."""
        if self.done() or time.monotonic() - self._saved > self._between_saves:
            self._saved = time.monotonic()
            return True
        return False

    def share_of_rate(self) -> float:
        """The learning rate's share of its highest: linear rise, then a cosine of the time spent, 0 at the end."""
        risen = min(1.0, (self._steps + 1) / self._warm_up)
        return risen * 0.5 * (1 + math.cos(math.pi * min(1.0, self._elapsed / self._total)))
