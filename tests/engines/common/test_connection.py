"""The ways to a server: a Unix socket, TLS, a proxy; small requests and streams take the same one."""

from __future__ import annotations

import asyncio
import base64
import json
import select
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from typing import Any
from urllib.parse import urlsplit

import pytest

from benchctl.engines.common.completion_stream import CompletionReader
from benchctl.engines.common.http import HttpClient
from benchctl.engines.common.process import make_access
from benchctl.errors import EngineError

CERTIFICATE = Path(__file__).parent / "data" / "server.test.pem"
"""Signed by itself, for `localhost` and `server.test`, with its key; it guards nothing."""
DEAD = "http://127.0.0.1:9"
EVENTS = [
    {"choices": [{"index": 0, "text": "a", "token_ids": [1]}]},
    {"choices": [{"index": 0, "text": "", "token_ids": [], "finish_reason": "length"}], "usage": {"prompt_tokens": 1}},
]


class Origin(BaseHTTPRequestHandler):
    """Answers with what it was asked for, and streams."""

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        reply = {"path": self.path, "headers": {name.lower(): value for name, value in self.headers.items()}}
        self.answer(json.dumps(reply).encode())

    def do_POST(self) -> None:
        self.server.streams.append(dict(self.headers))  # type: ignore[attr-defined]
        self.rfile.read(int(self.headers["Content-Length"]))
        events = [b"data: " + json.dumps(event).encode() + b"\n\n" for event in EVENTS]
        self.answer(b"".join(events) + b"data: [DONE]\n\n")

    def answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class UnixServer(ThreadingHTTPServer):
    address_family = socket.AF_UNIX

    def server_bind(self) -> None:
        TCPServer.server_bind(self)


class Proxy(Origin):
    """A proxy that resolves every name to this machine."""

    def do_GET(self) -> None:
        self.pass_on()

    def do_POST(self) -> None:
        self.pass_on()

    def noted(self) -> None:
        self.server.requests.append((f"{self.command} {self.path}", self.headers["Proxy-Authorization"]))  # type: ignore[attr-defined]

    def pass_on(self) -> None:
        """Answer in the server's place: what a server behind it does is another test's."""
        self.noted()
        (Origin.do_GET if self.command == "GET" else Origin.do_POST)(self)

    def do_CONNECT(self) -> None:
        self.noted()
        if self.headers["Proxy-Authorization"] != expected("me", "pa:ss"):
            self.send_response(407)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(200)
        self.end_headers()
        with socket.create_connection(("127.0.0.1", int(self.path.rpartition(":")[2]))) as origin, suppress(OSError):
            while True:
                for ready in select.select([self.connection, origin], [], [])[0]:
                    block = ready.recv(65536)
                    if not block:
                        return
                    (origin if ready is self.connection else self.connection).sendall(block)


def expected(user: str, password: str) -> str:
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"


Listen = Callable[..., Any]


@pytest.fixture
def listen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Listen]:
    """Start servers of a kind; the caller's own network settings play no part."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    with ExitStack() as stack:

        def begin(handler: type[Origin] = Origin, *, tls: bool = False, path: Path | None = None) -> Any:
            address: Any = ("127.0.0.1", 0) if path is None else str(path)
            server: Any = (ThreadingHTTPServer if path is None else UnixServer)(address, handler)
            server.daemon_threads, server.streams, server.requests = True, [], []
            server.handle_error = lambda *_: None
            if tls:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                context.load_cert_chain(CERTIFICATE)
                server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
            stack.callback(server.server_close)
            stack.callback(server.shutdown)
            return server

        yield begin


def streamed(client: HttpClient) -> str:
    answer = asyncio.run(client.stream("/v1/completions", {}, CompletionReader(), silence_s=60, timeout_s=60)).answer
    return answer.text


def both(client: HttpClient) -> dict[str, Any]:
    """Ask for something small and for a stream; return what the server saw of the former."""
    assert streamed(client) == "a"
    reply = client.get_json("/info?a=1")
    assert isinstance(reply, dict)
    client.close()
    return reply


def test_a_unix_socket(listen: Listen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", DEAD)
    monkeypatch.setenv("all_proxy", DEAD)
    access = make_access(by_socket=True)
    assert access.socket_path is not None
    listen(path=access.socket_path)
    reply = both(HttpClient(access.url(None), socket_path=access.socket_path, headers=access.headers))
    assert reply["path"] == "/info?a=1"
    assert (reply["headers"]["host"], reply["headers"]["authorization"]) == ("localhost", f"Bearer {access.key}")
    access.socket_path.unlink()
    access.folder.rmdir()


def test_a_socket_without_a_listener(tmp_path: Path) -> None:
    client = HttpClient("http://localhost", socket_path=Path("/nowhere/x.sock"))
    assert client.status("/health", 1.0) is None
    for ask in (lambda: client.get("/info"), lambda: streamed(client)):
        with pytest.raises(EngineError, match="accepts no connections"):
            ask()


def test_a_folder_for_sockets_is_short_and_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    access = make_access(by_socket=True)
    assert access.socket_path is not None
    assert len(str(access.socket_path)) < 104
    assert access.folder.stat().st_mode & 0o777 == 0o700
    assert list(access.folder.iterdir()) == list(deep.iterdir()) == []
    access.folder.rmdir()
    accesses = [make_access(by_socket=False) for _ in range(20)]
    assert len({access.key for access in accesses}) == 20
    for access in accesses:
        access.folder.rmdir()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_loopback_is_reached_past_any_proxy(listen: Listen, monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, DEAD)
    server = listen()
    assert both(HttpClient(f"http://{host}:{server.server_port}"))["path"] == "/info?a=1"
    assert len(server.streams) == 1


def test_a_proxy_is_spoken_to_for_another_host(listen: Listen, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = listen(Proxy)
    monkeypatch.setenv("http_proxy", f"http://me:pa%3Ass@127.0.0.1:{proxy.server_port}")
    reply = both(HttpClient("http://server.test/below", headers={"Authorization": "Bearer k"}))
    assert reply["path"] == "http://server.test/below/info?a=1"
    assert proxy.requests == [
        ("POST http://server.test/below/v1/completions", expected("me", "pa:ss")),
        ("GET http://server.test/below/info?a=1", expected("me", "pa:ss")),
    ]
    assert proxy.streams[0]["Host"] == reply["headers"]["host"] == "server.test"
    assert proxy.streams[0]["Authorization"] == reply["headers"]["authorization"] == "Bearer k"


def test_tls_is_checked(listen: Listen, monkeypatch: pytest.MonkeyPatch) -> None:
    server = listen(tls=True)
    url = f"https://localhost:{server.server_port}"
    for ask in (lambda client: client.get("/info"), streamed):
        with pytest.raises(EngineError, match="accepts no connections"):
            ask(HttpClient(url))  # signed by nobody
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
    assert both(HttpClient(url))["path"] == "/info?a=1"
    for ask in (lambda client: client.get("/info"), streamed):
        with pytest.raises(EngineError, match="accepts no connections"):
            ask(HttpClient(url.replace("localhost", "127.0.0.1")))  # not its name


def test_tls_goes_through_a_proxy(listen: Listen, monkeypatch: pytest.MonkeyPatch) -> None:
    server, proxy = listen(tls=True), listen(Proxy)
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
    monkeypatch.setenv("https_proxy", f"http://me:pa%3Ass@127.0.0.1:{proxy.server_port}")
    url = f"https://server.test:{server.server_port}"
    reply = both(HttpClient(url, headers={"Authorization": "Bearer k"}))
    assert (reply["path"], reply["headers"]["authorization"]) == ("/info?a=1", "Bearer k")
    request = f"CONNECT {urlsplit(url).netloc}"
    assert proxy.requests == [(request, expected("me", "pa:ss"))] * 2
    assert "proxy-authorization" not in reply["headers"]


def test_a_proxy_that_refuses(listen: Listen, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = listen(Proxy)
    monkeypatch.setenv("https_proxy", f"http://me:wrong@127.0.0.1:{proxy.server_port}")
    for ask in (lambda client: client.get("/info"), streamed):
        with pytest.raises(EngineError) as caught:
            ask(HttpClient("https://server.test"))
        assert caught.value.kind == "protocol"
        assert "wrong" not in str(caught.value)


@pytest.mark.parametrize("proxy", ["socks5://127.0.0.1:9", "https://127.0.0.1:9", "http://127.0.0.1:x", "http://"])
def test_a_proxy_that_cannot_be_used(listen: Listen, monkeypatch: pytest.MonkeyPatch, proxy: str) -> None:
    monkeypatch.setenv("http_proxy", proxy)
    with pytest.raises(EngineError, match="cannot be used") as caught:
        HttpClient("http://server.test")
    assert "no_proxy" in (caught.value.fix or "")


def test_no_proxy_names_hosts_that_are_reached_directly(listen: Listen, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = listen(Proxy)
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.server_port}")
    monkeypatch.setenv("no_proxy", "server.test")
    for ask in (lambda client: client.get("/info"), streamed):
        with pytest.raises(EngineError, match="accepts no connections"):
            ask(HttpClient("http://server.test"))  # there is no such host
    assert proxy.requests == []
