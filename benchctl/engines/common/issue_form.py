"""An engine's bug form, as its adapter declares it (`benchctl.recipes.adapters.Adapter.issue`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from benchctl.prompts.suite import Prompt
from benchctl.recipes.schema import Sampling

Part = Literal[
    "version", "system", "backends", "hardware", "models", "module", "environment",
    "problem", "reproduction", "first bad", "log",
]  # fmt: skip
"""What a run can write into a field of a form."""


@dataclass(frozen=True)
class BugForm:
    """A form: how its titles begin, and what its fields hold, by their labels."""

    title: str
    fields: tuple[tuple[str, tuple[Part, ...]], ...]


@dataclass(frozen=True)
class IssueForm:
    """The forms of a project, and how its server is asked from a shell."""

    output: BugForm
    """For answers that are not the target's own."""
    speed: BugForm
    request: Callable[[Prompt, Sampling, bool], tuple[str, dict[str, Any]]]
    """Return path and JSON of a request that is rendered, tokenized and sampled as a measured one was. The last
    argument: whether it may start from what an earlier request left in the cache, where a request says so."""
    version: str
    """The command that prints the version."""
    environment: str = ""
    """The command whose output the form demands; empty where it demands none."""
    backends: Callable[[Sequence[str]], list[str]] = field(default=list)
    """Return the form's words for the devices that the engine lists."""
    module: str = ""
    """The part of the project that ran."""


def without_stream(body: Mapping[str, Any], *left_out: str) -> dict[str, Any]:
    """Return the body of a measured request without its stream, its tokens, and what else is `left_out`."""
    return {key: value for key, value in body.items() if key not in {"stream", "stream_options", *left_out}}
