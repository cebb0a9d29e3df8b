"""Talking to an engine over HTTP: small requests, streams, and what their failures mean.

Nothing is sent twice and no redirect is followed: whatever happens to a request is an answer of the engine's, or an
EngineError. `wire.py` holds the limits of both, the way to the server, and the words of their errors.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic
from urllib.parse import SplitResult, urlsplit
from weakref import WeakSet

import httpx

from benchctl.engines.base import Progress
from benchctl.engines.common import wire
from benchctl.engines.common.connection import BrokenConnectionError, Connection, RefusedError, connect
from benchctl.engines.common.log import READ_THE_LOG, clean, name_log
from benchctl.engines.common.stream import Answer, AnswerReader
from benchctl.engines.common.values import decode
from benchctl.engines.common.wire import (
    SIDE_TIMEOUT_S,
    compressed,
    error_in,
    protocol_error,
    proxy_header,
    route_to,
    too_slow,
)
from benchctl.errors import EngineError

Broken = Callable[[str], EngineError]
"""Makes the error for a broken connection from what happened (without a full stop)."""
Redact = Callable[[str], str]


@dataclass(frozen=True)
class Reply:
    """A whole answer that is no stream."""

    status_code: int
    headers: Mapping[str, str]
    """By lower-case names."""
    body: bytes

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode("utf-8", "replace")

    def json(self) -> Any:  # noqa: ANN401 - whatever a server sends
        """Return the body's value. Raises ValueError."""
        return decode(self.body, wire.MOST_ITEMS)


@dataclass(frozen=True)
class Streamed(Generic[Answer]):
    """A streamed answer, and when its request was sent."""

    answer: Answer
    sent_at: float
    """Seconds of `time.perf_counter`; the connection was open before."""
    e2e_s: float
    """From then until the last of the answer was received."""
    burst_gaps_s: list[float]
    """`AnswerReader.burst_gaps_s`."""


class HttpClient:
    """Requests to an engine below `url`, or below the Unix socket `socket_path`.

    `broken` makes the error for a connection that breaks; `redact` removes secrets from whatever the engine sends.
    Streams run on the event loop, many at a time; the other requests are made one after the other.
    """

    def __init__(
        self,
        url: str,
        *,
        socket_path: Path | None = None,
        headers: Mapping[str, str] | None = None,
        broken: Broken | None = None,
        redact: Redact = str,
        log_path: Path | None = None,
    ) -> None:
        """`log_path`: of an engine that benchctl has started; advice to read it names it."""
        self._base, self._log_path, self._route = url.rstrip("/"), log_path, route_to(url, socket_path)
        # Streams are read as they come, and a gateway that compresses them would hold events back.
        self._headers = {"Accept-Encoding": "identity", "User-Agent": "benchctl", **(headers or {})}
        proxy = self._route.proxy
        # The context of TLS is the streams' (and loading certificates takes long; plain HTTP never uses them).
        verify = self._route.tls or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        # Shorter than servers keep one (uvicorn: 5 s): a connection that is just being closed must not be used again.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=2.0)
        uds = None if socket_path is None else httpx.HTTPTransport(uds=str(socket_path), verify=verify, limits=limits)
        self._client = httpx.Client(
            base_url=url,
            headers=self._headers,
            trust_env=False,
            proxy=None if proxy is None else proxy.geturl(),
            verify=verify,
            limits=limits,
            transport=uds,
            follow_redirects=False,
            event_hooks={"request": [self._watched]},
        )
        self._sockets: WeakSet[socket.socket] = WeakSet()
        self._streams: set[Connection] = set()
        self._broken = broken or (lambda what: protocol_error(f"{what}."))
        self.redact = redact

    def close(self) -> None:
        """Close every connection; a request in flight ends with an error."""
        for stream in list(self._streams):
            stream.abort()
        self._shut()
        self._client.close()

    def _watched(self, request: httpx.Request) -> None:
        request.extensions["trace"] = self._remember

    def _remember(self, event: str, info: Mapping[str, Any]) -> None:
        """Note the socket of a new connection; httpcore calls this for each of its steps."""
        if event in (
            "connection.connect_tcp.complete",
            "connection.connect_unix_socket.complete",
            "connection.start_tls.complete",
        ):
            self._sockets.add(info["return_value"].get_extra_info("socket"))

    def _shut(self) -> None:
        """End what is read now: closing alone would leave that reading waiting."""
        for connected in list(self._sockets):
            with suppress(OSError):
                connected.shutdown(socket.SHUT_RDWR)

    def get(self, path: str, timeout_s: float = SIDE_TIMEOUT_S) -> Reply:
        """Return whatever the engine answers. Raises EngineError."""
        return self._request("GET", path, None, timeout_s)

    def status(self, path: str, timeout_s: float) -> int | None:
        """Return the status of an endpoint; `None` where there is no answer, for whatever reason."""
        with suppress(httpx.HTTPError, RuntimeError, EngineError):
            return self._fetch("GET", path, None, timeout_s).status_code
        return None

    def get_json(self, path: str) -> object:
        """Return the JSON of an endpoint, or `None` when the engine does not have it."""
        reply = self.get(path)
        try:
            return reply.json() if reply.status_code == 200 else None
        except ValueError:
            return None

    def status_of_post(self, path: str) -> int:
        """Return the status of an empty request, which no engine takes: whether there is such an endpoint."""
        return self._request("POST", path, {}, SIDE_TIMEOUT_S).status_code

    def post(self, path: str, body: Mapping[str, Any], timeout_s: float = SIDE_TIMEOUT_S) -> dict[str, Any]:
        """Return the JSON object that answers a request. Raises EngineError."""
        answer = self.post_any(path, body, timeout_s)
        if not isinstance(answer, dict):
            raise protocol_error(f"The engine's answer to {path} is no JSON object.")
        return answer

    def post_any(self, path: str, body: Mapping[str, Any], timeout_s: float = SIDE_TIMEOUT_S) -> Any:  # noqa: ANN401
        """Return the JSON that answers a request, whatever it is. Raises EngineError."""
        with self._redacted():
            reply = self._request("POST", path, body, timeout_s)
            if reply.status_code != 200:
                raise self.refused(reply)
            try:
                return reply.json()
            except ValueError as error:
                raise protocol_error(f"The engine's answer to {path} is no JSON.") from error

    def _request(self, method: str, path: str, body: Mapping[str, Any] | None, timeout_s: float) -> Reply:
        """Make a request; turn what httpx raises into the engine's own failures."""
        with self._redacted():
            try:
                return self._fetch(method, path, body, timeout_s)
            except httpx.TimeoutException as error:
                raise too_slow(timeout_s) from error
            except httpx.ConnectError as error:
                raise self._broken("The engine accepts no connections") from error
            except (httpx.TransportError, httpx.StreamError) as error:
                raise self._broken("The connection to the engine broke") from error
            except RuntimeError as error:
                if not self._client.is_closed:
                    raise
                raise self._broken("The connection was closed") from error

    def _fetch(self, method: str, path: str, body: Mapping[str, Any] | None, timeout_s: float) -> Reply:
        """Make a request within the limits. Raises EngineError for what exceeds them, and what httpx raises."""
        deadline = time.monotonic() + timeout_s
        # A server that sends a byte now and then keeps every read short: the whole has a limit of its own.
        late = threading.Event()

        def too_late() -> None:
            late.set()
            self._shut()

        alarm = threading.Timer(timeout_s + 0.05, too_late)
        alarm.daemon = True
        alarm.start()
        content = None if body is None else json.dumps(body).encode()
        headers = {} if body is None else {"Content-Type": "application/json"}
        try:
            with self._client.stream(method, path, content=content, headers=headers, timeout=timeout_s) as response:
                whole = bytearray()
                most = wire.MOST_BYTES if body is not None else wire.MOST_PAGE_BYTES
                encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
                if encoding not in ("", "identity") and response.status_code == 200:
                    raise compressed(encoding)
                for block in response.iter_raw():
                    whole += block
                    if len(whole) > most:
                        if response.status_code != 200:
                            break
                        raise protocol_error(f"The engine's answer to {path} is longer than {most >> 20} MiB.")
                    if time.monotonic() > deadline:
                        raise too_slow(timeout_s, "finished no answer")
                    if response.status_code != 200 and len(whole) > wire.MOST_ERROR_BYTES:
                        break
                return Reply(response.status_code, dict(response.headers), bytes(whole))
        except httpx.TransportError as error:
            if late.is_set():
                raise too_slow(timeout_s, "finished no answer") from error
            raise
        finally:
            alarm.cancel()

    async def stream(
        self,
        path: str,
        body: Mapping[str, Any],
        reader: AnswerReader[Answer],
        *,
        silence_s: float,
        timeout_s: float,
        on_tokens: Progress | None = None,
    ) -> Streamed[Answer]:
        """Send a request on a connection of its own and read its stream. Raises EngineError.

        The clock starts when the request is sent, on a connection that is open: opening it is in no figure.
        `silence_s` and `timeout_s`: how long no token may come, and how long all of it may take.
        """
        url = urlsplit(path if "://" in path else self._base + path)
        with self._redacted():
            try:
                stream = await connect(url, self._route)
            except (OSError, TimeoutError) as error:
                raise await _in_thread(self._broken, "The engine accepts no connections") from error
            self._streams.add(stream)
            try:
                if self._client.is_closed:  # while the connection was made
                    raise BrokenConnectionError("The connection was closed")
                request = self._head(url, json.dumps(body).encode())
                reader.begin(time.perf_counter(), silence_s=silence_s, timeout_s=timeout_s, on_tokens=on_tokens)
                stream.send(request, reader)
                await stream.ended
            except BrokenConnectionError as error:
                raise await _in_thread(self._broken, str(error)) from error
            except RefusedError as error:
                raise self.refused(Reply(error.status, error.headers, error.body)) from None
            finally:
                self._streams.discard(stream)
                stream.abort()
            answer = reader.answer()
            if answer is None:
                raise await _in_thread(self._broken, "The answer ended in its middle")
            return Streamed(answer, reader.started, reader.clock - reader.started, reader.burst_gaps_s)

    def _head(self, url: SplitResult, content: bytes) -> bytes:
        """Return the request for `url` with its body."""
        target = (url.path or "/") + (f"?{url.query}" if url.query else "")
        through = ""
        if self._route.proxy is not None and self._route.tls is None:
            target, through = f"http://{url.netloc}{target}", proxy_header(self._route.proxy)
        headers = {
            "Host": url.netloc,
            **self._headers,
            "Accept": "text/event-stream, application/json",
            "Content-Type": "application/json",
            "Content-Length": str(len(content)),
            "Connection": "close",
        }
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return f"POST {target} HTTP/1.1\r\n{lines}{through}\r\n".encode("latin-1") + content

    @contextmanager
    def _redacted(self) -> Iterator[None]:
        """Remove secrets from every error, and name the path of a log that its advice mentions."""
        try:
            yield
        except EngineError as error:
            error.what = self.redact(error.what)
            error.args = (error.what,)
            if error.fix:
                error.fix = name_log(error.fix, self._log_path)
            raise

    def refused(self, reply: Reply) -> EngineError:
        """Return what a status other than 200 means."""
        # Before anything is cut or escaped, which could leave a part of a secret that is no longer recognised.
        body = self.redact(reply.text).encode()
        message = repr(clean(body[:500].decode("utf-8", "replace"))) if body else "an empty body"
        with suppress(ValueError):
            message = error_in(decode(body)) or message
        status, fix = reply.status_code, None if self._log_path is None else READ_THE_LOG
        if status in (401, 403):
            fix = "Name the environment variable that holds a valid key: engine.api_key_env."
        elif status == 429:
            wait = reply.headers.get("retry-after")
            advised = f" It sent Retry-After: {clean(wait)[:40]}." if wait else ""
            fix = (
                f"benchctl does not retry, because retries would be measured.{advised} "
                "Lower the concurrency or the rate, or raise the endpoint's limit."
            )
        elif 300 <= status < 400:
            target = clean(reply.headers.get("location", "elsewhere"))[:200]
            fix = f"No redirect is followed; write the address itself: {target}"
        return EngineError(
            self.redact(f"The engine refused the request: HTTP {status}: {message}"),
            kind="http",
            fix=None if fix is None else self.redact(fix),
        )


async def _in_thread(broken: Broken, what: str) -> EngineError:
    """Make the error of a broken connection off the event loop: it may take seconds, and other streams are read
    meanwhile."""
    return await asyncio.to_thread(broken, what)
