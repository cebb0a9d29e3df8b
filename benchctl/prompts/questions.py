"""The prompts of a question file: of a file that is imported, and of the user's own that is used as it is.

Rows are read of text, JSON lines (plain or gzip), a JSON list, CSV, or parquet, by the file's ending.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import hashlib
import importlib
import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from pydantic import ValidationError

from benchctl.errors import UsageError
from benchctl.prompts.formats import NO_TASK, Fields, Format, Kind, Question, TaskNames, UnexpectedRowError
from benchctl.prompts.suite import REQUEST_FIELDS, Message, Prompt
from benchctl.recipes.problems import Plain, did_you_mean, quoted
from benchctl.text import one_line

_AS_ROWS = "Leave it out, or write the rows as `messages` and import them with --format jsonl."


@dataclass(frozen=True)
class Questions:
    """What was taken from a question file."""

    kind: Kind
    tasks: dict[str, list[Prompt]]
    places: dict[tuple[str, int], str]
    """File and line of every prompt, by its task and index."""
    source: str
    """The suite's `source`: the format, the file and its SHA-256, and what was left out."""
    notes: tuple[str, ...]
    """What of the rows is not asked or sent, in sentences."""


def read_questions(
    path: Path,
    label: str,
    form: Format,
    *,
    kind: Kind | None = None,
    tasks: Sequence[str] | None = None,
    limit: int | None = None,
    no_task: str = NO_TASK,
) -> Questions:
    """Read all of a question file; keep at most `limit` prompts of each of `tasks` (None: all), in the file's order.

    `label` names the file in the suite and in messages: no path of this machine. `no_task` is the task of rows that
    name none. Raises UsageError with the file, the line and what was expected.
    """
    found: dict[str, list[Prompt]] = {}
    places: dict[tuple[str, int], str] = {}
    kept: list[Question] = []
    names = TaskNames()
    kind = kind or form.kind
    without_text = 0
    for where, fields in read_rows(path, label, form.columns):
        try:
            for key in REQUEST_FIELDS if form.kind is not None else ():  # a row of the user's own may have them
                if fields.get(key):
                    raise UnexpectedRowError(f"{form.title} has no `{key}`, so it would not be sent", _AS_ROWS)
            question = form.read(fields)
            if question is None:
                without_text += 1
                continue
            kind = kind or ("raw" if isinstance(question.content, str) else "chat")
            prompt = _prompt(question, kind)
        except UnexpectedRowError as error:
            raise UsageError(str(error), where=where, fix=error.fix or f"{form.title} has {form.example}.") from None
        task = names(no_task if question.task == NO_TASK else question.task)
        prompts = found.setdefault(task, [])
        if (limit is None or len(prompts) < limit) and (tasks is None or task in tasks):
            places[task, len(prompts)] = where
            prompts.append(prompt)
            kept.append(question)
    if kind is None or not found:
        reason = (
            f"the text of all {without_text} questions is not in this file"
            if without_text
            else "this file has no prompts"
        )
        raise UsageError(reason, where=one_line(label))
    chosen = _chosen(found, tasks, label)
    notes = tuple(_notes(kept, without_text))
    return Questions(kind, chosen, places, _source(path, label, form, notes), notes)


def plain(prompt: Prompt) -> str:
    """Return a prompt as JSON, characters as they are."""
    return json.dumps(prompt.model_dump(mode="json", exclude_none=True), ensure_ascii=False)


def _prompt(question: Question, kind: Kind) -> Prompt:
    content, values = question.content, {**question.request, "reference": question.reference, "answer": question.answer}
    if kind == "chat":
        values["messages"] = (Message(role="user", content=content),) if isinstance(content, str) else content
    elif isinstance(content, str):
        values["prompt"] = content
    else:
        raise UnexpectedRowError("expected `prompt`, since the suite is raw; got `messages` (import with --kind chat)")
    try:
        prompt = Prompt.model_validate(values, strict=False)
    except ValidationError as error:
        key = str(error.errors()[0]["loc"][0])
        raise UnexpectedRowError(f"expected `{key}` as in a request to a chat API; got {quoted(values[key])}") from None
    if prompt.problem is not None:
        raise UnexpectedRowError(prompt.problem.rstrip("."))
    try:
        plain(prompt).encode()
    except UnicodeEncodeError:
        raise UnexpectedRowError("expected text; got half of a surrogate pair, which is not a character") from None
    return prompt


def _notes(kept: Sequence[Question], without_text: int) -> list[str]:
    notes = []

    def count(found: int, what: str) -> None:
        if found:
            notes.append(f"In {found} of {len(kept)} prompts {what}.")

    count(
        sum(question.later_turns > 0 for question in kept),
        "later turns, which depend on the model's own answers, are not asked: only the first turn is",
    )
    count(
        sum(question.earlier_turns > 0 for question in kept),
        "only the last turn of the user is asked; those before it are sent as they stand, with their answers",
    )
    count(sum(question.goes_on for question in kept), "what follows the turn that is asked is not sent")
    unsent = list(dict.fromkeys(key for question in kept for key in question.unsent))
    listed = ", ".join(one_line(key, 40) for key in unsent[:12]) + (", …" if len(unsent) > 12 else "")
    count(
        sum(bool(question.unsent) for question in kept),
        f"keys are not sent ({listed}): the model and the sampling are the recipe's",
    )
    if without_text:
        notes.append(f"{without_text} questions were left out: the file withholds their text.")
    return notes


def _chosen(found: dict[str, list[Prompt]], tasks: Sequence[str] | None, label: str) -> dict[str, list[Prompt]]:
    for task in tasks or ():
        if task not in found:
            fix = did_you_mean(task, found).strip() or f"It has: {', '.join(found)}."
            raise UsageError(f"{one_line(label)} has no task {quoted(task)}", where="--tasks", fix=fix)
    return {task: prompts for task, prompts in found.items() if prompts}


def _source(path: Path, label: str, form: Format, notes: Sequence[str]) -> str:
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    home = f" ({form.home})" if form.home else ""
    parts = [f"{form.title}{home}", f"imported from {one_line(label)}", f"SHA-256 {digest}"]
    return "; ".join([*parts, *(note.rstrip(".") for note in notes)])


SEPARATOR = "---"
_MAX_LINE = 16 << 20
_MAX_BYTES = 1 << 30
"""Of JSON lines, unpacked: a gzip file of a few kilobytes can hold any number of them."""
_BATCH = 256


def read_rows(path: Path, label: str, columns: Sequence[str] = ()) -> Iterator[tuple[str, Fields]]:
    """Give every row with its place (`question.jsonl:3`), which messages call `label`.

    `columns`: of a CSV file whose first line is no header of these names.

    Raises UsageError for a file that cannot be read, and for a line that is not a JSON object.
    """
    label, name = one_line(label), path.name.lower()
    if name.endswith(".parquet"):
        yield from _parquet_rows(path, label)
        return
    if name.endswith(".txt"):
        yield from _text_rows(path, label)
        return
    if name.endswith(".csv"):
        yield from _csv_rows(path, label, columns)
        return
    try:
        with _opened(path) as stream:
            if name.endswith(".json") and _is_list(stream):
                yield from _listed_rows(stream.read(_MAX_BYTES), label)
                return
            for number, line in enumerate(_lines(stream, label), start=1):
                if line.strip():
                    yield f"{label}:{number}", _object(line, f"{label}:{number}")
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise UsageError("this gzip file is truncated or damaged", where=label) from None
    except OSError as error:
        raise UsageError(f"the file cannot be read: {error.strerror}", where=label) from None


def _is_list(stream: IO[bytes]) -> bool:
    beginning = stream.read(_MAX_LINE).removeprefix(codecs.BOM_UTF8).lstrip()
    stream.seek(0)
    return beginning.startswith(b"[")


def _listed_rows(text: bytes, label: str) -> Iterator[tuple[str, Fields]]:
    rows = _parsed(text, label, "a JSON list of objects")
    for number, row in enumerate(rows if isinstance(rows, list) else [rows]):
        if not isinstance(row, dict):
            raise UsageError(f"expected an object; got {quoted(row)}", where=f"{label}[{number}]")
        yield f"{label}[{number}]", row


def _text_rows(path: Path, label: str) -> Iterator[tuple[str, Fields]]:
    """Give a prompt for every line; where lines of dashes separate them, for all between two of those."""
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError:
        raise UsageError("this is not UTF-8 text", where=label) from None
    except OSError as error:
        raise UsageError(f"the file cannot be read: {error.strerror}", where=label) from None
    if not any(line.strip() == SEPARATOR for line in lines):
        yield from (
            (f"{label}:{number}", {"prompt": line.strip()}) for number, line in enumerate(lines, 1) if line.strip()
        )
        return
    start, part = 1, list[str]()
    for number, line in enumerate([*lines, SEPARATOR], 1):
        if line.strip() != SEPARATOR:
            part.append(line)
            continue
        if whole := "\n".join(part).strip():
            yield f"{label}:{start}", {"prompt": whole}
        start, part = number + 1, []


def _csv_rows(path: Path, label: str, columns: Sequence[str]) -> Iterator[tuple[str, Fields]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            reader = csv.reader(stream, strict=True)
            header: Sequence[str] = columns
            for number, cells in enumerate(reader):
                if number == 0 and (not columns or set(columns) & {cell.strip().lower() for cell in cells}):
                    header = cells
                elif cells:
                    yield f"{label}:{reader.line_num}", dict(zip(header, cells, strict=False))
    except UnicodeDecodeError:
        raise UsageError("this is not UTF-8 text", where=label) from None
    except csv.Error as error:
        raise UsageError(f"this is no CSV file: {error}", where=label) from None
    except OSError as error:
        raise UsageError(f"the file cannot be read: {error.strerror}", where=label) from None


def _opened(path: Path) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(path)) if path.name.lower().endswith(".gz") else path.open("rb")


def _lines(stream: IO[bytes], label: str) -> Iterator[bytes]:
    total = 0
    while line := stream.readline(_MAX_LINE + 1):
        total += len(line)
        if len(line) > _MAX_LINE or total > _MAX_BYTES:
            raise UsageError("a line is longer than 16 MiB, or the file than 1 GiB", where=label)
        yield line


def _object(line: bytes, where: str) -> Fields:
    value = _parsed(line, where, "one JSON object a line")
    if not isinstance(value, dict):
        raise UsageError(f"expected one JSON object a line; got {quoted(value)}", where=where)
    return value


def _parsed(text: bytes, where: str, expected: str) -> Plain:
    try:
        value: Plain = json.loads(text.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise UsageError("expected UTF-8 text", where=where) from None
    except json.JSONDecodeError as error:
        what = f"this line is not JSON: {error.msg} (column {error.colno})"
        raise UsageError(f"expected {expected}; {what}", where=where) from None
    except RecursionError:
        raise UsageError("expected a JSON object; this one is nested too deeply", where=where) from None
    return value


def _parquet_rows(path: Path, label: str) -> Iterator[tuple[str, Fields]]:
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError:
        fix = 'Install the extra `importers`: pip install "benchctl[importers]"'
        raise UsageError("reading a parquet file needs pyarrow, which is not installed", where=label, fix=fix) from None
    number = 0
    try:
        with path.open("rb") as stream:
            for batch in parquet.ParquetFile(stream).iter_batches(batch_size=_BATCH):
                for fields in batch.to_pylist():
                    number += 1
                    yield f"{label}: row {number}", fields
    except ValueError as error:  # such as pyarrow.lib.ArrowInvalid
        if not type(error).__module__.startswith("pyarrow"):
            raise
        raise UsageError("this is not a parquet file, or it is damaged", where=label) from None
    except OSError as error:
        raise UsageError(f"the file cannot be read: {error.strerror or error}", where=label) from None
