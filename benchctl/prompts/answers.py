r"""The right answer to a prompt, and whether a text gives it.

What is read is the text after the last `</think>`. Where it marks its answer (`\boxed{X}`, `#### X`, `answer is X`,
`answer: X`), the last mark counts. Without one:

- numeric: the last number. Signs, `1,234` and decimals are understood, fractions are not. Values are compared.
- choice: a letter A to J that the text begins with (`B`, `B.`, `(B)`), else the last that stands alone in it.
- exact: the whole text. Spaces, capitals, and marks at both ends do not count.

An answer that was cut off has not come to its last number or letter: without a mark it is wrong. `regex` is searched
for in the last `READ` characters, by an engine that does not backtrack (Rust's `regex`, through pydantic): a stranger's
expression takes time in proportion to the text, and has neither look-around nor references back.
"""

from __future__ import annotations

import re
from decimal import Decimal
from functools import lru_cache
from math import prod
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError, model_validator
from pydantic_core import SchemaError

READ = 10_000
"""Characters at the end of an answer that are read."""
MOST_COPIES = 1000
"""Product of the counts (`{3}`, `{2,5}`) in an expression at most: compiling copies a part so often."""

_MARK = re.compile(r"\\boxed\s?\{|####|\banswer(?:\s+is|\**\s?:)", re.IGNORECASE)
_LATEX = re.compile(r"\\(?:text|mathrm|[,!$])")
_AROUND = " \t\r\n.,:;!*_`$\\\"'()[]{}"
_BEFORE = "(?<![A-Za-z0-9_.)])"
"""What a number or letter stands alone after: ASCII, since Japanese sets no spaces around them."""
_NUMBER = re.compile(
    rf"{_BEFORE}[-−]?\$?(?:\d{{1,3}}(?:,\d{{3}})+(?!\d)|\d+)(?:\.\d+)?(?:[eE][+-]?\d{{1,3}}\b)?|{_BEFORE}[-−]?\.\d+"
)
_LETTER = re.compile(r"(?<![A-Za-z0-9_])([A-J])(?![A-Za-z0-9_'’]|(?<=[AI])\s+[a-z])")
"""A letter that stands alone, and is neither the article nor the pronoun."""
_MARKED_LETTER = re.compile(r"(?<![A-Za-z0-9_])([A-J])(?![A-Za-z0-9_'’]|(?<=I)\s+[a-z])")
_LETTER_FIRST = re.compile(r"\W*([A-J])(?=[^\w\s'’-]|\s*$|\s*\n)")
_COUNT = re.compile(r"\{(\d+)(?:,(\d*))?\}")


class Answer(BaseModel):
    """The right answer of a prompt. None is judged by running code: there is no sandbox."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    kind: Literal["exact", "numeric", "choice", "regex"]
    value: str = Field(min_length=1, max_length=500)

    @model_validator(mode="after")
    def _can_be_judged(self) -> Answer:
        if self.kind == "numeric" and not _NUMBER.fullmatch(self.value):
            raise ValueError("a numeric answer is a decimal number, such as 1234 or -0.5")
        if self.kind == "choice" and not re.fullmatch("[A-J]", self.value):
            raise ValueError("the answer of a multiple choice is a letter from A to J")
        if self.kind == "exact" and not _plain(self.value):
            raise ValueError("an exact answer has a letter or digit")
        if self.kind == "regex":
            check_expression(self.value)
        return self

    def is_given_by(self, text: str, *, cut: bool = False) -> bool:
        """Whether a text gives this answer; `cut`: it was cut off, so that its last words are not its last."""
        text = text.rpartition("</think>")[2][-READ:]
        if self.kind == "regex":
            return matches(self.value, text)
        text = _LATEX.sub("", text.replace("{,}", ","))
        marked = _marked(text)
        if self.kind == "choice":
            return _letter(text, marked, cut=cut) == self.value
        if self.kind == "exact":
            return _plain(self.value) in {_plain(text), _plain(marked or "")}
        in_mark = _NUMBER.search((marked or "").rpartition("=")[2])
        numbers = [in_mark[0]] if in_mark else [] if cut else [match[0] for match in _NUMBER.finditer(text)]
        return bool(numbers) and _value(numbers[-1]) == _value(self.value)


def _marked(text: str) -> str | None:
    """Return what follows the last mark, to the end of its line or its closing brace; `None` without a mark."""
    marks = list(_MARK.finditer(text))
    if not marks:
        return None
    after_mark = text[marks[-1].end() :].lstrip(_AROUND.replace(".", ""))
    return after_mark.partition("}" if marks[-1][0].endswith("{") else "\n")[0]


def _value(number: str) -> Decimal:
    return Decimal(number.replace(",", "").replace("$", "").replace("−", "-"))


def _letter(text: str, marked: str | None, *, cut: bool) -> str | None:
    if marked is not None:
        bare = marked.strip(_AROUND)
        letters = [bare.upper()] if len(bare) == 1 else _MARKED_LETTER.findall(marked)
        if letters:
            return letters[0]
    first = _LETTER_FIRST.match(text)
    if first:
        return first[1]
    bare_letters = [] if cut else _LETTER.findall(text)
    return bare_letters[-1] if bare_letters else None


def _plain(text: str) -> str:
    return " ".join(text.split()).strip(_AROUND).casefold()


@lru_cache(maxsize=1024)
def _matcher(pattern: str) -> TypeAdapter[str]:
    """Return what accepts the texts that an expression is found in. Raises ValueError for what is none."""
    copies = prod(max(1, int(low), int(high or 0)) for low, high in _COUNT.findall(pattern))
    if copies > MOST_COPIES:
        raise ValueError(f"a regular expression repeats its parts at most {MOST_COPIES} times")
    try:
        return TypeAdapter(Annotated[str, StringConstraints(pattern=pattern)])
    except SchemaError as error:
        reason = str(error).splitlines()[-1].partition("rror: ")[2].rstrip(".")
        raise ValueError(f"this is no regular expression that Rust's engine takes: {reason}") from None


def check_expression(pattern: str) -> None:
    """Raise ValueError for what is no regular expression of Rust's, or one that takes too long to compile."""
    _matcher(pattern)


def matches(pattern: str, text: str) -> bool:
    """Whether an expression is found in a text, in time in proportion to it. Raises ValueError for what is none."""
    try:
        _matcher(pattern).validate_python(text.encode("utf-8", "replace").decode())
    except ValidationError:
        return False
    return True
