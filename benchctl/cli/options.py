"""Options that several commands share: each has one meaning and one description."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperCommand

from benchctl.cli import complete

RARE = "Rarely needed"
"""The panel of a command's help, below the others."""

Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A key of the recipe: sampling.max_tokens=64.")
]
Limit = Annotated[
    int | None, typer.Option(min=1, help="At most N prompts of each task, instead of the recipe's.", metavar="N")
]
Blocks = Annotated[
    str | None, typer.Option(help="Blocks, instead of the recipe's: a number, or auto.", metavar="N|auto")
]
Results = Annotated[Path, typer.Option(metavar="DIR", help="The folder of runs.", file_okay=False)]
Baseline = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="The arm to compare with.", show_default="the run's own", autocompletion=complete.arms
    ),
]
OnlyArms = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="Compare only this arm; may be repeated.", autocompletion=complete.arms),
]
EngineBinary = Annotated[
    str | None,
    typer.Option(
        metavar="PATH",
        help="The engine's binary, instead of the recipe's: a path, or a name on PATH.",
        rich_help_panel=RARE,
    ),
]
ModelsDir = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Look for the models' files here before anywhere else.",
        file_okay=False,
        rich_help_panel=RARE,
    ),
]
TrustRecipe = Annotated[
    bool,
    typer.Option(
        "--trust-recipe",
        help="Give the recipe all that it asks for: code, files, servers, keys; until it changes.",
        rich_help_panel=RARE,
    ),
]
Accept = Annotated[
    Literal["identical", "consistent"],
    typer.Option(help="`consistent`: exit with 0 also where differences are within the target's numeric noise."),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
JsonAtEnd = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout at the end.")]
JsonForTables = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")]
JsonForText = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]


class Command(TyperCommand):
    """A command whose help names no type of a flag (`<bool>` says nothing, and takes a column), and is wrapped by the
    terminal's width, not where the source is."""

    def format_help(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 - typer's own click has no public name
        """Print the help."""
        for param in self.get_params(ctx):
            if getattr(param, "is_flag", False):
                param.metavar = ""
        if self.help is not None:
            self.help = "\n\n".join(" ".join(part.split()) for part in self.help.split("\n\n"))
        super().format_help(ctx, formatter)


class SweepCommand(Command):
    """A command that takes `-L depth 2,4,8`, two arguments for one option, as well as `-L depth=2,4,8`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - typer's own click has no public name
        """Join the two arguments of `-L`."""
        given = iter(args)
        joined = []
        for arg in given:
            joined.append(arg)
            if arg == "-L" and (key := next(given, None)) is not None:
                values = None if "=" in key or key.startswith("-") else next(given, None)
                joined.append(key if values is None else f"{key}={values}")
        return super().parse_args(ctx, joined)
