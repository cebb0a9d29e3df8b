"""The source of llama.cpp: the tree that the llama-cpp-python source distribution carries.

A source distribution of an exact version with a known SHA-256 gives every machine the same engine. pip downloads it
from where the user's pip is configured to look. pip asks an archive's build backend for its metadata before it keeps
the archive; it is given a backend of benchctl's own, which copies what the archive itself has (`PKG-INFO`), so that
nothing of the package is run but what builds llama.cpp. Its converter of Hugging Face folders is of the same source.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TextIO

from benchctl.engines.common.programs import CommandFailedError, run_logged
from benchctl.errors import EngineError, StorageError, UsageError
from benchctl.models.files import file_sha256
from benchctl.paths import cache_folder

_BACKEND = """
import pathlib
def get_requires_for_build_wheel(settings=None):
    return []
def prepare_metadata_for_build_wheel(folder, settings=None):
    facts = pathlib.Path("PKG-INFO").read_bytes()
    name, version = (facts.split(key)[1].split(b"\\n")[0].strip().decode() for key in (b"\\nName:", b"\\nVersion:"))
    made = pathlib.Path(folder, f"{name.replace('-', '_')}-{version}.dist-info")
    made.mkdir()
    (made / "METADATA").write_bytes(facts)
    return made.name
"""
_AT_START = """
import os
for name in list(os.environ):
    if name.endswith("_BUILD_BACKEND"):
        os.environ[name] = "metadata_alone"
    elif "_BACKEND_PATH" in name:
        del os.environ[name]
"""
"""Run by every Python that pip starts: whatever backend an archive names, or brings, this backend is asked."""
_PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input")


def download(package: str, version: str, sha256: str | None, into: Path, log: TextIO) -> Path:
    """Return the archive of that version, in `into`, of that SHA-256 if any. Raises CommandFailedError, OSError."""
    backend = into / "backend"
    backend.mkdir()
    for name, code in (("metadata_alone", _BACKEND), ("sitecustomize", _AT_START)):
        (backend / f"{name}.py").write_text(code)
    (backend / "requirements.txt").write_text(f"{package}=={version}{f' --hash=sha256:{sha256}' if sha256 else ''}\n")
    archives = into / "found"
    options = ("--no-deps", "--no-binary", ":all:", "--no-build-isolation", "--use-pep517", "--progress-bar", "off")
    target = ("--dest", str(archives), "--requirement", str(backend / "requirements.txt"))
    environment = {**os.environ, "PYTHONPATH": str(backend), "PYTHONSAFEPATH": "1"}
    run_logged((*_PIP, "download", *options, *target), log=log, env=environment)
    (archive,) = archives.iterdir()
    return archive


PACKAGE = "llama-cpp-python"
PINNED_VERSION = "0.3.36"
KNOWN_SHA256 = {"0.3.36": "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"}
PINNED_COMMIT = "0c1e57098bba43ac29e6e3b677cdceebdd22334f"
"""llama.cpp's, of that version."""
_TREE = PurePosixPath("vendor/llama.cpp")
_COMMIT = PurePosixPath(".git/modules/vendor/llama.cpp/HEAD")
_MAX_BYTES = 2 * 1024**3
"""Ten times what the tree unpacks to; more is no source distribution."""

_OFFLINE = (
    "Connect to the network, name an index that pip reaches (PIP_INDEX_URL), or give the file itself: "
    "`benchctl engines install llama.cpp --sdist FILE`."
)


@dataclass(frozen=True)
class Sdist:
    """A source distribution that lies on this machine."""

    path: Path
    version: str
    sha256: str


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
    sdist = Sdist(path, version, file_sha256(path))
    published = KNOWN_SHA256.get(version)
    if published and sdist.sha256 != published:
        raise EngineError(
            f"this is not {PACKAGE} {version} as it was published: its SHA-256 is {sdist.sha256}, not {published}",
            kind="install",
            where=str(path),
            fix="Download it again.",
        )
    return sdist


def fetch_sdist(version: str, log: TextIO) -> Sdist:
    """Return the source distribution of `version` from the cache, or from the package index. Raises EngineError."""
    folder = cache_folder() / "sdists"
    cached = folder / f"llama_cpp_python-{version}.tar.gz"
    if cached.is_file() and file_sha256(cached) == KNOWN_SHA256.get(version):
        return Sdist(cached, version, KNOWN_SHA256[version])
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".download-") as temporary:
        try:
            fetched = download(PACKAGE, version, KNOWN_SHA256.get(version), Path(temporary), log)
        except CommandFailedError as failure:
            message, fix = f"{PACKAGE} {version} could not be downloaded", _OFFLINE
            if "DO NOT MATCH THE HASHES" in "\n".join(failure.lines):
                message = f"what the package index has as {PACKAGE} {version} is not what was published (other SHA-256)"
                fix = "Do not use it. Check which index or mirror pip is configured to use: `pip config list`."
            raise EngineError(
                message, kind="install", where="package index", fix=fix, log_tail=failure.tail()
            ) from failure
        sdist = Sdist(cached, version, file_sha256(fetched))
        fetched.replace(cached)
    return sdist


def extract_llama_cpp(sdist: Sdist, into: Path) -> str | None:
    """Unpack the llama.cpp tree of `sdist` into the new folder `into`: regular files only, nothing outside of it.

    Return llama.cpp's commit, 40 hex digits, where the source distribution records it. Raises EngineError.
    """
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
            os.utime(target, (member.mtime, member.mtime))  # so that a continued build compiles nothing twice
    if not (into / "CMakeLists.txt").is_file():
        raise EngineError(f"the archive carries no {_TREE}", kind="install", where=str(sdist.path))
    (into / ".git").unlink(missing_ok=True)  # it would have git look for a repository that was not unpacked
    return commit if commit and re.fullmatch(r"[0-9a-f]{40}", commit) else None


CONVERTER = "convert_hf_to_gguf.py"
_PARTS = (CONVERTER, "conversion", "gguf-py", "LICENSE")


def converter_script() -> Path:
    """Return the converter of the pinned source, fetched and unpacked once. Raises EngineError, StorageError."""
    folder = cache_folder() / "converters"
    unpacked = sorted(folder.glob(f"{PINNED_VERSION}-*/{CONVERTER}"))
    if unpacked:
        return unpacked[0]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        sdist = fetch_sdist(PINNED_VERSION, io.StringIO())
        with tempfile.TemporaryDirectory(dir=folder, prefix=".unpacking-", ignore_cleanup_errors=True) as temporary:
            tree, parts = Path(temporary) / "source", Path(temporary) / "kept"
            extract_llama_cpp(sdist, tree)
            parts.mkdir()
            for part in _PARTS:
                shutil.move(tree / part, parts / part)
            final = folder / f"{sdist.version}-{sdist.sha256[:8]}"
            if not final.exists():
                parts.rename(final)
    except OSError as error:
        raise StorageError(
            f"llama.cpp's converter cannot be unpacked: {error.strerror or error}", where=str(folder)
        ) from None
    return final / CONVERTER
