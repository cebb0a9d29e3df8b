"""SGLang's bug form (.github/ISSUE_TEMPLATE/1-bug-report.yml)."""

from __future__ import annotations

from typing import Any

from benchctl.engines.common.endpoint import EndpointTarget
from benchctl.engines.common.issue_form import BugForm, IssueForm
from benchctl.engines.common.launched_server import MODEL_NAME
from benchctl.engines.sglang.server import generate_body
from benchctl.prompts.suite import Prompt
from benchctl.recipes.schema import Sampling


def request(prompt: Prompt, sampling: Sampling, cached: bool) -> tuple[str, dict[str, Any]]:
    """`/generate` for a raw prompt; for messages the chat route, which names some settings otherwise."""
    del cached  # the server decides
    settings = generate_body((), sampling)["sampling_params"]
    if prompt.prompt is not None:
        return "/generate", {"text": prompt.prompt, "sampling_params": settings}
    names = {"max_new_tokens": "max_tokens", "sampling_seed": "seed"}
    body = {names.get(key, key): value for key, value in settings.items()}
    return "/v1/chat/completions", {"model": MODEL_NAME, **EndpointTarget.chat(prompt), **body}


_FORM = BugForm(
    "[Bug] ",
    (
        ("Describe the bug", ("problem", "first bad", "log")),
        ("Reproduction", ("reproduction", "models")),
        ("Environment", ("environment", "version", "system", "hardware")),
    ),
)
FORM = IssueForm(
    output=_FORM,
    speed=_FORM,
    request=request,
    version='python3 -c "import sglang; print(sglang.__version__)"',
    environment="python3 -m sglang.check_env",
)
