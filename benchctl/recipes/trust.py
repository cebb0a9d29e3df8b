"""What a recipe asks for beyond its typed keys, each of which needs trust: of the call, or of the recipe's folder.

A recipe may be somebody else's. Its typed keys (`benchctl.recipes.schema`) are safe by themselves. Words that an engine
is handed as they are can do whatever the engine can, so they are shown. What this user
trusts is `benchctl.permissions`.
"""

from __future__ import annotations

import ipaddress
import shlex
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from benchctl.errors import UsageError
from benchctl.paths import prompts_file, shipped_folder
from benchctl.recipes.adapters import adapter_of
from benchctl.recipes.engine_spec import EndpointSpec, LaunchedEngineSpec
from benchctl.recipes.schema import Recipe
from benchctl.text import one_line

ALL_KEYS = frozenset({"engine", "models", "prompts", "arms"})
"""The keys of a recipe that was made of a command line: all of it was typed."""
_MOST_SHOWN = 20


@dataclass(frozen=True)
class Opening:
    """A setting of a recipe that needs trust."""

    key: str
    """The recipe's key, such as `engine.args`; `arms` for whatever an arm says."""
    where: str
    text: str
    """What the recipe says there, as it is: untrusted text."""

    def __str__(self) -> str:
        return f"{one_line(self.where, 200)}: {one_line(self.text, 2000)}"


def find_openings(recipe: Recipe, folder: Path) -> list[Opening]:
    """Return what a recipe in `folder` asks for that needs trust, but for the program that it names."""
    openings = [opening for part in recipe.parts.values() for opening in _of_part(part, folder)]
    return list(dict.fromkeys(openings))


def _of_part(recipe: Recipe, folder: Path) -> Iterator[Opening]:
    adapter, engine = adapter_of(recipe.engine.kind), recipe.engine
    if isinstance(engine, LaunchedEngineSpec):
        if engine.args:
            yield Opening("engine.args", "engine.args", shlex.join(engine.args))
        for name, value in engine.env.items():
            yield Opening(f"engine.env.{name}", "engine.env", f"{name}={value}")
        if engine.device == "rpc":
            yield Opening("engine.device", "engine.device", "rpc, which hands the model to other machines")
    if isinstance(engine, EndpointSpec):
        yield from _of_endpoint(recipe, engine)
    for key in adapter.runs_code:
        if getattr(engine, key, None):
            yield Opening(f"engine.{key}", f"engine.{key}", f"{getattr(engine, key)}, which runs code of the model's")
    for arm in recipe.arms:
        if arm.args:
            yield Opening("arms", f"arm {arm.name}: args", shlex.join(arm.args))
        if arm.speculation is None:
            continue
        if arm.speculation.options and not adapter.typed_options:
            words = (f"{key}={value}" for key, value in arm.speculation.options.items())
            yield Opening("arms", f"arm {arm.name}: speculation.options", ", ".join(words))
        for name in arm.speculation.types:
            if name.lower() in adapter.runs_code:
                yield Opening("arms", f"arm {arm.name}: speculation.type", f"{name}, which runs code that it names")
    files = {"prompts.suite": prompts_file(recipe.prompts.suite, folder)}
    if recipe.prompts.context is not None:
        files["prompts.context"] = folder / Path(recipe.prompts.context).expanduser()
    for key, file in files.items():
        if file is not None and _is_outside(file, folder):
            yield Opening(key, key, f"{file}, which is not inside the recipe's folder")


def _of_endpoint(recipe: Recipe, engine: EndpointSpec) -> Iterator[Opening]:
    """Yield the servers off this machine, and the user's variable whose content is sent as a key."""
    urls = [("engine.url", "engine.url", engine.url)]
    urls += [("arms", f"arm {arm.name}: url", arm.url) for arm in recipe.arms]
    for key, where, url in urls:
        if url is not None and not is_loopback(url):
            yield Opening(key, where, f"{url}, which is not this machine")
    if engine.api_key_env is not None:
        servers = ", ".join(dict.fromkeys(url for _, _, url in urls if url is not None))
        effect = f"sends what your variable {engine.api_key_env} holds to {servers or 'the endpoint'}"
        yield Opening("engine.api_key_env", "engine.api_key_env", effect)


def is_typed(key: str, typed: Collection[str]) -> bool:
    """Whether a key of the recipe stands on the command line, by itself, in a matrix, or with what it belongs to."""
    names = [name.removeprefix("matrix.") for name in typed]
    return any(key == name or key.startswith(f"{name}.") for name in names)


def refusal(openings: Sequence[Opening], folder: Path) -> UsageError:
    """Return the error for what a recipe in `folder` asks for that needs trust."""
    lines = [str(opening) for opening in openings[:_MOST_SHOWN]]
    if len(openings) > _MOST_SHOWN:
        lines.append(f"and {len(openings) - _MOST_SHOWN} more")
    where = shlex.quote(one_line(str(folder.resolve()), 400))
    return UsageError(
        "This recipe asks for what needs your trust:\n" + "\n".join(f"  {line}" for line in lines),
        fix="Read it. If you trust its writer, add --trust-recipe; if the folder is yours, once: "
        f"benchctl recipes trust {where}\nOr give values of your own: --set KEY=VALUE, --prompts FILE.",
    )


def is_loopback(url: str) -> bool:
    """Whether a URL leads to this machine for certain: by its address, or as localhost; other names are looked up."""
    try:
        parts = urlsplit(url.strip())
        host, scheme = parts.hostname or "", parts.scheme
        return scheme in ("http", "https") and (host == "localhost" or ipaddress.ip_address(host).is_loopback)
    except ValueError:
        return False


def _is_outside(file: Path, folder: Path) -> bool:
    """Whether a file, links followed, neither lies in the recipe's folder nor is shipped.

    Home, a folder that home lies in, and folders below home whose names begin with a dot belong to no recipe.
    """
    root, home = folder.resolve(), Path.home().resolve()
    try:
        file = file.resolve()
    except (OSError, RuntimeError, ValueError):  # a circle of links, a name that no file can have
        return True
    if file.parent == shipped_folder("prompts").resolve():
        return False
    if home.is_relative_to(root) or (root.is_relative_to(home) and _is_hidden(root.relative_to(home))):
        return True
    return not file.is_relative_to(root) or _is_hidden(file.relative_to(root))


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)
