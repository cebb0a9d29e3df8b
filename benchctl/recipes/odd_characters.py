"""Characters that editors, web pages and shells leave in a recipe, and that YAML takes for ordinary text."""

from __future__ import annotations

import re

_QUOTES = "“”„‟‘’‚‛"
_SPACES = "\u00a0\u2000-\u200a\u202f\u205f\u3000"
_DASHES = "–—"
_VARIABLE = r"\$\{[A-Za-z_][^}\s]*\}|\$HOME\b|\$[A-Z][A-Z0-9_]+(?=/)"
_PLACEHOLDER = r"\{\{[^{}\n]*\}\}|\{%[^%\n]*%\}"
_OPTION = rf"[{_DASHES}](?=[A-Za-z])"
_ODD = re.compile(rf"[{_QUOTES}]|[{_SPACES}]|{_OPTION}|{_VARIABLE}|{_PLACEHOLDER}")
_ODD_IN_QUOTES = re.compile(rf"{_OPTION}|{_VARIABLE}")


def odd_character(
    text: str, start: int, end: int, *, quoted: bool = False, inside: bool = False
) -> tuple[int, str] | None:
    """Return the line of the first odd character between two places of a file, and a sentence on it.

    `quoted`: between ordinary quotes, where only variables and dashes are odd (a chat template has braces). `inside`:
    they hold a single value, in which a typographic quote is odd only at its beginning or end, and a dash at its
    beginning.
    """
    for match in (_ODD_IN_QUOTES if quoted else _ODD).finditer(text, start, end):
        odd = match[0]
        before = text[text.rfind("\n", 0, match.start()) + 1 : match.start()]
        if inside and odd in _QUOTES and start < match.start() and match.end() < end:
            continue
        if not inside and ("#" in before or (odd[0] == "{" and _in_quotes(before))):
            continue
        if odd in _DASHES and not (inside and match.start() == start + quoted):
            continue
        line = text.count("\n", 0, match.start()) + 1
        column = match.start() - text.rfind("\n", 0, match.start())
        if odd in _QUOTES:
            return line, f"a typographic quote ({odd}) stands at column {column}; YAML has \" and ' alone."
        if odd in _DASHES:
            return line, f"a typographic dash ({odd}) stands at column {column}; options begin with - or --."
        if len(odd) == 1:
            return line, f"a non-breaking space (U+{ord(odd):04X}) stands at column {column}; write an ordinary space."
        if odd[0] == "{":
            return line, f"`{odd}` (column {column}) is a template's and is not filled in; write the value."
        return line, f"`{odd}` (column {column}) is not replaced; write the value, or begin a path with ~/."
    return None


def _in_quotes(before: str) -> bool:
    """Whether what follows a line's beginning stands between ordinary quotes."""
    return any(before.count(mark) % 2 for mark in "\"'")
