"""Limits, routes, values and errors of all requests and streams to a server.

A server may be broken or hostile, so its answers are limited in bytes, values, nesting and time. Types are checked
strictly: `true`, `"3"` and 3.0 are no counts. Some servers send values that JSON does not have (half of a surrogate
pair, NaN, an infinity). They are replaced while reading, so that code that shows or stores them need not care.
"""

from __future__ import annotations

import base64
import json
import math
import re
import ssl
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx
import msgspec

from benchctl.engines.common.log import clean
from benchctl.errors import EngineError

SIDE_TIMEOUT_S = 60.0
"""The limit for small requests around a measurement."""
CONNECT_TIMEOUT_S = 60.0
MOST_BYTES = 64 * 2**20
"""The largest answer that is not streamed; the probabilities of a whole vocabulary are 14 MB."""
MOST_PAGE_BYTES = 8 * 2**20
"""The largest page on which a server describes itself: settings, counters, models."""
MOST_EVENT_BYTES = 32 * 2**20
"""A longer event of a stream is no answer of a language model."""
MOST_ERROR_BYTES = 65536
"""The largest part that is read of an answer with another status than 200."""
MOST_HEAD_BYTES = 65536
"""The most bytes in a row that are not the body's: headers, trailers, extensions of chunks."""
MOST_HEADERS = 256
MOST_ITEMS = 4_000_000
"""The most values in the JSON of an answer."""
MOST_EVENT_ITEMS = 500_000
MOST_DEPTH = 64
"""The deepest nesting of lists and objects; Python's own functions cannot print much deeper ones."""
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


@dataclass(frozen=True)
class Route:
    """The way to a server."""

    socket_path: Path | None
    proxy: SplitResult | None
    tls: ssl.SSLContext | None


def route_to(url: str, socket_path: Path | None = None) -> Route:
    """Return the way to `url`: its socket, or the caller's proxy off loopback. Raises EngineError for a bad one."""
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
    message: str, fix: str = "Read the engine's log, and check that this is the kind of server that the recipe names."
) -> EngineError:
    """Return the error for an answer that is not what the server's protocol says."""
    return EngineError(message, kind="protocol", fix=fix)


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


MOST_ID = 2**31 - 1
"""The highest token id."""
TokenId = Annotated[int, msgspec.Meta(ge=0, le=MOST_ID)]
"""A token's id, for the decoders of streams."""
_HIGHEST_LOGPROB = 0.01
"""Log-probabilities are at most 0; rounding may lift them a little above it."""

_decode = msgspec.json.Decoder().decode
_SURROGATE = re.compile("[\ud800-\udfff]")
_NESTED = frozenset({dict, list})


def decode(payload: bytes, most_items: int = MOST_EVENT_ITEMS) -> Any:  # noqa: ANN401 - whatever a server sends
    """Return the value of a JSON text, cleaned. Raises ValueError, also for what is too long or nested too deeply."""
    openings = payload.count(b"[") + payload.count(b"{")
    if openings + payload.count(b",") > most_items:
        raise ValueError(f"more than {most_items} items")
    try:
        try:
            value = _decode(payload)
        except (ValueError, RecursionError):
            value = json.loads(payload, parse_float=_finite, parse_constant=lambda _: None)
            _check_depth(value)
            return _cleaned(value)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if openings > MOST_DEPTH:
        _check_depth(value)
    return value


def _check_depth(value: object) -> None:
    level = [value] if type(value) in _NESTED else []
    for _ in range(MOST_DEPTH):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)  # type: ignore[attr-defined]
            if type(inner) in _NESTED
        ]
        if not level:
            return
    raise ValueError("it is nested too deeply")


def _finite(text: str) -> float | None:
    number = float(text)
    return number if math.isfinite(number) else None


def _cleaned(value: Any) -> Any:  # noqa: ANN401 - whatever a server sends
    if isinstance(value, str):
        return _SURROGATE.sub("\ufffd", value)
    if isinstance(value, list):
        return list(map(_cleaned, value))
    if isinstance(value, dict):
        return {_cleaned(key): _cleaned(inner) for key, inner in value.items()}
    return value


def text_in(value: object) -> str | None:
    """Return what a server reports as text of at most 4,096 characters; `None` where there is nothing."""
    return None if value is None else str(value)[:4096]


def count_in(value: object, maximum: float = math.inf) -> int | None:
    """Return a number that a server reports as a count; `None` where it is none, or more than `most`."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= maximum else None


def counts_in(value: object, maximum: float = math.inf, *, longest: float = math.inf) -> list[int] | None:
    """Return a list of counts; `None` where it is none, or longer than `longest`."""
    if not isinstance(value, list) or len(value) > longest:
        return None
    return value if all(count_in(count, maximum) is not None for count in value) else None


def ids_in(value: object) -> list[int] | None:
    """Return a list of token ids; `None` where it is none."""
    return counts_in(value, MOST_ID)


def prompt_ids(answer: Mapping[str, object]) -> tuple[int, ...]:
    """Return the token ids in an answer of `/tokenize`. Raises EngineError, also where there are none."""
    ids = ids_in(answer.get("tokens"))
    if ids is None:
        raise protocol_error("The server returned no token ids for the prompt.")
    if not ids:
        raise EngineError("The prompt has no tokens.", kind="http", fix="Give every prompt of the suite some text.")
    return tuple(ids)


def id_of(value: object) -> int:
    """Return a token id. Raises ValueError for what is none."""
    token_id = count_in(value, MOST_ID)
    if token_id is None:
        raise ValueError("no token id")
    return token_id


def id_named(name: str) -> int:
    """Return the token id that a key of an object is. Raises ValueError for what is none."""
    if not (name.isascii() and name.isdecimal() and len(name) <= 10):
        raise ValueError("no token id")
    return id_of(int(name))


def id_marked(text: str) -> int:
    """Return the token id in `token_id:17`, as vLLM writes it on request. Raises ValueError for another text."""
    if not text.startswith("token_id:"):
        raise ValueError("a token without its id")
    return id_named(text.removeprefix("token_id:"))


def logprob_of(value: object) -> float:
    """Return a log-probability. Raises ValueError for what is none."""
    if isinstance(value, int | float) and not isinstance(value, bool) and -1e39 < value <= _HIGHEST_LOGPROB:
        return float(value)
    raise ValueError("no log-probability")


def seconds_in(milliseconds: object) -> float | None:
    """Return a time that a server reports in milliseconds; `None` where it is none, or longer than a year."""
    if isinstance(milliseconds, int | float) and not isinstance(milliseconds, bool) and 0 <= milliseconds < 3.2e10:
        return milliseconds / 1000
    return None
