"""Text as it is shown: untrusted text made safe, and durations as people say them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

# C0 and C1 controls, DEL, bidirectional overrides and isolates, zero-width marks, separators, lone surrogates.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")


def _show(match: re.Match[str]) -> str:
    code = ord(match.group())
    if code < 0x20:
        return chr(0x2400 + code)  # ␀ … ␟: the Unicode pictures of the control characters
    if code == 0x7F:
        return "␡"
    return f"⟨U+{code:04X}⟩"


def visible(text: str) -> str:
    """Return `text` with every character that could act on a terminal or a page made visible; \\n and \\t stay."""
    return _UNSAFE.sub(_show, text)


def one_line(text: str, limit: int | None = None) -> str:
    """Return `visible(text)` on a line (⏎ for a newline, ⇥ for a tab), cut to `limit` characters with an ellipsis."""
    line = visible(text).replace("\n", "⏎").replace("\t", "⇥")
    return line if limit is None or len(line) <= limit else line[: limit - 1] + "…"


_HOME = re.compile(r"(?<![\w.~/-])(?:/home/[^/\s]+|/Users/[^/\s]+|/root)(?=/)")
_SECRET = re.compile(
    r"""(?ix)
    ( \bbearer\s+ | ://[^/\s:@]*:(?=[^/\s@]+@)
    | \b(?-i:[A-Z0-9_]*_(?:KEY|TOKEN|SECRET|PASSWORD))= | --[\w-]*(?:-key|hf-token|secret|password)[\s=]+
    | \b(?:api|access|auth|hf|secret|session)[-_]?(?:key|token)["']?\s*[=:]\s* | \bpassw(?:or)?d["']?\s*[=:]\s*
    | (?=\b(?:hf_|sk-|ghp_|github_pat_)[\w-]{12}) )
    (?: "[^"]*" | '[^']*' | [^\s"',;@]+ )"""
)


def for_strangers(text: str) -> str:
    """Return `text` with home folders as `~`, and dots in place of what looks like a key, a token or a password."""
    return _SECRET.sub(r"\1•••", _HOME.sub("~", text))


def listed(words: Iterable[object]) -> str:
    """Return words for a sentence: `a, b and c`; empty for none."""
    *leading, last = [str(word) for word in words] or [""]
    return f"{', '.join(leading)} and {last}" if leading else last


def first(words: Sequence[str], limit: int, between: str = ", ") -> str:
    """Return the first `limit` words, and how many more there are: `a, b and 3 more`."""
    further = f" and {len(words) - limit} more" if len(words) > limit else ""
    return f"{between.join(words[:limit])}{further}"


def plural(count: int, word: str, words: str | None = None) -> str:
    """Return `word` for 1, else `words`, which ends in s where it is left out."""
    return word if count == 1 else words or f"{word}s"


def counted(number: int, word: str) -> str:
    """Return a number with its word: `1 prompt`, `1,200 prompts`."""
    return f"{number:,} {plural(number, word)}"


def percent(share: float, doubt: str | None = None) -> str:
    """A share of a whole, for tables and sentences alike: `77.0 %`; with a doubt `77.0 % (unchecked)`."""
    return f"{100 * share:.1f} %" + (f" ({doubt})" if doubt else "")


def at_most_percent(share: float) -> str:
    """A limit, as a share, for tables and sentences alike: two digits, rounded up (`4.2 %`, `15 %`)."""
    value = 100 * share
    digits = 0 if value >= 10 else 1
    return f"{math.ceil(value * 10**digits - 1e-9) / 10**digits:g} %"


def spoken(seconds: float) -> str:
    """Return a duration as people say it: `40 s`, `3 min`, `2 h 10 min`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
