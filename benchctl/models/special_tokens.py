"""The special tokens of a GGUF header: where a text begins and ends, and what fills gaps."""

from __future__ import annotations

import re
from dataclasses import dataclass

from benchctl.models.gguf_header import GgufHeader

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
    found = []
    for key in header.metadata:
        match, number = _KEY.match(key), header.integer(key)
        if match is None or number is None:
            continue
        text = tokens[number].decode("utf-8", "replace") if 0 <= number < len(tokens) else None
        added = header.metadata.get(f"tokenizer.ggml.add_{match[1]}_token")
        found.append(SpecialToken(match[1], number, text, added if isinstance(added, bool) else None))
    return tuple(found)


def end_tokens(header: GgufHeader) -> frozenset[int]:
    """Return the ids that end an answer, by the header and, as llama.cpp does, by their text."""
    tokens = header.strings("tokenizer.ggml.tokens") or []
    named = {token.id for token in special_tokens(header) if token.part in _ENDING_PARTS}
    return frozenset(named | {number for number, text in enumerate(tokens) if text in _ENDING_TEXTS})
