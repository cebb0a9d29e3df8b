"""Hatch's hook for the README on a package page, where neither pictures nor files of the repository are.

A link to a page of docs/ names the command that shows it; of other links to files the text stays.
"""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

PICTURE = re.compile(r"^\[?!\[.*\n(?:\n\*[^*].*\n(?:.+\n)*)?", re.MULTILINE)
"""A picture on a line of its own, with the caption in italics below it."""
PAGE = re.compile(r"\[([^\]]+)\]\(docs/([a-z-]+)\.md[^)]*\)")
FILE = re.compile(r"\[([^\]]+)\]\((?!https?:)[^)]*\)")


def packaged(text: str) -> str:
    """Return the README without what only the repository has."""
    return FILE.sub(r"\1", PAGE.sub(r"\1 (`benchctl docs \2`)", PICTURE.sub("", text)))


class PackageReadme(MetadataHookInterface):
    """Sets `readme`."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Write it into the package's metadata."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": packaged(text)}
