"""vLLM's bug forms (.github/ISSUE_TEMPLATE/400-bug-report.yml and 700-performance-discussion.yml)."""

from __future__ import annotations

from typing import Any

from benchctl.engines.common.endpoint import EndpointTarget
from benchctl.engines.common.issue_form import BugForm, IssueForm, Part, without_stream
from benchctl.engines.vllm.server import answer_settings, completion_body
from benchctl.prompts.suite import Prompt
from benchctl.recipes.schema import Sampling

_ENVIRONMENT: tuple[Part, ...] = ("environment", "version", "system", "hardware", "models")
_BUG: tuple[Part, ...] = ("problem", "reproduction", "first bad", "log")


def request(prompt: Prompt, sampling: Sampling, cached: bool) -> tuple[str, dict[str, Any]]:
    """`/v1/completions` for a raw prompt; for messages the chat route, which renders them by the same template."""
    del cached  # the server decides
    body = without_stream(completion_body((), sampling), "prompt")
    body |= {key: value for key, value in answer_settings(prompt).items() if key in ("stop", "structured_outputs")}
    if prompt.prompt is not None:
        return "/v1/completions", {"prompt": prompt.prompt} | body
    return "/v1/chat/completions", EndpointTarget.chat(prompt) | body


FORM = IssueForm(
    output=BugForm("[Bug]: ", (("Your current environment", _ENVIRONMENT), ("🐛 Describe the bug", _BUG))),
    speed=BugForm(
        "[Performance]: ",
        (
            ("Report of performance regression", _BUG),
            ("Your current environment (if you think it is necessary)", _ENVIRONMENT),
        ),
    ),
    request=request,
    version="vllm --version",
    environment="python collect_env.py",
)
