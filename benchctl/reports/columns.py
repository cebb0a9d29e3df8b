"""A table is declared once, as columns over rows; terminal, Markdown, HTML and CSV are made of that declaration.

A new metric is a `Column` in the table where it belongs (`benchctl.reports.tables`). `terminal` renders it for a
terminal, `page` as HTML, `render` as Markdown, and `write` as CSV.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from benchctl.text import percent
from benchctl.words import numbers
from benchctl.words.labels import lossy_label

if TYPE_CHECKING:
    from benchctl.analysis.result import Interval
    from benchctl.analysis.results import Analysis

Row = TypeVar("Row")

Tone = Literal["", "good", "fair", "open", "bad", "quiet"]
"""How a cell is coloured: good, within noise, unknown, bad, or secondary. Colour never adds information to the text."""


class Name(str):
    """A name from a recipe or a run: a code span in Markdown, plain text elsewhere."""

    __slots__ = ()


class Code(str):
    """Text of a model, a program or a command: code wherever there is code."""

    __slots__ = ()


@dataclass(frozen=True)
class Folded:
    """Lines behind a summary: folded on the page; elsewhere only the summary, so that a row stays a short line."""

    summary: str
    lines: tuple[str, ...]


Piece = str | Folded
Cell = Piece | tuple[Piece, ...]
"""The content of a cell: untrusted text, or several pieces with a space between them."""


def plain(value: object) -> Cell:
    """A value as text: text, a whole number, a list with commas."""
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or numbers.ABSENT
    return value if isinstance(value, str) else str(value)


@dataclass(frozen=True)
class Column(Generic[Row]):
    """A column over rows of a type."""

    header: str
    """Its header. Empty: it is for programs, and only in the CSV file."""
    source: Callable[[Row], Any] | str
    """Its value in full precision, `None` where it is not known: of a row, or the path of an attribute (`fork.index`),
    which is not known where anything on its way is `None`."""
    write: Callable[[Any], Cell] = plain
    """How people read a value that is known."""
    absent: str = numbers.ABSENT
    """What stands for a value that is not."""
    cell: Callable[[Row], Cell] | None = None
    """How people read it where it depends on more than the value; then `write` is not used."""
    unit: str = ""
    """Follows the header; empty where every cell has its own."""
    explain: str = ""
    """See `means`; printed below the table."""
    align: Literal["left", "right"] = "left"
    tone: Callable[[Row], Tone] | None = None
    key: str | None = None
    """Its header in the CSV file, by default the attribute's name; empty, or a path without any: not in there. `{}`
    stands for the name of a part, of a value with `parts`."""
    parts: tuple[str, ...] = ()
    """Attributes of the value that have a CSV column each, such as the ends of an interval."""
    optional: bool = False
    """Whether it is left out where no row has a value."""
    wrap: bool = False
    """Whether its texts are long, and may take several lines."""
    heads: bool = False
    """Whether it identifies a row: the row's header on the page, repeated where a terminal is too narrow."""
    chooses: Literal["", "arm", "task"] = ""
    """Whether a reader can select rows by its value."""
    least_width: int = 0
    """Least width of a terminal, in characters, that shows it."""

    @cached_property
    def value(self) -> Callable[[Row], Any]:
        """What gives its value of a row."""
        if not isinstance(self.source, str):
            return self.source
        names = self.source.split(".")

        def follow(row: Any) -> Any:  # noqa: ANN401 - whatever the path leads to
            return reduce(lambda value, name: None if value is None else getattr(value, name), names, row)

        return follow if len(names) > 1 else attrgetter(self.source)

    @property
    def csv_key(self) -> str:
        """Its header in the CSV file; empty for a column that is not in there."""
        if self.key is not None:
            return self.key
        return self.source if isinstance(self.source, str) and "." not in self.source else ""

    def means(self, sentence: str) -> Column[Row]:
        """The column, with what its numbers are: the end of a sentence that begins with its header."""
        return replace(self, explain=sentence)

    @property
    def heading(self) -> str:
        """The header with its unit."""
        return f"{self.header} ({self.unit})" if self.unit else self.header

    def text(self, row: Row) -> Cell:
        """What people read."""
        if self.cell is not None:
            return self.cell(row)
        value = self.value(row)
        return self.absent if value is None else self.write(value)

    def tone_of(self, row: Row) -> Tone:
        """How the cell is coloured."""
        return self.tone(row) if self.tone is not None else ""


def numeric(
    header: str,
    source: Callable[[Row], Any] | str,
    write: Callable[[Any], Cell] = plain,
    **fields: Any,  # noqa: ANN401 - further fields of a column
) -> Column[Row]:
    """A column of numbers, aligned right."""
    return Column(header, source, write, align="right", **fields)


def acceptance_rate(header: str, source: str, doubt: str, **fields: Any) -> Column[Any]:  # noqa: ANN401 - as `numeric`
    """A column of acceptance rates, each with the doubt that its row names at the path `doubt`."""
    doubt_of = Column[Any]("", doubt).value
    rate_of = Column[Any]("", source).value

    def written(row: Any) -> Cell:  # noqa: ANN401 - a row of any table
        rate = rate_of(row)
        return numbers.ABSENT if rate is None else percent(rate, doubt_of(row))

    return numeric(header, source, cell=written, **fields)


DOUBTS = {
    "unchecked": "Unchecked: nothing confirms how many tokens the engine accepted.",
    "contradicted": "Contradicted: counters of the engine contradict each other; such answers are left out.",
}
"""What the doubts of acceptance rates mean."""


def interval(
    header: str,
    source: Callable[[Row], Interval | None] | str,
    *,
    key: str = "",
    **fields: Any,  # noqa: ANN401 - further fields of a column
) -> Column[Row]:
    """A column of 95 % intervals of ratios, whose ends are in the CSV file."""
    name = key or (source if isinstance(source, str) else "")
    ends = {"key": f"{name}_{{}}" if name else "", "parts": ("low", "high")}
    return numeric(header, source, numbers.interval, **ends, **fields)


def for_programs(*names: str, **keyed: Callable[[Any], Any] | str) -> list[Column[Any]]:
    """Columns of the CSV file alone: attributes of the row, and what has another header than its name."""
    return [Column("", source, key=key) for key, source in ({name: name for name in names} | keyed).items()]


@dataclass(frozen=True)
class Table(Generic[Row]):
    """Columns over rows."""

    name: str
    """Of its CSV file, if any, and of its place on the page."""
    title: str
    columns: Sequence[Column[Row]]
    rows: Sequence[Row]
    note: str = ""
    """Printed below it after the explanations of its columns."""

    @property
    def visible_columns(self) -> list[Column[Row]]:
        """The columns for people."""
        return [
            column
            for column in self.columns
            if column.header and not (column.optional and all(column.value(row) is None for row in self.rows))
        ]

    @property
    def explanation(self) -> str:
        """What its columns mean, in sentences."""
        parts = [f"{column.header}: {column.explain}" for column in self.visible_columns if column.explain]
        return " ".join([*parts, *([self.note] if self.note else [])])

    def where(self, keep: Callable[[Row], bool], title: str | None = None) -> Table[Row]:
        """The same table of fewer rows."""
        return replace(self, rows=[row for row in self.rows if keep(row)], title=title or self.title)


WHAT_AN_ARM_IS = "Arm: a setting of speculation."
"""For the first table that names arms."""


def arm_column(analysis: Analysis, path: str = "arm") -> Column[Any]:
    """The arm of a row, marked where it is lossy by design."""
    labels, arm = lossy_labels(analysis), attrgetter(path)

    def cell(row: Any) -> Cell:  # noqa: ANN401 - of any table with arms
        label = labels.get(arm(row), "")
        return (Name(arm(row)), label) if label else Name(arm(row))

    return Column("Arm", path, cell=cell, key="arm", heads=True, chooses="arm")


def lossy_labels(analysis: Analysis) -> dict[str, str]:
    """The mark after the name of every arm that is lossy by design."""
    return {verdict.arm: lossy_label(verdict.lossy).strip() for verdict in analysis.verdicts if verdict.lossy}


def task_column() -> Column[Any]:
    """The task of a row, or all tasks."""
    return Column("Task", "task", key="task", chooses="task")
