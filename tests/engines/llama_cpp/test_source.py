"""Fetching, verifying and unpacking the source, with local files and servers instead of an index."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from benchctl.engines.llama_cpp.source import PINNED_VERSION, Sdist, extract_llama_cpp, fetch_sdist, read_sdist
from benchctl.errors import EngineError, UsageError

METADATA = b"Metadata-Version: 2.1\nName: llama-cpp-python\nVersion: 9.9.9\n"
BACKEND = b"""
from pathlib import Path

def prepare_metadata_for_build_wheel(folder, settings=None):
    info = Path(folder) / "llama_cpp_python-9.9.9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\\nName: llama-cpp-python\\nVersion: 9.9.9\\n")
    return info.name

def build_wheel(folder, settings=None, metadata=None):
    raise RuntimeError("nothing is to be built")
"""
PACKAGE = {
    "PKG-INFO": METADATA,
    "pyproject.toml": b'[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n',
    "backend.py": BACKEND,
    "vendor/llama.cpp/CMakeLists.txt": b"project(fake)\n",
    "vendor/llama.cpp/.git": b"gitdir: elsewhere\n",
    ".git/modules/vendor/llama.cpp/HEAD": b"f" * 40,
}


def write(path: Path, files: dict[str, bytes], links: dict[str, str] | None = None, top: str = "") -> Path:
    top = top or path.name.removesuffix(".tar.gz")
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(f"{top}/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        for name, target in (links or {}).items():
            member = tarfile.TarInfo(f"{top}/{name}")
            member.type, member.linkname = tarfile.SYMTYPE, target
            archive.addfile(member)
    return path


def sdist_of(path: Path) -> Sdist:
    return Sdist(path, "9.9.9", "0" * 64)


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Look into a folder of ours only."""
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    monkeypatch.setenv("BENCHCTL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    return shelf


def test_the_source_distribution_is_fetched(offline: Path) -> None:
    published = write(offline / "llama_cpp_python-9.9.9.tar.gz", PACKAGE)
    log = io.StringIO()
    sdist = fetch_sdist("9.9.9", log)
    assert sdist.path.read_bytes() == published.read_bytes()
    assert sdist.path.parent.name == "sdists"
    assert [entry.name for entry in sdist.path.parent.iterdir()] == [sdist.path.name]
    assert "llama_cpp_python-9.9.9.tar.gz" in log.getvalue()


def test_nothing_of_the_package_is_run(offline: Path, tmp_path: Path) -> None:
    trap = f"open({str(tmp_path / 'ran')!r}, 'w')\nraise SystemExit('it ran')\n".encode()
    published = write(offline / "llama_cpp_python-9.9.9.tar.gz", {**PACKAGE, "backend.py": trap})
    assert fetch_sdist("9.9.9", io.StringIO()).path.read_bytes() == published.read_bytes()
    assert not (tmp_path / "ran").exists()


def test_other_bytes_than_published_are_refused(offline: Path) -> None:
    name = f"llama_cpp_python-{PINNED_VERSION}"
    write(offline / f"{name}.tar.gz", PACKAGE)
    with pytest.raises(EngineError, match="not what was published"):
        fetch_sdist(PINNED_VERSION, io.StringIO())


def test_no_network_has_advice() -> None:
    with pytest.raises(EngineError, match="could not be downloaded") as caught:
        fetch_sdist(PINNED_VERSION, io.StringIO())
    assert "--sdist FILE" in (caught.value.fix or "")
    assert caught.value.kind == "install"
    assert any("No matching distribution" in line for line in caught.value.log_tail)


def test_damaged_file_in_the_cache_is_not_used(tmp_path: Path) -> None:
    cached = tmp_path / "cache" / "sdists" / f"llama_cpp_python-{PINNED_VERSION}.tar.gz"
    cached.parent.mkdir(parents=True)
    cached.write_bytes(b"half of it")
    with pytest.raises(EngineError, match="could not be downloaded"):
        fetch_sdist(PINNED_VERSION, io.StringIO())


def test_given_file_of_the_pinned_version_must_be_the_published_one(tmp_path: Path) -> None:
    path = write(tmp_path / f"llama_cpp_python-{PINNED_VERSION}.tar.gz", PACKAGE)
    with pytest.raises(EngineError, match="as it was published"):
        read_sdist(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "no such file"), (b"", r"not a \.tar\.gz"), (b"plain text", r"not a \.tar\.gz")],
)
def test_given_file_that_is_no_archive(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "given.tar.gz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=message):
        read_sdist(path)


@pytest.mark.parametrize("top", ["numpy-1.0", "llama_cpp_python", "llama_cpp_python-..", "-0.3.36"])
def test_given_archive_of_something_else(tmp_path: Path, top: str) -> None:
    with pytest.raises(UsageError, match="not a source distribution"):
        read_sdist(write(tmp_path / "given.tar.gz", PACKAGE, top=top))


def test_unpacks_the_tree_and_its_commit_only(tmp_path: Path) -> None:
    path = write(tmp_path / "a-9.9.9.tar.gz", PACKAGE)
    assert extract_llama_cpp(sdist_of(path), tmp_path / "into") == "f" * 40
    assert [entry.name for entry in (tmp_path / "into").iterdir()] == ["CMakeLists.txt"]


def test_nothing_is_written_outside(tmp_path: Path) -> None:
    path = write(tmp_path / "a-9.9.9.tar.gz", {**PACKAGE, "vendor/llama.cpp/../../../outside": b"x"})
    with pytest.raises(EngineError, match="no source distribution"):
        extract_llama_cpp(sdist_of(path), tmp_path / "into")
    assert not list(tmp_path.rglob("outside"))


def test_links_are_left_out(tmp_path: Path) -> None:
    links = {"vendor/llama.cpp/passwords": "/etc/passwd", "vendor/llama.cpp/out": "../../.."}
    path = write(tmp_path / "a-9.9.9.tar.gz", PACKAGE, links)
    extract_llama_cpp(sdist_of(path), tmp_path / "into")
    assert [entry.name for entry in (tmp_path / "into").iterdir()] == ["CMakeLists.txt"]


def test_archive_without_llama_cpp(tmp_path: Path) -> None:
    path = write(tmp_path / "a-9.9.9.tar.gz", {"PKG-INFO": METADATA})
    with pytest.raises(EngineError, match=r"vendor/llama"):
        extract_llama_cpp(sdist_of(path), tmp_path / "into")
