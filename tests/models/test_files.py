"""Hashes are right, remembered, and never remembered for a file that changed."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path

import pytest

from benchctl.models import files
from benchctl.models.files import file_sha256


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_a_hash_is_computed_once(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(b"abc")
    assert file_sha256(path) == sha256(b"abc")
    monkeypatch.setattr(hashlib, "file_digest", lambda *_: pytest.fail("read again"))
    assert file_sha256(path) == sha256(b"abc")
    (entry,) = (cache / "hashes").iterdir()
    assert entry.read_text().split()[-1] == sha256(b"abc")


def test_a_changed_file_of_equal_size_is_hashed_again(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(b"abc")
    os.utime(path, ns=(1, 1))
    file_sha256(path)
    path.write_bytes(b"abd")
    assert file_sha256(path) == sha256(b"abd")
    assert len(list((cache / "hashes").iterdir())) == 1


def test_a_replaced_file_with_the_old_time_is_hashed_again(tmp_path: Path) -> None:
    path, second = tmp_path / "a.gguf", tmp_path / "b.gguf"
    path.write_bytes(b"abc")
    second.write_bytes(b"abd")
    for file in (path, second):
        os.utime(file, ns=(1, 1))
    file_sha256(path)
    second.replace(path)
    assert file_sha256(path) == sha256(b"abd")


def test_a_file_that_was_changed_in_place_and_dated_back_is_hashed_again(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(b"abc")
    before = path.stat()
    assert file_sha256(path) == sha256(b"abc")
    with path.open("r+b") as stream:
        stream.write(b"abd")
    after = before
    while after.st_ctime_ns == before.st_ctime_ns:  # the file system's clock ticks every few ms
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        after = path.stat()
    assert (after.st_size, after.st_mtime_ns, after.st_ino) == (before.st_size, before.st_mtime_ns, before.st_ino)
    assert file_sha256(path) == sha256(b"abd")


@pytest.mark.parametrize("content", ["", "1 2 3 ", "null", "\xff"])
def test_a_damaged_cache_is_only_slow(tmp_path: Path, cache: Path, content: str) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(b"abc")
    assert file_sha256(path) == sha256(b"abc")
    (entry,) = (cache / "hashes").iterdir()
    entry.write_text(content, "utf-8")
    assert file_sha256(path) == sha256(b"abc")
    (entry,) = (cache / "hashes").iterdir()
    assert entry.read_text().split()[-1] == sha256(b"abc")


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(b"abc")
    cache.write_text("a file where the folder should be")
    assert file_sha256(path) == sha256(b"abc")


def test_a_full_disk_leaves_no_half_cache(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files, "finish", full)
    path = tmp_path / "a.gguf"
    path.write_bytes(b"abc")
    assert file_sha256(path) == sha256(b"abc")
    assert list((cache / "hashes").iterdir()) == []


def test_a_large_file_is_announced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_REPORTED_FROM_BYTES", 100)
    path = tmp_path / "big.gguf"
    path.write_bytes(bytes(1000))
    notices: list[str] = []
    file_sha256(path, notices.append)
    assert len(notices) == 1 and "big.gguf" in notices[0]
