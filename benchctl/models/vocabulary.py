"""A model's vocabulary: its special tokens, what its tokens spell, and whether a draft model's is the target's.

Compatibility is llama.cpp's own: `common_speculative_are_compatible` in `common/speculative.cpp`. A server given an
incompatible plain draft starts, answers, and does not speculate; so the pair is refused before anything starts.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from benchctl.models.gguf_header import GgufHeader, read_header
from benchctl.text import one_line

_KEY = re.compile(r"tokenizer\.ggml\.(\w+)_token_id\Z")

_ENDING_PARTS = frozenset({"eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep"})
_ENDING_TEXTS = frozenset(
    text.encode()
    for text in (
        *("<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>"),
        *("<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>", "<eos>"),
        *("<end_of_utterance>", "<turn|>", "<|tool_response>", "<｜end▁of▁sentence｜>", "[e~["),
    )
)
"""Token texts that end an answer whatever the header has: `special_eog_ids` in llama.cpp's `src/llama-vocab.cpp`."""


@dataclass(frozen=True)
class SpecialToken:
    """A token by its part (`bos`, `eos`, `eot`, `padding`, …). `text` is untrusted; None where the id is beyond all."""

    part: str
    id: int
    text: str | None
    added: bool | None
    """Whether the tokenizer adds it to every text; None where the header does not define it."""


def special_tokens(header: GgufHeader) -> tuple[SpecialToken, ...]:
    """Return the special tokens in the order of the header."""
    tokens = header.strings("tokenizer.ggml.tokens") or []
    specials = []
    for key in header.metadata:
        match, number = _KEY.match(key), header.integer(key)
        if match is None or number is None:
            continue
        text = tokens[number].decode("utf-8", "replace") if 0 <= number < len(tokens) else None
        added = header.metadata.get(f"tokenizer.ggml.add_{match[1]}_token")
        specials.append(SpecialToken(match[1], number, text, added if isinstance(added, bool) else None))
    return tuple(specials)


def end_tokens(header: GgufHeader) -> frozenset[int]:
    """Return the ids that end an answer, by the header and, as llama.cpp does, by their text."""
    tokens = header.strings("tokenizer.ggml.tokens") or []
    named = {token.id for token in special_tokens(header) if token.part in _ENDING_PARTS}
    return frozenset(named | {number for number, text in enumerate(tokens) if text in _ENDING_TEXTS})


_BYTE_TOKEN = re.compile(rb"<0x([0-9A-F]{2})>")


class TokenBytes:
    """The vocabulary of a model."""

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
        """Return the `count` tokens that spell `text`; `None` when there is no such sequence, or several."""
        splits: list[tuple[int, ...]] = []

        def search(remaining: bytes, prefix: tuple[int, ...]) -> None:
            budget = count - len(prefix)
            if len(splits) > 1 or budget > len(remaining):
                return
            if not budget:
                if not remaining:
                    splits.append(prefix)
                return
            for end in (len(remaining),) if budget == 1 else range(1, len(remaining) - budget + 2):
                for token in self._ids.get(remaining[:end], ()):
                    search(remaining[end:], (*prefix, token))

        search(text, ())
        return splits[0] if len(splits) == 1 else None


@lru_cache(maxsize=4)
def token_bytes(model: Path) -> TokenBytes | None:
    """Return the vocabulary of a GGUF file; `None` for a kind of tokenizer that is not known here.

    Byte-level BPE vocabularies (`gpt2`) write each byte as a printable character, by the table that GPT-2 introduced;
    SentencePiece ones (`llama`) write a space as ▁ and single bytes as `<0xE3>`.
    """
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
    remaining = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + index): byte for index, byte in enumerate(remaining)}


def _byte_level(token: bytes, table: Mapping[str, int]) -> bytes:
    text = token.decode("utf-8", "replace")
    if all(character in table for character in text):
        return bytes(table[character] for character in text)
    return token  # an added token, which is spelled as it is


def _sentence_piece(token: bytes) -> bytes:
    byte = _BYTE_TOKEN.fullmatch(token)
    return bytes([int(byte[1], 16)]) if byte else token.replace("▁".encode(), b" ")


MAX_SIZE_DIFFERENCE = 128
CHECK_FROM_TOKEN = 5
"""The first few ids are special tokens, which may be spelled differently."""


def compare(target: Path, draft: Path) -> list[str]:
    """Return the reasons why `draft` cannot be a plain draft model of `target`; none when it can. Raises UsageError."""
    ours, theirs = read_header(target), read_header(draft)
    names = [header.text("tokenizer.ggml.model") for header in (ours, theirs)]
    if names[0] != names[1]:
        return [f"the target's tokenizer is of type {_name(names[0])}, the draft's of type {_name(names[1])}"]
    return [*_special(ours, theirs, "bos"), *_special(ours, theirs, "eos"), *_tokens(ours, theirs)]


_UNUSED = 5
"""`tokenizer.ggml.token_type` of a token that only fills the vocabulary up."""
SPEAKING = ("bos", "eos", "eot", "eom")
"""The parts that decide where a text begins and ends; the others fill gaps or are for special prompts."""


def differences(first: GgufHeader, second: GgufHeader, *, speaking: bool = False) -> list[str]:
    """Return every way in which two vocabularies differ, as sentences: stricter than `compare`.

    Equal sizes are not enough: token ids must mean the same, and so must the special tokens. `speaking` leaves out
    what no text can show: tokens that fill the vocabulary up, special tokens other than `SPEAKING`, and a token that
    only a single file names where nothing depends on it.
    """
    reasons = []
    for part, key in (("tokenizer", "tokenizer.ggml.model"), ("pre-tokenizer", "tokenizer.ggml.pre")):
        names = [header.text(key) for header in (first, second)]
        if names[0] != names[1]:
            reasons.append(f"the {part} is {_name(names[0])} and {_name(names[1])}")
    ours, theirs = (dict(enumerate(_used(header) if speaking else _texts(header))) for header in (first, second))
    return [*reasons, *text_differences(ours, theirs), *_special_differences(first, second, speaking)]


def text_differences(ours: Mapping[int, str | bytes], theirs: Mapping[int, str | bytes]) -> Iterator[str]:
    """Yield how the texts of two vocabularies differ, by their ids."""
    if len(ours) != len(theirs):
        yield f"one has {len(ours)} tokens, the other {len(theirs)}"
    if unequal := sorted(token for token in ours.keys() & theirs.keys() if ours[token] != theirs[token]):
        token = unequal[0]
        example = f"the first is {token}, {_text(ours[token])} and {_text(theirs[token])}"
        yield f"{len(unequal)} token ids mean different texts; {example}"


def _texts(header: GgufHeader) -> list[bytes]:
    return header.strings("tokenizer.ggml.tokens") or []


def _used(header: GgufHeader) -> list[bytes]:
    """Return the tokens up to the last that does not just fill the vocabulary up to a round size."""
    texts = _texts(header)
    kinds = (header.integers("tokenizer.ggml.token_type") or [])[: len(texts)]
    while kinds and len(kinds) == len(texts) and kinds[-1] == _UNUSED:
        kinds.pop()
        texts.pop()
    return texts


def _special_differences(first: GgufHeader, second: GgufHeader, speaking: bool) -> Iterator[str]:
    ours, theirs = (
        {token.part: token for token in special_tokens(header) if not speaking or token.part in SPEAKING}
        for header in (first, second)
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
    setting = header.metadata.get(f"tokenizer.ggml.add_{which}_token")
    if isinstance(setting, bool):
        return setting
    return which == "bos" if header.text("tokenizer.ggml.model") == "llama" else None


def _tokens(target: GgufHeader, draft: GgufHeader) -> list[str]:
    ours, theirs = _texts(target), _texts(draft)
    if abs(len(ours) - len(theirs)) > MAX_SIZE_DIFFERENCE:
        sizes = f"the target has {len(ours)} tokens, the draft {len(theirs)}"
        return [f"{sizes}; they may differ by at most {MAX_SIZE_DIFFERENCE}"]
    for token, (mine, yours) in enumerate(zip(ours, theirs, strict=False)):
        if token >= CHECK_FROM_TOKEN and mine != yours:
            return [f"token {token} is {_text(mine)} to the target and {_text(yours)} to the draft"]
    return []


def _name(model: str | None) -> str:
    return "unknown" if model is None else one_line(model, 40)


def _text(token: str | bytes) -> str:
    return f"'{one_line(token if isinstance(token, str) else token.decode('utf-8', 'replace'), 40)}'"
