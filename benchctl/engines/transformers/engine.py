"""The adapter for transformers: probe, check, command, start."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from benchctl.data.traces import DiagnosisSettings, Expectations
from benchctl.engines.base import Launch, Scores
from benchctl.engines.common.launched_server import LaunchedEngine
from benchctl.engines.common.process import EngineProcess, engine_environment, free_port, make_access, refused_variables
from benchctl.engines.common.programs import FoundBinary
from benchctl.engines.common.score import ServerScorer
from benchctl.engines.common.values import count_in, id_of, logprob_of
from benchctl.engines.common.wire import protocol_error
from benchctl.engines.transformers.adapter import ADAPTER, TransformersSpec
from benchctl.engines.transformers.find import SETTINGS, Probe, find_python, probe_python
from benchctl.engines.transformers.methods import METHODS, method_of, registered
from benchctl.engines.transformers.server import TransformersServer, command_line
from benchctl.engines.transformers.serving import KEY_VARIABLE
from benchctl.engines.transformers.speculation import model_problems, speculation_problems, worth_trying
from benchctl.models.files import ResolvedPair
from benchctl.recipes.schema import GREEDY, Arm, Recipe, Sampling
from benchctl.recipes.speculation import Speculation

_NO_ARGS = "benchctl writes the whole command line of its server; nothing can be added to it."

_READ = {"depth", "stride", "top"}
"""Those settings of a diagnosis that the server gets."""


class TransformersEngine(LaunchedEngine[TransformersSpec]):
    """Runs benchctl's server on transformers; see `benchctl.engines.base.Engine`."""

    model_format = ADAPTER.model_format
    title = "transformers"

    @cached_property
    def _found(self) -> FoundBinary:
        return find_python(self._spec.binary, self._option)

    @cached_property
    def _probe(self) -> Probe:
        return probe_python(self._found, self._spec.env)

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
                here += speculation_problems(arm.speculation, models) or self._lacking(arm.speculation)
            problems += [f"arm {arm.name}: {text}" for text in here]
        self._refuse(problems)
        if spec.remote_code:
            return ["engine.remote_code is on: code from the model's folder runs on this machine."]
        return []

    def _lacking(self, speculation: Speculation) -> list[str]:
        """Return what the server's Python lacks of what this Python knows: another package's drafter."""
        (name,) = speculation.types
        if method_of(name) in METHODS or name in self._probe.drafters:
            return []
        return [f"{name}: the package that brings it is not installed in {self._probe.python}, which runs the server."]

    def search_space(self, models: ResolvedPair) -> Sequence[Speculation]:
        """Return the settings worth trying; see `benchctl.engines.base.TunableEngine`."""
        return worth_trying(models)

    def launch(self, arm: Arm, models: ResolvedPair) -> Launch:
        """Return the command line and the whole environment of a cell."""
        argv = command_line(self._probe.python, self._spec, arm, models)
        env = engine_environment(os.environ, {**SETTINGS, **self._spec.env})
        return Launch(argv, env, set_by_us=(*SETTINGS, *self._spec.env), overlapping=arm.overlapping)

    def start(self, launch: Launch, log_path: Path) -> TransformersServer:
        """Start the server and wait until it is healthy. Raises EngineError (`launch`, `health`)."""
        access, port = make_access(by_socket=True), free_port()
        places = {"{port}": str(port), "{trace}": str(log_path.with_suffix(".rounds.jsonl"))}
        argv = [places.get(argument, argument) for argument in launch.argv]
        if access.socket_path is not None:
            place = argv.index("--port")
            argv[place : place + 2] = ["--socket", str(access.socket_path)]
        env = {**launch.env, KEY_VARIABLE: access.key}
        process = EngineProcess(argv, env, log_path, scratch=access.folder)
        return self._healthy(TransformersServer(process, log_path, access, port, self._spec, argv))

    def start_scorer(self, launch: Launch, log_path: Path, sampling: Sampling = GREEDY) -> TransformersScorer:
        """Start the target alone for scoring; see `benchctl.engines.base.ScoringEngine`."""
        server = self.start(launch, log_path)
        return TransformersScorer(
            server, launch.argv, timeout_s=self._spec.request_timeout_s, ignore_eos=sampling.ignore_eos
        )

    def incomparable(self, arm: Arm) -> str | None:
        """Return why an arm's draft cannot be read beside the target; see `benchctl.engines.base.ComparingEngine`."""
        name = method_of(arm.speculation.types[0]) if arm.speculation is not None else ""
        method = registered().get(name)
        if method is not None and method.searches:
            return "it chooses what it leaves out as it goes on, so there is no single draft to compare; run it"
        if name == "assisted" or (method is not None and not method.assisted):
            return None
        return "it drafts inside transformers' own generate, which does not return its distributions"

    def start_comparer(self, launch: Launch, log_path: Path) -> TransformersComparer:
        """Start an arm for comparing. Raises EngineError (`launch`, `health`)."""
        return TransformersComparer(self.start(launch, log_path), timeout_s=self._spec.request_timeout_s)


class TransformersScorer(ServerScorer["TransformersServer"]):
    """A server that scores; see `benchctl.engines.base.Scorer`."""

    in_batches = True

    def __init__(
        self, server: TransformersServer, command: Sequence[str], *, timeout_s: float, ignore_eos: bool
    ) -> None:
        """`timeout_s`: how long a request may take; `ignore_eos`: leave out the tokens that end an answer."""
        super().__init__(server, command)
        self._timeout_s = timeout_s
        self._ignore_eos = ignore_eos

    def read_prompt(self, prompt: Sequence[int], top: int) -> Scores:
        """Read a prompt in a single pass, as a measured request does."""
        return self._score(prompt, top, kept=False)

    def read_on(self, prefix: Sequence[int], top: int) -> Scores:
        """Read the rest of `prefix` in a single pass."""
        return self._score(prefix, top, kept=True)

    def read_whole(self, prefix: Sequence[int], top: int) -> Scores:
        """Read all of `prefix` in a single pass."""
        return self._score(prefix, top, kept=False)

    def _score(self, prefix: Sequence[int], top: int, *, kept: bool) -> Scores:
        body = {"prefix": list(prefix), "top": top, "kept": kept, "ignore_eos": self._ignore_eos}
        answer = self._server.http.post("/score", body, timeout_s=self._timeout_s)
        try:
            logprobs = {id_of(token): logprob_of(value) for token, value in answer["logprobs"]}
            evaluated = count_in(answer["evaluated"], 2**31)
        except (KeyError, TypeError, ValueError):
            logprobs, evaluated = {}, None
        if not logprobs or evaluated is None:
            raise protocol_error("The engine returned no probabilities of the next token.")
        return Scores(logprobs, evaluated)


class TransformersComparer:
    """A server that reads answers with its draft and its target; see `benchctl.engines.base.Comparer`."""

    def __init__(self, server: TransformersServer, *, timeout_s: float) -> None:
        """`timeout_s`: how long an answer may take."""
        self._server = server
        self._timeout_s = timeout_s

    def describe(self) -> Mapping[str, object]:
        """Return which parts the server leaves out, or which draft it loaded."""
        info = self._server.http.get_json("/info")
        reported = info.get("speculation") if isinstance(info, dict) else None
        return reported if isinstance(reported, dict) else {}

    def compare(
        self, prompt: Sequence[int], answer: Sequence[int], temperature: float, settings: DiagnosisSettings
    ) -> Expectations:
        """Read an answer."""
        reply = self._post(prompt, answer, temperature=temperature, **settings.model_dump(include=_READ))
        try:
            return Expectations.model_validate(reply)
        except ValidationError as error:
            raise protocol_error("The engine returned no distributions of the draft.") from error

    def flops(self, prompt: Sequence[int]) -> tuple[float, float]:
        """Count a step of each."""
        reply = self._post(prompt, ())
        try:
            return float(reply["flops"]["target"]), float(reply["flops"]["draft"])
        except (KeyError, TypeError, ValueError) as error:
            raise protocol_error("The engine returned no operation counts of a step.") from error

    def stop(self) -> int | None:
        """End the server."""
        return self._server.stop()

    def _post(self, prompt: Sequence[int], answer: Sequence[int], **numbers: float) -> dict[str, Any]:
        body = {"prompt": list(prompt), "answer": list(answer), **numbers}
        return self._server.http.post("/compare", body, timeout_s=self._timeout_s)
