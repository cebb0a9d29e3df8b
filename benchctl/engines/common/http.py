"""Talking to an engine over HTTP: small requests, streams, and what their failures mean.

One client may be used by several threads at once. Nothing is sent twice and no redirect is followed: whatever happens
to a request is an answer of the engine's, or an EngineError.
"""

from __future__ import annotations

import json
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, TypeVar
from weakref import WeakSet

import httpx

from benchctl.engines.base import Progress
from benchctl.engines.common.log import clean
from benchctl.engines.common.stream import error_in, protocol_error
from benchctl.errors import EngineError

SIDE_TIMEOUT_S = 60.0
"""For the small requests around a measurement."""
_ERROR_BODY_BYTES = 65536
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})

Answer = TypeVar("Answer")
Reader = Callable[[Iterable[bytes], float, float, Progress | None], Answer | None]
"""Reads a stream that was sent at a time and may take so many seconds; `None` when it ends in its middle."""
Broken = Callable[[str], EngineError]
"""Says what it means that a connection broke; it is given what happened, without a full stop."""
Redact = Callable[[str], str]


class HttpClient:
    """Requests to one engine below `url`.

    `broken` makes the error for a connection that breaks; `redact` cleans whatever the engine says of secrets.
    """

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        broken: Broken | None = None,
        redact: Redact = str,
    ) -> None:
        local = httpx.URL(url).host in _LOOPBACK
        self._client = httpx.Client(
            base_url=url,
            # Streams are read as they come, and a gateway that compresses them would hold events back.
            headers={"Accept-Encoding": "identity", **(headers or {})},
            # No proxy on loopback: the caller's network settings have nothing to do with it.
            trust_env=not local,
            # Loading certificates takes long; plain HTTP never uses them.
            verify=True if url.startswith("https:") else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
            timeout=SIDE_TIMEOUT_S,
            # Shorter than servers keep one (uvicorn: 5 s): one that is just being closed must not be used again.
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=2.0),
            follow_redirects=False,
            event_hooks={"request": [self._watched]},
        )
        self._sockets: WeakSet[socket.socket] = WeakSet()
        self._closed = False
        self._broken = broken or (lambda what: protocol_error(f"{what}."))
        self.redact = redact

    def close(self) -> None:
        """Close every connection; a request in flight, in whatever thread, ends with an error."""
        self._closed = True
        for connected in list(self._sockets):
            _shut(connected)
        self._client.close()

    def _watched(self, request: httpx.Request) -> None:
        request.extensions["trace"] = self._remember

    def _remember(self, event: str, info: Mapping[str, Any]) -> None:
        """Note the socket of a new connection; httpcore calls this with everything that it does."""
        if event in ("connection.connect_tcp.complete", "connection.start_tls.complete"):
            connected = info["return_value"].get_extra_info("socket")
            self._sockets.add(connected)
            if self._closed:  # it was being made while the others were closed
                _shut(connected)

    def get(self, path: str, timeout_s: float = SIDE_TIMEOUT_S) -> httpx.Response:
        """Return whatever the engine answers. Raises EngineError."""
        with self._told_apart(timeout_s):
            return self._client.get(path, timeout=timeout_s)

    def status(self, path: str, timeout_s: float) -> int | None:
        """Return the status of an endpoint; `None` where nobody answers, whatever that means."""
        with suppress(httpx.HTTPError, RuntimeError):
            return self._client.get(path, timeout=timeout_s).status_code
        return None

    def get_json(self, path: str) -> object:
        """Return the JSON of an endpoint, or `None` when the engine does not have it."""
        response = self.get(path)
        try:
            return response.json() if response.status_code == httpx.codes.OK else None
        except (ValueError, RecursionError):
            return None

    def status_of_post(self, path: str) -> int:
        """Return the status of an empty request, which no engine takes: whether there is such an endpoint."""
        with self._told_apart(SIDE_TIMEOUT_S):
            return self._client.post(path, json={}).status_code

    def post(self, path: str, body: Mapping[str, Any], timeout_s: float = SIDE_TIMEOUT_S) -> dict[str, Any]:
        """Return the JSON object that answers a request. Raises EngineError."""
        with self._told_apart(timeout_s), self._client.stream("POST", path, json=body, timeout=timeout_s) as response:
            if response.status_code != httpx.codes.OK:
                raise self.refused(response)
            response.read()
            try:
                answer = response.json()
            except (ValueError, RecursionError) as error:
                raise protocol_error(f"The engine's answer to {path} is no JSON.") from error
        if not isinstance(answer, dict):
            raise protocol_error(f"The engine's answer to {path} is no JSON object.")
        return answer

    def stream(
        self,
        path: str,
        body: Mapping[str, Any],
        reader: Reader[Answer],
        *,
        silence_s: float,
        timeout_s: float,
        on_tokens: Progress | None = None,
        last_one: bool = False,
    ) -> tuple[Answer, float]:
        """Send a request and read its stream; return the answer and the seconds that all of it took.

        `last_one`: for engines that drop a connection after a stream without saying so.
        """
        content = json.dumps(body).encode()
        headers = {"Content-Type": "application/json", **({"Connection": "close"} if last_one else {})}
        silence_s = min(silence_s, timeout_s)
        timeout = httpx.Timeout(SIDE_TIMEOUT_S, read=silence_s)
        with self._told_apart(silence_s, "Raise engine.stall_timeout_s if the engine is that slow."):
            started = time.perf_counter()
            with self._client.stream("POST", path, content=content, headers=headers, timeout=timeout) as response:
                if response.status_code != httpx.codes.OK:
                    raise self.refused(response)
                answer = reader(response.iter_raw(), started, timeout_s, on_tokens)
            e2e_s = time.perf_counter() - started
        if answer is None:
            raise self._broken("The answer ended in its middle")
        return answer, e2e_s

    @contextmanager
    def _told_apart(self, limit_s: float, fix: str | None = None) -> Iterator[None]:
        """Turn what httpx raises into the engine's own failures; `limit_s` is how long it may be silent."""
        try:
            yield
        except httpx.TimeoutException as error:
            raise EngineError(f"The engine sent nothing for {limit_s:g} s.", kind="timeout", fix=fix) from error
        except httpx.ConnectError as error:
            raise self._broken("The engine takes no connections") from error
        except (httpx.TransportError, httpx.StreamError) as error:
            raise self._broken("The connection to the engine broke") from error
        except RuntimeError as error:
            if not self._client.is_closed:
                raise
            raise self._broken("The connection was closed") from error
        except EngineError as error:
            error.what = self.redact(error.what)
            error.args = (error.what,)
            raise

    def refused(self, response: httpx.Response) -> EngineError:
        """Return what a status other than 200 means; the rest of the answer is read."""
        body = b""
        for block in response.iter_raw():
            body += block
            if len(body) > _ERROR_BODY_BYTES:
                break
        # Before anything is cut or escaped, which could leave a part of a secret that is no longer recognised.
        body = self.redact(body.decode("utf-8", "replace")).encode()
        message = repr(clean(body[:500].decode("utf-8", "replace"))) if body else "without a word"
        with suppress(ValueError, RecursionError):
            message = error_in(json.loads(body)) or message
        status, fix = response.status_code, None
        if status in (401, 403):
            fix = "Name the environment variable that holds a valid key: engine.api_key_env."
        elif status == 429:
            wait = response.headers.get("Retry-After")
            told = f" The endpoint asks to wait: {clean(wait)[:40]}." if wait else ""
            fix = f"benchctl does not retry, which would be measured.{told} Ask for less at once, or lift the limit."
        elif 300 <= status < 400:
            target = clean(response.headers.get("Location", "elsewhere"))[:200]
            fix = f"No redirect is followed; write the address itself: {target}"
        return EngineError(
            self.redact(f"The engine refused the request: HTTP {status}: {message}"),
            kind="http",
            fix=None if fix is None else self.redact(fix),
        )


def _shut(connected: socket.socket) -> None:
    """End a connection for whoever reads from it: closing alone would leave that thread waiting."""
    with suppress(OSError):
        connected.shutdown(socket.SHUT_RDWR)
