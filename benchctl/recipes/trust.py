"""What a recipe asks for beyond its models: code, libraries, files of the user, servers, the user's keys.

A recipe is code that its writer runs on the reader's machine, so it gets only what its reader gives it
(`benchctl.permissions`). Every adapter keeps the lists of its engine's options and variables; here is the search.
"""

from __future__ import annotations

import ipaddress
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from benchctl.errors import UsageError
from benchctl.offers import load
from benchctl.paths import prompts_file, shipped_folder
from benchctl.recipes.adapters import adapter_of
from benchctl.recipes.engine_spec import EndpointSpec, LaunchedEngineSpec
from benchctl.recipes.options import FILES, IS_OPTION, NETWORK, OptionList
from benchctl.recipes.schema import Recipe

SCHEMES = {"http": 80, "https": 443}
Asked = tuple[str, str, Sequence[str]]
"""Where arguments stand, the key of the recipe that asks for them, and the arguments."""


@dataclass(frozen=True)
class Destination:
    """A server that a recipe sends prompts to, and the user's variable whose content goes along as a key."""

    origin: str
    """Scheme, host and port."""
    variable: str | None
    url_key: str
    """The key of the recipe that has the URL."""


@dataclass(frozen=True)
class Finding:
    """A setting of a recipe."""

    where: str
    what: str
    opens: str | None
    """How it opens the machine; `None` for an option that is not on the list."""
    key: str = ""
    """The key of the recipe that asks for it."""
    files: tuple[Path, ...] = ()
    """The files outside the recipe's folder that it reads, where that is all it does."""
    destination: Destination | None = None
    """Where it sends something, where that is all it does."""

    @property
    def narrow(self) -> str | None:
        """What gives just this, where something does."""
        if self.destination is not None:
            key = f" --key {self.destination.variable}" if self.destination.variable else ""
            return f"benchctl engines allow {self.destination.origin}{key}"
        if self.key == "prompts.suite":
            return "--prompts FILE"
        return f"--set {self.key}=…" if self.key and self.files else None

    def __str__(self) -> str:
        if self.opens is None:
            return f"{self.where}: {self.what} is not on benchctl's list of options; it is passed on unchecked."
        return f"{self.where}: {self.what} {self.opens}."


def find_openings(recipe: Recipe, folder: Path, names: Sequence[Sequence[str]] = ()) -> list[Finding]:
    """Return what of a recipe in `folder` opens the machine, and the options that are not on the list.

    `names`: the options that the actual binary has, those that mean the same together.
    """
    adapter, engine = adapter_of(recipe.engine.kind), recipe.engine
    known = adapter.options
    launched = engine if isinstance(engine, LaunchedEngineSpec) else None
    speculating = [(f"arm {arm.name}: speculation", arm.speculation) for arm in recipe.arms if arm.speculation]
    asked: list[Asked] = [("engine.args", "engine.args", launched.args)] if launched else []
    asked += [(f"arm {arm.name}: args", "arms", arm.args) for arm in recipe.arms]
    if adapter.speculation_arguments is not None:
        arguments_of = load(adapter.speculation_arguments)
        asked += [(place, "arms", arguments_of(speculation)) for place, speculation in speculating]
    resolve = _resolver(known, names)
    found = [finding for arguments in asked for finding in _of_args(arguments, folder, known, resolve)]
    found += [*_of_prompts(recipe, folder), *_of_destinations(recipe)]
    for name in launched.env if launched else ():
        if name not in known.variables:
            what = "is not one of the variables that a recipe may set"
            found.append(Finding("engine.env", name, what, f"engine.env.{name}"))
    if recipe.device == "rpc":
        found.append(Finding("engine", "device: rpc", NETWORK, "engine.device"))
    found += [
        Finding("engine", key, opens, f"engine.{key}") for key, opens in known.keys.items() if getattr(engine, key)
    ]
    found += [
        Finding(place, name, known.speculation[name], "arms")
        for place, speculation in speculating
        for name in speculation.types
        if name in known.speculation
    ]
    return list(dict.fromkeys(found))


def find_in_command(kind: str, arguments: Sequence[str], folder: Path) -> list[Finding]:
    """Return what opens the machine in an engine's whole command line, as a manifest keeps it."""
    known = adapter_of(kind).options
    found = _of_args(("the command line", "", arguments), folder, known, _resolver(known, ()))
    return [opening for opening in dict.fromkeys(found) if opening.opens is not None]


def refuse(found: Sequence[Finding], *, trusted: bool) -> list[str]:
    """Return a sentence for each finding. Raises UsageError where a finding opens the machine and is not trusted."""
    opening = [finding for finding in found if finding.opens is not None]
    if opening and not trusted:
        narrow = list(dict.fromkeys(finding.narrow for finding in opening if finding.narrow))
        first = f"Where it is yours: {'; '.join(narrow)}. Otherwise leave" if narrow else "Leave"
        raise UsageError(
            "This recipe would open the machine:\n" + "\n".join(map(str, opening)),
            fix=f"{first} these out; or, if you know and trust its writer, add --trust-recipe.",
        )
    return [str(finding) for finding in found]


def origin_of(url: str) -> tuple[str, bool] | None:
    """Return scheme, host and port of a URL, and whether that is this machine; None for what no adapter takes."""
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError:
        return None
    host = parts.hostname
    if parts.scheme not in SCHEMES or not host:
        return None
    try:
        here = ipaddress.ip_address(host).is_loopback
    except ValueError:
        here = host == "localhost"  # other names are looked up, and may lead anywhere
    shown = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{shown}:{SCHEMES[parts.scheme] if port is None else port}", here


def own_folder(folder: Path) -> Path | None:
    """Return the folder whose files a recipe in it may read, links followed; None where it may read none.

    Home, what home lies in, and folders whose names begin with a dot below home are no recipe's own.
    """
    whole, home = folder.resolve(), Path.home().resolve()
    if home.is_relative_to(whole):
        return None
    hidden = whole.is_relative_to(home) and _hidden(whole.relative_to(home))
    return None if hidden or whole.parent == whole else whole


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _outside(files: Iterable[Path], folder: Path) -> tuple[Path, ...]:
    """Return the files, links followed, that neither lie in the recipe's folder nor are shipped."""
    own, shipped = own_folder(folder), shipped_folder("prompts").resolve()
    whole = map(_followed, files)
    return tuple(
        file
        for file in whole
        if file.parent != shipped and (own is None or not file.is_relative_to(own) or _hidden(file.relative_to(own)))
    )


def _followed(file: Path) -> Path:
    try:
        return file.resolve()
    except (OSError, RuntimeError, ValueError):  # a circle of links, a name that no file can have
        return Path("/")


def _of_prompts(recipe: Recipe, folder: Path) -> Iterator[Finding]:
    """Yield what of the user's texts is sent; what is not there is refused where it is read."""
    wanted = {"prompts.suite": prompts_file(recipe.prompts.suite, folder)}
    if recipe.prompts.context is not None:
        wanted["prompts.context"] = folder / Path(recipe.prompts.context).expanduser()
    for key, file in wanted.items():
        if file is not None and (outside := _outside([file], folder)):
            what = f"{FILES}: it is not inside the recipe's folder"
            yield Finding(key, str(file), what, key, outside)


def _of_destinations(recipe: Recipe) -> Iterator[Finding]:
    """Yield the servers off this machine, and every server that is sent a key of the user's."""
    engine = recipe.engine
    if not isinstance(engine, EndpointSpec):
        return
    urls = [("engine.url", engine.url), *(("arms", arm.url) for arm in recipe.arms)]
    for key, url in urls:
        where = None if url is None else origin_of(url)
        if where is None:
            continue
        origin, here = where
        if engine.api_key_env is not None:
            what = f"sends {origin} what your variable {engine.api_key_env} holds"
            yield Finding(
                "engine.api_key_env",
                engine.api_key_env,
                what,
                "engine.api_key_env",
                destination=Destination(origin, engine.api_key_env, key),
            )
        elif not here:
            yield Finding(key, str(url), f"{NETWORK}: {origin}", key, destination=Destination(origin, None, key))


def _resolver(known: OptionList, names: Sequence[Sequence[str]]) -> Callable[[str], str]:
    """Return the function that gives the listed name of an option as it is written."""
    listed = known.opens.keys() | known.reads
    aliases = {_plain(alias): name for alias, name in known.aliases.items()}
    groups = [[_plain(name) for name in group] for group in names]
    for group in groups:
        canonical = next((aliases.get(name, name) for name in group if aliases.get(name, name) in listed), None)
        if canonical is not None:  # a name that the list does not have yet, of an option that it has
            aliases |= dict.fromkeys(group, canonical)
    whole_names = listed | known.harmless | {name for group in groups for name in group}

    def resolve(option: str) -> str:
        name = _plain(option.partition("=")[0])
        if name not in listed | aliases.keys() | known.harmless:
            name = name.partition(".")[0]  # vLLM takes `--option.key value`
        name = aliases.get(name, name)
        if known.abbreviated and name not in whole_names and len(name) > 1:
            return next((candidate for candidate in sorted(listed) if candidate.startswith(name)), name)
        return name

    return resolve


def _plain(name: str) -> str:
    return name.lstrip("-").replace("_", "-")


def _of_args(asked: Asked, folder: Path, known: OptionList, resolve: Callable[[str], str]) -> Iterator[Finding]:
    place, key, arguments = asked
    for position, word in enumerate(arguments):
        if not IS_OPTION.match(word):
            continue
        name = resolve(word)
        option = word.partition("=")[0]
        if name in known.opens:
            yield Finding(place, option, known.opens[name], key)
        elif name in known.reads:
            given = word.partition("=")[2]
            values = (
                [given]
                if given
                else [*itertools.takewhile(lambda after: not IS_OPTION.match(after), arguments[position + 1 :])]
            )
            read = [_files_in(value, inline=name in known.inline) for value in values]
            files = [file for several in read for file in several or ()]
            outside = _outside(files, folder)
            if not values or None in read or outside:
                what = " ".join([option, *values])
                files_alone = () if not values or None in read else outside
                yield Finding(place, what, f"{FILES}: it is not inside the recipe's folder", key, files_alone)
        elif name not in known.harmless and name.removeprefix("no-") not in known.harmless:
            yield Finding(place, option, None, key)


def _files_in(value: str, *, inline: bool) -> list[Path] | None:
    """Return the files that a value names: none for inline text, None where that is not known.

    `FILE:0.5` has a scale, `a=FILE` a name. An engine runs in the working directory, where a relative path begins.
    """
    if inline and not _exists(value) and ("{" in value or re.fullmatch(r"[\w.-]+", value)):
        return []  # a template, which engines render in a sandbox, or the name of a template that they bring
    names = [re.sub(r"^\w+=", "", re.sub(r":[0-9.+-]+$", "", part)) for part in value.split(",")]
    if any(name == "" or "{" in name for name in names):
        return None
    return [Path(name).expanduser() for name in names]


def _exists(value: str) -> bool:
    try:
        return Path(value).exists()
    except OSError:  # longer than a path can be
        return False
