"""Whether a draft model has the target's vocabulary, by llama.cpp's own rules.

From `common_speculative_are_compatible` in llama.cpp's `common/speculative.cpp`. A server given an incompatible plain
draft starts, answers, and does not speculate; so the pair is refused before anything starts.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchctl.models.gguf_header import GgufHeader, read_header
from benchctl.models.special_tokens import special_tokens
from benchctl.text import one_line

MAX_SIZE_DIFFERENCE = 128
CHECK_FROM_TOKEN = 5
"""The first few ids are special tokens, which may be spelled differently."""


def compare(target: Path, draft: Path) -> list[str]:
    """Return why `draft` cannot be a plain draft model of `target`, one reason an item; empty when it can.

    Raises UsageError when one of the files cannot be read.
    """
    ours, theirs = read_header(target), read_header(draft)
    names = [header.text("tokenizer.ggml.model") for header in (ours, theirs)]
    if names[0] != names[1]:
        return [f"the target's tokenizer is of type {_name(names[0])}, the draft's of type {_name(names[1])}"]
    return [*_special(ours, theirs, "bos"), *_special(ours, theirs, "eos"), *_tokens(ours, theirs)]


_UNUSED = 5
"""`tokenizer.ggml.token_type` of a token that only fills the vocabulary up."""
SPEAKING = ("bos", "eos", "eot", "eom")
"""The parts that decide where a text begins and ends; the others fill gaps or are for special prompts."""


def differences(one: GgufHeader, other: GgufHeader, *, speaking: bool = False) -> list[str]:
    """Return every way in which two vocabularies differ, one sentence an item: stricter than `compare`.

    Equal sizes are not enough: token ids must mean the same, and so must the special tokens. `speaking` leaves out
    what no text can show: tokens that fill the vocabulary up, special tokens other than `SPEAKING`, and one that only
    one file names where nothing depends on it.
    """
    found = []
    for what, key in (("tokenizer", "tokenizer.ggml.model"), ("pre-tokenizer", "tokenizer.ggml.pre")):
        names = [header.text(key) for header in (one, other)]
        if names[0] != names[1]:
            found.append(f"the {what} is {_name(names[0])} and {_name(names[1])}")
    ours, theirs = (_used(header) if speaking else _texts(header) for header in (one, other))
    if len(ours) != len(theirs):
        found.append(f"one has {len(ours)} tokens, the other {len(theirs)}")
    unequal = [token for token, (mine, yours) in enumerate(zip(ours, theirs, strict=False)) if mine != yours]
    if unequal:
        token = unequal[0]
        first = f"the first is {token}, {_text(ours[token])} and {_text(theirs[token])}"
        found.append(f"{len(unequal)} token ids mean different texts; {first}")
    return [*found, *_special_differences(one, other, speaking)]


def _texts(header: GgufHeader) -> list[bytes]:
    return header.strings("tokenizer.ggml.tokens") or []


def _used(header: GgufHeader) -> list[bytes]:
    """Return the tokens up to the last one that is not there to fill the vocabulary up to a round size."""
    texts = _texts(header)
    kinds = (header.integers("tokenizer.ggml.token_type") or [])[: len(texts)]
    while kinds and len(kinds) == len(texts) and kinds[-1] == _UNUSED:
        kinds.pop()
        texts.pop()
    return texts


def _special_differences(one: GgufHeader, other: GgufHeader, speaking: bool) -> Iterator[str]:
    ours, theirs = (
        {token.part: token for token in special_tokens(header) if not speaking or token.part in SPEAKING}
        for header in (one, other)
    )
    for part in dict.fromkeys([*ours, *theirs]):
        mine, yours = ours.get(part), theirs.get(part)
        if mine is None or yours is None:
            named, absent = (yours, "the first") if mine is None else (mine, "the other")
            if not speaking or part == "eos" or (named and named.added):
                yield f"{absent} defines no {part} token"
        elif mine.id != yours.id:
            yield f"the {part} token is {mine.id} and {yours.id}"
        elif {mine.added, yours.added} == {True, False}:
            yield f"one adds a {part} token to every text, the other does not"


def _special(target: GgufHeader, draft: GgufHeader, which: str) -> list[str]:
    adds = [_adds(header, which) for header in (target, draft)]
    if None in adds:
        return []
    if adds[0] != adds[1]:
        verbs = ["adds" if add else "does not add" for add in adds]
        return [f"the target {verbs[0]} a {which.upper()} token, the draft {verbs[1]} one"]
    ids = [header.integer(f"tokenizer.ggml.{which}_token_id") for header in (target, draft)]
    if adds[0] and ids[0] != ids[1]:
        return [f"the target's {which.upper()} token is {ids[0]}, the draft's {ids[1]}"]
    return []


def _adds(header: GgufHeader, which: str) -> bool | None:
    """Whether the tokenizer adds this token; None where the file leaves it to the engine's table of tokenizers."""
    written = header.metadata.get(f"tokenizer.ggml.add_{which}_token")
    if isinstance(written, bool):
        return written
    return which == "bos" if header.text("tokenizer.ggml.model") == "llama" else None


def _tokens(target: GgufHeader, draft: GgufHeader) -> list[str]:
    ours, theirs = _texts(target), _texts(draft)
    if abs(len(ours) - len(theirs)) > MAX_SIZE_DIFFERENCE:
        sizes = f"the target has {len(ours)} tokens, the draft {len(theirs)}"
        return [f"{sizes}; they may differ by at most {MAX_SIZE_DIFFERENCE}"]
    for token, (one, other) in enumerate(zip(ours, theirs, strict=False)):
        if token >= CHECK_FROM_TOKEN and one != other:
            return [f"token {token} is {_text(one)} to the target and {_text(other)} to the draft"]
    return []


def _name(model: str | None) -> str:
    return "unknown" if model is None else one_line(model, 40)


def _text(token: bytes) -> str:
    return f"'{one_line(token.decode('utf-8', 'replace'), 40)}'"
