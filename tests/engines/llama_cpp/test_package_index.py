"""Archives from package indexes on loopback and in folders: as pip is told, and nothing of them is run."""

from __future__ import annotations

import hashlib
import io
import os
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from benchctl.engines.common.programs import CommandFailedError
from benchctl.engines.llama_cpp.source import download
from tests.engines.llama_cpp.test_source import PACKAGE, write

NAME = "llama_cpp_python-9.9.9.tar.gz"
authorizations: list[str | None] = []


class Handler(SimpleHTTPRequestHandler):
    """A folder as an index, which wants a user and password."""

    def do_GET(self) -> None:
        authorizations.append(self.headers.get("Authorization"))
        if authorizations[-1] is None:
            self.send_error(401)
        else:
            super().do_GET()

    def log_message(self, *args: object) -> None: ...


@pytest.fixture
def index(tmp_path: Path) -> Iterator[str]:
    authorizations.clear()
    page = tmp_path / "index" / "llama-cpp-python"
    page.mkdir(parents=True)
    write(page / NAME, PACKAGE)
    (page / "index.html").write_text(f'<!DOCTYPE html><a href="{NAME}">{NAME}</a>')
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(page.parent)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture(autouse=True)
def no_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("PIP_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")


def test_an_index_gets_the_login_that_pip_has_for_it_and_the_log_does_not(
    index: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", f"http://me:s3cret@{index}/")
    log = io.StringIO()
    (tmp_path / "into").mkdir()
    archive = download("llama-cpp-python", "9.9.9", None, tmp_path / "into", log)
    assert archive.read_bytes() == (tmp_path / "index" / "llama-cpp-python" / NAME).read_bytes()
    assert authorizations and None not in authorizations[1:] and "s3cret" not in log.getvalue()


def test_another_content_is_refused_before_it_is_asked_anything(
    index: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", f"http://me:s3cret@{index}/")
    (tmp_path / "into").mkdir()
    with pytest.raises(CommandFailedError) as failure:
        download("llama-cpp-python", "9.9.9", hashlib.sha256(b"x").hexdigest(), tmp_path / "into", io.StringIO())
    assert any("HASHES" in line for line in failure.value.lines)
    assert "s3cret" not in "".join(failure.value.lines)
