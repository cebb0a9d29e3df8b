"""The runs below a results folder: their facts from the manifest alone, and their deletion."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchctl.data.manifest import Manifest
from benchctl.data.store import MANIFEST, RECORDS, checked_manifest
from benchctl.data.writer import LOGS, folder_lock
from benchctl.errors import BenchctlError, UsageError
from benchctl.writing import cannot_write

FOLDERS = {LOGS, "diagnosis", "sampling", "stress"}
"""Folders that a run's folder may contain: engine logs, and those of experiments."""


@dataclass(frozen=True)
class ListedRun:
    """A run folder. `manifest` is `None` where it cannot be read; `problem` is then the reason."""

    folder: Path
    manifest: Manifest | None
    size: int
    """Size of all its files, in bytes."""
    problem: str | None = None
    damage: tuple[str, ...] = ()
    """Whether the manifest was changed, or the size of the records; their content is checked by opening the run."""

    @property
    def recipe(self) -> str:
        """The recipe's name, or that of the folder that the run lies in."""
        return self.manifest.recipe_name if self.manifest else self.folder.parent.name

    @property
    def finished_cells(self) -> int | None:
        """Cells that ended well; `None` where the manifest cannot be read."""
        if self.manifest is None:
            return None
        latest = {(cell.block, cell.arm): cell.status for cell in self.manifest.cells}
        return sum(status == "finished" for status in latest.values())


def list_runs(results: Path) -> list[ListedRun]:
    """Return the runs below `results` (or below a recipe's folder), newest first."""
    return [listed_run(folder) for folder in run_folders(results)]


def run_folders(results: Path) -> list[Path]:
    """Return the folders of the runs below `results` (or below a recipe's folder), newest first."""
    folders = {file.parent for pattern in ("*/*/", "*/") for file in results.glob(pattern + MANIFEST)}
    return sorted(folders, key=lambda folder: (folder.name, str(folder)), reverse=True)


def listed_run(folder: Path) -> ListedRun:
    """Return the facts of a run's folder."""
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file() and not file.is_symlink())
    try:
        manifest, damage = checked_manifest(folder)
        size_written, size_now = manifest.files.get(RECORDS), _size(folder / RECORDS)
        if (
            size_written is None
            or size_now < size_written.bytes
            or (size_now > size_written.bytes and manifest.status != "started")
        ):
            damage.append(f"{RECORDS} was changed after it was written.")
        return ListedRun(folder, manifest, size, damage=tuple(damage))
    except BenchctlError as error:
        return ListedRun(folder, None, size, error.what)


def _size(file: Path) -> int:
    return file.stat().st_size if file.is_file() else -1


def remove_runs(folders: Sequence[Path]) -> None:
    """Delete run folders with everything in them.

    Raises UsageError for a folder that is no run, before anything is deleted, and StorageError for a run that another
    benchctl is writing and for what cannot be deleted.
    """
    for folder in folders:
        if folder.is_symlink() or not (folder / MANIFEST).is_file() or (folder / ".git").exists():
            raise UsageError("this is no run folder, so it is not deleted", where=str(folder))
        strange = sorted(path.name for path in folder.iterdir() if path.is_dir() and path.name not in FOLDERS)
        if strange:
            raise UsageError(
                f"this run folder contains something that is not benchctl's: {', '.join(strange[:3])}",
                where=str(folder),
                fix="Delete it by hand if that is what you want.",
            )
    for folder in folders:
        with folder_lock(folder):
            try:
                shutil.rmtree(folder)
            except OSError as error:
                raise cannot_write(error, folder) from None
