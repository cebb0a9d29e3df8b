"""Prompts of a question file written as a suite, once it has been loaded as one."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from benchctl.errors import StorageError, UsageError
from benchctl.models.files import Notice
from benchctl.models.hub import OfflineError, fetch_dataset
from benchctl.prompts.importers.questions import Questions, plain
from benchctl.prompts.importers.rows import ENDINGS
from benchctl.prompts.load import MAX_BYTES, SUITE_SCHEMA, Suite, load_suite
from benchctl.recipes.source import HubSource, PathSource, parse_source
from benchctl.text import one_line


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
        "tasks": {task: [json.loads(plain(prompt)) for prompt in prompts] for task, prompts in questions.tasks.items()},
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
