"""huggingface-hub against a small hub on this machine: what it serves, what it refuses, and what works without it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import unquote, urlsplit

import huggingface_hub.constants as hub_constants
import pytest

from benchctl.errors import UsageError
from benchctl.models.hub import OfflineError, fetch
from benchctl.recipes.source import HubSource

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES: dict[str, dict[str, bytes]] = {
    "org/one": {"README.md": b"hello", "model.gguf": b"GGUF one"},
    "org/many": {"a-q4.gguf": b"GGUF a", "b-q8.gguf": b"GGUF b"},
    "org/sharded": {f"m-{number:05d}-of-00002.gguf": b"GGUF %d" % number for number in (1, 2)},
    "org/plain": {"model.safetensors": b"x", "config.json": b"{}"},
    "org/nothing": {"README.md": b"x"},
}


class Hub(BaseHTTPRequestHandler):
    """The few addresses that downloading needs."""

    requests: list[str]

    def log_message(self, *_: object) -> None:
        """Keep the test's output clean."""

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def answer(self, body: bool) -> None:
        path = unquote(urlsplit(self.path).path).strip("/")
        Hub.requests.append(f"{self.command} /{path}")
        parts = path.removeprefix("api/models/").split("/")
        repo, rest = "/".join(parts[:2]), parts[2:]
        if repo == "org/gated" and "resolve" in rest:
            return self.send(403, b"", {"X-Error-Code": "GatedRepo"}, body)
        if repo not in FILES:
            return self.send(401, b"", {"X-Error-Code": "RepoNotFound"}, body)
        if path.startswith("api/models/"):
            tree = [
                {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                for name, data in FILES[repo].items()
            ]
            siblings = [{"rfilename": name} for name in FILES[repo]]
            listing: Any = tree if rest[:1] == ["tree"] else {"id": repo, "sha": COMMIT, "siblings": siblings}
            return self.send(200, json.dumps(listing).encode(), {"Content-Type": "application/json"}, body)
        data = FILES[repo].get("/".join(rest[2:]))
        if data is None:
            return self.send(404, b"", {"X-Error-Code": "EntryNotFound"}, body)
        etag = hashlib.sha1(data).hexdigest()
        return self.send(200, data, {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT}, body)

    def send(self, status: int, data: bytes, headers: dict[str, str], body: bool) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(data)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadingHTTPServer]:
    """Run the hub, and point huggingface-hub at it and at an empty cache."""
    Hub.requests = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    address = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(hub_constants, "ENDPOINT", address)
    monkeypatch.setattr(
        hub_constants, "HUGGINGFACE_CO_URL_TEMPLATE", address + "/{repo_id}/resolve/{revision}/{filename}"
    )
    monkeypatch.setattr(hub_constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(hub_constants, "HF_HUB_OFFLINE", False)
    for proxy in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(proxy, raising=False)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_named_file_is_downloaded_once(hub: ThreadingHTTPServer) -> None:
    path = fetch(HubSource("org/many", "b-q8.gguf"))
    assert path.read_bytes() == b"GGUF b"
    assert fetch(HubSource("org/many", "b-q8.gguf")) == path
    assert sum(request.startswith("GET /org/many/resolve/") for request in Hub.requests) == 1


def test_the_only_gguf_file_needs_no_name(hub: ThreadingHTTPServer) -> None:
    said: list[str] = []
    assert fetch(HubSource("org/one", None), said.append).read_bytes() == b"GGUF one"
    assert said == ["Fetching org/one/model.gguf"]


def test_all_shards_are_downloaded(hub: ThreadingHTTPServer) -> None:
    for name in (None, "m-00002-of-00002.gguf"):
        path = fetch(HubSource("org/sharded", name))
        assert path.name == "m-00001-of-00002.gguf"
        assert path.with_name("m-00002-of-00002.gguf").read_bytes() == b"GGUF 2"


@pytest.mark.parametrize(
    ("repo", "file", "message"),
    [
        (
            "org/many",
            None,
            "hf:org/many: the repository holds 2 GGUF files; name one\n"
            "One of:\n  hf:org/many/a-q4.gguf\n  hf:org/many/b-q8.gguf",
        ),
        (
            "org/plain",
            None,
            "hf:org/plain: the repository holds safetensors only, and llama.cpp reads GGUF\n"
            "Convert it once with llama.cpp's converter, and point benchctl at the folder:\n"
            "  hf download org/plain --local-dir plain\n"
            "  python convert_hf_to_gguf.py plain --outtype bf16 --outfile models/plain.gguf\n"
            "  benchctl run … --models-dir models",
        ),
        ("org/nothing", None, "hf:org/nothing: the repository holds no GGUF file\nName another repository."),
        (
            "org/many",
            "b-q9.gguf",
            "hf:org/many/b-q9.gguf: the repository has no such file\nDid you mean 'b-q8.gguf'?",
        ),
        (
            "org/unknown",
            None,
            "hf:org/unknown: the hub has no such repository, or it is private\n"
            "Check the spelling; for a private one, log in: hf auth login",
        ),
        (
            "org/gated",
            "m.gguf",
            "hf:org/gated/m.gguf: access to this repository must be granted first\n"
            "Accept the model's terms on its page, then log in: hf auth login",
        ),
    ],
)
def test_what_the_hub_does_not_give_is_explained(
    hub: ThreadingHTTPServer, repo: str, file: str | None, message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        fetch(HubSource(repo, file))
    assert str(caught.value) == message


@pytest.mark.parametrize("how", ["unreachable", "HF_HUB_OFFLINE"])
def test_without_a_network_the_cache_serves_and_what_it_lacks_is_one_error(
    hub: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    path = fetch(HubSource("org/one", None))
    if how == "unreachable":
        hub.shutdown()
        hub.server_close()
    else:
        monkeypatch.setattr(hub_constants, "HF_HUB_OFFLINE", True)
    assert fetch(HubSource("org/one", "model.gguf")) == path
    assert fetch(HubSource("org/one", None)) == path
    for source in (HubSource("org/many", "a-q4.gguf"), HubSource("org/many", None)):
        with pytest.raises(OfflineError, match="the hub cannot be reached, and its cache does not hold"):
            fetch(source)
