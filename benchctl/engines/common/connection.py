"""A connection that carries a request and its answer: opened before the clock starts, read on the event loop in C.

Bytes are timed as they are received, before anything is made of them. (Why not by httpx: `docs/adapters.md`.)
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import SplitResult

import httptools

from benchctl.engines.common import wire
from benchctl.engines.common.stream import AnswerReader
from benchctl.engines.common.wire import Route, protocol_error, proxy_header
from benchctl.errors import EngineError

_FRAMING_A_BYTE = 64
"""Bytes of framing allowed for each byte of the body; the frame of a chunk takes 6."""


class BrokenConnectionError(Exception):
    """The connection ended before the answer did; the message is what happened, without a full stop."""


class RefusedError(Exception):
    """The engine answered with another status than 200, or with something that is no stream."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        super().__init__(f"HTTP {status}")
        self.status, self.headers, self.body = status, headers, body


class Connection(asyncio.Protocol):
    """Sends a request and hands what comes to a reader; httptools calls the methods that begin with `on_`."""

    def __init__(self) -> None:
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        """Done once the answer is whole or has failed."""
        self._transport: asyncio.Transport | None = None
        self._body: list[bytes] = []
        self.on_body = self._body.append
        self._parser = httptools.HttpResponseParser(self)
        self._framing = 0
        """Bytes received in a row that exceed the framing allowed for the body."""
        self.headers: dict[str, str] = {}
        """The answer's headers; names are in lower case."""
        self._status = 0
        self._until_close = True
        self._complete = False
        self._refusal = b""
        self._reader: AnswerReader[Any] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def send(self, request: bytes, reader: AnswerReader[Any]) -> None:
        """Send a request; `reader.begin` has just noted when."""
        assert self._transport is not None
        self._reader = reader
        self._transport.write(request)
        self._watch()

    def abort(self, reason: str = "The connection was closed") -> None:
        """Close it at once, from whichever thread; what waits for the answer gets an error."""
        if threading.get_ident() == self._thread:
            self._end(BrokenConnectionError(reason))
        else:
            self._loop.call_soon_threadsafe(self._end, BrokenConnectionError(reason))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember the transport."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Take bytes at the moment at which they were received."""
        now = time.perf_counter()
        reader = self._reader
        if self.ended.done() or reader is None:
            return
        try:
            self._parser.feed_data(data)
            framing = len(data)
            if self._body:
                body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
                self._body.clear()
                framing -= _FRAMING_A_BYTE * len(body)
                if self._status == 200:
                    reader.feed(body, now)
                else:
                    self._refusal += body
            self._framing = self._framing + framing if framing > 0 else 0
            if reader.over:
                self._end(None)
            elif self._complete or len(self._refusal) > wire.MOST_ERROR_BYTES:
                self._finish()
            elif self._framing > wire.MOST_HEAD_BYTES:
                raise protocol_error(
                    f"The engine's answer has more than {wire.MOST_HEAD_BYTES} bytes of headers or trailers."
                )
        except httptools.HttpParserError as error:
            cause = error.__context__  # what a method below raised
            self._end(
                cause
                if isinstance(cause, EngineError)
                else protocol_error(f"The engine's answer is no HTTP ({type(error).__name__}).")
            )
        except Exception as error:
            self._end(error)

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the end of the connection to what waits for the answer."""
        if self._status and self._until_close and exc is None:
            self._finish()
        self._end(BrokenConnectionError("The connection to the engine broke"))
        # The parser refers back to this; garbage is not collected while a cell is measured.
        del self._parser
        self._reader = None

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; trailers are dropped."""
        if self._status:
            return
        if len(self.headers) >= wire.MOST_HEADERS:
            raise protocol_error(f"The engine's answer has more than {wire.MOST_HEADERS} headers.")
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """Check how the body is framed, and that it is not compressed."""
        status = self._parser.get_status_code()
        if status < 200:  # not yet the answer
            self.headers.clear()
            return
        self._status = status
        self._until_close = not self.headers.keys() & {"transfer-encoding", "content-length"}
        encoding = self.headers.get("content-encoding", "identity").strip().lower()
        if encoding not in ("", "identity") and status == 200:
            raise protocol_error(f"The engine compressed its answer ({encoding[:40]!r}), which was not requested.")

    def on_message_complete(self) -> None:
        """Note that all of the body has come."""
        self._complete = self._status != 0

    def _finish(self) -> None:
        if self._status != 200:
            self._end(RefusedError(self._status, self.headers, self._refusal[: wire.MOST_ERROR_BYTES]))
        elif not self._unfinished():
            self._end(None)
        elif self._reader is not None and self._reader.unstreamed:
            self._end(RefusedError(self._status, self.headers, self._reader.unstreamed))
        else:
            self._end(BrokenConnectionError("The answer ended in its middle"))

    def _unfinished(self) -> bool:
        try:
            return self._reader is None or self._reader.answer() is None
        except EngineError:  # raised where the answer is awaited
            return False

    def _watch(self) -> None:
        """Check again when the next token is due."""
        if self.ended.done() or self._reader is None:
            return
        now = time.perf_counter()
        try:
            self._reader.check_time(now)
        except EngineError as error:
            self._end(error)
            return
        wait = min(max(self._reader.due - now, 0.0) + 0.001, 3600.0)
        self._timer = self._loop.call_later(wait, self._watch)

    def _end(self, error: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self.ended.done():
            if error is None:
                self.ended.set_result(None)
            else:
                self.ended.set_exception(error)
        if self._transport is not None:
            self._transport.abort()


async def connect(url: SplitResult, route: Route) -> Connection:
    """Open a connection to the host of `url`. Raises OSError and TimeoutError."""
    loop = asyncio.get_running_loop()
    host, port = url.hostname or "", url.port or (443 if url.scheme == "https" else 80)
    async with asyncio.timeout(wire.CONNECT_TIMEOUT_S):
        if route.socket_path is not None:
            _, connection = await loop.create_unix_connection(Connection, str(route.socket_path))
        elif route.proxy is not None:
            connection = await _through(route.proxy, host, port, route.tls)
        else:
            _, connection = await loop.create_connection(Connection, host, port, ssl=route.tls)
    return connection


async def _through(proxy: SplitResult, host: str, port: int, tls: ssl.SSLContext | None) -> Connection:
    loop, proxy_address = asyncio.get_running_loop(), (proxy.hostname or "", proxy.port or 80)
    if tls is None:
        _, connection = await loop.create_connection(Connection, *proxy_address)
        return connection
    opened = await asyncio.to_thread(socket.create_connection, proxy_address, wire.CONNECT_TIMEOUT_S)
    try:
        opened.setblocking(False)
        named = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        request = f"CONNECT {named} HTTP/1.1\r\nHost: {named}\r\n{proxy_header(proxy)}\r\n"
        await loop.sock_sendall(opened, request.encode("latin-1"))
        head = bytearray()
        while b"\r\n\r\n" not in head:
            block = await loop.sock_recv(opened, 4096)
            if not block or len(head) > wire.MOST_HEAD_BYTES:
                raise OSError("the proxy did not answer")
            head += block
        if head.split(b" ", 2)[1:2] != [b"200"]:
            raise OSError(f"the proxy refused: {head.splitlines()[0][:80].decode('latin-1')}")
        _, connection = await loop.create_connection(Connection, sock=opened, ssl=tls, server_hostname=host)
    except BaseException:
        opened.close()
        raise
    return connection
