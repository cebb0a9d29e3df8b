"""The adapter for transformers: probe, check, command, start."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from benchctl.engines.base import Capabilities, Launch
from benchctl.engines.common.environment import engine_environment, refused_variables
from benchctl.engines.common.launched_server import StartUp
from benchctl.engines.common.process import EngineProcess, free_port
from benchctl.engines.transformers.adapter import ADAPTER, TransformersSpec
from benchctl.engines.transformers.causes import launch_cause
from benchctl.engines.transformers.command import command_line
from benchctl.engines.transformers.find import find_python
from benchctl.engines.transformers.model_problems import model_problems, speculation_problems
from benchctl.engines.transformers.probe import SETTINGS, Probe, probe_python
from benchctl.engines.transformers.score import TransformersScorer
from benchctl.engines.transformers.server import TransformersServer
from benchctl.errors import EngineError, UsageError
from benchctl.models.resolved import ResolvedPair
from benchctl.recipes.schema import Arm, Recipe

_POLL_S = 0.1
_NO_ARGS = "benchctl writes the whole command line of its server; nothing can be added to it."


class TransformersEngine:
    """Runs benchctl's server on transformers; see `benchctl.engines.base.Engine`."""

    model_format = ADAPTER.model_format

    def __init__(self, spec: TransformersSpec, *, binary: str | None = None) -> None:
        self._spec = spec
        self._option = binary

    @cached_property
    def _probe(self) -> Probe:
        return probe_python(find_python(self._spec.binary, self._option), self._spec.env)

    def probe(self) -> Capabilities:
        """Find a Python and ask which transformers it has. Raises EngineError (`launch`)."""
        return self._probe.capabilities

    def check(self, recipe: Recipe, models: ResolvedPair) -> Sequence[str]:
        """Refuse what the server cannot do, all of it at once. Raises UsageError; returns warnings."""
        folder, spec, devices = models.target.path, self._spec, self._probe.devices
        problems = [f"engine.env: {text}" for text in refused_variables(spec.env)]
        if spec.args:
            problems.append(f"engine.args: {_NO_ARGS}")
        if spec.device not in ("auto", *devices):
            problems.append(f"engine.device: this PyTorch has no {spec.device}; it has {', '.join(devices)}.")
        on_cpu = spec.device == "cpu" or (spec.device == "auto" and devices == ("cpu",))
        problems += model_problems(folder, spec, on_cpu=on_cpu)
        for arm in recipe.arms:
            here = [_NO_ARGS] if arm.args else []
            if arm.overlapping:
                here.append("transformers answers one request at a time: leave `concurrency` at 1, and no `rate`.")
            if arm.speculation is not None:
                here += speculation_problems(arm.speculation, models)
            problems += [f"arm {arm.name}: {text}" for text in here]
        if problems:
            raise UsageError("\n".join(problems), where=str(self._probe.python))
        if spec.remote_code:
            return ["engine.remote_code is on: code from the model's folder runs on this machine."]
        return []

    def launch(self, arm: Arm, models: ResolvedPair) -> Launch:
        """Return the command line and the whole environment of one cell."""
        argv = command_line(self._probe.python, self._spec, arm, models)
        env = engine_environment(os.environ, {**SETTINGS, **self._spec.env})
        return Launch(argv, env, set_by_us=(*SETTINGS, *self._spec.env), overlapping=arm.overlapping)

    def tool(self, name: str) -> Path:
        """Raise EngineError (`launch`): transformers has no programs of that kind."""
        raise EngineError(f"transformers has no program {name}", kind="launch", where="transformers")

    def start(self, launch: Launch, log_path: Path) -> TransformersServer:
        """Start the server and wait until it is healthy. Raises EngineError (`launch`, `health`)."""
        port = free_port()
        argv = [str(port) if word == "{port}" else word for word in launch.argv]
        process = EngineProcess(argv, launch.env, log_path)
        server = TransformersServer(process, log_path, f"http://127.0.0.1:{port}", self._spec, argv)
        try:
            start_up = StartUp(process, log_path, self._spec.health_timeout_s, launch_cause, _POLL_S)
            server.wait_until_healthy(start_up)
        except BaseException:
            server.stop()
            raise
        return server

    def start_scorer(self, launch: Launch, log_path: Path, *, ignore_eos: bool = False) -> TransformersScorer:
        """Start the target alone for scoring; see `benchctl.engines.base.ScoringEngine`."""
        server = self.start(launch, log_path)
        return TransformersScorer(server, launch.argv, timeout_s=self._spec.request_timeout_s, ignore_eos=ignore_eos)
