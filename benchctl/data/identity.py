"""The identity of a run: hashes of its workload and of benchctl, and paths and files as the manifest stores them."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from collections.abc import Sequence
from datetime import datetime
from functools import cache
from pathlib import Path

from benchctl.data.digests import canonical_sha256
from benchctl.data.manifest import FileIdentity, ModelIdentity, PromptIdentity
from benchctl.models.files import ResolvedModel, ResolvedPair
from benchctl.recipes.schema import CONSTRAINTS, Recipe


def new_run_id() -> str:
    """Return a folder name that sorts by time and is not taken twice: `20261121-110500-3fa9`."""
    return f"{datetime.now().astimezone():%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def workload_sha256(recipe: Recipe, prompts: Sequence[PromptIdentity], *pairs: ResolvedPair) -> str:
    """Hash what must be equal before runs are compared: prompts, sampling, the targets' files and the drafts'."""
    models = [model for pair in pairs for model in (pair.target, pair.draft) if model is not None]
    files = [[file.sha256 for file in model.files] for model in models]
    return canonical_sha256(
        {
            "prompts": [prompt.model_dump(exclude={"constrained", "answer", "rules"}) for prompt in prompts],
            # Keys that are not set are left out, so that older runs keep the same hash.
            "sampling": recipe.sampling.model_dump(exclude={*CONSTRAINTS}) | recipe.sampling.constraints,
            "models": files,
        }
    )


def model_identity(model: ResolvedModel) -> ModelIdentity:
    """Describe a resolved model for the manifest."""
    if not model.files:
        return ModelIdentity(source=model.source, path=None, files=[])
    return ModelIdentity(
        source=home_relative(model.source),
        path=home_relative(model.path),
        files=[FileIdentity(name=file.path.name, size=file.size, sha256=file.sha256) for file in model.files],
        facts=dict(model.facts),
    )


@cache
def package_sha256() -> str:
    """Return the SHA-256 of benchctl's own code, since another version may compute or measure differently."""
    root = Path(__file__).parents[1]
    total = hashlib.sha256()
    for file in sorted(root.rglob("*.py")):
        total.update(str(file.relative_to(root)).encode() + b"\0" + file.read_bytes() + b"\0")
    return total.hexdigest()


def home_relative(text: Path | str) -> str:
    """Write every path below the user's home with `~`, so that a shared run does not contain the user's name."""
    home = os.path.expanduser("~")  # noqa: PTH111 - the search needs a plain string
    return str(text) if home == "/" else re.sub(rf"(?<![\w./-]){re.escape(home)}/", "~/", str(text))
