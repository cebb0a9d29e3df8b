"""The engine `toy-serve`, which looks up its own prompt: how it is probed, checked, started and talked to."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from benchctl.engines.base import Attestation, Capabilities, Completion, Launch, Ledger, Progress, Rendered
from benchctl.engines.common.completion_stream import CompletionReader, completed
from benchctl.engines.common.launched_server import LaunchedServer
from benchctl.engines.common.log import Cause, Reason, first_cause
from benchctl.engines.common.process import EngineProcess, engine_environment, free_port
from benchctl.engines.common.programs import FoundBinary, which
from benchctl.engines.registry import FoundEngine
from benchctl.errors import EngineError, UsageError
from benchctl.models.files import ResolvedPair, file_sha256
from benchctl.prompts.suite import Prompt
from benchctl.recipes.schema import Arm, Recipe, Sampling
from tests.engines.toy.toy_adapter import ADAPTER, ToySpec


class ToyEngine:
    """Made for one recipe; it may be asked for any number of cells."""

    model_format = ADAPTER.model_format

    def __init__(self, spec: ToySpec, *, binary: str | None = None) -> None:
        self._spec = spec
        self._binary = binary or spec.binary or "toy-serve"
        self._found_in = "option" if binary else "recipe" if spec.binary else "PATH"

    def locate(self) -> FoundBinary:
        """Find the binary without running it; what its files hash to is compared with what a run recorded."""
        result = which(self._binary)
        if result is None:
            raise EngineError("there is no toy-serve", kind="launch", where=self._binary, fix="Name it: engine.binary")
        return FoundBinary(result, self._found_in, {"sha256": file_sha256(result)})

    def probe(self) -> Capabilities:
        """Ask the actual binary; a list of ours would be wrong for the next version."""
        result = self.locate()
        done = subprocess.run([result.path, "--version"], capture_output=True, text=True, timeout=30, check=True)
        return Capabilities(
            kind="toy",
            binary=result.path,
            found_in=result.found_in,
            version=done.stdout.strip(),
            build=None,
            commit=None,
            speculation_types=("ngram-simple",),
            request_fields=frozenset(),  # of `tools`, `response_format`, …: prompts with others are refused
            details=dict(result.hashes),
        )

    def check(self, recipe: Recipe, models: ResolvedPair) -> Sequence[str]:
        """Refuse now, all at once, what would fail or be ignored later; return warnings."""
        requested = [(arm.name, arm.speculation.types) for arm in recipe.arms if arm.speculation]
        problems = [
            f"arm {name}: toy-serve knows only ngram-simple." for name, kinds in requested if kinds != ("ngram-simple",)
        ]
        if problems:
            raise UsageError("\n".join(problems), where=self._binary)
        return ["The toy engine generates filler text."]

    def launch(self, arm: Arm, models: ResolvedPair) -> Launch:
        """The exact command, with `{port}` for the port, and a scrubbed environment."""
        argv = [str(self.probe().binary), "--model", str(models.target.path), "--port", "{port}"]
        if arm.speculation is not None:
            argv += ["--lookup", str(arm.speculation.max or 4)]
        if self._spec.greeting is not None:
            argv += ["--greeting", self._spec.greeting]
        env = engine_environment(os.environ, self._spec.env)
        return Launch((*argv, *self._spec.args, *arm.args), env, tuple(self._spec.env), overlapping=arm.overlapping)

    def tool(self, name: str) -> Path:
        """Programs that come with the engine, such as one that quantizes."""
        raise EngineError(f"toy-serve has no {name}", kind="launch")

    def start(self, launch: Launch, log_path: Path) -> ToyServer:
        """Start it and wait until it answers; what is not healthy in the end leaves nothing behind."""
        port = free_port()
        process = EngineProcess(launch.command(port), launch.env, log_path)
        server = ToyServer(process, f"http://127.0.0.1:{port}", self._spec, speculating="--lookup" in launch.argv)
        try:
            server.wait_until_healthy(server.start_up(poll_s=0.02), "/")
        except BaseException:
            server.stop()
            raise
        return server


def inventory() -> list[FoundEngine]:
    """The line of `benchctl engines list`."""
    result = shutil.which("toy-serve")
    if result is None:
        return [FoundEngine("toy", hint="it comes with benchctl's tests")]
    return [FoundEngine("toy", "PATH", result, runs=True, speculation_types=("ngram-simple",))]


def launch_cause(log: Sequence[str]) -> Reason | None:
    """Return why it ended, where its log shows it, and what to do."""
    causes = [Cause("Address already in use", "The port is taken.", "Run it again.")]
    result = first_cause(log, causes)
    return result[:2] if result else None


class ToyServer(LaunchedServer):
    """One process of one cell; what its end means, and its log, is the same for every engine that is launched."""

    launch_cause = staticmethod(launch_cause)
    dying_s = 0.2

    def __init__(self, process: EngineProcess, url: str, spec: ToySpec, *, speculating: bool) -> None:
        super().__init__(process, url, spec)
        self._speculating = speculating

    def render(self, prompt: Prompt) -> Rendered:
        """What the model will see. Ids are left out where the engine does not report them."""
        messages = " ".join(message.text for message in prompt.messages or ())
        return Rendered(prompt.prompt or messages, ())

    async def complete(self, prompt: Rendered, sampling: Sampling, on_tokens: Progress | None = None) -> Completion:
        """Stream one answer. What the engine does not report stays `None`: absent is never 0."""
        body = {"prompt": prompt.text, "max_tokens": sampling.max_tokens, "stream": True}
        streamed = await self._stream("/v1/completions", body, CompletionReader(sampling.max_tokens), on_tokens)
        answer = streamed.answer
        drafts = answer.extra.get("drafts") or {}
        if answer.prompt_tokens is None:
            raise EngineError("toy-serve did not count the prompt's tokens.", kind="protocol")
        ledger = Ledger(**{name: drafts.get(name) for name in ("drafted", "verified", "accepted", "rounds")})
        return completed(streamed, ledger)

    def attest(self, drafted: int | None) -> Attestation:
        """The evidence that it ran as requested: what the engine itself reports, not the command line."""
        info = self.http.get_json("/")
        on = isinstance(info, dict) and bool(info.get("lookup"))
        evidence = (f"GET /: {info}", f"draft tokens so far: {drafted}")
        if on != self._speculating:
            return Attestation("failed", evidence, "The lookup is not as the arm requests.", "Read the engine's log.")
        return Attestation("off" if not on else "active" if drafted else "idle", evidence)
