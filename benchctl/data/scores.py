"""Digests of what is made of a run after it: scores and timings, each kept whole in a file of its own.

    <run>/digests.json     the SHA-256 of each, and how far the run was when it was made

Its own digest is anchored at the run, so that it is no other run's. A file that is not the one named there is not used,
as if it were not there: what rests on it is undetermined until it is made again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pydantic import Field

from benchctl.data.chain import Mark, chain_seed, is_sealed
from benchctl.data.integrity import LineCheck
from benchctl.data.manifest import Manifest
from benchctl.data.versions import Part, StoredFormat
from benchctl.errors import StorageError

DIGESTS = "digests.json"
FORMAT = StoredFormat("file of digests", version=1)

Read = TypeVar("Read")


class ScoreDigest(Part):
    """A file."""

    sha256: str
    mark: Mark | None = None
    """The run's lines that it was made of."""


class Digests(Part):
    """All files."""

    schema_version: int = Field(default=FORMAT.version, alias="schema")
    files: dict[str, ScoreDigest] = Field(default_factory=dict)


class StoredScores:
    """The files of scores of a run, while it is read."""

    def __init__(self, folder: Path, manifest: Manifest, lines: LineCheck) -> None:
        self._folder, self._lines = folder, lines
        self._checked = manifest.digests
        self._known = read_digests(folder, manifest) if manifest.digests else None
        self.findings: list[str] = []
        """A sentence for every file that cannot be used."""
        if self._known is None and self._checked and (folder / DIGESTS).exists():
            self.findings.append(f"{DIGESTS} is not as it was written.")
        for name, own in self._known.files.items() if self._known else ():
            if own.mark is not None:
                lines.expect(own.mark, name)

    def read(self, name: str, read: Callable[[], Read]) -> Read | None:
        """Return what a file holds, once the lines are read; `None` where it cannot be used. Errors as `read`."""
        wrong = self._wrong(name) if self._checked else None
        if wrong is not None:
            self.findings.append(f"{name} {wrong}, and is not used.")
        return read() if wrong is None else None

    def _wrong(self, name: str) -> str | None:
        own = self._known.files.get(name) if self._known else None
        try:
            with (self._folder / name).open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except FileNotFoundError:
            return None if own is None else "is missing"
        except OSError as error:
            return f"cannot be read ({error.strerror})"
        if own is None:
            return f"has no digest in {DIGESTS}"
        if found != own.sha256:
            return "is not as it was written"
        return "was made of other records" if name in self._lines.missed else None


def read_digests(folder: Path, manifest: Manifest) -> Digests | None:
    """Read the digests; `None` where there are none of this run."""
    try:
        content = (folder / DIGESTS).read_bytes()
        return FORMAT.read(folder / DIGESTS, Digests) if is_sealed(content, anchor(manifest)) else None
    except (OSError, StorageError):
        return None


def anchor(manifest: Manifest) -> str:
    """Return what the digest of a run's file of digests is anchored at."""
    return chain_seed(manifest.run, manifest.recipe_sha256)
