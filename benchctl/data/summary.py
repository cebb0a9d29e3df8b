"""The summary of a run: small, and kept in the user's cache, so that many runs are listed and compared at once.

It is found again by the content of the run's files, never in the run's own folder, which may be a stranger's. This
module reads what is kept, without numpy; `benchctl.analysis.comparison.summary` makes it.
"""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from benchctl.data.identity import package_sha256
from benchctl.data.store import MANIFEST, RECORDS
from benchctl.errors import StorageError
from benchctl.paths import cache_folder
from benchctl.recipes.groups import ComparedArm
from benchctl.writing import refuse_links, write_whole

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_DIGEST = hashlib.sha256().digest_size


class ArmSummary(msgspec.Struct, kw_only=True):
    """An arm of a run."""

    name: str
    compared: ComparedArm
    """Its baseline, and the models and engine that it ran on."""
    labels: dict[str, str]
    """On the axes of its recipe."""
    target: str
    draft: str | None
    engine: str
    """Kind, version and build."""
    build: str
    """Digest of all that is recorded of the engine's build: version, commit, its files."""
    types: list[str]
    """How it speculates; none of the target alone."""
    setting: str
    """Digest of what was asked for, for this arm and its baseline, the workload and the engine's build left out."""
    speedup: float | None
    low: float | None
    high: float | None
    by_block: list[float]
    acceptance: float | None
    acceptance_doubt: str | None
    """`unchecked` or `contradicted`; `None` where something confirms it."""
    acceptance_length: float | None
    lossless: str | None
    tokens: bytes
    """float32, blocks by prompts: tokens after the first; NaN where there is no time."""
    seconds: bytes
    """float32: what they took."""
    answers: bytes
    """uint64 a prompt: of the answer that all blocks gave; 0 where they differ, or some is not sound."""

    @property
    def compares(self) -> bool:
        """Whether it is compared with a baseline: neither one, nor a second cell of one."""
        return not (self.compared.is_baseline or self.compared.is_again)

    def array(self, name: str, prompts: int) -> NDArray[np.float64]:
        """Return `tokens` or `seconds` as (blocks, prompts)."""
        import numpy as np

        return np.frombuffer(getattr(self, name), dtype=np.float32).reshape(-1, prompts).astype(np.float64)

    def rate(self, prompts: int) -> float | None:
        """Return the decode rate over all that was timed, tokens per second."""
        import numpy as np

        tokens, seconds = (self.array(name, prompts) for name in ("tokens", "seconds"))
        timed = np.isfinite(seconds)
        spent = float(seconds[timed].sum())
        return float(tokens[timed].sum()) / spent if spent else None


class RunSummary(msgspec.Struct, kw_only=True):
    """A run."""

    run: str
    folder: str
    recipe: str
    workload: str | None
    """SHA-256 of prompts, sampling and model files; `None` without a manifest."""
    created_at: str | None
    status: str | None
    blocks: int
    records: int
    level: float
    """The confidence level of its intervals; higher where the run ended when they were narrow enough."""
    machine: str
    sampling: dict[str, Any]
    prompts: list[tuple[str, int, str | None]]
    """Task, index and SHA-256 of each."""
    failed_cells: list[str]
    damage: list[str]
    """Files that were changed after they were written."""
    distrust: str | None
    """Why nothing is concluded of it."""
    arms: list[ArmSummary]

    @property
    def keys(self) -> list[tuple[str, int]]:
        """Task and index of each prompt."""
        return [(task, index) for task, index, _ in self.prompts]

    def __post_init__(self) -> None:
        prompts = len(self.prompts)
        for arm in self.arms:
            fits = len(arm.tokens) % max(1, 4 * prompts) == 0 and len(arm.answers) == 8 * prompts
            if not fits or len(arm.seconds) != len(arm.tokens):
                raise ValueError(f"the arrays of {arm.name} are not of {prompts} prompts")


def content_digest(run: Path) -> str:
    """Return the SHA-256 of what a run's summary is made of: benchctl's code and the files' content. StorageError."""
    refuse_links(run)
    total = hashlib.sha256(package_sha256().encode())
    try:
        for file in sorted([run / MANIFEST, run / RECORDS, *run.glob("scores*.json")]):
            if file.is_file():
                with file.open("rb") as stream:
                    total.update(f" {file.name} {hashlib.file_digest(stream, 'sha256').hexdigest()}".encode())
    except OSError as error:
        raise StorageError(f"The run cannot be read: {error.strerror}.", where=str(run)) from None
    return total.hexdigest()


@dataclass(frozen=True)
class CacheEntry:
    """The cache's entry for a run, by the present content of its files."""

    run: Path
    digest: str | None
    """`None`: of a bare file of records, which the cache does not keep, and of a run that cannot be read."""
    summary: RunSummary | StorageError | None
    """`None`: the cache has none."""


def look_up(run: Path) -> CacheEntry:
    """Return the cache's entry for a run."""
    if not (run / MANIFEST).is_file():
        return CacheEntry(run, None, None)
    try:
        digest = content_digest(run)
    except StorageError as error:
        return CacheEntry(run, None, error)
    summary = _cached_summary(digest)
    if summary is not None:
        summary.folder = str(run)
    return CacheEntry(run, digest, summary)


def _cached(digest: str) -> Path:
    return cache_folder() / "summaries" / digest


def _cached_summary(digest: str) -> RunSummary | None:
    """Return the summary that the cache holds of files with that digest; `None`: there is none, or it is damaged."""
    try:
        content = _cached(digest).read_bytes()
        if hashlib.sha256(content[_DIGEST:]).digest() != content[:_DIGEST]:
            return None
        return msgspec.msgpack.decode(content[_DIGEST:], type=RunSummary)
    except (OSError, msgspec.DecodeError):
        return None


def keep_summary(digest: str, summary: RunSummary) -> None:
    """Keep a summary in the cache, where that can be written."""
    content = msgspec.msgpack.encode(summary)
    with contextlib.suppress(OSError, StorageError):
        _cached(digest).parent.mkdir(parents=True, exist_ok=True)
        write_whole(_cached(digest), hashlib.sha256(content).digest() + content)
