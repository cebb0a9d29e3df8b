"""What a warning says: what was observed, why it matters, what to do. The texts are in `warnings.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from benchctl.text import percent, plural

if TYPE_CHECKING:
    from benchctl.analysis.result import Fact
    from benchctl.analysis.results import Caution


class WarningText(NamedTuple):
    """Why a kind of warning matters, what to do, and by code what was observed."""

    why: str
    todo: str
    seen: dict[str, str] = {}  # noqa: RUF012 - never changed


_FILE = Path(__file__).with_name("warnings.toml")
TEXTS = {kind: WarningText(**texts) for kind, texts in tomllib.loads(_FILE.read_text("utf-8")).items()}
_NEWER = WarningText(
    "This version of benchctl does not know this kind of preflight finding.",
    "Read the run with the version of benchctl that made it, or a newer one.",
)


@dataclass(frozen=True)
class Cases:
    """How many cases there are, and the first few, in the forms that a template can ask for."""

    count: int
    first: list[str] = field(default_factory=list)

    @property
    def left_out(self) -> int:
        """How many are not listed."""
        return self.count - len(self.first)

    @property
    def listed(self) -> str:
        """The first cases, and how many more there are."""
        return "; ".join(self.first) + (f"; and {self.left_out} more" if self.left_out else "")

    @property
    def counted(self) -> str:
        """Their number as records, and the list."""
        return f"{self.count} {plural(self.count, 'record')} ({self.listed})"

    @property
    def enumerated(self) -> str:
        """The first cases with commas."""
        return ", ".join(self.first) + (", …" if self.left_out else "")

    @property
    def sentences(self) -> str:
        """The first cases, which are sentences."""
        return " ".join(self.first) + (f" And {self.left_out} more." if self.left_out else "")


def why(warning: Caution) -> str:
    """Return why it matters."""
    return TEXTS.get(warning.id, _NEWER).why


def todo(warning: Caution) -> str:
    """Return what to do."""
    return TEXTS.get(warning.id, _NEWER).todo


def seen(warning: Caution) -> str:
    """Return what was observed."""
    templates = TEXTS.get(warning.id, _NEWER).seen
    return " ".join(templates.get(fact.code, "{text}").format_map(_written(fact)) for fact in warning.facts)


def unsteady_warm_up(seconds: Sequence[float]) -> str:
    """Return that a warm-up did not end steady, as a part of a sentence."""
    times = ", ".join(f"{value:.2g}" for value in seconds)
    return f"no warm-up request took as long as the one before ({times} s)"


def _written(fact: Fact) -> dict[str, Any]:
    """Return the values of a fact in the forms that templates ask for."""
    values: dict[str, Any] = {name: Cases(**value) if isinstance(value, dict) else value
                              for name, value in fact.values.items()}  # fmt: skip
    if values.get("reason"):
        values["Reason"] = f"{values['reason'][0].upper()}{values['reason'][1:]}"
    if fact.code == "warm-up":
        values["warm_up"] = unsteady_warm_up(values["seconds"])
    if fact.code == "gpu":
        values["percent"] = 100 * values["value"]
    if fact.code == "spilled":
        values["spilled"] = "; ".join(values["spilled"])
    if fact.code == "acceptance":
        for half in ("new", "repeated"):
            rate = values[f"{half}_rate"]
            values[f"accepted_{half}"] = percent(values[half]) + ("" if rate is None else f" at {rate:.3g} tok/s")
    if "cells" in values:
        values["in_cells"] = f"{values['cells']} {plural(values['cells'], 'cell')}"
    return values
