"""The values that a server reports, each taken for exactly what it is, and none larger than it can be.

Nothing is converted: `true`, `"3"` and 3.0 are no counts. What some servers send and no JSON holds (half of a surrogate
pair, NaN, an infinity) is replaced as it is read, so that nothing that shows or stores it has to know.
"""

from __future__ import annotations

import json
import math
import re
from typing import Annotated, Any

import msgspec

from benchctl.engines.common.wire import MOST_DEPTH, MOST_EVENT_ITEMS

MOST_ID = 2**31 - 1
"""Of a token."""
TokenId = Annotated[int, msgspec.Meta(ge=0, le=MOST_ID)]
"""A token's id, for the decoders of streams."""
_HIGHEST_LOGPROB = 0.01
"""Above zero by rounding alone."""

_decode = msgspec.json.Decoder().decode
_SURROGATE = re.compile("[\ud800-\udfff]")
_NESTED = frozenset({dict, list})


def decode(payload: bytes, most_items: int = MOST_EVENT_ITEMS) -> Any:  # noqa: ANN401 - whatever a server sends
    """Return the value of a JSON text, without half characters and numbers that are none.

    Raises ValueError, also for a value of more than `most_items` values, or nested deeper than `MOST_DEPTH`.
    """
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


def text_in(value: object, most: int = 4096) -> str | None:
    """Return what a server reports as text of at most `most` characters; `None` where there is nothing."""
    return None if value is None else str(value)[:most]


def count_in(value: object, most: float = math.inf) -> int | None:
    """Return a number that a server reports as a count; `None` where it is none, or more than `most`."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most else None


def counts_in(value: object, most: float = math.inf, *, longest: float = math.inf) -> list[int] | None:
    """Return a list of counts; `None` where it is none, or longer than `longest`."""
    if not isinstance(value, list) or len(value) > longest:
        return None
    return value if all(count_in(count, most) is not None for count in value) else None


def ids_in(value: object) -> list[int] | None:
    """Return a list of token ids; `None` where it is none."""
    return counts_in(value, MOST_ID)


def id_of(value: object) -> int:
    """Return a token id. Raises ValueError for what is none."""
    found = count_in(value, MOST_ID)
    if found is None:
        raise ValueError("no token id")
    return found


def id_named(name: str) -> int:
    """Return the token id that a key of an object is. Raises ValueError for what is none."""
    if not (name.isascii() and name.isdecimal() and len(name) <= 10):
        raise ValueError("no token id")
    return id_of(int(name))


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
