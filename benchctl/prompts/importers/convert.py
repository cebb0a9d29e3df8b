"""A question file turned into a prompt suite, and written once it has been loaded as one."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchctl.errors import StorageError, UsageError
from benchctl.models.hashes import Notice
from benchctl.models.hub import OfflineError, fetch_dataset
from benchctl.prompts.importers.formats import Format, Kind, Question, TaskNames, UnexpectedRowError
from benchctl.prompts.importers.rows import ENDINGS, read_rows
from benchctl.prompts.load import MAX_BYTES, SUITE_SCHEMA, Suite, load_suite
from benchctl.prompts.suite import Message, Prompt
from benchctl.recipes.problems import did_you_mean, quoted
from benchctl.recipes.source import HubSource, PathSource, parse_source
from benchctl.text import one_line


@dataclass(frozen=True)
class Questions:
    """What was taken from a question file."""

    kind: Kind
    tasks: dict[str, list[Prompt]]
    source: str
    """The suite's `source`: the format, the file and its SHA-256, and what was left out."""
    multi_turn: int
    """How many of the prompts have later turns, which are not sent."""
    without_text: int
    """Rows whose text is not in the file."""


def read_questions(
    path: Path,
    label: str,
    form: Format,
    *,
    kind: Kind | None = None,
    tasks: Sequence[str] | None = None,
    limit: int | None = None,
) -> Questions:
    """Read all of a question file; keep at most `limit` prompts of each of `tasks` (None: all), in the file's order.

    `label` names the file in the suite and in messages: no path of this machine. Raises UsageError with the file, the
    line and what was expected.
    """
    found: dict[str, list[Prompt]] = {}
    names = TaskNames()
    kind = kind or form.kind
    multi_turn = without_text = 0
    for where, fields in read_rows(path, label):
        try:
            question = form.read(fields)
            if question is None:
                without_text += 1
                continue
            kind = kind or ("raw" if isinstance(question.content, str) else "chat")
            prompt = _prompt(question, kind)
        except UnexpectedRowError as error:
            raise UsageError(str(error), where=where, fix=f"{form.title} has {form.example}.") from None
        task = names(question.task)
        prompts = found.setdefault(task, [])
        if (limit is None or len(prompts) < limit) and (tasks is None or task in tasks):
            prompts.append(prompt)
            multi_turn += question.later_turns > 0
    if kind is None or not found:
        reason = (
            f"the text of all {without_text} questions is not in this file"
            if without_text
            else "this file has no questions"
        )
        raise UsageError(reason, where=one_line(label))
    chosen = _chosen(found, tasks, label)
    return Questions(kind, chosen, _source(path, label, form, multi_turn, without_text), multi_turn, without_text)


def _prompt(question: Question, kind: Kind) -> Prompt:
    if kind == "chat":
        turns = question.content
        messages = (Message(role="user", content=turns),) if isinstance(turns, str) else turns
        prompt = Prompt(messages=messages, reference=question.reference)
    elif isinstance(question.content, str):
        prompt = Prompt(prompt=question.content, reference=question.reference)
    else:
        raise UnexpectedRowError("expected `prompt`, since the suite is raw; got `messages` (import with --kind chat)")
    try:
        _plain(prompt).encode()
    except UnicodeEncodeError:
        raise UnexpectedRowError("expected text; got half of a surrogate pair, which is not a character") from None
    return prompt


def _plain(prompt: Prompt) -> str:
    return json.dumps(prompt.model_dump(mode="json", exclude_none=True), ensure_ascii=False)


def _chosen(found: dict[str, list[Prompt]], tasks: Sequence[str] | None, label: str) -> dict[str, list[Prompt]]:
    for task in tasks or ():
        if task not in found:
            fix = did_you_mean(task, found).strip() or f"It has: {', '.join(found)}."
            raise UsageError(f"{one_line(label)} has no task {quoted(task)}", where="--tasks", fix=fix)
    return {task: prompts for task, prompts in found.items() if prompts}


def _source(path: Path, label: str, form: Format, multi_turn: int, without_text: int) -> str:
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    home = f" ({form.home})" if form.home else ""
    parts = [f"{form.title}{home}", f"imported from {one_line(label)}", f"SHA-256 {digest}"]
    if multi_turn:
        parts.append("of several turns only the first is sent")
    if without_text:
        parts.append(f"{without_text} questions whose text is not in the file are left out")
    return "; ".join(parts)


def write_suite(questions: Questions, path: Path, *, name: str, licence: str, force: bool = False) -> Suite:
    """Write the suite to `path` and return it as it loads; what is there already stays unless `force`.

    The same questions give the same bytes. Raises UsageError for a suite that benchctl would not load, StorageError
    for a file that cannot be written.
    """
    suite = {
        "schema": SUITE_SCHEMA,
        "name": name,
        "kind": questions.kind,
        "licence": licence,
        "source": questions.source,
        "tasks": {
            task: [json.loads(_plain(prompt)) for prompt in prompts] for task, prompts in questions.tasks.items()
        },
    }
    data = (json.dumps(suite, indent=1, ensure_ascii=False) + "\n").encode()
    if len(data) > MAX_BYTES:
        what = f"the suite would have {len(data) >> 20} MiB, and benchctl loads at most {MAX_BYTES >> 20}"
        raise UsageError(what, where=str(path), fix="Take fewer prompts with --limit or --tasks.")
    refuse_overwriting(path, force)
    try:
        with tempfile.TemporaryDirectory(prefix=".import-", dir=path.absolute().parent) as folder:
            draft = Path(folder) / path.name
            draft.write_bytes(data)
            loaded = load_suite(str(draft.resolve()), recipe_folder=Path(folder))
            draft.replace(path)
    except OSError as error:
        raise StorageError(f"the file cannot be written: {error.strerror}", where=str(path)) from None
    return loaded


def refuse_overwriting(path: Path, force: bool) -> None:
    """Raise UsageError where a file is in the way."""
    if path.exists() and not force:
        raise UsageError("this file exists already", where=str(path), fix="Overwrite it with --force.")


def locate(source: str, notice: Notice | None = None) -> tuple[Path, str]:
    """Return the file that `source` means (a path, or hf:ORG/REPO[/FILE]) and what it is called in the suite.

    Raises UsageError for a file that is not there, and for what the hub refuses or cannot give without a network.
    """
    try:
        parsed = parse_source(source)
    except ValueError:
        parsed = None
    if isinstance(parsed, PathSource):
        path = Path(parsed.path).expanduser()
        if not path.is_file():
            raise UsageError("there is no such file", where=one_line(source, 200))
        return path, path.name
    if not isinstance(parsed, HubSource):
        raise UsageError("expected a path or hf:ORG/REPO[/FILE]", where=one_line(source, 200))
    try:
        path, name = fetch_dataset(parsed, ENDINGS, notice)
    except OfflineError as error:
        fix = "Go online, or download the file elsewhere and import it from there."
        raise UsageError(str(error), where=one_line(source, 200), fix=fix) from None
    return path, f"hf:{parsed.repo}/{name}"
