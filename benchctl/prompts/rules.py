"""What a request asks of its answer's form, and whether a text keeps it. No other answer is needed to tell.

An answer that the token limit cut off is `cut`, and invalid only where it begins an object as no JSON does. Of a form
that cannot be tested the answer is `unchecked`: a grammar without a `regex` beside it, tools that were not called, a
schema that cannot be read or whose `pattern` Rust's engine does not take, JSON that is nested too deeply.
A broken rule is `enforced` where an engine that keeps the constraint token by token cannot break it, whatever the
model would say. A call of a tool that the model was free to make is the model's own text, so its faults are not; nor
are the words of a schema (`pattern`, `maximum`, `uniqueItems`, …) that some engines leave out of their grammars.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from benchctl.prompts.answers import matches
from benchctl.text import one_line

Status = Literal["valid", "invalid", "cut", "unchecked"]
RuleCode = Literal["json", "schema", "regex", "choice", "stop", "no-call", "call-json", "call-name", "call-arguments"]

ENFORCED = frozenset({"type", "enum", "const", "required", "additionalProperties", "minItems", "maxItems"})
"""Words of JSON Schema that the grammars of llama.cpp and xgrammar (vLLM, SGLang) both hold in plain schemas."""
_NOTES = frozenset({"$defs", "definitions", "$schema", "$id", "title", "description", "default", "examples"})
_ALTERNATIVES = frozenset({"anyOf", "oneOf", "$ref"})
"""Words beside which llama.cpp reads no others (`visit` in common/json-schema-to-grammar.cpp)."""
_LEFT_OUT = frozenset(
    {"allOf", "if", "not", "dependentSchemas", "dependentRequired", "unevaluatedProperties", "contains"}
)
"""Words that a grammar holds in part or not at all."""
_UNTRIED = ("patternProperties", "unevaluated", "$dynamic", "$recursive", '"$schema"')
"""Words of a schema, in its text, that the library would match by backtracking, try again at every level, or hand to a
validator of its own."""
_MOST_REFERENCES = 10_000
"""References that are followed for an answer; a schema can be written so that they double at every step."""
_THOUGHT = "</think>"
_STRING = re.compile(r'"(?:[^"\\]|\\.)*+("?)', re.DOTALL)
"""A string of JSON; without its last quote it is not closed."""
_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
"""A call as the templates of Qwen, Hermes and others have it."""
_NEGATED = re.compile(r"\\[DSW]|\[\^[^\]]*\\[dsw]")
"""Classes that xgrammar reads in ASCII and Rust in Unicode, so that it lets pass more than matches here."""
_MOST_DIGITS = 4_000
"""Of a whole number; Python reads 4,300."""
_SHOWN = 160
"""Characters of an explanation."""


class Kept(NamedTuple):
    """Whether an answer keeps its form."""

    status: Status
    code: RuleCode | None = None
    """Which rule an invalid answer breaks."""
    detail: str = ""
    """Where and how; untrusted text on one line."""
    enforced: bool = False
    """Whether an engine that keeps the constraint cannot break this rule."""


class Rules(BaseModel):
    """What a request asks of its answer's form."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    answer_schema: dict[str, Any] | None = None
    """JSON Schema of the whole answer."""
    regex: str | None = None
    """What the whole answer matches; Rust's syntax, but that `.` may be a line break, as in xgrammar."""
    choice: tuple[str, ...] | None = None
    """The answer is one of these texts."""
    grammar: bool = False
    """Whether a grammar was sent; it is not read here."""
    stop: tuple[str, ...] = ()
    """Texts at which the answer ends, before them."""
    tools: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """JSON Schema of the arguments of each tool, by its name."""
    forced: bool = False
    """Whether the answer must be a call of any of them."""
    logprobs: bool = False
    """Whether the log probability of every token was asked for."""

    @property
    def asks_form(self) -> bool:
        """Whether anything of it can be broken by the text."""
        return self.model_copy(update={"logprobs": False}) != Rules()

    def kept(self, text: str, *, cut: bool) -> Kept:
        """Return whether a text keeps the form; `cut`: it was cut off by the limit of its tokens."""
        passed = next((stop for stop in self.stop if stop in text), None)
        if passed is not None:
            return Kept("invalid", "stop", f"it has {_quoted(passed)}", enforced=True)
        try:
            answer = text.rpartition(_THOUGHT)[2]
            kept = self._form(answer.strip())
            whole: tuple[str, ...] = () if kept.status != "invalid" or self.tools else (answer, text)
            if self.answer_schema is not None and _THOUGHT in _without_strings(text):
                whole = whole[:1]  # the text is no JSON, and its beginning may be nested too deeply to be read
            if any(self._form(unstripped).status == "valid" for unstripped in whole):
                return Kept("valid")  # spaces at its ends, or the mark itself, are of the answer
        except (RecursionError, OverflowError):  # JSON that is nested too deeply, or has too long a number
            return Kept("unchecked")
        if kept.status == "invalid" and (cut or self.stop):
            return kept if kept.code == "json" and not _begins_json(text) else Kept("cut")
        return kept

    def _form(self, text: str) -> Kept:
        if self.tools:
            return self._calls(text)
        if self.answer_schema is not None:
            return _by_schema(text, self.answer_schema)
        if self.regex is not None and (kept := _by_regex(text, self.regex)).status != "valid":
            return kept
        if self.choice is not None and text not in self.choice:
            return Kept("invalid", "choice", f"{_quoted(text)} is none of the choices", enforced=True)
        return Kept("unchecked" if self.grammar and self.regex is None else "valid")

    def _calls(self, text: str) -> Kept:
        """Judge each call; an answer without any is the model's own choice unless a call was forced."""
        try:
            calls = list(_calls_in(text, tuple(self.tools), bare=self.forced or '"name"' in text))
        except ValueError as error:
            return Kept("invalid", "call-json", _shown(str(error)), enforced=self.forced)
        if not calls:
            return Kept("invalid", "no-call", enforced=True) if self.forced else Kept("unchecked")
        for name, arguments in calls:
            if not isinstance(name, str) or name not in self.tools:
                return Kept("invalid", "call-name", _quoted(str(name)), enforced=self.forced)
            kept = _against(arguments, self.tools[name])
            if kept.status == "invalid":
                detail = _shown(f"{name}: {kept.detail}")
                return Kept("invalid", "call-arguments", detail, enforced=self.forced and kept.enforced)
            if kept.status == "unchecked":
                return kept
        return Kept("valid")


def _by_regex(text: str, regex: str) -> Kept:
    try:
        if matches(f"^(?s:{regex})$", text):
            return Kept("valid")
    except ValueError:  # such as a comment that reaches beyond its end
        return Kept("unchecked")
    return Kept("invalid", "regex", f"{_quoted(text)} does not match", enforced=not _NEGATED.search(regex))


def _by_schema(text: str, schema: dict[str, Any]) -> Kept:
    try:
        value = _parsed(text)
    except ValueError as error:
        return Kept("invalid", "json", _shown(str(error)), enforced=True)
    return _against(value, schema)


def _against(value: object, schema: dict[str, Any]) -> Kept:
    """Hold a value against a JSON Schema; one that cannot be read, refers to elsewhere, or has a `pattern` that
    `matches` does not take tests nothing."""
    from jsonschema.exceptions import best_match

    try:
        checked = _validator(json.dumps(schema, sort_keys=True))
        if checked is None:
            return Kept("unchecked")
        validator, followed = checked
        followed.clear()
        errors = list(validator.iter_errors(value))
    except Exception:  # of any kind: a reference leads to parts of a schema that nothing has checked before
        return Kept("unchecked")
    if not errors:
        return Kept("valid")
    first = best_match(errors)
    enforced = _is_plain(schema) and any(map(_is_enforced, errors))
    return Kept("invalid", "schema", _shown(f"{first.json_path}: {first.message}"), enforced=enforced)


def _is_plain(schema: object) -> bool:
    """Whether no part of a schema has words that grammars leave out, or others beside its alternatives."""
    if isinstance(schema, list):
        return all(map(_is_plain, schema))
    if not isinstance(schema, dict):
        return True
    words = schema.keys() - _NOTES
    if words & _LEFT_OUT or (words & _ALTERNATIVES and len(words) > 1):
        return False
    return all(_is_plain(part) for part in schema.values())


def _is_enforced(error: Any) -> bool:  # noqa: ANN401 - the library has no types
    """Whether a grammar of the schema holds what an answer broke; of alternatives, in each of them."""
    if error.context:
        branches: dict[object, bool] = {}
        for part in error.context:
            branches[part.schema_path[0]] = branches.get(part.schema_path[0], False) or _is_enforced(part)
        return all(branches.values())
    if error.validator == "required":  # of properties that are not described nothing is in the grammar
        names = error.validator_value if isinstance(error.validator_value, list) else []  # draft 3 has a boolean
        return any(name in error.schema.get("properties", {}) for name in names if name not in error.instance)
    if error.validator in ("minItems", "maxItems"):
        return "items" in error.schema and "prefixItems" not in error.schema
    return error.validator in ENFORCED


@lru_cache(maxsize=256)
def _validator(written: str) -> tuple[Any, list[str]] | None:
    """Return what validates by a schema, and the references that it follows; `None` where the schema cannot be tried.

    Nothing is fetched, no pattern backtracks, and too many references raise RecursionError.
    """
    import jsonschema
    import referencing

    schema = json.loads(written)
    dialect = schema.pop("$schema", "")  # whatever refers to a schema that has it is given to the library's validator
    kind = jsonschema.validators.validator_for({"$schema": dialect}, default=jsonschema.Draft202012Validator)
    remaining = json.dumps(schema)
    if kind is jsonschema.Draft3Validator or any(word in remaining for word in _UNTRIED):
        return None
    followed: list[str] = []

    def reference(part: Any, address: str, value: object, of: object) -> Any:  # noqa: ANN401 - the library has no types
        followed.append(address)
        if len(followed) > _MOST_REFERENCES:
            raise RecursionError
        return kind.VALIDATORS["$ref"](part, address, value, of)

    def pattern(_: object, expression: str, value: object, __: object) -> Iterator[jsonschema.ValidationError]:
        if isinstance(value, str) and not matches(expression, value):
            yield jsonschema.ValidationError(f"{value!r} does not match {expression!r}")

    try:
        kind.check_schema(schema)
    except (jsonschema.SchemaError, RecursionError):
        return None
    checking = jsonschema.validators.extend(kind, {"pattern": pattern, "$ref": reference})
    return checking(schema, registry=referencing.Registry()), followed


def _calls_in(text: str, names: tuple[str, ...], *, bare: bool) -> Iterator[tuple[object, object]]:
    """Yield (name, arguments) of every call: between marks, as the whole answer, or as endpoints' calls are kept, which
    is a name with its arguments behind it. `bare`: whether an answer that begins as JSON is a call.

    Raises ValueError for a call that is no JSON, RecursionError and OverflowError for JSON that is not read.
    """
    blocks = [block.strip() for block in _CALL.findall(text)]
    if blocks or (bare and text[:1] in ("{", "[")):
        for block in blocks or [text]:
            value = _parsed(block)
            for call in value if isinstance(value, list) else [value]:
                fields = call if isinstance(call, dict) else {}
                yield fields.get("name"), _arguments(fields.get("arguments", fields.get("parameters")))
        return
    begins = re.compile(rf"({'|'.join(map(re.escape, sorted(names, key=len, reverse=True)))})(?=\{{)")
    call = begins.search(text)
    while call is not None:
        arguments, end = json.JSONDecoder(parse_int=_integer).raw_decode(text, call.end())
        yield call[1], arguments
        call = begins.search(text, end)


def _arguments(value: object) -> object:
    """Return a call's arguments, which some write as JSON in a text."""
    return _parsed(value) if isinstance(value, str) else value


def _parsed(text: str) -> object:
    """Parse JSON. Raises ValueError, also for NaN, RecursionError and OverflowError."""
    return json.loads(text, parse_constant=_refuse, parse_int=_integer)


def _without_strings(text: str) -> str:
    """Return a text without the strings that are closed in it."""
    return _STRING.sub(lambda string: "" if string[1] else string[0], text)


def _begins_json(text: str) -> bool:
    """Whether JSON may begin with a text: what ails it is at its end, or a string or an escape that is not over.

    So it is said of a text that begins no object, too: a thought may come before the answer.
    """
    text = text.rpartition(_THOUGHT)[2].strip()
    if not text.startswith("{"):
        return True
    try:
        json.JSONDecoder(strict=False, parse_int=_integer).raw_decode(text)
    except json.JSONDecodeError as error:
        return error.pos >= len(text) - 1 or error.msg.startswith(("Unterminated string", "Invalid \\"))
    except (RecursionError, OverflowError):
        pass
    return True


def _integer(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise OverflowError(f"a number of {len(digits)} digits")
    return int(digits)


def _refuse(constant: str) -> object:
    raise ValueError(f"{constant} is no JSON")


def _quoted(text: str) -> str:
    return f"'{one_line(text, 60)}'"


def _shown(text: str) -> str:
    return one_line(text, _SHOWN)
