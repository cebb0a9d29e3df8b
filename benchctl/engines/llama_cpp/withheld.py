"""Token ids that a stream withheld: a character of several tokens is sent once it is whole, with its last id alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchctl.engines.base import Completion
from benchctl.engines.llama_cpp.stream import LlamaAnswer
from benchctl.models.token_bytes import token_bytes


def filled_ids(answer: LlamaAnswer, model: Path) -> tuple[int, ...] | None:
    """Fill in withheld ids from what they spell; `None` unless the vocabulary leaves exactly one possibility."""
    vocabulary = token_bytes(model)
    if vocabulary is None:
        return None
    ids = dict(answer.known_ids)
    for gap in answer.gaps:
        spelled, rest = gap.text.encode("utf-8", "surrogatepass"), vocabulary.spelling(gap.known)
        if not spelled.endswith(rest):
            return None
        split = vocabulary.only_split(spelled[: len(spelled) - len(rest)], gap.count)
        if split is None:
            return None
        ids.update(enumerate(split, gap.position))
    return tuple(ids[place] for place in range(answer.n_predicted)) if len(ids) == answer.n_predicted else None


def agreeing_ids(
    again: Mapping[str, Any], seen: Completion, known: Sequence[tuple[int, int]]
) -> tuple[int, ...] | None:
    """Return the ids of an unstreamed answer to the same request; `None` unless text and the `known` ids agree.

    `known`: (position, id) of every token whose id the stream brought.
    """
    ids = again.get("tokens")
    if not isinstance(ids, list) or not all(isinstance(i, int) for i in ids):
        return None
    agree = all(position < len(ids) and ids[position] == token for position, token in known)
    # A last character that the token limit cut in two is U+FFFD here, and nothing in the stream.
    text = str(again.get("content"))
    same = text.startswith(seen.text) and not text[len(seen.text) :].strip("\ufffd")
    return tuple(ids) if agree and same and len(ids) == seen.n_predicted else None
