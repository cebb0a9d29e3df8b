"""Shows what became of the words of an engine's own command line, and names the way for such words without it."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand

from benchctl.errors import UsageError
from benchctl.text import for_strangers, one_line

if TYPE_CHECKING:
    from benchctl.recipes.engine_line import EngineLine


def show_engine_line(line: EngineLine) -> None:
    """Print the words of a line in their order, each with the key of the recipe that it became."""
    shown = [(one_line(for_strangers(words), 60), key) for words, key in line.destinations]
    width = max((len(words) for words, _ in shown), default=0)
    typer.echo("The line as a recipe:")
    for words, key in shown:
        typer.echo(f"  {words:{width}}  {one_line(key, 200)}")


class TakesEngineLines(TyperCommand):
    """A command to which an engine's line can be pasted, behind `--`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - typer has a click of its own
        """Read the words. Raises UsageError for an option of an engine, which is no option here."""
        own_options = {name for parameter in self.params for name in (*parameter.opts, *parameter.secondary_opts)}
        words = itertools.takewhile(lambda word: word != "--", args)
        strange = [word for word in words if word.startswith("-") and word.partition("=")[0] not in own_options]
        if strange and not ctx.resilient_parsing:
            from benchctl.recipes.engine_line import known_option

            if (option := known_option(strange)) is not None:
                raise UsageError(
                    f"{one_line(option, 80)} is an option of an engine, not of benchctl.",
                    fix=f"Paste the engine's whole line behind --: benchctl {self.name} -- llama-server -m TARGET …",
                )
        return super().parse_args(ctx, args)
