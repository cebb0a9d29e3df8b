"""What in a recipe opens the machine: runs code, reads or writes files other than the models, reaches the network.

A recipe is code that its writer runs on the reader's machine, so such settings pass only where the reader allows it
(`--trust-recipe`). Every adapter keeps the list of its engine's options; here are the variables that do it to any
program, and the search.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchctl.errors import UsageError
from benchctl.recipes.adapters import adapter_of
from benchctl.recipes.engine_spec import LaunchedEngineSpec
from benchctl.recipes.options import CODE, FILES, LIBRARIES, NETWORK, OptionList
from benchctl.recipes.schema import Recipe

_OPTION = re.compile(r"--?[A-Za-z]")
_VARIABLES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"LD_(?!LIBRARY_PATH$).*|LD_LIBRARY_PATH|DYLD_.*|GCONV_PATH|GGML_BACKEND_.*|.*_PLUGINS?"), LIBRARIES),
    (
        re.compile(r"PATH|PYTHON.*|BASH_ENV|ENV|SHELLOPTS|IFS|CC|CXX|NVCC.*|CUDA_HOME|CUDA_PATH|PERL5.*|NODE_OPTIONS"),
        CODE,
    ),
    (re.compile(r"HOME|TMPDIR|TEMP|TMP|XDG_.*|HF_HOME|HF_HUB_CACHE|.*_CACHE(?:_DIR|_ROOT|_PATH)|.*_LOG_FILE"), FILES),
    (
        re.compile(
            r"(?:https?|all|ftp)_proxy|HF_ENDPOINT|HF_HUB_OFFLINE|TRANSFORMERS_OFFLINE|.*_HOST_IP", re.IGNORECASE
        ),
        NETWORK,
    ),
)
"""Variables that open the machine whatever the engine is; whole names."""


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
    known = adapter_of(recipe.engine.kind).options
    resolve = _resolver(known, names)
    engine = recipe.engine
    args = {"engine.args": engine.args} if isinstance(engine, LaunchedEngineSpec) else {}
    args |= {f"arm {arm.name}: args": arm.args for arm in recipe.arms}
    found = [one for place, arguments in args.items() for one in _of_args(place, arguments, folder, known, resolve)]
    for name in engine.env if isinstance(engine, LaunchedEngineSpec) else ():
        own = next((opens for pattern, opens in known.variables.items() if re.fullmatch(pattern, name)), None)
        opens = own or next((opens for pattern, opens in _VARIABLES if pattern.fullmatch(name)), None)
        if opens is not None:
            found.append(Finding("engine.env", name, opens))
    found += [Finding("engine", key, opens) for key, opens in known.keys.items() if getattr(engine, key)]
    for arm in recipe.arms:
        settings = (*arm.speculation.types, *(arm.speculation.options or {})) if arm.speculation else ()
        found += [
            Finding(f"arm {arm.name}: speculation", one, known.speculation[one])
            for one in settings
            if one in known.speculation
        ]
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
