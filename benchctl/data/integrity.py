"""Whether a run is the evidence that it was: which file was changed after it was written.

Nothing is left out for it: a run with damage is read and shown as any other, but no verdict rests on it. A file of
scores that is not what the manifest names is not used, as if it were not there: what rests on it is undetermined until
it is made again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from benchctl.data.digests import change_of, is_sealed
from benchctl.data.manifest import Manifest

LISTED = 6
"""Changes that a sentence lists."""
Content = TypeVar("Content")


@dataclass(frozen=True)
class Integrity:
    """What is known of a run's files."""

    digests: bool = False
    """Whether it has any: a study's bare files of records have none."""
    damage: tuple[str, ...] = ()
    """A sentence for each file of evidence that changed: nothing is concluded then."""
    scores: tuple[str, ...] = ()
    """Stored scores that changed, a sentence for each: they are not used, as if they were not there."""

    @property
    def findings(self) -> tuple[str, ...]:
        """Everything that is not as it was written."""
        return self.damage + self.scores

    @property
    def reason(self) -> str | None:
        """Why nothing is concluded, in a sentence; `None` where there is no damage."""
        if not self.damage:
            return None
        further = f" And {len(self.damage) - 1} more." if len(self.damage) > 1 else ""
        return f"The stored evidence cannot be relied on: {self.damage[0]}{further}"

    @property
    def state(self) -> str:
        """A word for `--json`."""
        return "damaged" if self.findings else "intact" if self.digests else "no digests"

    @property
    def sentence(self) -> str:
        """All of it on a line."""
        if self.findings:
            further = f" And {len(self.findings) - LISTED} more." if len(self.findings) > LISTED else ""
            return f"Files: not as they were written. {' '.join(self.findings[:LISTED])}{further}"
        if self.digests:
            return "Files: unmodified (checksums match; they do not say who wrote them)."
        return "Files: no digests, so whether they changed since they were written is not known."

    def as_dict(self) -> dict[str, object]:
        """Return it for `--json`."""
        return {"state": self.state, "damage": list(self.damage), "scores": list(self.scores)}


def manifest_damage(content: bytes, name: str) -> list[str]:
    """Return a sentence where the document that holds a manifest was changed."""
    return [] if is_sealed(content) else [f"{name} was changed after it was written."]


def lines_damage(folder: Path, manifest: Manifest, name: str, *, unfinished: bool | None = None) -> list[str]:
    """Return a sentence where a file of lines was changed; after a kill it may be longer than the manifest knows.

    `unfinished`: whether its writer may have been killed, where that is not the run's.
    """
    grows = manifest.status == "started" if unfinished is None else unfinished
    change = change_of(folder / name, manifest.files.get(name), grows=grows)
    return [f"{name} {change}."] if change else []


class StoredScores:
    """The files of scores in a folder, while they are read."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self._folder, self._files = folder, manifest.files
        self.findings: list[str] = []
        """A sentence for every file that cannot be used."""

    def read(self, name: str, read: Callable[[], Content]) -> Content | None:
        """Return what a file holds; `None` where it cannot be used. Errors as `read`."""
        change = change_of(self._folder / name, self._files.get(name))
        if change is None:
            return read()
        self.findings.append(f"{name} {change}, and is not used.")
        return None
