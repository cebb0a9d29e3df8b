"""What requests and streams to a server share: their limits, the way there, and how their failures are worded.

Whatever comes is bounded in bytes, once they are decoded, in values, in nesting and in seconds: a server may be broken
or hostile.
"""

from __future__ import annotations

import base64
import ssl
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx

from benchctl.engines.common.log import READ_THE_LOG, clean
from benchctl.errors import EngineError

SIDE_TIMEOUT_S = 60.0
"""For the small requests around a measurement."""
CONNECT_TIMEOUT_S = 60.0
MOST_BYTES = 64 * 2**20
"""Of an answer that is no stream: the probabilities of a whole vocabulary are 14 MB."""
MOST_PAGE_BYTES = 8 * 2**20
"""Of what a server reports of itself: settings, counters, models."""
MOST_EVENT_BYTES = 32 * 2**20
"""A longer event of a stream is no answer of a language model."""
MOST_ERROR_BYTES = 65536
"""Of an answer with another status than 200."""
MOST_HEAD_BYTES = 65536
"""Of a stream, in a row that are not the body's: headers, trailers, extensions of chunks."""
MOST_HEADERS = 256
MOST_ITEMS = 4_000_000
"""Of an answer: values in its JSON."""
MOST_EVENT_ITEMS = 500_000
MOST_DEPTH = 64
"""Lists and objects within each other: what is nested deeper, Python's own functions cannot show."""
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


@dataclass(frozen=True)
class Route:
    """The way to a server."""

    socket_path: Path | None
    proxy: SplitResult | None
    tls: ssl.SSLContext | None


def route_to(url: str, socket_path: Path | None = None) -> Route:
    """Return the way to `url`: its Unix socket, or the caller's proxy where one is set and `url` is no loopback.

    Raises EngineError for a proxy that cannot be used.
    """
    tls = httpx.create_ssl_context() if url.startswith("https:") else None
    return Route(socket_path, None if socket_path is not None else _proxy_of(urlsplit(url)), tls)


def _proxy_of(url: SplitResult) -> SplitResult | None:
    host = url.hostname or ""
    if host in _LOOPBACK or proxy_bypass(host):
        return None
    proxies = getproxies()
    named = proxies.get(url.scheme) or proxies.get("all")
    if not named:
        return None
    with suppress(ValueError):  # no address, or no port
        proxy = urlsplit(named if "://" in named else f"http://{named}")
        if proxy.scheme == "http" and proxy.hostname and (proxy.port is None or proxy.port > 0):
            return proxy
    fix = "Name one by http:// in the environment (https_proxy, http_proxy, all_proxy), or the host in no_proxy."
    raise EngineError("The proxy that the environment names cannot be used.", kind="http", fix=fix)


def proxy_header(proxy: SplitResult) -> str:
    """Return the line of a head that opens a proxy, or nothing."""
    if proxy.username is None:
        return ""
    pair = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}".encode()
    return f"Proxy-Authorization: Basic {base64.b64encode(pair).decode()}\r\n"


def protocol_error(
    what: str, fix: str = "Read the engine's log, and check that this is the kind of server that the recipe names."
) -> EngineError:
    """Return the error for an answer that is not what the server's protocol says."""
    return EngineError(what, kind="protocol", fix=fix)


def compressed(encoding: str) -> EngineError:
    """Return the error for an answer in an encoding that cannot be read."""
    return protocol_error(f"The engine compressed its answer ({encoding[:40]!r}), which was not requested.")


def too_slow(timeout_s: float, how: str = "sent nothing") -> EngineError:
    """Return the error for an answer that takes too long."""
    return EngineError(f"The engine {how} for {timeout_s:g} s.", kind="timeout", fix=READ_THE_LOG)


def error_in(payload: object) -> str | None:
    """Return the message of an error object as these servers send it, or `None` when there is none."""
    if not isinstance(payload, dict):
        return None
    error = payload.get("error", payload.get("detail"))
    if error is None and {"code", "message"} <= payload.keys():
        error = payload
    if not error:
        return None
    message = error.get("message", error) if isinstance(error, dict) else error
    return clean(str(message))[:500]
