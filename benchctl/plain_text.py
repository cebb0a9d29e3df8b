"""Untrusted text made safe to show: control characters become visible and do nothing."""

from __future__ import annotations

import re

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
    """Return `visible(text)` on one line (⏎ for a newline, ⇥ for a tab), cut to `limit` characters with an ellipsis."""
    line = visible(text).replace("\n", "⏎").replace("\t", "⇥")
    return line if limit is None or len(line) <= limit else line[: limit - 1] + "…"
