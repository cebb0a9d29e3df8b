"""What every token of a model spells, as bytes; and the way back, where bytes leave no choice.

Byte-level BPE vocabularies (`gpt2`) write each byte as a printable character, by the table that GPT-2 introduced;
SentencePiece ones (`llama`) write a space as ▁ and single bytes as `<0xE3>`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from benchctl.models.gguf_header import read_header

_BYTE_TOKEN = re.compile(rb"<0x([0-9A-F]{2})>")


class TokenBytes:
    """The vocabulary of one model."""

    def __init__(self, spellings: Sequence[bytes]) -> None:
        """`spellings`: the bytes of every token, by id."""
        self._spellings = spellings
        ids: defaultdict[bytes, list[int]] = defaultdict(list)
        for token, spelling in enumerate(spellings):
            ids[spelling].append(token)
        self._ids: Mapping[bytes, list[int]] = dict(ids)

    def spelling(self, tokens: Sequence[int]) -> bytes:
        """Return what `tokens` spell together."""
        return b"".join(self._spellings[token] if token < len(self._spellings) else b"" for token in tokens)

    def only_split(self, text: bytes, count: int) -> tuple[int, ...] | None:
        """Return the `count` tokens that spell `text`; `None` when there is no such sequence or more than one."""
        found: list[tuple[int, ...]] = []

        def search(rest: bytes, taken: tuple[int, ...]) -> None:
            left = count - len(taken)
            if len(found) > 1 or left > len(rest):
                return
            if not left:
                if not rest:
                    found.append(taken)
                return
            for end in (len(rest),) if left == 1 else range(1, len(rest) - left + 2):
                for token in self._ids.get(rest[:end], ()):
                    search(rest[end:], (*taken, token))

        search(text, ())
        return found[0] if len(found) == 1 else None


@lru_cache(maxsize=4)
def token_bytes(model: Path) -> TokenBytes | None:
    """Return the vocabulary of a GGUF file; `None` for a kind of tokenizer that is not known here."""
    header = read_header(model)
    tokens = header.strings("tokenizer.ggml.tokens") or []
    match header.text("tokenizer.ggml.model"):
        case "gpt2":
            table = _byte_level_table()
            return TokenBytes([_byte_level(token, table) for token in tokens])
        case "llama":
            return TokenBytes([_sentence_piece(token) for token in tokens])
        case _:
            return None


def _byte_level_table() -> dict[str, int]:
    """GPT-2's `bytes_to_unicode`: printable bytes stand for themselves, the others for U+0100 and on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + place): byte for place, byte in enumerate(others)}


def _byte_level(token: bytes, table: Mapping[str, int]) -> bytes:
    text = token.decode("utf-8", "replace")
    if all(character in table for character in text):
        return bytes(table[character] for character in text)
    return token  # an added token, which is spelled as it is


def _sentence_piece(token: bytes) -> bytes:
    byte = _BYTE_TOKEN.fullmatch(token)
    return bytes([int(byte[1], 16)]) if byte else token.replace("▁".encode(), b" ")
