"""Whether a draft model speaks the target's vocabulary, by llama.cpp's own rules.

From `common_speculative_are_compatible` in llama.cpp's `common/speculative.cpp`. A server given an incompatible plain
draft starts, answers, and does not speculate; so the pair is refused before anything starts.
"""

from __future__ import annotations

from pathlib import Path

from benchctl.models.gguf_header import GgufHeader, read_header
from benchctl.plain_text import one_line

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


def _special(target: GgufHeader, draft: GgufHeader, which: str) -> list[str]:
    adds = [_adds(header, which) for header in (target, draft)]
    if None in adds:
        return []
    if adds[0] != adds[1]:
        says = ["adds" if add else "does not add" for add in adds]
        return [f"the target {says[0]} a {which.upper()} token, the draft {says[1]} one"]
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
    ours = target.strings("tokenizer.ggml.tokens") or []
    theirs = draft.strings("tokenizer.ggml.tokens") or []
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
