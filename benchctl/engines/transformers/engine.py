"""The adapter for transformers: find, probe, check, start; and benchctl's own environment of torch and transformers.

Where none is named, the Python that runs benchctl serves if it has both packages, else that of the environment.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args

from pydantic import ValidationError

from benchctl.data.counts import from_prompt
from benchctl.data.traces import DiagnosisSettings, Expectations
from benchctl.engines.base import Capabilities, Launch, Rendered
from benchctl.engines.common.launched_server import LaunchedEngine, Probe
from benchctl.engines.common.process import EngineProcess, engine_environment, free_port, make_access, refused_variables
from benchctl.engines.common.programs import FoundBinary, which
from benchctl.engines.common.python_environment import PythonEnvironment, Question
from benchctl.engines.common.score import ServerScorer, usable_scores
from benchctl.engines.common.wire import id_of, logprob_of, protocol_error
from benchctl.engines.in_use import Pressure
from benchctl.engines.registry import FoundEngine, Installed, InstallOptions, Report, Search
from benchctl.engines.scoring import ReplayedToken, Scores
from benchctl.engines.transformers.adapter import ADAPTER, TransformersSpec
from benchctl.engines.transformers.methods import METHODS, method_of, registered
from benchctl.engines.transformers.server import (
    SERVER,
    TransformersServer,
    command_line,
    constraints_of,
)
from benchctl.engines.transformers.serving import KEY_VARIABLE
from benchctl.engines.transformers.speculation import model_problems, speculation_problems, worth_trying
from benchctl.errors import UsageError
from benchctl.models.files import ResolvedPair
from benchctl.paths import cache_folder
from benchctl.recipes.schema import GREEDY, Arm, Recipe, Sampling
from benchctl.recipes.speculation import Speculation

VARIABLE = "BENCHCTL_TRANSFORMERS"
INSTALL = (
    "`benchctl engines install transformers`, or name a Python that has torch and transformers: engine.binary, "
    f"--engine-binary, or {VARIABLE}."
)


def converting_python() -> Path | None:
    """Return the Python that the user named, else that of benchctl's own environment; `None` where there is neither."""
    return which(os.environ.get(VARIABLE, "")) or environment().installed()


def _others() -> list[FoundBinary]:
    binaries = []
    if all(importlib.util.find_spec(name) for name in ("torch", "transformers")):
        binaries.append(FoundBinary(Path(sys.executable), "Python package"))
    if (python := environment().installed()) is not None:
        binaries.append(FoundBinary(python, "bundled"))
    return binaries


SEARCH = Search("transformers", "transformers", VARIABLE, "bin/python", INSTALL, _others, installs="transformers")


def inventory() -> list[FoundEngine]:
    """Return every Python that could run the server, in order of use; none is probed, which takes seconds."""
    return SEARCH.inventory(_listed, "install it with `benchctl engines install transformers`")


def _listed(python: FoundBinary, runs: bool) -> FoundEngine:
    version = importlib.metadata.version("transformers") if python.found_in == "Python package" else None
    version = VERSION if python.found_in == "bundled" else version
    types = tuple(registered())
    return FoundEngine("transformers", python.found_in, str(python.path), runs, version, speculation_types=types)


VERSION = "5.19.0"
TORCH = "2.13.0"
"""The tested version. The package index decides on the build: for a CPU, for CUDA or for Metal."""


class TransformersInstaller:
    """Installs what the package index has for this machine; see `benchctl.engines.registry.Installer`."""

    title = "transformers"

    def install(self, options: InstallOptions, report: Report) -> Installed:
        """Make the environment, where it is not there."""
        useless = options.named("version", "sdist", "jobs", "arch")
        if options.backend is not None:
            useless.append(f"--{options.backend}")
        if useless:
            raise UsageError(
                "transformers supports none of these",
                where=" ".join(useless),
                fix=f"It is {VERSION} with torch {TORCH}, as tested, built for what the package index has. For another "
                "build install them yourself and name their Python: engine.binary or BENCHCTL_TRANSFORMERS.",
            )
        python = environment().install(report, force=options.force)
        return Installed(
            heading=f"transformers {VERSION} with torch {TORCH}",
            lines=(str(python),),
            facts={"program": str(python), "version": VERSION, "torch": TORCH},
        )


def environment() -> PythonEnvironment:
    """Return benchctl's own environment, made or not."""
    return PythonEnvironment(
        engine="transformers",
        name="transformers",
        folder=cache_folder() / "engines" / "transformers" / f"{VERSION}-torch-{TORCH}",
        lock=Path(__file__).with_name("lock.txt"),
        torch=TORCH,
        free_bytes=2 * 10**9,  # enough for a build of torch for the CPU or Metal
        cuda_bytes=10 * 10**9,
        trial=("-c", "import torch, transformers; print(torch.__version__, transformers.__version__)"),
        fix="Install torch and transformers yourself and name their Python: engine.binary, BENCHCTL_TRANSFORMERS.",
    )


_SCRIPT = Path(__file__).with_name("ask_package.py")
SETTINGS: Mapping[str, str] = {
    "HF_HUB_OFFLINE": "1",  # models were resolved before, so nothing may be downloaded
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "NO_COLOR": "1",
}
"""Variables that benchctl adds to the server's environment. Other variables are set for every engine."""


def probe_python(binary: FoundBinary, added: Mapping[str, str] = MappingProxyType({})) -> Probe[dict[str, Any]]:
    """Probe a Python; `added` is the recipe's `engine.env`. Raises EngineError (`launch`)."""
    env = engine_environment(os.environ, {**SETTINGS, **added})
    question = Question("transformers", binary.path, binary.path, _SCRIPT, env, added)

    def read(facts: dict[str, Any]) -> Probe[dict[str, Any]]:
        versions = {name: str(package["version"]) for name, package in facts["distributions"].items()}
        records = {name: package["record_sha256"] for name, package in facts["distributions"].items()}
        files = b"".join(hashlib.sha256(file.read_bytes()).digest() for file in sorted(SERVER.rglob("*.py")))
        records["benchctl's server"] = hashlib.sha256(files).hexdigest()
        capabilities = Capabilities(
            kind="transformers",
            binary=binary.path,
            found_in=binary.found_in,
            version=f"transformers {versions['transformers']}, torch {versions['torch']}",
            build=versions["transformers"],
            commit=None,
            speculation_types=(*METHODS, *facts["drafters"]),
            request_fields=frozenset({"tools", "chat_template_kwargs"}),
            details={
                "python": facts.get("python"),
                "prompt_cache": False,
                "distributions": versions,
                "devices": [] if facts.get("accelerator") is None else [f"CUDA: {facts['accelerator']}"],
                # The lists of installed files hold the hash of each file; the server's own code is added.
                "sha256": hashlib.sha256(json.dumps(records, sort_keys=True).encode()).hexdigest(),
                "siblings": {name: value for name, value in records.items() if value},
            },
        )
        return Probe(capabilities, {name: tuple(map(str, facts[name])) for name in ("devices", "drafters")})

    return question.answered("transformers in this Python", INSTALL, read)


_NO_ARGS = "benchctl writes the whole command line of its server; nothing can be added to it."
_FROM_PYTHON = (
    "On a GPU this server starts every kernel from Python, without CUDA graphs, so a small model waits for the "
    "processor: compare these times with each other, and not with a served engine's."
)

_READ = {"depth", "stride", "top"}
"""The settings of a diagnosis that are sent to the server."""


class TransformersEngine(LaunchedEngine[TransformersSpec]):
    """Runs benchctl's server on transformers; see `benchctl.engines.base.Engine`."""

    model_format = ADAPTER.model_format
    title = "transformers"

    @cached_property
    def _binary(self) -> FoundBinary:
        return SEARCH.find(self._spec.binary, self._option)

    @cached_property
    def _probe(self) -> Probe[dict[str, Any]]:
        return probe_python(self._binary, self._spec.env)

    def check(self, recipe: Recipe, models: ResolvedPair) -> Sequence[str]:
        """Refuse what the server cannot do, all of it at once. Raises UsageError; returns warnings."""
        folder, spec, devices = models.target.path, self._spec, self._probe.facts["devices"]
        problems = [f"engine.env: {text}" for text in refused_variables(spec.env)]
        if spec.args:
            problems.append(f"engine.args: {_NO_ARGS}")
        if spec.device not in ("auto", *devices):
            problems.append(f"engine.device: this PyTorch has no {spec.device}; it has {', '.join(devices)}.")
        on_cpu = spec.device == "cpu" or (spec.device == "auto" and devices == ("cpu",))
        problems += model_problems(folder, spec, on_cpu=on_cpu)
        for arm in recipe.arms:
            arm_problems = [_NO_ARGS] if arm.args else []
            if arm.overlapping:
                arm_problems.append("transformers answers one request at a time; leave out `concurrency` and `rate`.")
            if arm.speculation is not None:
                arm_problems += speculation_problems(arm.speculation, models) or self._lacking(arm.speculation)
            problems += [f"arm {arm.name}: {text}" for text in arm_problems]
        self._refuse(problems)
        remote = "engine.remote_code is on: code from the model's folder runs on this machine."
        return [text for text, holds in ((remote, spec.remote_code), (_FROM_PYTHON, not on_cpu)) if holds]

    def _lacking(self, speculation: Speculation) -> list[str]:
        """Return a problem if the server's Python lacks the package of a drafter that this Python has."""
        (name,) = speculation.types
        if method_of(name) in METHODS or name in self._probe.facts["drafters"]:
            return []
        return [f"{name}: the package that brings it is not installed in {self._probe.program}, which runs the server."]

    def search_space(self, models: ResolvedPair) -> Sequence[Speculation]:
        """Return the settings worth trying; see `benchctl.engines.base.TunableEngine`."""
        return worth_trying(models)

    def launch(self, arm: Arm, models: ResolvedPair) -> Launch:
        """Return the command line and the whole environment of a cell."""
        argv = command_line(self._probe.program, self._spec, arm, models)
        env = engine_environment(os.environ, {**SETTINGS, **self._spec.env})
        return Launch(argv, env, set_by_us=(*SETTINGS, *self._spec.env), overlapping=arm.overlapping)

    def start(self, launch: Launch, log_path: Path) -> TransformersServer:
        """Start the server and wait until it is healthy. Raises EngineError (`launch`, `health`)."""
        access, port = make_access(by_socket=True), free_port()
        trace = str(log_path.with_suffix(".rounds.jsonl"))
        places = {"{port}": str(access.socket_path or port), "{trace}": trace}
        argv = [places.get(argument, argument) for argument in launch.argv]
        env = {**launch.env, KEY_VARIABLE: access.key}
        process = EngineProcess(argv, env, log_path, access)
        return self._healthy(TransformersServer(process, access.url(port), self._spec, argv))

    unprovoked: Mapping[str, str] = MappingProxyType(
        dict.fromkeys(("cache", "sessions", "long"), "benchctl's server reads every prompt anew, without a cache")
        | {"crowd": "benchctl's server answers one request at a time"}
        | {"constraint": "benchctl's server takes no schema and no stop string"}
        | dict.fromkeys(("completions", *get_args(Pressure)), "benchctl's server has no such setting")
    )

    def launch_in_use(self, arm: Arm, models: ResolvedPair) -> Launch:
        """Return the command of a cell, which sets nothing for a measurement."""
        return self.launch(arm, models)

    def start_scorer(self, launch: Launch, log_path: Path, sampling: Sampling = GREEDY) -> TransformersScorer:
        """Start the target alone for scoring; see `benchctl.engines.scoring.ScoringEngine`."""
        server = self.start(launch, log_path)
        return TransformersScorer(server, launch.argv, timeout_s=self._spec.request_timeout_s, sampling=sampling)

    def no_replay(self, launch: Launch) -> str | None:
        """Return `None`: every type records its steps; see `benchctl.engines.scoring.ReplayingEngine`."""
        return None

    def replay_launch(self, launch: Launch) -> Launch:
        """Return the launch without its speculation, which computes the same."""
        argv, flags = list(launch.argv), ("--speculation", "--draft")
        for place in [place for place, argument in enumerate(argv) if argument in flags][::-1]:
            del argv[place : place + 2]
        return replace(launch, argv=tuple(argv))

    def start_replayer(self, launch: Launch, log_path: Path, sampling: Sampling = GREEDY) -> TransformersScorer:
        """Start the target alone for replay."""
        return self.start_scorer(launch, log_path, sampling)

    def incomparable(self, arm: Arm) -> str | None:
        """Return why an arm's draft cannot be compared with the target (`benchctl.engines.scoring.ComparingEngine`)."""
        name = method_of(arm.speculation.types[0]) if arm.speculation is not None else ""
        method = registered().get(name)
        if method is not None and (method.searches or method.adapter):
            return "what it drafts with changes as it goes on, so there is no single draft to compare; run it"
        if name == "assisted" or (method is not None and not method.assisted):
            return None
        return "it drafts inside transformers' own generate, which does not return its distributions"

    def start_comparer(self, launch: Launch, log_path: Path) -> TransformersComparer:
        """Start an arm for comparing. Raises EngineError (`launch`, `health`)."""
        return TransformersComparer(self.start(launch, log_path), timeout_s=self._spec.request_timeout_s)


class TransformersScorer(ServerScorer["TransformersServer"]):
    """A server that scores and replays; see `benchctl.engines.scoring.Scorer` and `Replayer`."""

    in_batches = True
    evidence = (
        "read by a server of the same program as the run's, which goes back after a rejection to a copy of its cache"
    )

    def __init__(
        self, server: TransformersServer, command: Sequence[str], *, timeout_s: float, sampling: Sampling
    ) -> None:
        """`timeout_s`: how long a request may take; `sampling`: what changes logits, and whether answers go on."""
        super().__init__(server, command)
        self._timeout_s = timeout_s
        self._sampling = sampling
        self._constraints = {"ignore_eos": sampling.ignore_eos, **constraints_of(sampling)}

    def read_whole(self, prefix: Sequence[int], top: int, *, append: bool = False) -> Scores:
        """Read all of `prefix` in a single pass; `append`: only what follows the last prefix."""
        body = {"prefix": list(prefix), "top": top, "kept": append, **self._constraints}
        answer = self._server.http.post("/score", body, timeout_s=self._timeout_s)
        try:
            logprobs = {id_of(token): logprob_of(value) for token, value in answer["logprobs"]}
            return usable_scores(logprobs, id_of(answer["evaluated"]))
        except (KeyError, TypeError, ValueError) as error:
            raise protocol_error("The engine returned no probabilities of the next token.") from error

    read_prompt = read_whole
    """A prompt is read as a measured request reads it."""

    def read_on(self, prefix: Sequence[int], top: int) -> Scores:
        """Read the rest of `prefix` in a single pass."""
        return self.read_whole(prefix, top, append=True)

    def replay(self, prompt: Rendered, answer: Sequence[int], steps: Sequence[Sequence[int]]) -> list[ReplayedToken]:
        """Read an answer again in its steps."""
        pairs = [list(step[-2:]) for step in from_prompt(steps)]
        body = {"prompt": list(prompt.token_ids), "answer": list(answer), "steps": pairs}
        body |= constraints_of(self._sampling.model_copy(update=prompt.sampling))
        body["ignore_eos"] = self._sampling.ignore_eos
        reply = self._server.http.post("/replay", body, timeout_s=self._timeout_s)
        try:
            tokens = [(id_of(index), id_of(best), -logprob_of(-gap)) for index, best, gap in reply["deviations"]]
            if not all(index < len(answer) for index, _, _ in tokens):
                raise ValueError("beyond the answer")
            return [ReplayedToken(*token) for token in tokens]
        except (KeyError, TypeError, ValueError) as error:
            raise protocol_error("The engine did not replay the answer.") from error


@dataclass(frozen=True)
class TransformersComparer:
    """A server that reads answers with draft and target; see `benchctl.engines.scoring.Comparer`."""

    server: TransformersServer
    timeout_s: float
    """Time limit of an answer, in seconds."""

    def describe(self) -> Mapping[str, object]:
        """Return which parts the server leaves out, or which draft it loaded."""
        info = self.server.http.get_json("/info")
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
        """Return the floating-point operations of a step of the target and of the draft."""
        reply = self._post(prompt, ())
        try:
            return float(reply["flops"]["target"]), float(reply["flops"]["draft"])
        except (KeyError, TypeError, ValueError) as error:
            raise protocol_error("The engine returned no operation counts of a step.") from error

    def stop(self) -> int | None:
        """End the server."""
        return self.server.stop()

    def _post(self, prompt: Sequence[int], answer: Sequence[int], **numbers: float) -> dict[str, Any]:
        body = {"prompt": list(prompt), "answer": list(answer), **numbers}
        return self.server.http.post("/compare", body, timeout_s=self.timeout_s)
