"""The command line of one cell."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchctl.engines.transformers.adapter import TransformersSpec
from benchctl.engines.transformers.methods import METHODS, method_of
from benchctl.engines.transformers.probe import SERVER
from benchctl.models.resolved import ResolvedPair
from benchctl.recipes.schema import Arm
from benchctl.recipes.speculation import Speculation


def command_line(python: Path, spec: TransformersSpec, arm: Arm, models: ResolvedPair) -> tuple[str, ...]:
    """Return the server's command; `-I` keeps the caller's Python settings out."""
    command = [str(python), "-I", str(SERVER / "run.py"), "--model", str(models.target.path), "--port", "{port}"]
    command += ["--device", spec.device, "--dtype", spec.dtype, "--context", str(spec.context)]
    if spec.threads is not None:
        command += ["--threads", str(spec.threads)]
    if spec.remote_code:
        command.append("--trust-remote-code")
    if arm.speculation is not None:
        settings = requested(arm.speculation)
        command += ["--speculation", json.dumps(settings)]
        if METHODS[settings["type"]].draft and models.draft is not None:
            command += ["--draft", str(models.draft.path)]
    return tuple(command)


def requested(speculation: Speculation) -> dict[str, Any]:
    """Return an arm's speculation as the server gets it."""
    (name,) = speculation.types
    options = dict(speculation.options or {})
    if speculation.size_n is not None:
        options["size_n"] = speculation.size_n
    return {"type": method_of(name), "max": depth_of(speculation), "options": options}


def depth_of(speculation: Speculation) -> int | None:
    """Return the depth, by either of its keys: for prompt lookup it may be `size_m`."""
    return speculation.max if speculation.max is not None else speculation.size_m


def requested_speculation(argv: Sequence[str]) -> dict[str, Any] | None:
    """Read it back from a command line; `None` for the target alone."""
    if "--speculation" not in argv:
        return None
    settings: dict[str, Any] = json.loads(argv[list(argv).index("--speculation") + 1])
    return settings


def value_of(argv: Sequence[str], flag: str) -> str:
    """Return the value of an option that every command line has."""
    return argv[list(argv).index(flag) + 1]
