from __future__ import annotations

from pathlib import Path

import pytest

from benchctl.models.vocabulary import TokenBytes, token_bytes

A = "あ".encode()
VOCABULARY = TokenBytes([b"a", A[:1], A[1:2], A[2:], A[:2], A[1:], b" b", b"ab", b"a"])


@pytest.mark.parametrize(
    ("text", "count", "tokens"),
    [
        (A, 3, (1, 2, 3)),
        (A[:2], 1, (4,)),
        (A, 2, None),  # 1 5 or 4 3
        (A, 4, None),
        (b"", 0, ()),
        (b"ab", 1, (7,)),
        (b"a", 1, None),  # two tokens are spelled alike
        (b"x", 1, None),
    ],
)
def test_only_what_leaves_no_choice_is_told(text: bytes, count: int, tokens: tuple[int, ...] | None) -> None:
    assert VOCABULARY.only_split(text, count) == tokens


def test_tokens_spell_their_bytes_together() -> None:
    assert VOCABULARY.spelling([1, 5, 6]).decode() == "あ b"
    assert VOCABULARY.spelling([99]) == b"", "an id beyond the vocabulary spells nothing"


def test_a_byte_level_vocabulary_has_every_byte(tiny_target: Path) -> None:
    vocabulary = token_bytes(tiny_target)
    assert vocabulary is not None
    singles = [vocabulary.only_split(bytes([byte]), 1) for byte in range(256)]
    assert None not in singles
    assert [vocabulary.spelling(token or ()) for token in singles] == [bytes([byte]) for byte in range(256)]
    assert vocabulary.only_split("🦙".encode(), 4) == tuple(
        token for byte in "🦙".encode() for token in singles[byte] or ()
    )
