"""Where a question file is: on this machine, or in a dataset repository of the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path

from benchctl.errors import UsageError
from benchctl.models.hashes import Notice
from benchctl.models.hub import OfflineError, fetch_dataset
from benchctl.prompts.importers.rows import ENDINGS
from benchctl.recipes.source import HubSource, PathSource, parse_source
from benchctl.text import one_line


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
