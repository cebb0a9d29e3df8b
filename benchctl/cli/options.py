"""The grammar of the command line: its words, and the options that commands share, each with a single meaning."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, is_dataclass
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from benchctl.cli import complete
from benchctl.errors import UsageError

if TYPE_CHECKING:
    from benchctl.measure.requested import Standing

GROUPS = {
    "Measure": ("demo", "run", "tune", "diagnose"),
    "Judge": ("verify-lossless", "report", "compare", "explain"),
    "Prepare": ("models", "recipes"),
    "Keep": ("runs", "engines"),
}
"""The commands by the panels of the program's help."""

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
Force = Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")]
Target = Annotated[str | None, of_models("--target", "-t", "-m", metavar="MODEL", help="The target.")]
Draft = Annotated[str | None, of_models("--draft", "-d", "-md", metavar="MODEL", help="The draft.")]
Kind = Annotated[str | None, of_models("--engine", metavar="KIND", help="The engine.", autocompletion=complete.kinds)]
Types = Annotated[
    list[str] | None,
    of_models(
        "--type",
        metavar="TYPE",
        help="A speculation type; repeatable.",
        autocompletion=complete.types_of_speculation,
    ),
]


def _written_out(depths: str | None) -> str | None:
    """Return `2:4` as `2,3,4`."""
    return ",".join(map(str, read_depths(depths))) if depths and ":" in depths else depths


def read_depths(text: str, most: int = 256) -> list[int]:
    """Return the draft depths of `1:16` or `2,4,8`, in their order. Raises UsageError."""
    first, colon, last = text.partition(":")
    parts = [first, last] if colon else text.split(",")
    if not all(part.isascii() and part.isdigit() and 1 <= int(part[:6]) <= most for part in parts):
        raise UsageError(f"Expected draft depths from 1 to {most} as 1:16 or 2,4,8.", where="--depth")
    numbers = [int(part) for part in parts]
    if colon and numbers[0] > numbers[1]:
        raise UsageError(f"The range {numbers[0]}:{numbers[1]} is empty.", where="--depth", fix="Write 1:16.")
    return list(range(numbers[0], numbers[1] + 1)) if colon else sorted(set(numbers))


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
Blocks = Annotated[str | None, typer.Option(help="Blocks: a number, or auto.", metavar="N|auto")]
Results = Annotated[Path, typer.Option(metavar="DIR", help="The folder of runs.", file_okay=False)]
of_arm = partial(typer.Option, metavar="NAME", autocompletion=complete.arms)
Baseline = Annotated[str | None, of_arm(help="The arm to compare with.", show_default="the run's own")]
OnlyArms = Annotated[list[str] | None, of_arm(help="Only this arm; repeatable.")]
Keep = Annotated[
    list[str] | None,
    typer.Option(
        "-k", metavar="NAME", help="Only arms or tasks of this name, with *.", autocompletion=complete.tasks_and_arms
    ),
]
EngineBinary = Annotated[str | None, rare(metavar="PATH", help="The engine's binary: a path, or on PATH.")]
ModelsDir = Annotated[Path | None, rare(metavar="DIR", help="Look for the models here first.", file_okay=False)]
TrustRecipe = Annotated[bool, rare("--trust-recipe", help="Allow its code, files, servers and keys.")]
Accept = Annotated[
    Literal["identical", "consistent"],
    typer.Option(metavar="VERDICT", help="consistent: 0 also within the target's noise."),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")]
NoTables = Annotated[bool, typer.Option("--quiet", "-q", help="Print no tables.")]
JsonAtEnd = Annotated[bool, typer.Option("--json", help="Print a JSON document at the end.")]
JsonForTables = Annotated[bool, typer.Option("--json", help="Print a JSON document instead of tables.")]
JsonForText = Annotated[bool, typer.Option("--json", help="Print a JSON document instead of text.")]


@dataclass(frozen=True)
class Here:
    """Where the engine and the models lie on this machine, and whether a recipe may do here what it asks for."""

    engine_binary: EngineBinary = None
    models_dir: ModelsDir = None
    trust_recipe: TrustRecipe = False


@dataclass(frozen=True)
class Work:
    """What is measured: a recipe, a run's once more, or models with what is tried on them."""

    subject: Words = None
    target: Target = None
    draft: Draft = None
    kind: Kind = None
    types: Types = None
    depth: Depth = None
    sweep: Sweep = None
    prompts: Prompts = None
    limit: Limit = None
    settings: Settings = None

    def standing(self, results: Path, here: Here, *, url: str | None = None, arm_url: str | None = None) -> Standing:
        """Return the recipe that is named or made, and what it may do. Raises UsageError, StorageError.

        `url`, `arm_url`: two servers that run, in place of a recipe.
        """
        from benchctl.measure.requested import requested_recipe, subject_of

        recipe, target, draft = subject_of(self.subject or (), self.target, self.draft)
        if [recipe, target, url].count(None) != 2:
            fix = "`benchctl recipes list` shows the shipped recipes."
            raise UsageError("Name either a recipe or a target.", fix=fix)
        if target is None and (draft or self.kind):
            raise UsageError(
                "These options make a recipe, but this command line already names a recipe or a run.",
                where="--draft, --engine",
                fix="Name the target with -t, or write it in the recipe.",
            )
        asked = vars(self) | {"target": target, "draft": draft}
        del asked["subject"]
        return requested_recipe(recipe, results, **asked, trust=here.trust_recipe, url=url, arm_url=arm_url)


AS_FOUND, NOTHING_NAMED = Here(), Work()
"""What a command takes where the command line says nothing of it."""


def flat(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return a command as typer takes it: the fields of `Here` and `Work` are parameters of their own."""
    groups: dict[str, Any] = {}
    parameters = []
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        group = parameter.annotation
        if is_dataclass(group):
            groups[parameter.name] = group
            hints = get_type_hints(group, include_extras=True)
            parameters += [
                inspect.Parameter(field.name, parameter.kind, default=field.default, annotation=hints[field.name])
                for field in fields(group)
            ]
        else:
            parameters.append(parameter)
    if not groups:
        return command

    @wraps(command)
    def call(**given: Any) -> Any:  # noqa: ANN401 - whatever the command takes and returns
        made = {
            name: group(**{each.name: given.pop(each.name) for each in fields(group)}) for name, group in groups.items()
        }
        return command(**given, **made)

    ordered = sorted(parameters, key=lambda parameter: parameter.default is not inspect.Parameter.empty)
    call.__signature__ = inspect.Signature(ordered)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call


def _tidy(params: Iterable[Any]) -> None:
    """Take out of a help what only takes columns (`<bool>` of a flag, `[x>=1]`)."""
    for param in params:
        if getattr(param, "is_flag", False):
            param.metavar = ""
        if param.param_type_name == "argument":
            param.display_type_rich = lambda ctx: None
        param._get_number_range_help_str = lambda: None


class Command(TyperCommand):
    """A command whose help lists those below it, and is wrapped by the terminal's width, not where the source is."""

    def format_help(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 - typer's own click has no public name
        """Print the help."""
        _tidy(self.get_params(ctx))
        if self.help is not None:
            self.help = _wrapped(self.help)
        if isinstance(program := getattr(ctx.parent, "command", None), Program):
            below = (name for name in program.commands if name.startswith(f"{self.name} "))
            about = [
                f"[bold]benchctl {name}[/bold]: {_wrapped(program.commands[name].get_short_help_str(200))}"
                for name in below
            ]
            self.epilog = "\n\n".join(about) or None
        super().format_help(ctx, formatter)


def _wrapped(text: str) -> str:
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))


class Group(TyperGroup):
    """A group of commands, with a help as theirs."""

    def format_help(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 - typer's own click has no public name
        """Print the help."""
        _tidy(self.get_params(ctx))
        super().format_help(ctx, formatter)


class Program(Group):
    """The program. A command may have others below it, `diagnose` and `diagnose isolate`: the words decide."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ANN401 - typer's own click has no public name
        """Return the commands of the help, in its order."""
        for panel, words in GROUPS.items():
            for word in words:
                self.commands[word].rich_help_panel = panel  # type: ignore[attr-defined]
        return [word for words in GROUPS.values() for word in words]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401 - typer's own click has no public name
        """Find the command, of a word or two."""
        first, *rest = args
        seconds = [name.split()[1] for name in self.commands if name.startswith(f"{first} ")]
        rest = [part for word in rest for part in (word.split("=", 1) if word.partition("=")[0] in seconds else [word])]
        chosen = [word for word in seconds if word in (rest if word.startswith("-") else rest[:1])]
        if len(chosen) > 1:
            ctx.fail(f"{' and '.join(chosen)} exclude each other.")
        for word in chosen:  # what stood before it comes last: `compare RUN --write FILE` is `compare --write FILE RUN`
            place = rest.index(word)
            rest = [*rest[place + 1 :], *rest[:place]]
        return super().resolve_command(ctx, [" ".join([first, *chosen]), *rest])
