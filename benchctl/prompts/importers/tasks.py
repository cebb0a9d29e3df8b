"""Task names made of a data set's categories: names by benchctl's rules, and different categories stay different."""

from __future__ import annotations

import hashlib
import re

from benchctl.recipes.schema import MAX_NAME, NAME_PATTERN

_UNSAFE = re.compile(r"[^A-Za-z0-9_.+-]+")
_NAME = re.compile(NAME_PATTERN)
_MARK = 8


def safe_name(text: str) -> str:
    """Return `text` as a name: other characters become `_`; where nothing is left, a mark made of the text."""
    name = _UNSAFE.sub("_", text.strip()).strip("_.+-")[:MAX_NAME]
    return name if _NAME.match(name) else f"task-{_mark(text)}"


class TaskNames:
    """The name of every category, given once; two categories never share one."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def __call__(self, category: str) -> str:
        """Return the task name of `category`."""
        if category not in self._names:
            name = safe_name(category)
            if name in self._names.values():
                name = f"{name[: MAX_NAME - _MARK - 1]}-{_mark(category)}"
            self._names[category] = name
        return self._names[category]


def _mark(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_MARK]
