"""Reads an HTML page as a strict reader would: every element closed in order, what is shown, what is fetched."""

from __future__ import annotations

from html.parser import HTMLParser

from tests.oracle.pages import Page

VOID = frozenset({"meta", "br", "link", "img", "hr", "input"})


class PageText(HTMLParser):
    """`elements` are (tag, attributes) in order, `text` is what a reader sees, `unfolded` without opening it.

    Malformed nesting raises ValueError.
    """

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self.unfolded = ""
        self._scripts: list[tuple[dict[str, str], str]] = []
        self._open: list[str] = []
        self.feed(page)
        self.close()
        if self._open:
            raise ValueError(f"never closed: {self._open}")

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        if len(names) != len(set(names)):
            raise ValueError(f"<{tag}> repeats an attribute: {names}")
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag == "script":
            self._scripts.append((self.elements[-1][1], ""))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open.pop() != tag:
            raise ValueError(f"</{tag}> closes nothing, at line {self.getpos()[0]}")

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] == "script":
            attributes, text = self._scripts.pop()
            self._scripts.append((attributes, text + data))
        if self._open and self._open[-1] not in {"style", "title", "script"}:
            self.text += data
            if self._open.count("details") == self._open.count("summary"):
                self.unfolded += data

    def scripts(self) -> list[tuple[dict[str, str], str]]:
        """The attributes and the text of every script element."""
        return self._scripts

    def all(self, tag: str) -> list[dict[str, str]]:
        """The attributes of every element called `tag`."""
        return [attributes for name, attributes in self.elements if name == tag]


def page_tables(page: str) -> dict[str, list[list[str]]]:
    """Caption to the rows of every table of a page."""
    return {table.where.partition(", ")[2]: table.rows for table in Page(page).tables}
