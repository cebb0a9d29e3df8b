"""The options that commands share, each with a single meaning."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from benchctl.cli import complete
from benchctl.errors import UsageError
from benchctl.recipes.problems import quoted
from benchctl.text import one_line

MODELS = "Models, where no recipe is named"
"""The panel of a command's help with what makes a recipe."""
RARE = "Rarely needed"
"""The panel of a command's help, below the others."""

of_models = partial(typer.Option, rich_help_panel=MODELS)
rare = partial(typer.Option, rich_help_panel=RARE)

Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="RECIPE | TARGET [DRAFT]",
        help="A recipe, a run's folder, or the models (as with -t and -d).",
        autocompletion=complete.recipes,
    ),
]
of_run = partial(
    typer.Argument, metavar="RUN", help="A run, a recipe's name, or a JSONL file.", autocompletion=complete.runs
)
LatestRun = Annotated[str | None, of_run(show_default="the latest run")]
SeveralRuns = Annotated[list[str] | None, of_run(show_default="the latest run")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")]
Target = Annotated[str | None, of_models("--target", "-t", "-m", metavar="MODEL", help="The target.")]
Draft = Annotated[str | None, of_models("--draft", "-d", "-md", metavar="MODEL", help="The draft.")]
Kind = Annotated[str | None, of_models("--engine", metavar="KIND", help="The engine.", autocompletion=complete.kinds)]


def _single(types: list[str] | None) -> list[str] | None:
    """Return the types. Raises UsageError for several in one, as llama-server takes them."""
    if chained := next((word for word in types or () if "," in word), None):
        fix = f"In a recipe types that work together are a list: `type: [{one_line(chained, 80)}]`. Else repeat it."
        raise UsageError(f"{quoted(chained)} is several types.", where="--type", fix=fix)
    return types


Types = Annotated[
    list[str] | None,
    of_models(
        "--type",
        metavar="TYPE",
        callback=_single,
        help="A speculation type (see benchctl engines list); repeatable.",
        autocompletion=complete.types_of_speculation,
    ),
]


def _written_out(depths: str | None) -> str | None:
    """Return `2:4` as `2,3,4`. Raises UsageError for what is no depth."""
    from benchctl.recipes.speculation import MAX_DEPTH

    return ",".join(map(str, read_depths(depths, MAX_DEPTH))) if depths else depths


def read_depths(text: str, limit: int = 256) -> list[int]:
    """Return the draft depths of `1:16` or `2,4,8`, in their order. Raises UsageError."""
    first, colon, last = text.partition(":")
    parts = [part.strip() for part in ([first, last] if colon else text.split(","))]
    if not all(part.isascii() and part.isdigit() and 1 <= int(part[:6]) <= limit for part in parts):
        raise UsageError(f"Expected draft depths from 1 to {limit} as 1:16 or 2,4,8.", where="--depth")
    numbers = [int(part) for part in parts]
    if colon and numbers[0] > numbers[1]:
        raise UsageError(f"The range {numbers[0]}:{numbers[1]} is empty.", where="--depth", fix="Write 1:16.")
    return list(range(numbers[0], numbers[1] + 1)) if colon else sorted(set(numbers))


def read_budget(text: str) -> float:
    """Return the seconds of `15m`, `900s`, `1.5h` or minutes without a unit. Raises UsageError."""
    match = re.fullmatch(r"(\d{1,6}(?:\.\d{1,3})?)\s*(s|m|min|h)?", text.strip(), re.ASCII)
    seconds = float(match[1]) * {"s": 1, "h": 3600}.get(match[2], 60) if match else 0.0
    if seconds <= 0:
        raise UsageError(f"Expected a time above 0, got {quoted(text)}.", where="--budget", fix="Such as --budget 15m.")
    return seconds


Depth = Annotated[
    str | None, of_models("--depth", metavar="K1,K2", help="Draft depths: 2,4,8 or 1:8.", callback=_written_out)
]
Sweep = Annotated[list[str] | None, of_models("-L", metavar="KEY=V1,V2", help="Values of a key: -L p_min=0.5,0.9")]
Prompts = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Other prompts: a suite, .txt or .jsonl.", autocompletion=complete.suites),
]
Count = Annotated[int, typer.Option("--count", min=1, metavar="N", help="Prompts, taken from the tasks in turn.")]
Out = Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="Where results are saved.")]

Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A recipe's key: sampling.max_tokens=64")
]
Limit = Annotated[int | None, typer.Option(min=1, help="At most N prompts of each task.", metavar="N")]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Leave out rows that are no prompts.")]
Blocks = Annotated[
    str | None,
    typer.Option(
        metavar="N|auto",
        help="Repetitions; auto: until all is decided.",
        show_default=False,
    ),
]
Budget = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="How long it may take (5m without a recipe).",
        show_default=False,
    ),
]
Results = Annotated[Path, typer.Option(metavar="DIR", help="The folder of runs.", file_okay=False)]
of_arm = partial(typer.Option, metavar="NAME", autocompletion=complete.arms)
Baseline = Annotated[str | None, of_arm(help="The arm to compare with.", show_default="the run's own")]
OnlyArms = Annotated[list[str] | None, of_arm(help="Only this arm; repeatable.")]
Keep = Annotated[
    list[str] | None,
    typer.Option(
        "-k",
        metavar="NAME",
        help="Only arms or tasks like NAME (* fits all).",
        autocompletion=complete.tasks_and_arms,
    ),
]
EngineBinary = Annotated[str | None, rare(metavar="PATH", help="The engine's binary: a path, or on PATH.")]
ModelsDir = Annotated[Path | None, rare(metavar="DIR", help="Look for the models here first.", file_okay=False)]
TrustRecipe = Annotated[bool, rare("--trust-recipe", help="Let it run code, read files, send keys.")]
Accept = Annotated[
    Literal["identical", "exact", "consistent"],
    typer.Option(metavar="VERDICT", help="The least that passes: identical, exact, or consistent."),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")]
NoTables = Annotated[bool, typer.Option("--quiet", "-q", help="Print no tables.")]
JsonAtEnd = Annotated[bool, typer.Option("--json", help="Print a JSON document at the end.")]
JsonForTables = Annotated[bool, typer.Option("--json", help="Print a JSON document instead of tables.")]
JsonForText = Annotated[bool, typer.Option("--json", help="Print a JSON document instead of text.")]


def refuse_beside(option: str, others: Mapping[str, object]) -> None:
    """Refuse options that have no effect beside `option`. Raises UsageError.

    `others`: the values of such options by name, `None` or `False` where they were not given.
    """
    if without_effect := [name for name, value in others.items() if value is not None and value is not False]:
        message = f"{', '.join(without_effect)} would have no effect"
        raise UsageError(message, where=option, fix="Leave out either of them.")
