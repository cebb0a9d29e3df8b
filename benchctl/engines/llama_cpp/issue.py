"""llama.cpp's bug forms (.github/ISSUE_TEMPLATE/011-bug-results.yml and 019-bug-misc.yml)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchctl.engines.common.endpoint import EndpointTarget
from benchctl.engines.common.issue_form import BugForm, IssueForm, without_stream
from benchctl.engines.llama_cpp.requests import answer_settings, completion_body
from benchctl.prompts.suite import Prompt
from benchctl.recipes.schema import Sampling


def request(prompt: Prompt, sampling: Sampling, cached: bool) -> tuple[str, dict[str, Any]]:
    """`/completion` for a raw prompt; for messages the chat route, which renders them by the same template."""
    settings = answer_settings(prompt)
    if prompt.forces_call:  # to which the chat route sees itself
        del settings["json_schema"]
    body = without_stream(completion_body((), sampling, stream=False, cached=cached), "prompt") | settings
    if prompt.prompt is not None:
        return "/completion", {"prompt": prompt.prompt} | body
    chat = {key: value for key, value in EndpointTarget.chat(prompt).items() if key != "response_format"}
    return "/v1/chat/completions", chat | body


def backends(devices: Sequence[str]) -> list[str]:
    """`CUDA0: NVIDIA H100 …` is CUDA; without a device it is the processor."""
    names = [device.partition(":")[0].rstrip("0123456789") for device in devices]
    return list(dict.fromkeys(names)) or ["CPU"]


FORM = IssueForm(
    output=BugForm(
        "Eval bug: ",
        (
            ("Name and Version", ("version",)),
            ("Operating systems", ("system",)),
            ("GGML backends", ("backends",)),
            ("Hardware", ("hardware",)),
            ("Models", ("models",)),
            ("Problem description & steps to reproduce", ("problem", "reproduction")),
            ("First Bad Commit", ("first bad",)),
            ("Relevant log output", ("log",)),
        ),
    ),
    speed=BugForm(
        "Misc. bug: ",
        (
            ("Name and Version", ("version",)),
            ("Operating systems", ("system",)),
            ("Which llama.cpp modules do you know to be affected?", ("module",)),
            ("Command line", ("reproduction",)),
            ("Problem description & steps to reproduce", ("problem", "backends", "hardware", "models")),
            ("First Bad Commit", ("first bad",)),
            ("Relevant log output", ("log",)),
        ),
    ),
    request=request,
    version="llama-server --version",
    backends=backends,
    module="llama-server",
)
