"""Files from package indexes on loopback and in folders: as pip and uv are told, credentials for their host alone."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from benchctl.engines.llama_cpp.package_places import configured, default_index
from benchctl.engines.llama_cpp.packages import IndexFailure, fetch

CONTENT = b"the archive"
SHA256 = hashlib.sha256(CONTENT).hexdigest()
NAME = re.compile(r"thing-1\.0\.tar\.gz")
HTML, JSON = "text/html", "application/vnd.pypi.simple.v1+json"


class Host:
    """A server on loopback; `answers`: status, type (or where to, of a redirect) and body by path."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, str, bytes]] = {"/files/thing-1.0.tar.gz": (200, "a/b", CONTENT)}
        self.asked: list[tuple[str, str | None]] = []
        host = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                host.asked.append((self.path, self.headers.get("Authorization")))
                status, kind, body = host.answers.get(self.path, (404, HTML, b""))
                self.send_response(status)
                self.send_header("Location" if status == 302 else "Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def url(self, path: str = "", login: str = "") -> str:
        return f"http://{login}127.0.0.1:{self.server.server_port}{path}"


@pytest.fixture
def hosts() -> Iterator[tuple[Host, Host]]:
    both = Host(), Host()
    yield both
    for host in both:
        host.server.shutdown()
        host.server.server_close()


@pytest.fixture(autouse=True)
def no_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("PIP_", "UV_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("UV_NO_CONFIG", "1")
    monkeypatch.setenv("NETRC", "/dev/null")


def fetched(tmp_path: Path, sha256: str | None = SHA256) -> str:
    log = io.StringIO()
    fetch("thing", NAME, sha256, tmp_path / "into", log)
    assert (tmp_path / "into").read_bytes() == CONTENT
    return log.getvalue()


def anchors(*addresses: str) -> bytes:
    return "".join(f'<a href="{address}">x</a>' for address in addresses).encode()


def test_pages_of_both_kinds_are_read(
    hosts: tuple[Host, Host], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index, _ = hosts
    listed = {"files": [{"url": "../../files/thing-1.0.tar.gz", "hashes": {"sha256": SHA256}}]}
    monkeypatch.setenv("PIP_INDEX_URL", index.url("/simple"))
    index.answers["/simple/thing/"] = (200, JSON, json.dumps(listed).encode())
    fetched(tmp_path)
    index.answers["/simple/thing/"] = (200, HTML, anchors("/files/thing-2.0.tar.gz", "../../files/thing-1.0.tar.gz"))
    fetched(tmp_path, sha256=None)


def test_credentials_go_to_the_index_alone(
    hosts: tuple[Host, Host], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index, other = hosts
    basic = "Basic " + base64.b64encode(b"me:s3cret").decode()
    monkeypatch.setenv("PIP_INDEX_URL", index.url("/simple/", "me:s3cret@"))
    own, elsewhere = index.url("/files/thing-1.0.tar.gz"), other.url("/files/thing-1.0.tar.gz", "a:b@")
    for address in (own, elsewhere):
        index.answers["/simple/thing/"] = (200, HTML, anchors(address))
        assert "s3cret" not in fetched(tmp_path)
    assert dict(index.asked) == {"/simple/thing/": basic, "/files/thing-1.0.tar.gz": basic}
    index.answers["/simple/thing/"] = (302, other.url("/moved"), b"")
    other.answers["/moved"] = (200, HTML, anchors("/files/thing-1.0.tar.gz"))
    fetched(tmp_path)
    index.answers["/simple/thing/"] = (200, HTML, anchors(own))
    index.answers["/files/thing-1.0.tar.gz"] = (302, elsewhere.replace("a:b@", ""), b"")
    fetched(tmp_path)
    assert {sent for _, sent in other.asked} == {None} and len(other.asked) == 4
    index.answers.clear()
    with pytest.raises(IndexFailure) as failure:
        fetched(tmp_path)
    assert "s3cret" not in str(failure.value) and index.url("/simple/thing/") in str(failure.value)


def test_other_bytes_are_passed_over(hosts: tuple[Host, Host], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index, other = hosts
    index.answers["/thing/"] = other.answers["/thing/"] = (200, HTML, anchors("/files/thing-1.0.tar.gz"))
    index.answers["/files/thing-1.0.tar.gz"] = (200, "a/b", b"changed")
    monkeypatch.setenv("PIP_INDEX_URL", index.url())
    with pytest.raises(IndexFailure) as failure:
        fetched(tmp_path)
    assert failure.value.other_bytes
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", f"{index.url('/gone')} {other.url()}")
    fetched(tmp_path)


def test_a_page_of_the_web_names_no_file_of_this_machine(
    hosts: tuple[Host, Host], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index, _ = hosts
    own = tmp_path / "thing-1.0.tar.gz"
    own.write_bytes(CONTENT)
    index.answers["/thing/"] = (200, HTML, anchors(own.as_uri(), "http://[", "ftp://127.0.0.1/thing-1.0.tar.gz"))
    monkeypatch.setenv("PIP_INDEX_URL", index.url())
    with pytest.raises(IndexFailure) as failure:
        fetched(tmp_path)
    assert "no such file" in str(failure.value)


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"files": [1]}', b'{"files": 1}', b"[" * 100_000])
def test_a_page_that_is_none_is_one_reason(
    body: bytes, hosts: tuple[Host, Host], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts[0].answers["/thing/"] = (200, JSON, body)
    monkeypatch.setenv("PIP_INDEX_URL", hosts[0].url())
    with pytest.raises(IndexFailure):
        fetched(tmp_path)


def test_folders_and_their_urls_need_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "simple" / "thing").mkdir(parents=True)
    (tmp_path / "simple" / "thing" / "thing-1.0.tar.gz").write_bytes(CONTENT)
    monkeypatch.setenv("PIP_INDEX_URL", (tmp_path / "simple").as_uri())
    fetched(tmp_path)
    page = tmp_path / "other" / "thing"
    page.mkdir(parents=True)
    (page / "index.html").write_bytes(anchors("../../simple/thing/thing-1.0.tar.gz#sha256=" + SHA256))
    monkeypatch.setenv("PIP_INDEX_URL", (tmp_path / "other").as_uri())
    fetched(tmp_path, sha256=None)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", f"{tmp_path} {tmp_path / 'simple' / 'thing'}")
    fetched(tmp_path)


def test_pips_files_are_read_and_variables_win(tmp_path: Path) -> None:
    file = tmp_path / ".config" / "pip" / "pip.conf"
    file.parent.mkdir(parents=True)
    file.write_text("[global]\nindex_url = file:///a\nfind-links =\n  /b\n  /c%d\n[download]\ncert = /d\n")
    clean = {"HOME": str(tmp_path), "XDG_CONFIG_DIRS": str(tmp_path / "none")}
    found = configured(clean)
    assert (found.find_links, found.certificates, found.indexes[0]) == (("/b", "/c%d"), "/d", "file:///a")
    assert configured(clean | {"PIP_INDEX_URL": "file:///e"}).indexes[0] == "file:///e"
    assert configured(clean | {"PIP_CONFIG_FILE": "/dev/null"}).find_links == ()


def test_without_configuration_the_index_is_that_of_pips_own_source(monkeypatch: pytest.MonkeyPatch) -> None:
    index = default_index()
    assert index is not None and re.fullmatch(r"https://[a-z.]+/simple", index)
    assert configured({"HOME": "/nowhere", "XDG_CONFIG_DIRS": "/nowhere"}).indexes[:1] == (index,)
    monkeypatch.setattr("benchctl.engines.llama_cpp.package_places.find_spec", lambda name: None)
    assert default_index() is None


UV_FILE = """
index-url = "file:///old"
extra-index-url = ["file:///more"]
find-links = ["/shelf"]
[[index]]
name = "my-mirror"
url = "https://mirror.invalid/simple"
default = true
[[index]]
url = "https://only-for-one-package.invalid/simple"
explicit = true
[[index]]
url = "/flat"
format = "flat"
[pip]
keyring-provider = "subprocess"
"""


def test_uvs_files_and_variables_are_read(tmp_path: Path) -> None:
    file = tmp_path / ".config" / "uv" / "uv.toml"
    file.parent.mkdir(parents=True)
    file.write_text(UV_FILE)
    clean = {"HOME": str(tmp_path), "XDG_CONFIG_DIRS": str(tmp_path / "none"), "PIP_CONFIG_FILE": "/dev/null"}
    found = configured(clean)
    assert found.indexes == ("https://mirror.invalid/simple", "file:///more")
    assert found.find_links == ("/flat", "/shelf") and "keyring" in found.not_read[0]
    login = {"UV_INDEX_MY_MIRROR_USERNAME": "me", "UV_INDEX_MY_MIRROR_PASSWORD": "a@b"}
    assert configured(clean | login).indexes[0] == "https://me:a%40b@mirror.invalid/simple"
    own = {"UV_DEFAULT_INDEX": "file:///d", "UV_INDEX": "x=file:///e file:///f", "UV_FIND_LINKS": "/g,/h"}
    found = configured(clean | own)
    assert found.indexes == ("file:///d", "file:///e", "file:///f", "file:///more")
    assert found.find_links == ("/flat", "/g", "/h", "/shelf")
    assert configured(clean | {"PIP_INDEX_URL": "file:///pip"}).indexes[0] == "file:///pip"
    assert configured(clean | {"UV_OFFLINE": "1"}).indexes == ()
    file.write_text("index-url = [")
    assert configured(clean).indexes == (default_index(),)


def test_netrc_is_for_its_host(hosts: tuple[Host, Host], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index, other = hosts
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password s3cret\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    monkeypatch.setenv("PIP_INDEX_URL", index.url("/simple"))
    index.answers["/simple/thing/"] = (200, HTML, anchors(other.url("/files/thing-1.0.tar.gz")))
    assert "s3cret" not in fetched(tmp_path)
    assert index.asked == [("/simple/thing/", "Basic " + base64.b64encode(b"me:s3cret").decode())]
    assert other.asked == [("/files/thing-1.0.tar.gz", None)], "another port, and not encrypted"


def test_a_login_that_is_wanted_and_settings_that_are_not_read_are_named(
    hosts: tuple[Host, Host], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts[0].answers["/thing/"] = (401, HTML, b"")
    monkeypatch.setenv("UV_DEFAULT_INDEX", hosts[0].url())
    monkeypatch.setenv("PIP_KEYRING_PROVIDER", "subprocess")
    with pytest.raises(IndexFailure) as failure:
        fetched(tmp_path)
    assert "HTTP 401" in str(failure.value) and "pip's keyring-provider" in str(failure.value)


@pytest.mark.parametrize("setting", ["PIP_CERT", "REQUESTS_CA_BUNDLE"])
def test_certificates_that_cannot_be_read_are_one_reason(
    setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(setting, str(tmp_path / "none.pem"))
    with pytest.raises(IndexFailure, match="certificates"):
        fetched(tmp_path)
