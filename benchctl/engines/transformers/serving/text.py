"""Prompts to tokens, and tokens to text as they come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers.decoders import DecodeStream
from transformers import PreTrainedTokenizerBase


def render(tokenizer: PreTrainedTokenizerBase, prompt: Mapping[str, Any]) -> tuple[str, list[int]]:
    """Return a prompt as the model sees it: `messages` through the chat template, or `text` as it is.

    Raises ValueError for messages where the tokenizer has no chat template.
    """
    if (messages := prompt.get("messages")) is not None:
        if not getattr(tokenizer, "chat_template", None):
            raise ValueError("the model has no chat template; ask it with raw prompts")
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    else:
        text = str(prompt["text"])
        ids = tokenizer(text)["input_ids"]
    return text, list(ids)


class TextStream:
    """Turns tokens into text piece by piece; a character split over tokens comes when it is whole."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)
        self._ids: list[int] = []
        self._sent = ""

    def add(self, tokens: Sequence[int]) -> str:
        """Return the text that these tokens complete."""
        self._ids += tokens
        backend = self._tokenizer.backend_tokenizer
        piece = "".join(self._stream.step(backend, token) or "" for token in tokens)
        self._sent += piece
        return piece

    def rest(self) -> str:
        """Return what is left at the end, such as half a character."""
        whole = self._tokenizer.decode(self._ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return whole[len(self._sent) :] if whole.startswith(self._sent) else ""
