"""What this user trusts: folders of recipes, programs by their path, and runs of this machine; and the gate.

It is kept in the user's own folder, which no recipe and no results folder can write, for this user alone (mode 0600).
What of a recipe needs trust is `benchctl.recipes.trust`; nothing is sent or run before `permit` and `permit_program`
agree.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from benchctl.errors import StorageError, UsageError
from benchctl.models.files import finish, unfinished
from benchctl.paths import cache_folder, config_folder, on_path, shipped_folder
from benchctl.recipes.adapters import registered
from benchctl.recipes.schema import Recipe
from benchctl.recipes.trust import Opening, find_openings, is_typed, refusal
from benchctl.text import one_line

FILE = "trust.json"
_MOST_RUNS = 10_000
"""The oldest are forgotten."""


class OwnRun(BaseModel):
    """A run that was started on this machine."""

    model_config = ConfigDict(extra="forbid", strict=True)
    recipe: str
    """The SHA-256 of its recipe as stored, with the folder of its relative paths."""
    commands: list[str]
    """The SHA-256 of the command lines that score it: those without speculation."""


class Trusted(BaseModel):
    """Everything that this user trusts."""

    model_config = ConfigDict(extra="forbid", strict=True)
    version: Literal[1] = 1
    folders: list[str] = Field(default_factory=list)
    """Every recipe in these folders, and below them."""
    programs: list[str] = Field(default_factory=list)
    """Paths of programs that were typed."""
    runs: dict[str, OwnRun] = Field(default_factory=dict)

    def add_program(self, path: Path) -> None:
        """Trust a program by its path, as it is spelled and with links followed."""
        spellings = [str(path.resolve())] if ".." in path.parts else [str(path), str(path.resolve())]
        self.programs += [name for name in dict.fromkeys(spellings) if name not in self.programs]


def read_trusted() -> Trusted:
    """Return what the user trusts. Raises StorageError for a file that is damaged or cannot be read."""
    path = config_folder() / FILE
    try:
        return Trusted.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return Trusted()
    except (OSError, ValidationError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is damaged"
        fix = "Repair it, or delete it: then nothing is trusted, and you are asked for it anew."
        raise StorageError(f"What you trust cannot be read: {reason}.", where=str(path), fix=fix) from None


@contextmanager
def changing() -> Iterator[Trusted]:
    """Yield what is kept, to be changed while no other benchctl does; where nothing can be kept, it is lost."""
    path = config_folder() / FILE
    with ExitStack() as stack:
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            part = stack.enter_context(unfinished(path))
        except OSError:
            yield read_trusted()
            return
        before = read_trusted()
        trusted = before.model_copy(deep=True)
        yield trusted
        if trusted != before:
            with suppress(OSError):
                part.chmod(0o600)
                part.write_text(trusted.model_dump_json(indent=1), "utf-8")
                finish(part, path)


def trust_folder(name: str, *, remove: bool = False) -> Trusted:
    """Trust every recipe in a folder and below it, and return everything that is trusted then.

    `remove`: take a folder back, or a program by its path. Raises UsageError, and StorageError where it cannot be kept.
    """
    path = Path(name).expanduser().absolute()
    resolved = path.resolve()
    if not remove and not resolved.is_dir():
        raise UsageError("This folder does not exist.", where=one_line(name, 400))
    if not remove and Path.home().resolve().is_relative_to(resolved):
        fix = "Name the folder of your recipes."
        raise UsageError("This is your home, or holds it: whatever you download would be trusted.", where=name, fix=fix)
    names = {str(path), str(resolved)}
    with changing() as trusted:
        if not remove:
            trusted.folders += [str(resolved)] if str(resolved) not in trusted.folders else []
        elif names.isdisjoint([*trusted.folders, *trusted.programs]):
            raise UsageError("This is not trusted.", where=name, fix="benchctl recipes trust lists what is.")
        else:
            trusted.folders = [folder for folder in trusted.folders if folder not in names]
            trusted.programs = [program for program in trusted.programs if program not in names]
    if read_trusted() != trusted:
        raise StorageError("What you trust cannot be kept.", where=str(config_folder() / FILE))
    return trusted


def is_trusted(folder: Path) -> bool:
    """Whether recipes in a folder are trusted: it is shipped, or it lies in a folder that the user trusts."""
    resolved = folder.resolve()
    shipped = shipped_folder("recipes").resolve()
    return resolved == shipped or any(resolved.is_relative_to(name) for name in read_trusted().folders)


def permit(recipe: Recipe, folder: Path, *, trusted: bool, typed: Collection[str] = ()) -> None:
    """Raise UsageError where a recipe in `folder` asks for what is neither typed nor trusted."""
    if trusted:
        return
    openings = [opening for opening in find_openings(recipe, folder) if not is_typed(opening.key, typed)]
    if openings:
        raise refusal(openings, folder)


def permit_program(path: Path, found_in: str, folder: Path, *, trusted: bool = False, named_by: str = "recipe") -> None:
    """Print the program that a recipe or a manifest names; raise UsageError before it runs where it is not trusted.

    `found_in` as in `Capabilities`. A path that the user typed is remembered, and the recipe may name it from then on.
    """
    if found_in in ("option", "environment") and not _is_installed(path):
        with changing() as trust:
            trust.add_program(path)
    if not (trusted or found_in in ("option", "environment", "Python package") or _is_free(path, folder)):
        shown = one_line(str(path), 400)
        raise UsageError(
            f"The {named_by} would run the program {shown}, which you have not named.",
            where="engine.binary",
            fix=f"If it is yours: --engine-binary {shown}\nIf you trust the writer: --trust-recipe",
        )
    if found_in == "recipe" and not _is_installed(path):  # whatever --quiet and --json say
        sys.stderr.write(f"The {named_by} names the program that is run: {one_line(str(path), 400)}\n")
        sys.stderr.flush()


def program_opening(recipe: Recipe, folder: Path) -> list[Opening]:
    """Return the program that a recipe names, where it would not be run; nothing is run."""
    if recipe.binary is None:
        return []
    is_path = os.sep in recipe.binary or recipe.binary.startswith("~")
    path = Path(recipe.binary).expanduser().absolute() if is_path else on_path(recipe.binary)
    if path is None or not path.is_file() or _is_free(path, folder):
        return []
    return [Opening("engine.binary", "engine.binary", f"{path}, a program that you have not named")]


def permit_tool(path: Path, program: Path, folder: Path, *, trusted: bool = False) -> None:
    """Raise UsageError for a tool that lies neither beside the engine's program, which may run, nor where others do."""
    if path.parent not in (program.parent, program.resolve().parent) and on_path(path.name) != path:
        permit_program(path, "tool", folder, trusted=trusted)


def _is_free(path: Path, folder: Path) -> bool:
    """Whether a recipe in `folder` may have a program run: installed, an engine's on PATH, or named by the user before.

    Never where it lies below that folder, which its writer fills; home, and what home lies in, is no recipe's folder.
    """
    python = Path(sys.executable)
    if _is_installed(path) or path == python or (".." not in path.parts and path.parent == python.parent):
        return True
    recipe_folder, home = folder.resolve(), Path.home().resolve()
    places = (path.parent.resolve(), path.resolve())
    if any(location.is_relative_to(recipe_folder) for location in places) and not home.is_relative_to(recipe_folder):
        return False
    programs = read_trusted().programs
    spelled = ".." not in path.parts and str(path) in programs  # `..` after a link leads elsewhere
    if spelled or str(path.resolve()) in programs:
        return True
    engines = {adapter.program for adapter in registered().adapters.values()}
    return path.name in engines and on_path(path.name) == path


def _is_installed(path: Path) -> bool:
    """Whether a program is of an engine that benchctl installed: nothing else writes there."""
    folders = [cache_folder() / name for name in ("engines", "converters")]
    within = [*folders, *(folder.resolve() for folder in folders)]
    return ".." not in path.parts and any(path.is_relative_to(folder) for folder in within)


def remember_run(
    run: str, recipe: Mapping[str, object], folder: str | None, commands: Sequence[Sequence[str]] = ()
) -> None:
    """Keep that a run was started on this machine, with its recipe and these command lines as they are stored."""
    with changing() as trusted:
        trusted.runs.pop(run, None)
        digests = list(dict.fromkeys(map(_of_command, commands)))
        trusted.runs[run] = OwnRun(recipe=_of_recipe(recipe, folder), commands=digests)
        for oldest in list(trusted.runs)[:-_MOST_RUNS]:
            del trusted.runs[oldest]


def is_own_run(run: str, recipe: Mapping[str, object], folder: str | None) -> bool:
    """Whether this user started a run with that recipe on this machine."""
    recorded = read_trusted().runs.get(run)
    return recorded is not None and recorded.recipe == _of_recipe(recipe, folder)


def is_own_command(run: str, command: Sequence[str]) -> bool:
    """Whether a run of this machine was started with that command line, for an arm without speculation."""
    recorded = read_trusted().runs.get(run)
    return recorded is not None and _of_command(command) in recorded.commands


def _of_recipe(recipe: Mapping[str, object], folder: str | None) -> str:
    return _digest("run", json.dumps(recipe, sort_keys=True), str(folder))


def _of_command(command: Sequence[str]) -> str:
    return _digest("command", *command)


def _digest(*parts: str) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
