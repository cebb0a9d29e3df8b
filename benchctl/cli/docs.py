"""`benchctl docs [PAGE]`: the documentation that messages refer to, as it was when this version was made."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from benchctl.errors import UsageError
from benchctl.paths import shipped_folder


def page_names(incomplete: str = "") -> list[str]:
    """Return the names of the pages, sorted."""
    return sorted(page.stem for page in shipped_folder("docs").glob(f"{incomplete}*.md"))


def docs(
    page: Annotated[str | None, typer.Argument(help="Such as method or engines.", autocompletion=page_names)] = None,
) -> None:
    """Show a page of the documentation, or list the pages."""
    if page is None:
        typer.echo("\n".join(page_names()))
        return
    name = page.removeprefix("docs/").removesuffix(".md")
    if name not in page_names():
        raise UsageError(f"there is no page {page!r}", fix=f"The pages are: {', '.join(page_names())}.")
    text = (shipped_folder("docs") / f"{name}.md").read_text("utf-8")
    if not sys.stdout.isatty():
        typer.echo(text, nl=False)
        return
    from rich.console import Console
    from rich.markdown import Markdown

    console = Console()
    with console.pager(styles=True):
        console.print(Markdown(text))
