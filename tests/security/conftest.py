"""What a stranger sends, and what this machine must not give: a listener that keeps every request, programs that leave
a mark when they run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.engines.scripted import ScriptedHandler, listening


@dataclass
class Listener:
    """A server on loopback."""

    url: str
    heard: list[str] = field(default_factory=list)
    """Of every request the line, the headers and the body."""


@pytest.fixture
def listener() -> Iterator[Listener]:
    """Serve one model; nothing else is here."""
    heard = Listener("")

    class Handler(ScriptedHandler):
        def do_GET(self) -> None:
            self.keep()
            models = self.path.endswith("/models")
            self.reply(200 if models else 404, {"data": [{"id": "m"}]} if models else {})

        do_POST = do_GET

        def keep(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            heard.heard.append(f"{self.requestline}\n{self.headers}\n{body.decode('utf-8', 'replace')}")

    with listening(Handler) as heard.url:
        yield heard


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user who has allowed nothing yet, in a folder of a stranger's files below the home."""
    from benchctl.paths import cache_folder

    monkeypatch.setenv("BENCHCTL_CACHE", str(cache_folder()))  # the engine that is built stays where it is
    home = tmp_path / "home"
    (home / "stranger").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / ".config"))
    monkeypatch.chdir(home / "stranger")
    return home


def marking_program(path: Path) -> Path:
    """Write a program that leaves a mark beside itself whenever it runs; return the mark's path."""
    mark = path.with_name(f"{path.name}.ran")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho ran >> '{mark}'\nexit 1\n")
    path.chmod(0o755)
    return mark
