"""`benchctl docs [PAGE]`: the documentation that messages refer to, as it was when this version was made."""

from __future__ import annotations

import os
import re
import sys
from typing import Annotated

import typer

from benchctl.errors import UsageError
from benchctl.paths import shipped_folder


def page_names(incomplete: str = "") -> list[str]:
    """Return the names of the pages, sorted."""
    return sorted(page.stem for page in shipped_folder("docs").glob(f"{incomplete}*.md"))


def _text(name: str) -> str:
    return (shipped_folder("docs") / f"{name}.md").read_text("utf-8")


def _first_sentence(page: str) -> str:
    """Return the first sentence of a page that begins with prose, without Markdown's marks; else its title."""
    title, first, *_ = page.split("\n\n")
    match = re.match(r"[\w`*].*?[.:](?=\s|$)", " ".join(first.split("```")[0].split()))
    line = re.sub(":$", ".", match[0]) if match else title.lstrip("# ")
    return re.sub(r"\[([^]]*)\]\([^)]*\)|[`*]", r"\1", line)


def docs(
    page: Annotated[str | None, typer.Argument(help="Such as method or engines.", autocompletion=page_names)] = None,
) -> None:
    """Show a page of the documentation, or list the pages."""
    if page is None:
        from benchctl.reports.terminal import Printout

        rows = [(name, _first_sentence(_text(name))) for name in page_names()]
        Printout().rows(("page", "what it is about"), rows, wrap="what it is about")
        return
    name = page.removeprefix("docs/").removesuffix(".md")
    if name not in page_names():
        raise UsageError(f"there is no page {page!r}", fix=f"The pages are: {', '.join(page_names())}.")
    text = _text(name)
    if not sys.stdout.isatty():
        typer.echo(text, nl=False)
        return
    from rich.console import Console
    from rich.markdown import Markdown

    os.environ.setdefault("LESS", "FRX")  # as git does: less shows styles as codes otherwise
    console = Console()
    with console.pager(styles=True):
        console.print(Markdown(text))
