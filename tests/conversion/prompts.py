"""Held-out prompts for comparing engines, chosen by rule: the first of every task of two shipped suites."""

from __future__ import annotations

from benchctl.paths import shipped_folder
from benchctl.prompts.load import Suite, load_suite

RAW_TASKS = ("newlines", "indentation", "empty_lines", "long_digits", "mixed_scripts")
"""Of `health.json`; its remaining task spells reserved tokens, which is about tokenization alone."""


def raw_prompts() -> list[str]:
    """Plain continuations: newlines, indented code, digits, Japanese among other scripts."""
    return [item.prompt.prompt or "" for item in _suite("health").select(RAW_TASKS, 1)]


def chat_prompts() -> list[list[dict[str, str]]]:
    """Conversations in the voice of the bundled models, none of which stands in their training text."""
    return [
        [{"role": turn.role, "content": turn.text} for turn in item.prompt.messages or ()]
        for item in _suite("tiny").select(None, 1)
    ]


def all_texts() -> list[str]:
    """Every text of both suites: prompts, turns, reference answers."""
    prompts = [item.prompt for name in ("health", "tiny") for item in _suite(name).select(None, None)]
    turns = [turn.content for prompt in prompts for turn in prompt.messages or ()]
    return [text for text in [*(prompt.prompt for prompt in prompts), *turns, *(p.reference for p in prompts)] if text]


def _suite(name: str) -> Suite:
    folder = shipped_folder("prompts")
    return load_suite(str(folder / f"{name}.json"), recipe_folder=folder)
