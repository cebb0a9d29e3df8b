"""Bring back the runs and reports that left the working tree: `python -m benchmarks.restore_runs [NAME ...]`.

docs/findings.md names them. They are in the history of this repository, with engine logs and figures; what is restored
lies in results/ and reports/, where git ignores it; the benchctl of that commit reads it. A shallow clone fetches the
one commit first.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
COMMIT = "181de68e8bca6a473323212a1c27f7c69fbbb76b"
"""The last commit that holds them all."""
FOLDERS = ("results", "reports")


def git(*words: str) -> bytes:
    """Return what a git command prints. Raises CalledProcessError where it fails."""
    return subprocess.run(["git", *words], cwd=REPOSITORY, check=True, stdout=subprocess.PIPE).stdout


def stored(folder: str) -> list[str]:
    """Return the recipes below `results/` or `reports/` in that commit."""
    return git("ls-tree", "--name-only", f"{COMMIT}:{folder}").decode().split()


def unpack(archive: tarfile.TarFile, into: Path) -> None:
    """Unpack an archive of this repository; Python 3.11.0 to 3.11.3, Debian 12's among them, has no filters."""
    archive.extraction_filter = getattr(tarfile, "data_filter", lambda member, _: member)
    archive.extractall(into)


def main(names: list[str]) -> None:
    """Restore the named recipes' runs (all without a name) and print their folders."""
    try:
        git("cat-file", "-e", COMMIT)
    except subprocess.CalledProcessError:
        git("fetch", "--depth", "1", "origin", COMMIT)
    unknown = set(names) - {recipe for folder in FOLDERS for recipe in stored(folder)}
    if unknown:
        sys.exit(f"no such run: {', '.join(sorted(unknown))}; there are {', '.join(stored('results'))}")
    for folder in FOLDERS:
        for recipe in stored(folder):
            if not names or recipe in names:
                with tarfile.open(fileobj=io.BytesIO(git("archive", COMMIT, f"{folder}/{recipe}"))) as archive:
                    unpack(archive, REPOSITORY)
                print(f"{folder}/{recipe}")


if __name__ == "__main__":
    main(sys.argv[1:])
