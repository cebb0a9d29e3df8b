"""Summaries beside runs: computed once, valid as long as no file of the run changes, and they do not themselves."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from benchctl.data.integrity import DIGESTS
from benchctl.data.scores import OLDER, SCORES
from benchctl.data.store import MANIFEST, RECORDS

SUMMARY = ".summary"
_OF_THE_RUN = (MANIFEST, RECORDS, DIGESTS)
_SCORED = (SCORES, *OLDER)
_DIGEST = hashlib.sha256().digest_size


def fingerprint(run: Path, version: str) -> bytes:
    """Return a line that changes when a file of the run, or `version` of the summary, does."""
    names = [*_OF_THE_RUN, *(file.name for stem in _SCORED for file in run.glob(f"{stem.partition('.')[0]}*.json"))]
    stamps = []
    for name in sorted(names):
        with contextlib.suppress(OSError):
            status = (run / name).stat()
            stamps.append(f"{name} {status.st_size} {status.st_mtime_ns}")
    return "; ".join([version, *stamps]).encode() + b"\n"


def kept_summary(run: Path, version: str) -> bytes | None:
    """Return the summary that is kept beside a run; `None` where there is none of the run as it is."""
    try:
        found = (run / SUMMARY).read_bytes()
    except OSError:
        return None
    first, rest = fingerprint(run, version), found[_DIGEST:]
    whole = found.startswith(hashlib.sha256(rest).digest()) and rest.startswith(first)
    return rest[len(first) :] if whole else None


def keep_summary(run: Path, version: str, make: Callable[[], bytes]) -> bytes:
    """Make a summary and keep it beside the run, where that can be written."""
    first = fingerprint(run, version)
    made = make()
    temporary = run / f"{SUMMARY}.{os.getpid()}"
    try:
        temporary.write_bytes(hashlib.sha256(first + made).digest() + first + made)
        temporary.replace(run / SUMMARY)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    return made
