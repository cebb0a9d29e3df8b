"""A YAML file read into plain data, with the line of every key and value: safe against hostile files.

Scalars follow the core schema of YAML 1.2, as editors do: `yes`, `on` and `12:30` are text, `1e3` is a number, and a
date is text. Nothing is ever constructed but str, int, float, bool, None, list and dict.
"""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from benchctl.recipes.odd_characters import odd_character
from benchctl.recipes.problems import KeyPath, Plain, Problem, RecipeError, excerpt, quoted

MAX_BYTES = 1 << 20
MAX_NODES = 20_000
"""Values in a file, counted after aliases are followed: what stops a "billion laughs" file."""
MAX_DEPTH = 24
"""Nesting of mappings and lists."""

_NULL = re.compile(r"(?:~|null|Null|NULL|)\Z")
_BOOL = re.compile(r"(?:true|True|TRUE|false|False|FALSE)\Z")
_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]*)\Z|0x[0-9a-fA-F]+\Z")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?\Z")
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)\Z|\.(?:nan|NaN|NAN)\Z")
_MAX_DIGITS = 30
_CORE_TAGS = {f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null", "map", "seq")}
_TEXT_TAG = "tag:yaml.org,2002:str"
_GUESSED_TAGS = {f"tag:yaml.org,2002:{name}" for name in ("timestamp", "value", "merge")}
"""What YAML 1.1 makes of a plain date, `=` and `<<`; for us they are text."""


@dataclass
class Document:
    """A file's data, and where its parts stand."""

    file: Path
    data: dict[str, Plain]
    lines: dict[KeyPath, int] = field(default_factory=dict)
    """Line of every value, and of every key under its path."""

    def line(self, path: KeyPath) -> int:
        """Return the line of the value at `path`, or of the nearest part around it that the file has."""
        while path not in self.lines and path:
            path = path[:-1]
        return self.lines.get(path, 0)


def read_document(file: Path) -> Document:
    """Read a YAML file whose top level is a mapping. Raises RecipeError for anything else."""
    text = _read_text(file)
    lines: dict[KeyPath, int] = {}
    try:
        node = yaml.compose(text, Loader=_BoundedLoader)
        data = None if node is None else _Builder(lines, text).build(node, ())
    except yaml.YAMLError as error:
        raise RecipeError(file, [_yaml_problem(error, text)]) from None
    except _WrongError as error:
        raise RecipeError(file, [error.problem]) from None
    if not isinstance(data, dict):
        message = f"expected a mapping such as `name: …` (see `benchctl recipes new`), got {quoted(data)}."
        raise RecipeError(file, [Problem(lines.get((), 0), (), message)])
    return Document(file, data, lines)


def read_value(text: str) -> Plain:
    """Return a value that was typed, by the rules of a file. Raises ValueError for what is none."""
    try:
        node = yaml.compose(text, Loader=_BoundedLoader)
        return None if node is None else _Builder({}, text).build(node, ())
    except (yaml.YAMLError, _WrongError):
        raise ValueError(f"{quoted(text)} is not a YAML value") from None


class _WrongError(Exception):
    def __init__(self, node: yaml.Node | yaml.Event, path: KeyPath, message: str, line: int | None = None) -> None:
        super().__init__(message)
        started = node.start_mark.line + 1 if node.start_mark else 0
        self.problem = Problem(started if line is None else line, path, message)


def _read_text(file: Path) -> str:
    line = 0
    try:
        with file.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
        if len(raw) > MAX_BYTES:
            problem = "the file is larger than 1 MiB, the limit for a recipe."
        elif raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            problem = "the file is UTF-16 text; save it as UTF-8."
        elif b"\0" in raw:
            problem = "this is a binary file; expected YAML text."
        else:
            return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        problem = "the file is not UTF-8 text; save it as UTF-8."
    except OSError as error:
        problem = f"the file cannot be read: {error.strerror}."
    raise RecipeError(file, [Problem(line, (), problem)])


class _BoundedLoader(yaml.SafeLoader):
    """Stops at the first sign of a bomb, before any tree is built."""

    nodes = depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self.nodes += 1
        self.depth += 1
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if self.nodes > MAX_NODES:
            raise _WrongError(event, (), f"the file contains more than {MAX_NODES} values.")
        if self.depth > MAX_DEPTH + 1:
            raise _WrongError(event, (), f"values are nested more than {MAX_DEPTH} deep.")
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


def _yaml_problem(error: yaml.YAMLError, text: str) -> Problem:
    if isinstance(error, yaml.reader.ReaderError):
        problem = f"the character U+{ord(text[error.position]):04X} is not allowed"
        return Problem(text.count("\n", 0, error.position) + 1, (), f"this is not YAML: {problem}.")
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    line = mark.line + 1 if mark else 0
    reason = excerpt(getattr(error, "problem", None) or "it cannot be parsed")
    lines = text.splitlines(keepends=True)
    tab = lines[line - 1].find("\t") if 0 < line <= len(lines) else -1
    indents = tab >= 0 and not lines[line - 1][:tab].strip()
    if indents or (tab >= 0 and "'\\t'" in reason):  # a tab elsewhere is the writer's business
        use = "is used for indentation" if indents else "stands before a value"
        return Problem(line, (), f"a tab {use} (column {tab + 1}); YAML needs spaces.")
    start = len("".join(lines[: max(0, line - 2)]))  # the cause may stand a line above
    if odd := odd_character(text, start, len("".join(lines[:line]))):
        return Problem(odd[0], (), odd[1])
    hint = next((text for part, text in _HINTS.items() if part in reason), "")
    return Problem(line, (), f"this is not YAML: {reason}{hint}.")


_HINTS = {
    "mapping values are not allowed": "; check the indentation, and quote a text that has a colon and a space",
    "escape": "; a backslash in double quotes begins an escape: take single quotes, and / in a path",
    "cannot start any token": "; put a text that begins with it in quotes",
}
"""What is usually meant, by a part of the parser's reason."""


class _Builder:
    """Turns nodes into data, counting what aliases multiply."""

    def __init__(self, lines: dict[KeyPath, int], text: str) -> None:
        self.lines = lines
        self.text = text
        self.count = 0

    def build(self, node: yaml.Node, path: KeyPath) -> Plain:
        self.count += 1
        if self.count > MAX_NODES:
            raise _WrongError(node, path, f"aliases multiply the file to more than {MAX_NODES} values.")
        if len(path) > MAX_DEPTH:
            raise _WrongError(node, path[:4], f"values are nested more than {MAX_DEPTH} deep.")
        self.lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.ScalarNode):
            return self.scalar(node, path)
        if node.tag not in _CORE_TAGS:
            raise _unknown_tag(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.build(item, (*path, index)) for index, item in enumerate(node.value)]
        return self.mapping(node, path)

    def mapping(self, node: yaml.Node, path: KeyPath) -> dict[str, Plain]:
        data: dict[str, Plain] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                if odd := odd_character(self.text, node.start_mark.index, node.end_mark.index):
                    raise _WrongError(node, path, odd[1], odd[0])
                raise _WrongError(key_node, path, "a key must be a word; got a mapping or a list.")
            key = key_node.value
            key_path = (*path, key)
            self.refuse_odd(key_node, key_path)
            if key == "<<":
                raise _WrongError(key_node, path, "merge keys (`<<`) are not supported; write the keys out.")
            if key in data:
                first = self.lines[key_path]
                raise _WrongError(key_node, key_path, f"this key is given twice; it is on line {first} already.")
            self.lines[key_path] = key_node.start_mark.line + 1
            data[key] = self.build(value_node, key_path)
        return data

    def scalar(self, node: yaml.ScalarNode, path: KeyPath) -> Plain:
        text = str(node.value)
        if node.tag not in _CORE_TAGS | _GUESSED_TAGS:
            raise _unknown_tag(node, path)
        if path != ("description",):
            self.refuse_odd(node, path)
        if node.style is not None:
            return text
        value = plain_value(text)
        if node.tag == _TEXT_TAG and not isinstance(value, float):  # written as `!!str 5`
            return text
        return value

    def refuse_odd(self, node: yaml.ScalarNode, path: KeyPath) -> None:
        start, end = node.start_mark.index, node.end_mark.index
        if odd := odd_character(self.text, start, end, quoted=node.style is not None, inside=True):
            raise _WrongError(node, path, odd[1], odd[0])


def _unknown_tag(node: yaml.Node, path: KeyPath) -> _WrongError:
    return _WrongError(node, path, f"the tag {quoted(node.tag)} is not allowed; a recipe contains plain data only.")


class _AsWritten:
    """A number that Python would write otherwise than the file does, such as 1e3 or 1.10: messages quote the file."""

    text: str

    def __str__(self) -> str:
        return self.text


class _WrittenInt(_AsWritten, int):
    pass


class _WrittenFloat(_AsWritten, float):
    pass


def _as_written(number: float, text: str) -> Plain:
    if str(number) == text:
        return number
    written = (_WrittenInt if isinstance(number, int) else _WrittenFloat)(number)
    written.text = text
    return written


def plain_value(text: str) -> Plain:
    """Return the scalar that a text without quotes is."""
    if _NULL.match(text):
        return None
    if _BOOL.match(text):
        return text.lower() == "true"
    if len(text) <= _MAX_DIGITS and _INT.match(text):
        return _as_written(int(text, 0), text)
    if len(text) <= _MAX_DIGITS and _FLOAT.match(text):
        return _as_written(float(text), text)
    if _NOT_FINITE.match(text):
        return float(text.lower().replace(".", ""))
    return text


class _Dumper(yaml.SafeDumper):
    """Quotes text that would be read as something else by the rules of this module: `1e3`."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar(_TEXT_TAG, text, style=None if plain_value(text) == text else '"')


_Dumper.add_representer(str, _text)
_Dumper.add_multi_representer(int, yaml.SafeDumper.represent_int)
_Dumper.add_multi_representer(float, yaml.SafeDumper.represent_float)


def dump_document(data: dict[str, Plain]) -> str:
    """Return plain data as YAML that `read_document` reads as the same; short mappings and lists on a line."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110, default_flow_style=None)
