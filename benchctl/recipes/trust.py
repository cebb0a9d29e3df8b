"""What in a recipe opens the machine: runs code, reads or writes files other than the models, reaches the network.

A recipe is code that its writer runs on the reader's machine, so such settings pass only where the reader allows it
(`--trust-recipe`). Every adapter keeps the lists of its engine's options and variables; here is the search.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchctl.errors import UsageError
from benchctl.recipes.adapters import adapter_of, load
from benchctl.recipes.engine_spec import LaunchedEngineSpec
from benchctl.recipes.options import FILES, OptionList
from benchctl.recipes.schema import Recipe

_OPTION = re.compile(r"--?[A-Za-z]")


@dataclass(frozen=True)
class Finding:
    """One setting of a recipe."""

    where: str
    what: str
    opens: str | None
    """How it opens the machine; `None` for an option that is not on the list."""

    def __str__(self) -> str:
        if self.opens is None:
            return f"{self.where}: {self.what} is not on benchctl's list of options; it is passed on unchecked."
        return f"{self.where}: {self.what} {self.opens}."


def find_openings(recipe: Recipe, folder: Path, names: Sequence[Sequence[str]] = ()) -> list[Finding]:
    """Return what of a recipe in `folder` opens the machine, and the options that are not on the list.

    `names`: the options that the actual binary has, those that mean the same together.
    """
    adapter = adapter_of(recipe.engine.kind)
    known = adapter.options
    resolve = _resolver(known, names)
    engine = recipe.engine
    args = {"engine.args": engine.args} if isinstance(engine, LaunchedEngineSpec) else {}
    args |= {f"arm {arm.name}: args": arm.args for arm in recipe.arms}
    found = [one for place, arguments in args.items() for one in _of_args(place, arguments, folder, known, resolve)]
    for name in engine.env if isinstance(engine, LaunchedEngineSpec) else ():
        if name not in known.variables:
            found.append(Finding("engine.env", name, "is not one of the variables that a recipe may set"))
    found += [Finding("engine", key, opens) for key, opens in known.keys.items() if getattr(engine, key)]
    for arm in recipe.arms:
        if arm.speculation is not None:
            place = f"arm {arm.name}: speculation"
            types = [name for name in arm.speculation.types if name in known.speculation]
            found += [Finding(place, name, known.speculation[name]) for name in types]
            if adapter.speculation_arguments is not None:
                arguments = load(adapter.speculation_arguments)(arm.speculation)
                found += _of_args(place, arguments, folder, known, resolve)
    return list(dict.fromkeys(found))


def find_in_command(kind: str, arguments: Sequence[str], folder: Path) -> list[Finding]:
    """Return what opens the machine in an engine's whole command line, as a manifest keeps it."""
    known = adapter_of(kind).options
    found = _of_args("the command line", arguments, folder, known, _resolver(known, ()))
    return [one for one in dict.fromkeys(found) if one.opens is not None]


def refuse(found: Sequence[Finding], *, trusted: bool) -> list[str]:
    """Return a sentence for each finding. Raises UsageError where one opens the machine and is not trusted."""
    opening = [str(one) for one in found if one.opens is not None]
    if opening and not trusted:
        raise UsageError(
            "This recipe would open the machine:\n" + "\n".join(opening),
            fix="Leave these out; or, if you know and trust its writer, add --trust-recipe.",
        )
    return [str(one) for one in found]


def _resolver(known: OptionList, names: Sequence[Sequence[str]]) -> Callable[[str], str]:
    """Return the function that gives the listed name of an option as it is written."""
    listed = known.opens.keys() | known.reads
    aliases = {alias.replace("_", "-"): name for alias, name in known.aliases.items()}
    for group in names:
        plain = [name.lstrip("-").replace("_", "-") for name in group]
        canonical = next((aliases.get(name, name) for name in plain if aliases.get(name, name) in listed), None)
        if canonical is not None:  # a name that the list does not have yet, of an option that it has
            aliases |= dict.fromkeys(plain, canonical)

    def resolve(option: str) -> str:
        whole = _plain(option.partition("=")[0])
        start = whole.partition(".")[0]  # vLLM takes `--option.key value`
        name = whole if whole in listed | aliases.keys() | known.harmless else start
        name = aliases.get(name, name)
        if (
            known.abbreviated
            and name not in listed | known.harmless
            and not any(name in map(_plain, group) for group in names)
        ):
            return next((one for one in sorted(listed) if len(name) > 1 and one.startswith(name)), name)
        return name

    return resolve


def _plain(name: str) -> str:
    return name.lstrip("-").replace("_", "-")


def _of_args(
    place: str, arguments: Sequence[str], folder: Path, known: OptionList, resolve: Callable[[str], str]
) -> Iterator[Finding]:
    for position, word in enumerate(arguments):
        if not _OPTION.match(word):
            continue
        name = resolve(word)
        option = word.partition("=")[0]
        if name in known.opens:
            yield Finding(place, option, known.opens[name])
        elif name in known.reads:
            given = word.partition("=")[2]
            values = [given] if given else [*itertools.takewhile(_is_value, arguments[position + 1 :])]
            if not values or not all(_harmless_file(value, folder, inline=name in known.inline) for value in values):
                what = " ".join([option, *values])
                yield Finding(place, what, f"{FILES}: it is not inside the recipe's folder")
        elif name not in known.harmless and name.removeprefix("no-") not in known.harmless:
            yield Finding(place, option, None)


def _is_value(word: str) -> bool:
    return not _OPTION.match(word)


def _harmless_file(value: str, folder: Path, *, inline: bool) -> bool:
    """Whether every file of a value is inside the recipe's folder, or the value is inline text rather than a file."""
    if inline and not _exists(value) and ("{" in value or re.fullmatch(r"[\w.-]+", value)):
        return True  # a template, which engines render in a sandbox, or the name of one that they bring
    return all(_inside(part, folder) for part in value.split(","))


def _inside(value: str, folder: Path) -> bool:
    """Whether a file is inside the recipe's folder, links followed; `FILE:0.5` has a scale, `a=FILE` a name."""
    value = re.sub(r"^\w+=", "", re.sub(r":[0-9.+-]+$", "", value))
    # An engine runs in the working directory, so that is where a relative path would lead it.
    path, home = Path(value).expanduser(), folder.resolve()
    return value != "" and "{" not in value and path.resolve().is_relative_to(home)


def _exists(value: str) -> bool:
    try:
        return Path(value).exists()
    except OSError:  # longer than a path can be
        return False
