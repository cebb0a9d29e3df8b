"""The llama.cpp adapter: probe, check, command, start."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import httpx

from benchctl.engines.base import Capabilities, Launch
from benchctl.engines.common.environment import OWN_SETTINGS, engine_environment, refused_variables
from benchctl.engines.common.process import EngineProcess, free_port
from benchctl.engines.common.start_up import StartUp
from benchctl.engines.llama_cpp.causes import launch_cause
from benchctl.engines.llama_cpp.command import argument_problems, batch_problem, command_line, slots_of
from benchctl.engines.llama_cpp.converter import CONVERTER, converter_script
from benchctl.engines.llama_cpp.find import find_server, find_tool
from benchctl.engines.llama_cpp.probe import Probe, probe_server
from benchctl.engines.llama_cpp.score import LlamaScorer, scoring_args, split_batch
from benchctl.engines.llama_cpp.server import LlamaServer
from benchctl.engines.llama_cpp.speculation import (
    asked_of,
    deepest_draft,
    speculation_problems,
    speculation_warnings,
)
from benchctl.errors import EngineError, UsageError
from benchctl.models.gguf_header import read_header
from benchctl.models.resolved import ModelFormat, ResolvedPair
from benchctl.models.special_tokens import end_tokens
from benchctl.recipes.schema import NEEDS_DRAFT_MODEL, Arm, EngineSpec, Recipe

_LISTENING = re.compile(rb"listening on https?://[^\s/]*?:(\d+)|HTTP server is listening, hostname: \S+, port: (\d+)")
_POLL_S = 0.03
_PORT_ATTEMPTS = 5
_DEVICE_PREFIXES = {"cuda": ("CUDA", "ROCm"), "metal": ("Metal", "MTL")}


class LlamaCppEngine:
    """Runs llama.cpp's llama-server; see `benchctl.engines.base.Engine`."""

    def __init__(self, spec: EngineSpec, *, binary: str | None = None) -> None:
        self._spec = spec
        self._option = binary

    model_format: ModelFormat = "gguf"

    @cached_property
    def _probe(self) -> Probe:
        found = find_server(self._spec.binary, self._option, device=self._spec.device)
        return probe_server(found.path, found.found_in, self._spec.env)

    def probe(self) -> Capabilities:
        """Find the binary and ask it what it can do. Raises EngineError (`launch`), UsageError."""
        return self._probe.capabilities

    def check(self, recipe: Recipe, models: ResolvedPair) -> Sequence[str]:
        """Refuse what the binary cannot do, all of it at once. Raises UsageError; returns warnings."""
        flags = self._probe.flags
        problems = [f"engine.env: {text}" for text in refused_variables(recipe.engine.env)]
        problems += [f"engine.args: {text}" for text in argument_problems(recipe.engine.args, flags)]
        problems += self._device_problems()
        warnings = []
        for arm in recipe.arms:
            here = argument_problems(arm.args, flags)
            deepest = 0
            if arm.speculation is not None:
                wrong = speculation_problems(arm.speculation, flags)
                if models.draft is None:
                    lacking = [name for name in arm.speculation.types if name in NEEDS_DRAFT_MODEL]
                    wrong += [f"{name} needs a draft model; name one in models.draft." for name in lacking]
                if not wrong:
                    deepest = deepest_draft(arm.speculation, flags)
                here += wrong
                warnings += [f"Arm {arm.name}: {text}" for text in speculation_warnings(arm.speculation, flags)]
            batch = batch_problem([*recipe.engine.args, *arm.args], arm.concurrency, deepest, flags)
            here += [batch] if batch else []
            problems += [f"arm {arm.name}: {text}" for text in here]
        if problems:
            raise UsageError("\n".join(problems), where=str(self._probe.capabilities.binary))
        return warnings

    def _device_problems(self) -> list[str]:
        wanted = _DEVICE_PREFIXES.get(self._spec.device)
        devices = self._probe.capabilities.details["devices"]
        if wanted is None or not isinstance(devices, list) or any(str(d).startswith(wanted) for d in devices):
            return []
        seen = ", ".join(map(str, devices)) or "no accelerator"
        return [f"engine.device: this llama-server sees {seen}, and the recipe asks for {self._spec.device}."]

    def launch(self, arm: Arm, models: ResolvedPair) -> Launch:
        """Return the command line and the whole environment of one cell."""
        probe = self._probe
        argv = command_line(probe.binary, probe.flags, self._spec, arm, models)
        env = engine_environment(os.environ, self._spec.env)
        return Launch(argv, env, set_by_us=(*OWN_SETTINGS, *self._spec.env), overlapping=arm.overlapping)

    def tool(self, name: str) -> Path:
        """Return the program `name` of the same build, such as `llama-quantize`. Raises EngineError (`launch`)."""
        if name == CONVERTER:
            return converter_script()
        return find_tool(name, self._probe.binary)

    def start(self, launch: Launch, log_path: Path) -> LlamaServer:
        """Start llama-server and wait until it is healthy. Raises EngineError (`launch`, `health`)."""
        # Current builds choose a free port themselves and log it; for older ones one is looked for beforehand.
        chooses = self._probe.flags.dialect == "current"
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            port = 0 if chooses else free_port()
            try:
                return self._start(launch, log_path, port)
            except EngineError as error:
                taken = error.kind == "launch" and "couldn't bind" in "\n".join(error.log_tail)
                if not taken or attempt == _PORT_ATTEMPTS:
                    raise
        raise AssertionError("unreachable")

    def start_scorer(self, launch: Launch, log_path: Path, *, ignore_eos: bool = False) -> LlamaScorer:
        """Start the target alone for scoring. Raises EngineError (`launch`, `health`)."""
        flags = self._probe.flags
        argv = scoring_args(launch.argv, flags)
        server = self.start(replace(launch, argv=argv), log_path)
        left_out = end_tokens(read_header(Path(server.model))) if ignore_eos else frozenset()
        return LlamaScorer(server, argv, splits=split_batch(launch.argv, flags), left_out=left_out)

    def _start(self, launch: Launch, log_path: Path, port: int) -> LlamaServer:
        argv = [str(port) if word == "{port}" else word for word in launch.argv]
        process = EngineProcess(argv, launch.env, log_path)
        client: httpx.Client | None = None
        try:
            start_up = StartUp(process, log_path, self._spec.health_timeout_s, launch_cause, _POLL_S)
            told = self._listening_port(start_up)
            # No proxy, no netrc: the caller's network settings have nothing to do with loopback.
            client = httpx.Client(
                base_url=f"http://127.0.0.1:{told}",
                trust_env=False,
                verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),  # Never used, and quicker than loading certificates.
                limits=httpx.Limits(max_connections=None),  # What waits for a connection here would be timed.
            )
            self._wait_healthy(start_up, client)
        except BaseException:
            if client is not None:
                client.close()
            process.stop(grace_s=2.0)
            raise
        asked = asked_of(argv, self._probe.flags)
        model = argv[argv.index("-m") + 1]
        slots, overlapping = slots_of(argv), launch.overlapping
        return LlamaServer(process, log_path, client, self._spec, asked, model, slots=slots, overlapping=overlapping)

    def _listening_port(self, start_up: StartUp) -> int:
        """Wait for the log to tell on which port this very process listens."""
        while True:
            found = _LISTENING.search(start_up.log_path.read_bytes())
            if found:
                return int(found[1] or found[2])
            start_up.wait_a_moment()

    def _wait_healthy(self, start_up: StartUp, client: httpx.Client) -> None:
        while True:
            try:
                if client.get("/health", timeout=5.0).status_code == httpx.codes.OK:
                    return
            except httpx.TransportError:
                pass  # Not yet, or never: the next lines find out.
            start_up.wait_a_moment()
