"""Whether a text keeps the form that its request asks for."""

from __future__ import annotations

from typing import Any

import pytest

from benchctl.prompts.rules import Rules

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "pattern": "^[A-Z]"}, "days": {"type": "integer", "maximum": 7}},
    "required": ["city"],
    "additionalProperties": False,
}
DIALECT = "https://json-schema.org/draft/2020-12/schema"
DOUBLING = {
    "$ref": "#/$defs/a0",
    "$defs": {"a40": {}} | {f"a{step}": {"allOf": [{"$ref": f"#/$defs/a{step + 1}"}] * 2} for step in range(40)},
}
"""A schema whose references are followed 2**40 times."""
TOOLS: dict[str, Any] = {"tools": {"weather": CITY, "weather_map": {"type": "object"}}}
FORCED = TOOLS | {"forced": True}
KEPT = '{"city": "Oslo"}'


@pytest.mark.parametrize(
    ("rules", "text", "status", "code", "enforced"),
    [
        ({"answer_schema": CITY}, KEPT, "valid", None, False),
        ({"answer_schema": CITY}, f"<think>{{</think>\n {KEPT}\n", "valid", None, False),
        ({"answer_schema": CITY}, '{"a":' * 1_000 + '</think>{"city": 5}', "invalid", "schema", True),  # a deep thought
        ({"answer_schema": CITY}, "[" * 1_000 + '"</think>{}"' + "]" * 1_000, "unchecked", None, False),
        ({"answer_schema": CITY}, "{" + KEPT, "invalid", "json", True),  # `{{`: a grammar that was not advanced
        ({"answer_schema": CITY}, KEPT + " and so on", "invalid", "json", True),
        ({"answer_schema": CITY}, '{"city": NaN}', "invalid", "json", True),
        ({"answer_schema": CITY}, '{"city": 3}', "invalid", "schema", True),
        ({"answer_schema": CITY}, '{"town": "Oslo"}', "invalid", "schema", True),
        ({"answer_schema": CITY}, '{"city": "oslo"}', "invalid", "schema", False),  # a pattern is not always enforced
        ({"answer_schema": CITY}, '{"city": "Oslo", "days": 9}', "invalid", "schema", False),
        ({"answer_schema": {"required": ["a"]}}, "{}", "invalid", "schema", False),  # no grammar names `a`
        ({"answer_schema": {"type": "array", "minItems": 1}}, "[]", "invalid", "schema", False),
        ({"answer_schema": {"type": "array", "items": {}, "minItems": 1}}, "[]", "invalid", "schema", True),
        ({"answer_schema": {"anyOf": [CITY, {"type": "null"}]}}, "3", "invalid", "schema", True),
        ({"answer_schema": {"anyOf": [CITY, {"type": "null"}]}}, '{"city": "oslo"}', "invalid", "schema", False),
        ({"answer_schema": {"anyOf": [{"type": "null"}], "type": "null"}}, "3", "invalid", "schema", False),
        ({"answer_schema": {"allOf": [{"type": "null"}]}}, "3", "invalid", "schema", False),
        ({"answer_schema": {"$ref": "http://127.0.0.1:9/x"}}, KEPT, "unchecked", None, False),  # nothing is fetched
        ({"answer_schema": {"type": "nonsense"}}, KEPT, "unchecked", None, False),
        ({"answer_schema": {"$ref": "#"}}, KEPT, "unchecked", None, False),
        ({"answer_schema": {"pattern": "(a+)+$"}}, '"' + "a" * 60 + '!"', "invalid", "schema", False),
        ({"answer_schema": {"pattern": "^(?=a)"}}, '"a"', "unchecked", None, False),  # not in Rust's syntax
        ({"answer_schema": {"$ref": "http://[x"}}, KEPT, "unchecked", None, False),  # no address
        ({"answer_schema": {"$ref": "#/x", "x": {"minLength": "a"}}}, '"a"', "unchecked", None, False),
        ({"answer_schema": {"multipleOf": 0.5}}, "1e999", "unchecked", None, False),
        ({"answer_schema": DOUBLING}, "3", "unchecked", None, False),
        (
            {"answer_schema": {"$schema": DIALECT, "pattern": "^(?=a)", "items": {"$ref": "#"}}},
            '["a"]',
            "unchecked",
            None,
            False,
        ),
        ({"answer_schema": {"items": {"$schema": DIALECT, "pattern": "^(?=a)"}}}, '["a"]', "unchecked", None, False),
        ({"answer_schema": {"unevaluatedItems": False}}, "[1]", "unchecked", None, False),
        ({"answer_schema": CITY}, "[" * 100_000, "unchecked", None, False),
        (TOOLS, "[" * 100_000, "unchecked", None, False),
        ({"regex": " [0-9]"}, " 4", "valid", None, False),  # the space is the form's own
        ({"choice": (" yes", " no")}, " no", "valid", None, False),
        ({"choice": ("yes",)}, "<think>no</think>\n\nyes", "valid", None, False),
        ({"answer_schema": {"pattern": "^(?!a)"}}, '"b"', "unchecked", None, False),  # look-ahead: not Rust's
        ({"answer_schema": {"pattern": "^.{1,2000}$"}}, '"b"', "unchecked", None, False),  # too many copies
        ({"answer_schema": {"type": "integer"}}, "9" * 5000, "unchecked", None, False),  # Python reads no such number
        ({"answer_schema": {"multipleOf": 0.5}}, "9" * 400, "unchecked", None, False),
        ({"answer_schema": {"type": "object"}}, '{"a": "</think>"}', "valid", None, False),
        (
            {
                "answer_schema": {
                    "$schema": "http://json-schema.org/draft-03/schema#",
                    "properties": {"a": {"required": True}},
                }
            },
            "{}",
            "unchecked",
            None,
            False,
        ),
        ({"regex": "[0-9]{2}"}, "42", "valid", None, False),
        ({"regex": "a.b"}, "a\nb", "valid", None, False),  # as xgrammar reads it
        ({"regex": r"\W"}, "é", "invalid", "regex", False),  # which xgrammar lets pass
        ({"regex": r"[^\w]"}, "é", "invalid", "regex", False),
        ({"regex": "(?x)a # b"}, "a", "unchecked", None, False),  # the comment takes in what follows
        ({"regex": "[0-9]{2}|x"}, "421", "invalid", "regex", True),
        ({"grammar": True, "regex": "a"}, "a", "valid", None, False),
        ({"grammar": True}, "anything", "unchecked", None, False),
        ({"choice": ("yes", "no")}, "no", "valid", None, False),
        ({"choice": ("yes", "no")}, "nope", "invalid", "choice", True),
        ({"choice": (" yes", "no")}, " yes", "valid", None, False),
        ({"stop": ("\n\n", "END")}, "a\nb", "valid", None, False),
        ({"stop": ("\n\n", "END")}, "a END b", "invalid", "stop", True),
        ({"stop": ("}",), "answer_schema": CITY}, '{"city": "Oslo"', "cut", None, False),
        (TOOLS, f'<tool_call>\n{{"name": "weather", "arguments": {KEPT}}}\n</tool_call>', "valid", None, False),
        (TOOLS, f"Let me see.weather_map{{}}weather{KEPT}", "valid", None, False),  # as endpoints' calls are kept
        (TOOLS, "It rains.", "unchecked", None, False),
        (TOOLS, "[Sic] It rains.", "unchecked", None, False),
        (TOOLS, "<tool_call>" + "[" * 200_000, "unchecked", None, False),  # nested too deeply
        (TOOLS, '<tool_call>{"name": "weather"', "invalid", "call-json", False),
        (TOOLS, '<tool_call>{"name": "forecast", "arguments": {}}', "invalid", "call-name", False),
        (TOOLS, '<tool_call>{"name": "weather", "arguments": {}}', "invalid", "call-arguments", False),
        (FORCED, '{"name": "weather", "arguments": {"city": "Oslo"}}', "valid", None, False),
        (FORCED, '[{"name": "weather", "parameters": "{}"}]', "invalid", "call-arguments", True),
        (FORCED, "It rains.", "invalid", "no-call", True),
    ],
)
def test_a_text_keeps_its_form_or_breaks_a_rule(
    rules: dict[str, Any], text: str, status: str, code: str | None, enforced: bool
) -> None:
    kept = Rules(**rules).kept(text, cut=False)
    assert (kept.status, kept.code, kept.enforced) == (status, code, enforced), kept.detail
    cut = Rules(**rules).kept(text, cut=True)
    assert cut.status == ("cut" if status == "invalid" and code != "stop" and not text.startswith("{{") else status)


@pytest.mark.parametrize(
    ("text", "status"),
    [
        *((KEPT[:length], "cut") for length in range(len(KEPT))),
        ('{"city": "a\\u00', "cut"),
        ('{"city": "a", "days": -', "cut"),
        ('{"city": "a",', "cut"),
        ('{"days": ' + "9" * 5000, "unchecked"),
        ('{ "ccity"" : ::  "O', "invalid"),  # a grammar that does not advance over accepted drafts
        ("First I think [of", "cut"),
    ],
)
def test_an_answer_that_its_limit_cut_is_invalid_only_where_no_json_begins_like_it(text: str, status: str) -> None:
    assert Rules(answer_schema=CITY).kept(text, cut=True).status == status
