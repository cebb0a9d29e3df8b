"""No test asserts that a sentence is absent which the product cannot say: such an assertion can never fail."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parent
PRODUCT = TESTS.parent / "benchctl"
TEXT = {".toml", ".html", ".j2", ".jinja", ".css", ".js", ".md", ".yaml", ".json"}


def words(text: str) -> str:
    """The words of a text in small letters, with a space around each, so that only whole words match."""
    return f" {' '.join(re.findall(r'[a-z]+', text.lower()))} "


def literals(tree: ast.AST) -> Iterator[ast.Constant]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))


def denied(tree: ast.AST) -> Iterator[ast.Constant]:
    """The literals of `assert "..." not in text` and of `assert not text.startswith("...")` and the like."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.NotIn):
            yield from literals(node.left)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not) and isinstance(node.operand, ast.Call):
            function = node.operand.func
            if isinstance(function, ast.Attribute) and function.attr in {"startswith", "endswith"}:
                yield from (text for argument in node.operand.args for text in literals(argument))


def product_words() -> str:
    texts = []
    for file in sorted(PRODUCT.rglob("*")):
        if file.suffix == ".py":
            source = file.read_text(encoding="utf-8")
            texts += [source, *(str(literal.value) for literal in literals(ast.parse(source)))]
        elif file.suffix in TEXT:
            texts.append(file.read_text(encoding="utf-8"))
    return words("\n".join(texts))


def impossible(source: str, product: str) -> list[str]:
    """The denied literals of three words or more that neither the product nor another literal of the file has."""
    tree = ast.parse(source)
    asserts = [node for node in ast.walk(tree) if isinstance(node, ast.Assert)]
    refused = {id(literal): literal for node in asserts for literal in denied(node)}
    others = words("\n".join(str(literal.value) for literal in literals(tree) if id(literal) not in refused))
    return [
        f"{literal.lineno}: {literal.value!r}"
        for literal in refused.values()
        if len(str(literal.value).split()) >= 3 and words(str(literal.value)) not in product + others
    ]


def test_every_denied_sentence_is_one_that_the_product_has() -> None:
    product = product_words()
    complaints = [
        f"{file.relative_to(TESTS)}:{complaint}"
        for file in sorted(TESTS.rglob("*.py"))
        for complaint in impossible(file.read_text(encoding="utf-8"), product)
    ]
    message = "these can never fail; assert on a code, or on words of the product:"
    assert not complaints, "\n".join([message, *complaints])


def test_the_check_notices_both_forms() -> None:
    source = """
def test_text():
    assert "Nobody says this" not in text and not text.startswith("Nor ever this one")
    assert "the harbour was quiet" not in text and not text.endswith(("is on", "a b"))
    assert render("And the harbour was quiet.") == 3
"""
    assert impossible(source, " ") == ["3: 'Nobody says this'", "3: 'Nor ever this one'"]
    assert impossible(source, words("so nor ever this one, nobody says this")) == []
