"""A measurement for a shell: an arm's server, and a request to it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pydantic import ValidationError

from benchctl.analysis.advice import EXAMPLE_PORT, launch_command
from benchctl.recipes.schema import Sampling

if TYPE_CHECKING:
    from benchctl.data.manifest import ArmIdentity, Manifest
    from benchctl.engines.common.issue_form import IssueForm
    from benchctl.prompts.suite import Prompt


def shell_command(identity: ArmIdentity) -> str:
    """Return an arm's command line by its program's name, on `EXAMPLE_PORT`."""
    argv = [identity.argv[0].rpartition("/")[2], *identity.argv[1:]]
    command = launch_command(identity.model_copy(update={"argv": argv}))
    return command.replace("'{port}'", str(EXAMPLE_PORT))


def shell_request(
    manifest: Manifest, identity: ArmIdentity | None, prompt: Prompt | None, form: IssueForm
) -> str | None:
    """Return the `curl` that sends a prompt as it was measured; `None` where its text, or the sampling, is not kept.

    Its JSON is ASCII, so that whatever the prompt holds reaches the server unchanged and nothing else.
    """
    sampling = _sampling(manifest, identity)
    if prompt is None or sampling is None or (identity is not None and identity.context_length is not None):
        return None
    engine = manifest.recipe.get("engine")
    sampling = sampling.model_copy(update=prompt.sampling)
    path, body = form.request(prompt, sampling, isinstance(engine, Mapping) and bool(engine.get("prefix_caching")))
    if "model" in body and manifest.engine.binary is None:
        body["model"] = manifest.target.source
    address = f"http://127.0.0.1:{EXAMPLE_PORT}{path}"
    return f"curl -s {address} -H 'Content-Type: application/json' -d {shlex.quote(json.dumps(body))}"


def _sampling(manifest: Manifest, identity: ArmIdentity | None) -> Sampling | None:
    """Return how the arm sampled; `None` where the manifest's settings are no recipe's."""
    settings = manifest.recipe.get("sampling")
    if not isinstance(settings, Mapping):
        return None
    names = ("temperature", "max_tokens") if identity is not None else ()
    varied = {name: value for name in names if (value := getattr(identity, name)) is not None}
    try:
        return Sampling.model_validate({**settings, **varied})
    except ValidationError:
        return None
