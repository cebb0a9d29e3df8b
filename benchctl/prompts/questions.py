"""The prompts of a question file: of a file that is imported, and of the user's own that is used as it is."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from benchctl.errors import UsageError
from benchctl.prompts.formats import FORMATS, TaskNames
from benchctl.prompts.images import with_images
from benchctl.prompts.own_rows import NO_TASK, NoPromptError, OwnRow
from benchctl.prompts.row import Fields, Kind, Question, Row
from benchctl.prompts.row_files import rows_of
from benchctl.prompts.suite import Message, Prompt
from benchctl.recipes.problems import did_you_mean, quoted
from benchctl.text import one_line


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
    form: type[Row],
    *,
    kind: Kind | None = None,
    tasks: Sequence[str] | None = None,
    limit: int | None = None,
    no_task: str = NO_TASK,
    skip_bad: bool = False,
) -> Questions:
    """Read a question file; keep at most `limit` prompts of each of `tasks` (None: all), in the file's order.

    `label` names the file in the suite and in messages: no path of this machine. `no_task`: of rows that name none.
    `skip_bad`: a row that is no prompt is left out, counted and named in the notes. Raises UsageError with the file,
    the line and what was expected.
    """
    by_task: dict[str, list[Prompt]] = {}
    places: dict[tuple[str, int], str] = {}
    questions: list[Question] = []
    names = TaskNames()
    kind = kind or form.kind
    without_text = 0
    skipped: list[UsageError] = []
    rows = 0
    for where, fields in rows_of(path, label, form.columns):
        rows += 1
        try:
            if isinstance(fields, UsageError):
                raise fields
            question = _question(fields, where, label, form)
            if question is None:
                without_text += 1
                continue
            kind = kind or ("raw" if isinstance(question.content, str) else "chat")
            prompt = with_images(_prompt(question, kind, where, label, form), path.parent, where)
        except UsageError as error:
            if not skip_bad:
                raise
            skipped.append(error)
            continue
        task = names[no_task if question.task == NO_TASK else question.task]
        prompts = by_task.setdefault(task, [])
        if (limit is None or len(prompts) < limit) and (tasks is None or task in tasks):
            places[task, len(prompts)] = where
            prompts.append(prompt)
            questions.append(question)
    if kind is None or not by_task:
        withheld = f": it withholds the text of all {without_text}" if without_text else ""
        if skipped:
            first = f"{skipped[0].where}: {skipped[0].what}"
            raise UsageError(f"no row is a prompt: {first}", where=one_line(label), fix=skipped[0].fix)
        raise UsageError(f"this file has no prompts{withheld}", where=one_line(label))
    chosen = _chosen(by_task, tasks, label)
    notes = (*_notes(questions, without_text), *_skipped(skipped, rows))
    return Questions(kind, chosen, places, _source(path, label, form, notes), notes)


def plain(prompt: Prompt) -> str:
    """Return a prompt as JSON, characters as they are."""
    return json.dumps(prompt.model_dump(mode="json", exclude_none=True), ensure_ascii=False)


def _question(fields: Fields, where: str, label: str, form: type[Row]) -> Question | None:
    """Return the question of a row, None where its text is withheld. Raises UsageError."""
    try:
        return form.question_of(fields)
    except NoPromptError as error:
        raise UsageError(str(error), where=where, fix=_reader(fields, label)) from None
    except ValueError as error:
        raise UsageError(str(error), where=where, fix=_remedy(form, label)) from None


def _remedy(form: type[Row], label: str) -> str:
    if form is OwnRow:
        return "Such rows are left out with --skip-bad, or `prompts: {skip_bad: true}` in a recipe."
    shape = f"{form.title} has {form.example}. "
    return f"{shape}This leaves such rows out: {_command(form, label)} --skip-bad"


def _command(form: type[Row], label: str) -> str:
    licence = "" if form.licence else " --licence LICENCE"
    return f"benchctl models prompts import {one_line(label)} --format {form.name}{licence} -o suite.json"


def _reader(fields: Fields, label: str) -> str:
    """Return the command that reads a row of a public data set; else what a row has."""
    forms = [form for form in FORMATS.values() if form is not OwnRow and _reads(form, fields)]
    forms.sort(key=lambda form: form.licence is None)
    if not forms:
        return f"Call the key that holds the prompt `prompt`: {OwnRow.title} has {OwnRow.example}."
    others = ", ".join(form.name for form in forms[1:])
    return f"This reads it: {_command(forms[0], label)}" + (f" (the same keys have: {others})" if others else "")


def _reads(form: type[Row], fields: Fields) -> bool:
    try:
        return form.question_of(fields) is not None
    except ValueError:
        return False


def _prompt(question: Question, kind: Kind, where: str, label: str, form: type[Row]) -> Prompt:
    try:
        return _checked(question, kind)
    except ValueError as error:
        raise UsageError(str(error), where=where, fix=_remedy(form, label)) from None


def _checked(question: Question, kind: Kind) -> Prompt:
    content, values = question.content, {**question.request, "reference": question.reference, "answer": question.answer}
    if kind == "chat":
        values["messages"] = (Message(role="user", content=content),) if isinstance(content, str) else content
    elif isinstance(content, str):
        values["prompt"] = content
    else:
        raise ValueError("expected `prompt`, since the suite is raw; got `messages` (import with --kind chat)")
    try:
        prompt = Prompt.model_validate(values, strict=False)
    except ValidationError as error:
        key = str(error.errors()[0]["loc"][0])
        raise ValueError(f"expected `{key}` as in a request to a chat API; got {quoted(values[key])}") from None
    if prompt.problem is not None:
        raise ValueError(prompt.problem.rstrip("."))
    try:
        plain(prompt).encode()
    except UnicodeEncodeError:
        raise ValueError("expected text; got half of a surrogate pair, which is not a character") from None
    return prompt


def _notes(questions: Sequence[Question], without_text: int) -> Iterator[str]:
    unsent = list(dict.fromkeys(key for question in questions for key in question.unsent))
    listed = ", ".join(one_line(key, 40) for key in unsent[:12]) + (", …" if len(unsent) > 12 else "")
    sentences = {
        "later turns, which depend on the model's own answers, are not asked: only the first turn is": "later_turns",
        "only the last turn of the user is asked; those before it are sent as they stand, with their answers": (
            "earlier_turns"
        ),
        "what follows the turn that is asked is not sent": "goes_on",
        f"keys are not sent ({listed}): the model and the sampling are the recipe's, others are no part of a prompt": (
            "unsent"
        ),
    }
    for sentence, key in sentences.items():
        if count := sum(bool(getattr(question, key)) for question in questions):
            yield f"In {count} of {len(questions)} prompts {sentence}."
    if without_text:
        yield f"{without_text} questions were left out: the file withholds their text."


def _skipped(errors: Sequence[UsageError], rows: int) -> Iterator[str]:
    if errors:
        listed = "; ".join(f"{error.where}: {error.what}" for error in errors[:_MOST_NAMED])
        more = f"; and {len(errors) - _MOST_NAMED} more" if len(errors) > _MOST_NAMED else ""
        yield f"{len(errors)} of {rows} rows were skipped: {listed}{more}."


def _chosen(by_task: dict[str, list[Prompt]], tasks: Sequence[str] | None, label: str) -> dict[str, list[Prompt]]:
    for task in tasks or ():
        if task not in by_task:
            fix = did_you_mean(task, by_task).strip() or f"It has: {', '.join(by_task)}."
            raise UsageError(f"{one_line(label)} has no task {quoted(task)}", where="--tasks", fix=fix)
    return {task: prompts for task, prompts in by_task.items() if prompts}


def _source(path: Path, label: str, form: type[Row], notes: Sequence[str]) -> str:
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    home = f" ({form.home})" if form.home else ""
    parts = [f"{form.title}{home}", f"imported from {one_line(label)}", f"SHA-256 {digest}"]
    return "; ".join([*parts, *(note.rstrip(".") for note in notes)])


_MOST_NAMED = 5
"""Skipped rows that a note names."""
