"""The source of llama.cpp: the tree that the llama-cpp-python source distribution carries.

A source distribution of an exact version with a known SHA-256 gives every machine the same engine. It comes from the
indexes and mirrors that the user configured for pip or uv; nothing of it is run but what builds llama.cpp.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TextIO

from benchctl.engines.common.programs import CommandFailedError
from benchctl.engines.llama_cpp.package_index import download
from benchctl.errors import EngineError, UsageError
from benchctl.paths import cache_folder

PACKAGE = "llama-cpp-python"
PINNED_VERSION = "0.3.36"
KNOWN_SHA256 = {"0.3.36": "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"}
_TREE = PurePosixPath("vendor/llama.cpp")
_COMMIT = PurePosixPath(".git/modules/vendor/llama.cpp/HEAD")
_MAX_BYTES = 2 * 1024**3
"""Ten times what the tree unpacks to; more is no source distribution."""

_OFFLINE = "Connect to the network, or give the file itself: `benchctl engines install llama.cpp --sdist FILE`."


@dataclass(frozen=True)
class Sdist:
    """A source distribution that lies on this machine."""

    path: Path
    version: str
    sha256: str


@dataclass(frozen=True)
class SourceTree:
    """An unpacked llama.cpp."""

    folder: Path
    commit: str | None
    """Of llama.cpp, 40 hex digits, as the source distribution records it."""


def read_sdist(path: Path) -> Sdist:
    """Identify a source distribution that the user has; of a known version, only the published bytes are taken.

    Raises UsageError when it is missing or something else, EngineError when its content is not what was published.
    """
    if not path.is_file():
        raise UsageError("there is no such file", where=f"--sdist {path}")
    try:
        with tarfile.open(path, "r:gz") as archive:
            first = archive.next()
    except (tarfile.TarError, OSError, EOFError) as error:
        raise UsageError(f"this is not a .tar.gz archive ({error})", where=f"--sdist {path}") from error
    top = PurePosixPath(first.name).parts[0] if first and first.name else ""
    name, _, version = top.rpartition("-")
    if re.sub(r"[-_.]+", "-", name).lower() != PACKAGE or not re.fullmatch(r"[0-9][0-9A-Za-z.]*", version):
        raise UsageError(
            "this is not a source distribution of llama-cpp-python",
            where=f"--sdist {path}",
            fix="See `benchctl docs engines`.",
        )
    sdist = Sdist(path, version, sha256_file(path))
    known = KNOWN_SHA256.get(version)
    if known and sdist.sha256 != known:
        raise EngineError(
            f"this is not {PACKAGE} {version} as it was published: its SHA-256 is {sdist.sha256}, not {known}",
            kind="install",
            where=str(path),
            fix="Download it again.",
        )
    return sdist


def fetch_sdist(version: str, log: TextIO) -> Sdist:
    """Return the source distribution of `version` from the cache, or from the package index. Raises EngineError."""
    folder = cache_folder() / "sdists"
    cached = folder / f"llama_cpp_python-{version}.tar.gz"
    if cached.is_file() and sha256_file(cached) == KNOWN_SHA256.get(version):
        return Sdist(cached, version, KNOWN_SHA256[version])
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".download-") as temporary:
        try:
            fetched = download(PACKAGE, version, KNOWN_SHA256.get(version), Path(temporary), log)
        except CommandFailedError as failure:
            what, fix = f"{PACKAGE} {version} could not be downloaded", _OFFLINE
            if "DO NOT MATCH THE HASHES" in "\n".join(failure.lines):
                what = f"what the package index has as {PACKAGE} {version} is not what was published (other SHA-256)"
                fix = "Do not use it. Check which index or mirror pip (`pip config list`) or uv is configured to use."
            raise EngineError(
                what, kind="install", where="package index", fix=fix, log_tail=failure.tail()
            ) from failure
        sdist = Sdist(cached, version, sha256_file(fetched))
        fetched.replace(cached)
    return sdist


def extract_llama_cpp(sdist: Sdist, into: Path) -> SourceTree:
    """Unpack the llama.cpp tree of `sdist` into the new folder `into`: regular files only, nothing outside of it."""
    commit = None
    unpacked = 0
    with tarfile.open(sdist.path, "r:gz") as archive:
        for member in archive:
            path = PurePosixPath(*PurePosixPath(member.name).parts[1:])
            if path == _COMMIT and member.isfile() and member.size < 100 and (head := archive.extractfile(member)):
                commit = head.read().decode("ascii", "replace").strip()
            if not path.is_relative_to(_TREE) or not member.isfile():
                continue  # no links, no devices: the tree needs none
            unpacked += member.size
            if ".." in path.parts or unpacked > _MAX_BYTES or (content := archive.extractfile(member)) is None:
                raise EngineError(
                    "the archive has entries that no source distribution has", kind="install", where=path.name
                )
            target = into / path.relative_to(_TREE)
            target.parent.mkdir(parents=True, exist_ok=True)
            with content, target.open("wb") as file:
                shutil.copyfileobj(content, file)
            target.chmod(0o755 if member.mode & 0o100 else 0o644)
    if not (into / "CMakeLists.txt").is_file():
        raise EngineError(f"the archive carries no {_TREE}", kind="install", where=str(sdist.path))
    (into / ".git").unlink(missing_ok=True)  # it would have git look for a repository that was not unpacked
    return SourceTree(into, commit if commit and re.fullmatch(r"[0-9a-f]{40}", commit) else None)


def sha256_file(path: Path) -> str:
    """Return the SHA-256 of a file, 64 hex digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
