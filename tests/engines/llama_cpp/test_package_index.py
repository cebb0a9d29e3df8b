"""Archives from package indexes on loopback and in folders: as pip and uv are told, and nothing of them is run."""

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
from benchctl.engines.llama_cpp.source import download, with_uvs_places
from tests.engines.llama_cpp.test_source import PACKAGE, write

NAME = "llama_cpp_python-9.9.9.tar.gz"
asked: list[str | None] = []


class Handler(SimpleHTTPRequestHandler):
    """A folder as an index, which wants a user and password."""

    def do_GET(self) -> None:
        asked.append(self.headers.get("Authorization"))
        if asked[-1] is None:
            self.send_error(401)
        else:
            super().do_GET()

    def log_message(self, *args: object) -> None: ...


@pytest.fixture
def index(tmp_path: Path) -> Iterator[str]:
    asked.clear()
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
        if name.startswith(("PIP_", "UV_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("UV_NO_CONFIG", "1")
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")


def test_an_index_gets_the_login_that_uv_has_for_it_and_the_log_does_not(
    index: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", f"own=http://{index}/")
    monkeypatch.setenv("UV_INDEX_OWN_USERNAME", "me")
    monkeypatch.setenv("UV_INDEX_OWN_PASSWORD", "s3cret")
    log = io.StringIO()
    (tmp_path / "into").mkdir()
    archive = download("llama-cpp-python", "9.9.9", None, tmp_path / "into", log)
    assert archive.read_bytes() == (tmp_path / "index" / "llama-cpp-python" / NAME).read_bytes()
    assert asked and None not in asked[1:] and "s3cret" not in log.getvalue()


def test_another_content_is_refused_before_it_is_asked_anything(
    index: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", f"http://me:s3cret@{index}/")
    (tmp_path / "into").mkdir()
    with pytest.raises(CommandFailedError) as failure:
        download("llama-cpp-python", "9.9.9", hashlib.sha256(b"x").hexdigest(), tmp_path / "into", io.StringIO())
    assert any("HASHES" in line for line in failure.value.lines)
    assert "s3cret" not in "".join(failure.value.lines)


UV_FILE = """
index-url = "file:///old"
extra-index-url = ["file:///more"]
find-links = ["/shelf"]
[[index]]
name = "my-mirror"
url = "https://mirror.invalid/simple"
default = true
[[index]]
url = "https://only-for-another-package.invalid/simple"
explicit = true
[[index]]
url = "/flat"
format = "flat"
"""


def places(environment: dict[str, str]) -> tuple[str | None, ...]:
    told = with_uvs_places(environment)
    return tuple(told.get(f"PIP_{name}") for name in ("INDEX_URL", "EXTRA_INDEX_URL", "FIND_LINKS", "NO_INDEX"))


def test_pip_is_told_where_uv_looks(tmp_path: Path) -> None:
    file = tmp_path / ".config" / "uv" / "uv.toml"
    file.parent.mkdir(parents=True)
    file.write_text(UV_FILE)
    clean = {"HOME": str(tmp_path), "XDG_CONFIG_DIRS": str(tmp_path / "none"), "PIP_CONFIG_FILE": "/dev/null"}
    assert places(clean) == ("https://mirror.invalid/simple", "file:///more", "/flat /shelf", None)
    login = {"UV_INDEX_MY_MIRROR_USERNAME": "me", "UV_INDEX_MY_MIRROR_PASSWORD": "a@b"}
    assert places(clean | login)[0] == "https://me:a%40b@mirror.invalid/simple"
    own = {"UV_DEFAULT_INDEX": "file:///d", "UV_INDEX": "x=file:///e file:///f", "UV_FIND_LINKS": "/g,/h"}
    assert places(clean | own)[:3] == ("file:///d", "file:///e file:///f file:///more", "/g /h /flat /shelf")
    assert places(clean | {"UV_OFFLINE": "1"})[3] == "1"
    file.write_text("index-url = [")
    assert places(clean) == (None, None, None, None)


def test_pips_own_places_stay_and_its_index_wins(tmp_path: Path) -> None:
    file = tmp_path / "pip.conf"
    file.write_text("[global]\nindex-url = file:///a\nfind-links =\n  /b\n  /c\n")
    own = {"HOME": str(tmp_path), "PIP_CONFIG_FILE": str(file), "XDG_CONFIG_DIRS": str(tmp_path / "none")}
    uv = {"UV_DEFAULT_INDEX": "file:///d", "UV_FIND_LINKS": "/e"}
    assert places(own | uv)[:3] == ("file:///a", None, "/b /c /e")
    assert places(own | uv | {"PIP_INDEX_URL": "file:///f"})[0] == "file:///f"
