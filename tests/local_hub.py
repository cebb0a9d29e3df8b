"""A small Hugging Face hub on this machine: the few addresses that downloading needs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import unquote, urlsplit

import huggingface_hub.constants as hub_constants
import pytest

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(BaseHTTPRequestHandler):
    """Serves `files`, and remembers what was asked."""

    requests: list[str]
    files: dict[str, dict[str, bytes]]
    """By repository; a dataset's name begins with `datasets/`."""

    def log_message(self, *_: object) -> None:
        """Keep the test's output clean."""

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def answer(self, body: bool) -> None:
        path = unquote(urlsplit(self.path).path).strip("/")
        Hub.requests.append(f"{self.command} /{path}")
        parts = path.removeprefix("api/").removeprefix("models/").split("/")
        length = 3 if parts[0] == "datasets" else 2
        repo, rest = "/".join(parts[:length]), parts[length:]
        if repo == "org/gated" and "resolve" in rest:
            return self.send(403, b"", {"X-Error-Code": "GatedRepo"}, body)
        if repo not in self.files:
            return self.send(401, b"", {"X-Error-Code": "RepoNotFound"}, body)
        if path.startswith("api/"):
            tree = [
                {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                for name, data in self.files[repo].items()
            ]
            siblings = [{"rfilename": name} for name in self.files[repo]]
            listing: Any = tree if rest[:1] == ["tree"] else {"id": repo, "sha": COMMIT, "siblings": siblings}
            return self.send(200, json.dumps(listing).encode(), {"Content-Type": "application/json"}, body)
        data = self.files[repo].get("/".join(rest[2:]))
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


@contextmanager
def serving(
    files: dict[str, dict[str, bytes]], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ThreadingHTTPServer]:
    """Run the hub, and point huggingface-hub at it and at the empty folder `cache`."""
    Hub.requests = []
    Hub.files = files
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    address = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(hub_constants, "ENDPOINT", address)
    monkeypatch.setattr(
        hub_constants, "HUGGINGFACE_CO_URL_TEMPLATE", address + "/{repo_id}/resolve/{revision}/{filename}"
    )
    monkeypatch.setattr(hub_constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(hub_constants, "HF_HUB_OFFLINE", False)
    for proxy in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(proxy, raising=False)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
