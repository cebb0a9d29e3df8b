"""The pages that messages refer to are there, and are shown."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import benchctl
from benchctl.cli.app import app
from benchctl.cli.docs import page_names
from benchctl.errors import UsageError
from benchctl.paths import shipped_folder

PACKAGE = Path(benchctl.__file__).parent
ROOT = PACKAGE.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def commands_in(text: str) -> Iterator[str]:
    """The commands of a page: lines of code, and code within the text; without brackets, and to where it is cut off."""
    lines = re.findall(r"^(?:    |\$ )+(benchctl .*)$", text, re.MULTILINE)
    spans = re.findall(r"(?<!`)`(benchctl [^`]+)`", text)
    for command in [*(part for line in lines for part in re.split(r" && |  +#| # ", line)), *spans]:
        if command.startswith("benchctl "):
            yield re.sub(r"[\[\]]", "", re.split(r" …", " ".join(command.split()))[0])


def parse(words: list[str]) -> None:
    """Parse a command as the program does, without running it."""
    command = typer.main.get_command(app)
    context = command.make_context("benchctl", words)
    while hasattr(command, "resolve_command"):
        name, command, remaining = command.resolve_command(context, [*context._protected_args, *context.args])
        context = command.make_context(name, remaining, parent=context)


@pytest.mark.parametrize("page", [*PAGES, ROOT / "benchmarks" / "on_a_gpu.sh"], ids=lambda page: page.name)
def test_every_command_of_a_page_exists_and_parses(page: Path) -> None:
    for command in commands_in(page.read_text("utf-8")):
        if "--install-completion" in command:  # acts while it is parsed
            continue
        words = ["1" if word == "N" else word for word in shlex.split(command)[1:]]
        try:
            parse(words)
        except Exception as error:
            accepted_errors = (
                "MissingParameter",
                "NoArgsIsHelpError",
                "Exit",
            )  # a command is named without its arguments
            assert type(error).__name__ in accepted_errors, f"{command}: {error}"


def anchors(page: Path) -> set[str]:
    """The anchors that a page has: of its headings, as they are made where pages are shown, and its own."""
    text = page.read_text("utf-8")
    heads = [
        re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    ]
    return {*heads, *re.findall(r'<a id="([^"]+)"', text)}


@pytest.mark.parametrize(
    "page", [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "benchmarks" / "README.md"], ids=lambda page: page.name
)
def test_no_link_of_a_page_is_broken(page: Path) -> None:
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_every_page_that_a_message_names_exists() -> None:
    named = {
        page
        for file in PACKAGE.rglob("*.py")
        for page in re.findall(r"`benchctl docs ([a-z-]+)`", file.read_text("utf-8"))
    }
    assert named and named <= set(page_names())


def test_messages_name_no_file_of_the_checkout() -> None:
    for file in PACKAGE.rglob("*.py"):
        assert not re.search(r"[Ss]ee docs/[a-z-]+\.md[^\n]*\",", file.read_text("utf-8")), file


@pytest.mark.parametrize("page", ["engines", "docs/engines.md"])
def test_a_page_is_printed(page: str) -> None:
    shown = CliRunner().invoke(app, ["docs", page])
    assert shown.exit_code == 0 and shown.stdout.startswith("# ")


def test_pages_are_listed_and_another_is_refused() -> None:
    listed = CliRunner().invoke(app, ["docs"], env={"COLUMNS": "160"}).stdout.splitlines()[1:]
    about = dict(line.split(maxsplit=1) for line in listed if line[0] != " ")
    assert [*about] == page_names()
    assert about["engines"].strip() == "benchctl measures one binary of one build, and records its hash."
    assert about["method"].startswith("This page defines every number of a report."), "cut off at the colon"
    titles = {(shipped_folder("docs") / f"{name}.md").read_text("utf-8").splitlines()[0].lstrip("# ") for name in about}
    assert not titles & {line.strip() for line in about.values()}, "a page begins with a sentence on what it is about"
    refused = CliRunner().invoke(app, ["docs", "../README"])
    assert isinstance(refused.exception, UsageError) and "method" in (refused.exception.fix or "")
