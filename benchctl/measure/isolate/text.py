"""The text that every model reads: the recipe's prompts, each with what the unquantized model answers to it.

A model is held to what it would itself say, so the text means something to any model, whatever it was trained on.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from benchctl.errors import UsageError
from benchctl.measure.isolate.source_model import Subject
from benchctl.prompts.suite import Prompt
from benchctl.recipes.schema import Sampling
from benchctl.text import one_line

ANSWER = 256
"""Longest answer in tokens."""
SPARE = 1.5
"""So much more is written than was asked for: the chat template's tokens are counted, and are not in the text."""


def own_answers(subject: Subject, tokens: int, log: Path, tell: Callable[[str], None]) -> str:
    """Return prompts and greedy answers of the source, some `tokens` tokens if the suite has them. EngineError."""
    sampling = Sampling(max_tokens=ANSWER)
    parts: list[str] = []
    written = 0
    server = subject.engine.start(subject.launch(subject.files[0]), log)
    try:
        for item in sorted(subject.prompts, key=lambda item: item.prompt_idx):  # one of every task before a second
            if written >= SPARE * tokens:
                break
            tell(f"writing the text, {written} of {tokens} tokens")
            done = server.complete(server.render(item.prompt), sampling)
            parts.append(f"{_asked(item.prompt)}\n\n{done.text.strip()}\n")
            written += done.prompt_tokens + done.n_predicted
    finally:
        server.stop()
    return "\n".join(parts)


def text_of(file: Path) -> str:
    """Return the user's own text. Raises UsageError."""
    try:
        return file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UsageError(f"the text cannot be read: {reason}", where=f"--text {one_line(str(file))}") from None


def _asked(prompt: Prompt) -> str:
    return prompt.prompt or "\n".join(message.content for message in prompt.messages or ())
