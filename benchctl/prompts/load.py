"""A prompt suite, found, checked, and written of a question file: errors name the file, the task and the prompt."""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from benchctl.errors import StorageError, UsageError
from benchctl.paths import prompts_file, shipped_folder
from benchctl.prompts.formats import FORMATS
from benchctl.prompts.images import with_images
from benchctl.prompts.questions import Questions, plain, read_questions
from benchctl.prompts.row_files import as_utf8, parse_json
from benchctl.prompts.suite import SENT_FIELDS, Prompt, PromptItem
from benchctl.recipes.problems import KeyPath, did_you_mean, path_text
from benchctl.recipes.schema import Name
from benchctl.recipes.source import of_windows
from benchctl.recipes.translate import translate
from benchctl.text import one_line
from benchctl.writing import refuse_overwriting

SUITE_SCHEMA = 1
MAX_BYTES = 64 << 20
"""The largest prompts file that is loaded."""
_MAX_REPORTED = 10
_OWN = (".txt", ".jsonl", ".jsonl.gz")
"""The user's own prompts rather than a suite, as is a `.json` file that holds a list."""

_LINES = re.compile(rb"(?:\xef\xbb\xbf)?\s*\{[^\n]*\}[ \t\r]*\n\s*\{")
"""JSON lines under the name of a `.json` file: the first line is an object, and another follows."""


class _SuiteFile(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    schema_version: int = Field(
        alias="schema", le=SUITE_SCHEMA, description="the number of the format; a higher one is of a newer benchctl"
    )
    name: Name = Field(description="the suite's name")
    kind: Literal["chat", "raw"] = Field(description="chat (prompts have messages) or raw (they have a prompt)")
    licence: str = Field(description="the prompts' licence")
    source: str = Field(description="where the prompts come from")
    tasks: dict[Name, tuple[Prompt, ...]] = Field(min_length=1, description="a mapping of task to its list of prompts")


@dataclass(frozen=True)
class Suite:
    """A prompts file as it was loaded."""

    name: str
    kind: Literal["chat", "raw"]
    licence: str
    source: str
    sha256: str
    """The SHA-256 of the file."""
    tasks: dict[str, tuple[Prompt, ...]]
    places: Mapping[tuple[str, int], str] = field(default_factory=dict)
    """File and line of every prompt of the user's own file, by its task and index."""
    notes: tuple[str, ...] = ()
    """What of the user's own file is not asked or sent, in sentences."""

    def select(self, tasks: Sequence[str] | None, limit: int | None) -> tuple[PromptItem, ...]:
        """Return the prompts of `tasks` (None: all), at most `limit` of each. Raises UsageError for an unknown task."""
        names = self.tasks if tasks is None else tasks
        chosen = dict.fromkeys(task for name in names for task in self._named(name))
        return tuple(
            PromptItem(task=task, prompt_idx=index, prompt=prompt, where=self._place(task, index))
            for task in chosen
            for index, prompt in enumerate(self.tasks[task][:limit])
        )

    def _named(self, name: str) -> list[str]:
        """Return the tasks of a name, which may hold a `*`."""
        matches = [task for task in self.tasks if task == name or ("*" in name and fnmatchcase(task, name))]
        if not matches:
            near = did_you_mean(name, self.tasks).strip()
            raise UsageError(
                f"the suite '{self.name}' has no task '{one_line(name, 60)}'",
                where="prompts.tasks",
                fix=near or f"It has: {', '.join(self.tasks)}.",
            )
        return matches

    def _place(self, task: str, index: int) -> str:
        return self.places.get((task, index), f"{self.name}: tasks.{task}[{index}]")


def prompt_sha256(prompt: Prompt) -> str:
    """Return the SHA-256 of a prompt: canonical JSON of all that is sent, so without the reference answer."""
    content = prompt.model_dump(mode="json", include={"messages", "prompt", *SENT_FIELDS}, exclude_none=True)
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def load_suite(name_or_path: str, *, recipe_folder: Path, skip_bad: bool = False) -> Suite:
    """Load a prompts file: beside the recipe, in the working directory, or shipped. Raises UsageError.

    `skip_bad`: rows of a user's own file that are no prompts are left out, and named in the notes.
    """
    path = _find(name_or_path, recipe_folder)
    where = one_line(str(path))
    try:
        with path.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"the prompts file cannot be read: {error.strerror}", where=where) from None
    if len(raw) > MAX_BYTES:
        raise UsageError("the prompts file is larger than 64 MiB", where=where)
    is_own = path.name.lower().endswith(_OWN) or _LINES.match(raw) is not None
    data = None if is_own else parse_json(raw, where, "a JSON object with `tasks`, or a list of prompts")
    if is_own or isinstance(data, list):
        return _own_file(path, raw, where, skip_bad=skip_bad)
    if skip_bad:
        raise UsageError("this is a suite, whose prompts are checked as a whole: skip_bad is for rows", where=where)
    try:
        suite = _SuiteFile.model_validate_json(as_utf8(raw))
    except ValidationError as error:
        raise _refusal(where, translate(error, data, _SuiteFile)) from None
    if problems := _mismatches(suite):
        raise _refusal(where, problems)
    tasks = {
        task: tuple(
            with_images(prompt, path.parent, f"{where}: tasks.{task}[{index}]") for index, prompt in enumerate(prompts)
        )
        for task, prompts in suite.tasks.items()
    }
    return Suite(suite.name, suite.kind, suite.licence, suite.source, hashlib.sha256(raw).hexdigest(), tasks)


def _own_file(path: Path, raw: bytes, where: str, *, skip_bad: bool) -> Suite:
    """Return the user's own prompts, read as an import reads them; their task is the file's name where it is absent."""
    name = path.name.split(".")[0] or "prompts"
    questions = read_questions(path, path.name, FORMATS["jsonl"], kind="chat", no_task=name, skip_bad=skip_bad)
    tasks = {task: tuple(prompts) for task, prompts in questions.tasks.items()}
    digest = hashlib.sha256(raw).hexdigest()
    return Suite(name, "chat", "not stated", where, digest, tasks, places=questions.places, notes=questions.notes)


def _find(name_or_path: str, recipe_folder: Path) -> Path:
    path = prompts_file(name_or_path, recipe_folder)
    if path is not None:
        return path
    shipped = [file.name for file in sorted(shipped_folder("prompts").glob("*.json"))]
    beside = [file.name for folder in (recipe_folder, Path.cwd()) for file in folder.glob("*.*")]
    near = did_you_mean(Path(name_or_path).name, [*shipped, *beside], 0.75).strip()
    if os.path.isdir(recipe_folder / Path(name_or_path).expanduser()):  # noqa: PTH112 - a name may be too long for one
        near = "This is a folder; name a file in it."
    raise UsageError(
        f"there is no prompts file '{one_line(name_or_path, 200)}' beside the recipe, here, or among the shipped ones",
        where="prompts.suite",
        fix=of_windows(name_or_path) or near or f"Shipped: {', '.join(shipped)}.",
    )


def _mismatches(suite: _SuiteFile) -> list[tuple[KeyPath, str]]:
    """Find prompts that are not of the suite's kind, and tasks without any."""
    own_key, other_key = ("messages", "prompt") if suite.kind == "chat" else ("prompt", "messages")
    problems: list[tuple[KeyPath, str]] = []
    for task, prompts in suite.tasks.items():
        if not prompts:
            problems.append((("tasks", task), "expected at least one prompt, got an empty list."))
        for index, prompt in enumerate(prompts):
            if getattr(prompt, own_key) is None or getattr(prompt, other_key) is not None:
                message = f"a prompt of a suite of kind '{suite.kind}' has `{own_key}` and no `{other_key}`."
                problems.append((("tasks", task, index), message))
            elif prompt.problem is not None:
                problems.append((("tasks", task, index), prompt.problem))
    return problems


def _refusal(where: str, problems: list[tuple[KeyPath, str]]) -> UsageError:
    lines = [": ".join(filter(None, (path_text(path), message))) for path, message in problems[:_MAX_REPORTED]]
    if len(problems) > _MAX_REPORTED:
        lines.append(f"… and {len(problems) - _MAX_REPORTED} more.")
    return UsageError("\n".join(lines), where=where)


def write_suite(questions: Questions, path: Path, *, name: str, licence: str, force: bool = False) -> Suite:
    """Write the suite to `path`, the same bytes for the same questions, and return it as it loads. Raises UsageError,
    StorageError.
    """
    suite = {
        "schema": SUITE_SCHEMA,
        "name": name,
        "kind": questions.kind,
        "licence": licence,
        "source": questions.source,
        "tasks": {task: [json.loads(plain(prompt)) for prompt in prompts] for task, prompts in questions.tasks.items()},
    }
    data = (json.dumps(suite, indent=1, ensure_ascii=False) + "\n").encode()
    if len(data) > MAX_BYTES:
        message = f"the suite would have {len(data) >> 20} MiB, and benchctl loads at most {MAX_BYTES >> 20}"
        raise UsageError(message, where=str(path), fix="Take fewer prompts with --limit or --tasks.")
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
