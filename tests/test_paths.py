"""Where the per-user cache and prompt files lie."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchctl.paths import cache_folder, prompts_file


@pytest.mark.parametrize(
    ("own", "shared", "platform", "expected"),
    [
        ("/own", "/shared", "linux", "/own"),
        ("~/own", None, "linux", "/home/me/own"),
        ("", "/shared", "linux", "/shared/benchctl"),
        (None, "relative", "linux", "/home/me/.cache/benchctl"),
        (None, None, "linux", "/home/me/.cache/benchctl"),
        (None, None, "darwin", "/home/me/Library/Caches/benchctl"),
    ],
)
def test_cache_folder(
    own: str | None, shared: str | None, platform: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setenv("HOME", "/home/me")
    for name, value in (("BENCHCTL_CACHE", own), ("XDG_CACHE_HOME", shared)):
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    assert cache_folder() == Path(expected)


def test_relative_folder_of_ones_own_becomes_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BENCHCTL_CACHE", "here")
    assert cache_folder() == tmp_path / "here"


def test_prompts_whose_name_is_too_long_for_a_file_are_none(tmp_path: Path) -> None:
    assert prompts_file("1" * 252, tmp_path) is None
