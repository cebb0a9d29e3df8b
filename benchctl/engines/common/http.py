"""HTTP requests to an engine: small ones, streams, and the errors for their failures.

Each request has a connection of its own. Nothing is sent twice, and no redirect is followed: a request ends with the
engine's answer or with an EngineError. `wire.py` holds the limits, the route to the server, and the wording of errors.
"""

from __future__ import annotations

import asyncio
import json
import math
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache
from pathlib import Path
from typing import Any, Generic
from urllib.parse import SplitResult, urlsplit

from benchctl.engines.base import Progress
from benchctl.engines.common import wire
from benchctl.engines.common.connection import BrokenConnectionError, Connection, RefusedError, connect
from benchctl.engines.common.log import READ_THE_LOG, clean, name_log
from benchctl.engines.common.stream import Answer, AnswerReader
from benchctl.engines.common.wire import SIDE_TIMEOUT_S, decode, error_in, protocol_error, proxy_header, route_to
from benchctl.errors import EngineError

BUSY = (429, 503)
"""The statuses of a server that has no time now; only where it names a time, in `Retry-After`, is it waited for."""
_LEAST_WAIT_S = 0.1
Broken = Callable[[str], EngineError]
"""Makes the error for a broken connection from what happened (without a full stop)."""
Redact = Callable[[str], str]


@dataclass(frozen=True)
class Reply:
    """An answer that is not streamed."""

    status_code: int
    headers: Mapping[str, str]
    """The names are in lower case."""
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


class _BodyReader(AnswerReader[bytes]):
    """Reads an answer that is not streamed, of at most `max_bytes` bytes."""

    def __init__(self, path: str, max_bytes: int) -> None:
        super().__init__()
        self._path, self._max_bytes, self._body = path, max_bytes, bytearray()

    def feed(self, chunk: bytes, now: float) -> None:
        self._body += chunk
        if len(self._body) > self._max_bytes:
            raise protocol_error(f"The engine's answer to {self._path} is longer than {self._max_bytes >> 20} MiB.")

    def event(self, event: dict[str, Any]) -> None: ...

    def answer(self) -> bytes:
        return bytes(self._body)


@cache
def _background() -> asyncio.AbstractEventLoop:
    """Return an event loop that runs in a thread of its own: small requests are made from anywhere."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="small requests", daemon=True).start()
    return loop


class HttpClient:
    """Requests to an engine below `url`, or below the Unix socket `socket_path`.

    `broken` makes the error for a connection that breaks; `redact` removes secrets from whatever the engine sends.
    Streams run on the caller's event loop, many at a time; the other requests are waited for.
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
        self._open: set[Connection] = set()
        self._closed = False
        self._broken = broken or (lambda message: protocol_error(f"{message}."))
        self.redact = redact

    def close(self) -> None:
        """Close every connection; a request in flight ends with an error."""
        self._closed = True
        for connection in list(self._open):
            connection.abort()

    def get(self, path: str, timeout_s: float = SIDE_TIMEOUT_S) -> Reply:
        """Return whatever the engine answers. Raises EngineError."""
        return self._request("GET", path, None, timeout_s)

    def status(self, path: str, timeout_s: float) -> int | None:
        """Return the status of an endpoint; `None` where there is no answer, for whatever reason."""
        with suppress(OSError, BrokenConnectionError, EngineError):
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
        """Make a request. Raises EngineError."""
        with self._redacted():
            try:
                return self._fetch(method, path, body, timeout_s)
            except TimeoutError as error:
                message = f"The engine finished no answer for {timeout_s:g} s."
                raise EngineError(message, kind="timeout", fix=READ_THE_LOG) from error
            except OSError as error:
                raise self._broken("The engine accepts no connections") from error
            except BrokenConnectionError as error:
                raise self._broken(str(error)) from error

    def _fetch(self, method: str, path: str, body: Mapping[str, Any] | None, timeout_s: float) -> Reply:
        """Make a request. Raises OSError, BrokenConnectionError, and EngineError for what exceeds the limits."""
        reader = _BodyReader(path, wire.MOST_PAGE_BYTES if body is None else wire.MOST_BYTES)
        content = None if body is None else json.dumps(body).encode()

        async def exchange() -> Reply:
            async with asyncio.timeout(timeout_s), self._connected(path) as connection:
                connection.send(self._head(method, path, content), reader)
                try:
                    await connection.ended
                except RefusedError as refused:
                    return Reply(refused.status, refused.headers, refused.body)
            return Reply(200, connection.headers, reader.answer())

        waiting = asyncio.run_coroutine_threadsafe(exchange(), _background())
        try:
            return waiting.result()
        finally:
            waiting.cancel()  # after an interrupt it still runs

    @asynccontextmanager
    async def _connected(self, path: str) -> AsyncIterator[Connection]:
        """Open a connection, which `close` ends. Raises OSError, BrokenConnectionError."""
        connection = await connect(self._url(path), self._route)
        self._open.add(connection)
        try:
            if self._closed:  # while the connection was made
                raise BrokenConnectionError("The connection was closed")
            yield connection
        finally:
            self._open.discard(connection)
            connection.abort()

    def _url(self, path: str) -> SplitResult:
        return urlsplit(path if "://" in path else self._base + path)

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
        content = json.dumps(body).encode()
        with self._redacted():
            try:
                async with self._connected(path) as connection:
                    request = self._head("POST", path, content)
                    reader.begin(time.perf_counter(), silence_s=silence_s, timeout_s=timeout_s, on_tokens=on_tokens)
                    connection.send(request, reader)
                    await connection.ended
            except OSError as error:
                raise await _in_thread(self._broken, "The engine accepts no connections") from error
            except BrokenConnectionError as error:
                raise await _in_thread(self._broken, str(error)) from error
            except RefusedError as error:
                raise self.refused(Reply(error.status, error.headers, error.body)) from None
            answer = reader.answer()
            if answer is None:
                raise protocol_error("The stream ended, and none of its events has a finish_reason.")
            return Streamed(answer, reader.started, reader.clock - reader.started, reader.burst_gaps_s)

    def _head(self, method: str, path: str, content: bytes | None) -> bytes:
        """Return the request for `path` with its body."""
        url = self._url(path)
        target, through = (url.path or "/") + (f"?{url.query}" if url.query else ""), ""
        if self._route.proxy is not None and self._route.tls is None:
            target, through = f"http://{url.netloc}{target}", proxy_header(self._route.proxy)
        headers = {"Host": url.netloc, **self._headers, "Accept": "*/*", "Connection": "close"}
        if content is not None:
            headers |= {"Content-Type": "application/json", "Content-Length": str(len(content))}
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return f"{method} {target} HTTP/1.1\r\n{lines}{through}\r\n".encode("latin-1") + (content or b"")

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
        """Return what a status other than 200 means, or 200 with something that is no stream."""
        # Before anything is cut or escaped, which could leave a part of a secret that is no longer recognised.
        body = self.redact(reply.text).encode()
        message = repr(clean(body[:500].decode("utf-8", "replace"))) if body else "an empty body"
        error = None
        with suppress(ValueError):
            error = error_in(decode(body))
        if reply.status_code == 200 and error is None:
            kind = clean(reply.headers.get("content-type", "something else"))[:80]
            return protocol_error(
                self.redact(f"The engine sent no stream of events, but {kind}: {message[:200]}"),
                "benchctl times tokens as they arrive: name the URL of a server that takes `stream: true`.",
            )
        message = error or message
        status, fix = reply.status_code, None if self._log_path is None else READ_THE_LOG
        if status in (401, 403):
            fix = "Name the environment variable that holds a valid key: engine.api_key_env."
        elif status in BUSY and self._log_path is None:
            wait = reply.headers.get("retry-after")
            advised = f"It sent Retry-After: {clean(wait)[:40]}. " if wait else "It sent no Retry-After. "
            fix = (
                f"{advised}benchctl waits for it where requests are sent one at a time, within "
                "engine.request_timeout_s. Lower the concurrency or the rate, or raise the endpoint's limit."
            )
        elif 300 <= status < 400:
            target = clean(reply.headers.get("location", "elsewhere"))[:200]
            fix = f"No redirect is followed; write the address itself: {target}"
        refusal = EngineError(
            self.redact(f"The engine refused the request: HTTP {status}: {message}"),
            kind="http",
            fix=None if fix is None else self.redact(fix),
        )
        refusal.retry_after_s = _retry_after_s(reply)
        return refusal


def _retry_after_s(reply: Reply) -> float | None:
    """Return the wait that a busy server asks for, in seconds or until a date; `None` where it asks for none."""
    if reply.status_code not in BUSY:
        return None
    text = reply.headers.get("retry-after", "")
    with suppress(ValueError, TypeError, OverflowError):
        until = None if text[:1].isdigit() else parsedate_to_datetime(text)
        seconds = float(text) if until is None else (until - datetime.now(UTC)).total_seconds()
        return max(_LEAST_WAIT_S, seconds) if seconds < math.inf else None
    return None


async def _in_thread(broken: Broken, message: str) -> EngineError:
    """Make the error of a broken connection off the event loop: it may take seconds, and other streams go on."""
    return await asyncio.to_thread(broken, message)
