"""Reading an engine's command line: which words are options, and with which values."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

Flag = tuple[str, str | None]
"""A flag without dashes, with `-` for `_`, and its value; `None` when it has none."""
IS_OPTION = re.compile(r"--?[A-Za-z]")
"""How an option begins; `-1` is a value."""


def read_flags(argv: Sequence[str]) -> Iterator[Flag]:
    """Yield every flag with the value after `=`, or else with the next word, whatever that is."""
    for index, argument in enumerate(argv):
        if not argument.startswith("-") or argument.lstrip("-")[:1].isdigit():
            continue
        name, equals, value = argument.lstrip("-").partition("=")
        after = argv[index + 1] if index + 1 < len(argv) else None
        yield name.replace("_", "-"), value if equals else after
