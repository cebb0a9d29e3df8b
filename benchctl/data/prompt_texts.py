"""The texts of a run's prompts: from the suite that its recipe names, where that still has the same prompts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from benchctl.errors import BenchctlError
from benchctl.prompts.load import load_suite, prompt_sha256

if TYPE_CHECKING:
    from benchctl.data.manifest import Manifest
    from benchctl.prompts.suite import Prompt


def prompt_texts(manifest: Manifest) -> dict[tuple[str, int], str]:
    """Return (task, prompt_idx) to text of every prompt whose SHA-256 is the run's; empty where no suite is found."""
    named = manifest.recipe.get("prompts")
    suite_name = named.get("suite") if isinstance(named, dict) else None
    if not isinstance(suite_name, str):
        return {}
    try:
        suite = load_suite(suite_name, recipe_folder=Path(manifest.recipe_folder or "."))
    except (BenchctlError, OSError):
        return {}
    found = {}
    for prompt in manifest.prompts:
        prompts = suite.tasks.get(prompt.task, ())
        if prompt.prompt_idx < len(prompts) and prompt_sha256(prompts[prompt.prompt_idx]) == prompt.sha256:
            found[prompt.task, prompt.prompt_idx] = _text(prompts[prompt.prompt_idx])
    return found


def _text(prompt: Prompt) -> str:
    if prompt.prompt is not None:
        return prompt.prompt
    messages = prompt.messages or ()
    if len(messages) == 1:
        return messages[0].content
    return "\n\n".join(f"{message.role}: {message.content}" for message in messages)
