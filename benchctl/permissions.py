"""What this user has given to recipes: servers and keys, files, programs, recipes and runs; and the gate.

It is kept in the user's own folder, which no recipe and no results folder can write, for this user alone (mode 0600).
What a recipe asks for is `benchctl.recipes.trust`; nothing is sent or run before `permit` and `permit_program` agree.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from benchctl.errors import StorageError, UsageError
from benchctl.models.files import file_sha256, finish, unfinished
from benchctl.paths import cache_folder, config_folder, on_path
from benchctl.recipes.options import CODE
from benchctl.recipes.schema import Recipe
from benchctl.recipes.trust import Finding, find_openings, origin_of, refuse
from benchctl.text import one_line

FILE = "permissions.json"
_LIBRARY = re.compile(r"\.so(\.|$)|\.dylib$")
_MOST_LIBRARIES = 500
ALL_KEYS: tuple[str, ...] = ("engine", "models", "prompts", "arms")
"""Of a recipe that is made of a command line: all of it was typed."""
_MOST_RUNS = 10_000
"""The oldest are forgotten."""


class KnownRun(BaseModel):
    """A run that this user started or trusted."""

    model_config = ConfigDict(extra="forbid", strict=True)
    recipe: str
    """The SHA-256 of its recipe as stored, with the folder of its relative paths."""
    trusted: bool


class Permissions(BaseModel):
    """Everything that this user has given."""

    model_config = ConfigDict(extra="forbid", strict=True)
    version: Literal[1] = 1
    servers: dict[str, list[str]] = Field(default_factory=dict)
    """By origin, the variables whose content may be sent there as a key."""
    files: list[str] = Field(default_factory=list)
    programs: dict[str, str | None] = Field(default_factory=dict)
    """By path, the SHA-256 of the program with the libraries beside it; None where that says nothing."""
    settings: list[str] = Field(default_factory=list)
    """SHA-256 of settings that were typed, each with the folder of its recipe."""
    recipes: list[str] = Field(default_factory=list)
    """SHA-256 of recipe files that were trusted, each with its folder."""
    runs: dict[str, KnownRun] = Field(default_factory=dict)

    def give(self, origin: str, variable: str | None = None) -> None:
        """Let recipes use a server, and send it what a variable holds."""
        variables = self.servers.setdefault(origin, [])
        if variable is not None and variable not in variables:
            variables.append(variable)

    def distrust(self) -> None:
        """Take back what was trusted as a whole: recipes, and runs, which keep what they were given by itself."""
        self.recipes.clear()
        for name, known in self.runs.items():
            self.runs[name] = known.model_copy(update={"trusted": False})


def read_permissions() -> Permissions:
    """Return what the user has given. Raises StorageError for a file that is damaged or cannot be read."""
    path = config_folder() / FILE
    try:
        return Permissions.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return Permissions()
    except (OSError, ValidationError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is damaged"
        fix = "Repair it, or delete it: what was allowed is then asked for again."
        raise StorageError(f"What you allowed cannot be read: {why}.", where=str(path), fix=fix) from None


@contextmanager
def remembering() -> Iterator[Permissions]:
    """Yield what is kept, to be changed while no other benchctl does; where nothing can be kept, it is asked again."""
    path = config_folder() / FILE
    with ExitStack() as stack:
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            part = stack.enter_context(unfinished(path))
        except OSError:
            yield read_permissions()
            return
        before = read_permissions()
        given = before.model_copy(deep=True)
        yield given
        if given != before:
            with suppress(OSError):
                part.chmod(0o600)
                part.write_text(given.model_dump_json(indent=1), "utf-8")
                finish(part, path)


def change(url: str, variables: Sequence[str] = (), *, remove: bool = False) -> Permissions:
    """Give a server, and the variables that may be sent there as its key; return everything that is given then.

    `remove`: take the server back, or only these variables, or the program at that path; what was trusted as a whole is
    distrusted, too, since it would still get them. Raises UsageError, and StorageError where it cannot be kept.
    """
    where = origin_of(url)
    program = str(Path(url).expanduser().absolute())
    if where is None and not (remove and program in read_permissions().programs):
        raise UsageError("This is no address of a server.", where=url, fix="Such as http://192.168.1.5:8000")
    with remembering() as given:
        if remove:
            given.distrust()
        if where is None:
            del given.programs[program]
        elif not remove:
            given.give(where[0])
            for name in variables:
                given.give(where[0], name)
        elif where[0] not in given.servers:
            raise UsageError("This server is not allowed.", where=where[0], fix="benchctl engines allow lists them.")
        elif variables:
            given.servers[where[0]] = [name for name in given.servers[where[0]] if name not in variables]
        else:
            del given.servers[where[0]]
    if not remove and read_permissions() != given:
        raise StorageError("What you allow cannot be kept.", where=str(config_folder() / FILE))
    return given


def settle(
    recipe: Recipe, folder: Path, file: Path | None = None, *, typed: Collection[str] = (), trusted: bool = False
) -> bool:
    """Remember what a command line gives a recipe; return whether the recipe is trusted.

    `folder`: of its relative paths. `file`: that holds it. `typed`: keys of the recipe whose values stand on the
    command line. `trusted`: `--trust-recipe`, which holds for the file as it is now.
    """
    held = b"" if file is None else file.read_bytes()
    digest = _digest(hashlib.sha256(held).hexdigest(), str(folder.resolve()))
    if not typed and not trusted:
        return file is not None and digest in read_permissions().recipes
    with remembering() as given:
        if trusted and file is not None and digest not in given.recipes:
            given.recipes.append(digest)
        for part in recipe.parts.values():
            _give_typed(given, part, folder, typed)
    return trusted or (file is not None and digest in given.recipes)


def _give_typed(given: Permissions, recipe: Recipe, folder: Path, typed: Collection[str]) -> None:
    for finding in find_openings(recipe, folder):
        to = finding.destination
        if to is not None:
            if _is_typed(to.url_key, typed):
                given.give(to.origin)
            if _is_typed(finding.key, typed) and to.origin in given.servers:
                given.give(to.origin, to.variable)
        elif not _is_typed(finding.key, typed):
            continue
        elif finding.files:
            given.files += [str(path) for path in finding.files if str(path) not in given.files]
        elif finding.opens is not None and _setting(recipe, finding, folder) not in given.settings:
            given.settings.append(_setting(recipe, finding, folder))
    if recipe.binary is not None and os.sep in recipe.binary and _is_typed("engine.binary", typed):
        _give_program(given, Path(recipe.binary).expanduser().absolute(), hashed=False)


def _is_typed(key: str, typed: Collection[str]) -> bool:
    return any(key == name or key.startswith(f"{name}.") for name in typed)


def permit(recipe: Recipe, folder: Path, names: Sequence[Sequence[str]] = (), *, trusted: bool) -> list[str]:
    """Return sentences about the recipe's settings; raises UsageError for what it was not given.

    `folder`: of its relative paths. `names`: the options of the actual binary, those that mean the same together.
    """
    return refuse(not_given(recipe, folder, names), trusted=trusted)


def not_given(recipe: Recipe, folder: Path, names: Sequence[Sequence[str]] = ()) -> list[Finding]:
    """Return what a recipe asks for and this user has not given it, and the options that are on no list."""
    given, found = read_permissions(), find_openings(recipe, folder, names)
    return [finding for finding in found if not _is_given(given, recipe, finding, folder)]


def _is_given(given: Permissions, recipe: Recipe, finding: Finding, folder: Path) -> bool:
    if finding.destination is not None:
        variables = given.servers.get(finding.destination.origin)
        return variables is not None and finding.destination.variable in (None, *variables)
    if finding.files:
        return all(str(path) in given.files for path in finding.files)
    return finding.opens is not None and _setting(recipe, finding, folder) in given.settings


def _setting(recipe: Recipe, finding: Finding, folder: Path) -> str:
    """Hash a setting with everything that it could stand beside, so that no other value passes for it."""
    engine = recipe.engine.model_dump(mode="json", include={"kind", "args", "env"})
    arms = [arm.model_dump(mode="json", include={"name", "args", "speculation"}) for arm in recipe.arms]
    beside = json.dumps([engine, arms if finding.key == "arms" else []], sort_keys=True)
    return _digest("setting", str(folder.resolve()), finding.key, finding.what, beside)


def _digest(*parts: str) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def permit_program(
    path: Path, found_in: str, folder: Path, *, trusted: bool = False, hashed: bool = False, named_by: str = "recipe"
) -> None:
    """Print the program that a recipe or a manifest names, where the user did not; raises UsageError before it runs.

    `found_in` as in `Capabilities`. `hashed`: what lies beside the program and is no library does not change what it
    does. It is kept, so that the user's own runs resume.
    """
    if _installed(path):
        return
    given = read_permissions()
    free = found_in in ("option", "environment", "Python package") or trusted or _of_this_system(path, folder)
    by_path = free or _is_known(given, path)
    if not by_path and not (hashed and _has_known_hash(given, path)):
        raise _not_named(
            named_by, path, path, " Otherwise leave it out; or, if you know and trust its writer, add --trust-recipe."
        )
    if found_in == "recipe":  # whatever --quiet and --json say: a person must be able to see what ran
        sys.stderr.write(f"The {named_by} names the program that is run: {one_line(str(path), 400)}\n")
        sys.stderr.flush()
    if by_path:
        with remembering() as given:
            _give_program(given, path, hashed=hashed)


def program_not_given(recipe: Recipe, folder: Path) -> list[Finding]:
    """Return the program that a recipe names by its path, where the user never named it; nothing is run."""
    if recipe.binary is None or (os.sep not in recipe.binary and not recipe.binary.startswith("~")):
        return []
    path = Path(recipe.binary).expanduser().absolute()
    if not path.is_file() or _installed(path) or _of_this_system(path, folder):
        return []
    given = read_permissions()
    if _is_known(given, path) or _has_known_hash(given, path):
        return []
    return [Finding("engine.binary", one_line(str(path), 400), f"{CODE}: you have not named it", "engine.binary")]


def permit_part(path: Path, program: Path, folder: Path, *, trusted: bool = False) -> None:
    """Raise UsageError for a program beside the engine's where only what the engine itself contains is known."""
    given = read_permissions()
    free = trusted or any(_installed(file) or _of_this_system(file, folder) for file in (path, program))
    beside = path.parent in (program.parent, program.resolve().parent) and _is_known(given, program)
    if not (free or beside or _is_known(given, path)):
        raise _not_named("recipe", path, program)


def _not_named(named_by: str, path: Path, program: Path, otherwise: str = "") -> UsageError:
    return UsageError(
        f"The {named_by} would run {one_line(str(path), 400)}, which you have not named.",
        where="engine.binary",
        fix=f"If it is yours: --engine-binary {one_line(str(program), 400)}, once.{otherwise}",
    )


def _installed(path: Path) -> bool:
    """Whether a program is of an engine that benchctl installed: nothing else writes there."""
    ours = [cache_folder() / name for name in ("engines", "converters")]
    places = [*ours, *(folder.resolve() for folder in ours)]
    return ".." not in path.parts and any(path.is_relative_to(place) for place in places)


def _of_this_system(path: Path, folder: Path) -> bool:
    """Whether PATH leads to the program, outside the recipe's folder, or it belongs to the Python that runs benchctl.

    A folder on PATH is the user's choice; a recipe's folder on it would let the recipe bring what it names.
    """
    here = Path(sys.executable)
    if path == here or (".." not in path.parts and path.parent == here.parent):
        return True
    whole, home = folder.resolve(), Path.home().resolve()
    inside = path.parent.resolve().is_relative_to(whole) and not home.is_relative_to(whole)
    return on_path(path.name) == path and not inside


def _is_known(given: Permissions, path: Path) -> bool:
    plain = ".." not in path.parts and str(path) in given.programs  # `..` after a link leads elsewhere
    return plain or str(path.resolve()) in given.programs


def _has_known_hash(given: Permissions, path: Path) -> bool:
    digest = program_sha256(path)
    return digest is not None and digest in given.programs.values()


def _give_program(given: Permissions, path: Path, *, hashed: bool) -> None:
    digest = program_sha256(path) if hashed else None
    for spelling in {str(path), str(path.resolve())} if ".." not in path.parts else {str(path.resolve())}:
        given.programs[spelling] = digest if hashed else given.programs.get(spelling)


def program_sha256(path: Path) -> str | None:
    """Hash a program with every shared library beside it or in the `lib` folder next to it; None: too many."""
    whole = path.resolve()
    places = {whole.parent, whole.parent.parent / "lib"}
    try:
        libraries = [
            file for place in sorted(places) if place.is_dir() for file in place.iterdir() if _LIBRARY.search(file.name)
        ]
        if len(libraries) > _MOST_LIBRARIES:
            return None
        parts = [(file.name, file_sha256(file)) for file in libraries if file.is_file()]
        return _digest(file_sha256(whole), *(" ".join(part) for part in sorted(parts)))
    except OSError:
        return None


def remember_run(run: str, recipe: Mapping[str, object], folder: str | None, *, trusted: bool) -> None:
    """Keep that this user started, or trusts, a run with its recipe as it is stored."""
    with remembering() as given:
        given.runs.pop(run, None)
        given.runs[run] = KnownRun(recipe=_stored(recipe, folder), trusted=trusted)
        for oldest in list(given.runs)[:-_MOST_RUNS]:
            del given.runs[oldest]


def known_run(run: str, recipe: Mapping[str, object], folder: str | None) -> KnownRun | None:
    """Return what is known of a run; None where it is a stranger's, or its recipe is no longer what was started."""
    found = read_permissions().runs.get(run)
    return found if found is not None and found.recipe == _stored(recipe, folder) else None


def _stored(recipe: Mapping[str, object], folder: str | None) -> str:
    return _digest("run", json.dumps(recipe, sort_keys=True), str(folder))
