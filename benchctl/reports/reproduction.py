"""A measurement for a shell: an arm's server, and a request to it."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pydantic import ValidationError

from benchctl.analysis.advice import EXAMPLE_PORT, by_option, quoted
from benchctl.recipes.schema import Sampling

if TYPE_CHECKING:
    from benchctl.data.manifest import ArmIdentity, Manifest
    from benchctl.engines.common.issue_form import IssueForm
    from benchctl.prompts.suite import Prompt


def shell_command(identity: ArmIdentity, width: float = math.inf) -> str:
    """Return an arm's command line by its program's name, on `EXAMPLE_PORT`.

    Broken before options into lines of at most `width` characters; a longer option stays whole.
    """
    lines = [""]
    for option in by_option([*identity.env, identity.argv[0].rpartition("/")[2], *identity.argv[1:]]):
        words = " ".join(map(quoted, option)).replace("'{port}'", str(EXAMPLE_PORT))
        if lines[-1] and len(lines[-1]) + len(words) + 3 > width:
            lines.append(f"  {words}")
        else:
            lines[-1] += f" {words}" if lines[-1] else words
    return " \\\n".join(lines)


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
