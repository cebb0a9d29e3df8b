"""An engine's own command line, as people keep it, read as parts of a recipe: `benchctl run -- ENGINE OPTIONS`.

An adapter declares which of its engine's options are keys of a recipe, which ones benchctl sets by itself, and which
ones contradict a benchmark. All others are handed on as they are: who types a line trusts it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from benchctl.errors import UsageError
from benchctl.recipes.adapters import registered
from benchctl.recipes.document import plain_value
from benchctl.recipes.options import IS_OPTION
from benchctl.text import one_line

_VARIABLE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_HUB = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_CONTAINERS = ("docker", "podman", "nerdctl")
_TRUE = ("1", "true", "on", "enabled")
_SHELL = ("sudo", "env", "export", "exec", "nohup", "time", "$")
"""Words in front of a program that are no part of it."""


def options(text: str) -> dict[str, str]:
    """Return by option what a table says of it: a line for each destination, `DESTINATION: -a --alias`."""
    rows = (line.partition(": ") for line in text.strip().splitlines())
    return {name: destination.strip() for destination, _, names in rows for name in names.split()}


@dataclass(frozen=True)
class LineForm:
    """How an engine's command lines are read."""

    programs: tuple[str, ...]
    """Names of its program, of its Python module, and of the last part of its images of containers."""
    keys: Mapping[str, str]
    """By option a dotted key: of `engine`, `models` or `speculation`, or a name of the adapter's own that `settle`
    reads. `KEY=hf:{}` writes the value into a text."""
    left_out: Mapping[str, str]
    """By option why it is no part of the recipe."""
    refused: Mapping[str, str]
    """By option the sentence with which the line is refused."""
    settle: Callable[[EngineLine], None]
    """Makes whole what several options say together."""
    first_words: tuple[str, ...] = ()
    """Words after the program that are no options."""
    variables: str | None = None
    """How the names of the variables begin that set options."""
    variable_names: Mapping[str, str] = field(default_factory=dict)
    """Options of those variables that are not called after them."""
    switches: Mapping[str, str] = field(default_factory=dict)
    """Options without a value that variables set, and the option of the opposite; empty where there is none."""


@dataclass
class EngineLine:
    """A line that was read."""

    kind: str
    values: dict[str, Any] = field(default_factory=dict)
    """By dotted key."""
    args: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    destinations: list[tuple[str, str]] = field(default_factory=list)
    """What became of the words, in their order: words of the line, and a key of the recipe or why they are left out."""

    def data(self, part: str) -> dict[str, Any]:
        """Return the values below `part` as nested data."""
        nested: dict[str, Any] = {}
        for key, value in self.values.items():
            *outer, last = key.split(".")
            if outer[:1] == [part]:
                inner = nested
                for name in outer[1:]:
                    inner = inner.setdefault(name, {})
                inner[last] = value
        return nested


def forms() -> Iterator[tuple[str, LineForm]]:
    """Yield every engine that declares how its lines are read."""
    for kind, adapter in registered().adapters.items():
        if adapter.line is not None:
            yield kind, resolve_name(adapter.line)


def known_option(words: Sequence[str]) -> str | None:
    """Return the first of `words` that is an option of an engine."""
    tables = [table for _, form in forms() for table in (form.keys, form.left_out, form.refused)]
    engine_options = {name for table in tables for name in table}
    for adapter in registered().adapters.values():
        engine_options |= {f"-{name}" for name in adapter.aliases} | {f"--{name}" for name in adapter.changes_target}
    return next((word for word in words if word.partition("=")[0] in engine_options), None)


def read_engine_line(words: Sequence[str]) -> EngineLine | None:
    """Return what a line says; `None` for words that are no engine's line. Raises UsageError for what cannot run."""
    words = list(words)
    if len(words) == 1 and " " in words[0]:
        with suppress(ValueError):  # quotes that do not close: it is a name
            words = shlex.split(words[0])
    env: dict[str, str] = {}
    left_out: list[str] = []
    while words and (_VARIABLE.fullmatch(words[0]) or words[0] in _SHELL):
        word = words.pop(0)
        if match := _VARIABLE.fullmatch(word):
            env[match[1]] = match[2]
    mounts: dict[str, str] = {}
    if words and words[0] in _CONTAINERS:
        left_out, words = _out_of_container(words, env, mounts)
    if len(words) > 2 and Path(words[0]).name.startswith("python") and words[1] == "-m":
        words = words[2:]
    for kind, form in forms():
        if words and (env or len(words) > 1) and _is_program(words[0], form):
            line = EngineLine(kind)
            _read(line, form, words, env, mounts, contained=bool(left_out))
            if left_out:
                line.destinations.insert(0, (" ".join(left_out), "left out: this machine's own engine is measured"))
            return line
    return None


def _is_program(word: str, form: LineForm) -> bool:
    return re.split("[:@]", Path(word).name)[0].removesuffix(".exe") in form.programs and not Path(word).is_dir()


def _out_of_container(words: Sequence[str], env: dict[str, str], mounts: dict[str, str]) -> tuple[list[str], list[str]]:
    """Return the words up to a container's image, and from the image on; notes its variables and folders."""
    images = [name for _, form in forms() for name in form.programs]
    for index, word in enumerate(words):
        before = words[index - 1] if index else ""
        name, equals, attached = word.partition("=")
        option, value = (name, attached) if equals and name.startswith("-") else (before, word)
        if option in ("-e", "--env") and (match := _VARIABLE.fullmatch(value)):
            env[match[1]] = match[2]
        elif option in ("-v", "--volume") and value.count(":") in (1, 2):
            host, inside = value.split(":")[:2]
            mounts[inside.rstrip("/")] = host.rstrip("/")
        elif "/" in word and word[0] not in "-/.~$" and re.split("[:@]", word.rpartition("/")[2])[0] in images:
            return list(words[:index]), list(words[index:])
    return list(words), []


def _read(
    line: EngineLine,
    form: LineForm,
    words: Sequence[str],
    env: Mapping[str, str],
    mounts: Mapping[str, str],
    *,
    contained: bool,
) -> None:
    program, rest = words[0], list(words[1:])
    if dashed := next((word for word in rest if word[:1] in ("–", "—")), None):
        fix = "Type - or -- in its place: web pages change them."
        raise UsageError(f"{one_line(dashed, 40)} begins with a typographic dash.", fix=fix)
    if "/" in program and not contained:
        line.values["engine.binary"] = str(Path(program).expanduser().absolute())
        line.destinations.append((program, "engine.binary"))
    while rest and Path(rest[0]).name in (*form.first_words, *form.programs):
        rest.pop(0)
    if rest and not IS_OPTION.match(rest[0]):
        _place(line, form, "", [rest.pop(0)], mounts)
    for name, value in env.items():
        if form.variables and name.startswith(form.variables):
            option = form.variable_names.get(name) or f"--{name.removeprefix(form.variables).lower().replace('_', '-')}"
            shown = f"{name}={value}"
            if option not in form.switches:
                _place(line, form, option, [value], mounts, shown)
            elif switch := option if value.lower() in _TRUE else form.switches[option]:
                _place(line, form, switch, [], mounts, shown)
            else:
                line.destinations.append((shown, "left out: it turns nothing on"))
        else:
            line.env[name] = value
            line.destinations.append((f"{name}={value}", "engine.env"))
    while rest:
        option, equals, attached = rest.pop(0).partition("=")
        values = [attached] if equals else []
        while not equals and rest and not IS_OPTION.match(rest[0]):
            values.append(rest.pop(0))
        _place(line, form, option, values, mounts)
    form.settle(line)


def _place(
    line: EngineLine,
    form: LineForm,
    option: str,
    values: Sequence[str],
    mounts: Mapping[str, str],
    shown: str | None = None,
) -> None:
    """Put an option where it belongs."""
    name = option.replace("_", "-") if option.startswith("--") else option
    words = shown or " ".join(filter(None, (option, *values)))
    if name in form.refused:
        raise UsageError(form.refused[name], where=one_line(option, 80), fix="Leave it out of the line.")
    values = [_of_host(value, mounts) for value in values]
    key, _, pattern = form.keys.get(name, "").partition("=")
    if key and len(values) == 1:
        text = pattern.format(values[0]) if pattern else values[0]
        line.values[key] = source_of(text) if key.endswith(".source") else plain_value(text)
        line.destinations.append((words, f"arms[].{key}" if key.startswith("speculation") else key))
    elif name in form.left_out:
        line.destinations.append((words, f"left out: {form.left_out[name]}"))
    else:
        line.args += [*filter(None, [option]), *values]
        line.destinations.append((words, "engine.args"))


def _of_host(value: str, mounts: Mapping[str, str]) -> str:
    """Return a path inside a container as its host has it."""
    for inside, host in mounts.items():
        if value == inside or value.startswith(f"{inside}/"):
            return f"{host}{value.removeprefix(inside)}"
    return value


def source_of(text: str) -> str:
    """Return a model's source: a repository of the hub that is no path here is marked as such."""
    is_path = text.startswith("hf:") or Path(text).expanduser().exists() or text.lower().endswith(".gguf")
    return text if is_path or not _HUB.fullmatch(text) else f"hf:{text}"
