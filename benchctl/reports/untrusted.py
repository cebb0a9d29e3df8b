"""Text that others wrote (answers of a model, prompts, log lines, recipes) made safe for Markdown and spreadsheets.

`benchctl.text` makes every character harmless; here is what the formats need beside it. HTML escaping is jinja2's
autoescape.
"""

from __future__ import annotations

import re

from benchctl.text import one_line, visible


def markdown_text(text: str) -> str:
    """Escape `text` for running Markdown text or a table cell: it is shown as it is and forms no markup or link."""
    escaped = re.sub(r"([\\`*\[\]#|~!$]|(?<!\w)_|_(?!\w))", r"\\\1", one_line(text).strip())
    escaped = escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    escaped = escaped.replace("://", ":&#47;&#47;").replace("@", "&#64;")
    escaped = re.sub(r"(?i)\bwww\.", lambda match: match[0][:-1] + "&#46;", escaped)
    return re.sub(r"^(\d+(?=[.)]\s)|(?=[-+=][-+=\s]))", r"\1\\", f"{escaped} ")[:-1]


def markdown_code(text: str) -> str:
    """Return `text` as a code span of one line that it cannot break out of; safe in a table cell, too."""
    line = one_line(text).replace("|", "¦") or " "
    fence = "`" * (_longest_run(line) + 1)
    pad = " " if line.startswith(("`", " ")) or line.endswith(("`", " ")) else ""
    return f"{fence}{pad}{line}{pad}{fence}"


def markdown_block(text: str, language: str = "") -> str:
    """Return `text` as a fenced block that it cannot break out of."""
    shown = visible(text)
    fence = "`" * max(3, _longest_run(shown) + 1)
    return f"{fence}{language}\n{shown.rstrip(chr(10))}\n{fence}"


def spreadsheet_text(text: str) -> str:
    """One line of visible text that no spreadsheet takes for a formula (a leading apostrophe, as OWASP advises)."""
    line = one_line(text)
    return f"'{line}" if line.startswith(("=", "+", "-", "@")) else line


def _longest_run(text: str) -> int:
    return max((len(run) for run in re.findall(r"`+", text)), default=0)
