"""The vLLM adapter: find, probe, check, command, start; scoring, on its own or a running vLLM.

The user's own wins over the vLLM that benchctl installed: the option `--engine-binary`, the recipe's `engine.binary`,
`$BENCHCTL_VLLM`, `vllm` on PATH, then the environments of `benchctl engines install vllm`. Each is the program `vllm`
of a Python environment. A running vLLM is recognised by its metrics.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from benchctl.engines.base import Capabilities, Launch, Ledger
from benchctl.engines.common.drafts import counted_since, step_ledger
from benchctl.engines.common.endpoint import (
    EndpointTarget,
    MetricsReading,
    Pages,
    Recognised,
    ServerFamily,
    TokenizingTarget,
    short_line,
)
from benchctl.engines.common.launched_server import LaunchedEngine, Probe
from benchctl.engines.common.process import EngineProcess, engine_environment, free_port, make_access
from benchctl.engines.common.programs import FoundBinary
from benchctl.engines.common.python_environment import Question, named_types
from benchctl.engines.common.score import RequestScorer, usable_scores
from benchctl.engines.common.wire import id_marked, id_named, id_of, logprob_of
from benchctl.engines.in_use import Pressure
from benchctl.engines.registry import FoundEngine
from benchctl.engines.scoring import Scores
from benchctl.engines.vllm import command
from benchctl.engines.vllm.adapter import ADAPTER, VllmSpec, batch_invariant
from benchctl.engines.vllm.command import ALWAYS_SET, Package
from benchctl.engines.vllm.installation import VARIABLE, search
from benchctl.engines.vllm.server import REQUEST_FIELDS, VllmServer, scoring_body
from benchctl.errors import EngineError
from benchctl.models.files import ResolvedModel, ResolvedPair
from benchctl.models.folder_facts import folder_facts
from benchctl.recipes.schema import GREEDY, Arm, Recipe, Sampling
from benchctl.recipes.speculation import Speculation

_SHEBANG = re.compile(rb"^#!(/[^\s]+)")
_LONG_SHEBANG = re.compile(rb"'''exec' \"?(/[^\"\n]+?)\"? \"\$0\"")
"""As pip writes it where the path of the interpreter is long or has spaces."""


def python_of(program: Path) -> Path:
    """Return the Python that runs the program `vllm`. Raises EngineError (`launch`) where it is no such script."""
    try:
        with program.open("rb") as file:
            head = file.read(4096)
    except OSError as error:
        raise EngineError(f"it cannot be read: {error.strerror}", kind="launch", where=str(program)) from None
    match = _LONG_SHEBANG.search(head) or _SHEBANG.search(head)
    named = Path(os.fsdecode(match[1])) if match else None
    if named is None or "python" not in named.name or not os.access(named, os.X_OK):
        raise EngineError(
            "this is no `vllm` program of a Python environment",
            kind="launch",
            where=str(program),
            fix="Name the file `vllm` in the `bin` folder of the environment that vLLM is installed in.",
        )
    return named


def inventory() -> list[FoundEngine]:
    """Return every vLLM that is found, the program that runs first.

    Importing vLLM takes 10 s and more, so that only the kept result of an earlier probe is used.
    """
    return search().inventory(
        _listed, "for an NVIDIA GPU `benchctl engines install vllm`; for a CPU `benchctl engines install vllm --cpu`"
    )


def _listed(program: FoundBinary, runs: bool) -> FoundEngine:
    where = str(program.path)
    try:
        home = python_of(program.path).parent.parent / "lib"
        able = probe_vllm(program).capabilities if _question(program).known() else None
    except EngineError as error:
        return FoundEngine("vllm", program.found_in, where, runs, problem=error.what, hint=error.fix)
    if able is not None:
        types = able.speculation_types
        return FoundEngine("vllm", program.found_in, where, runs, able.version, speculation_types=types)
    distributions = sorted(folder.name for folder in home.glob("python3*/site-packages/vllm-*.dist-info"))
    version = distributions[-1].removeprefix("vllm-").removesuffix(".dist-info") if distributions else None
    hint = "which types of speculation it supports is probed when it first runs"
    return FoundEngine("vllm", program.found_in, where, runs, version, hint=hint)


_SCRIPT = Path(__file__).with_name("ask_package.py")
_FIX = f"Point engine.binary, --engine-binary or {VARIABLE} at the program `vllm` of a working installation."


def probe_vllm(program: FoundBinary, added: Mapping[str, str] = MappingProxyType({})) -> Probe[Package]:
    """Probe what an installed vLLM can do; `added` is the recipe's `engine.env`. Raises EngineError (`launch`)."""
    return _question(program, added).answered("This vLLM", _FIX, partial(_probe_of, program))


def _question(program: FoundBinary, added: Mapping[str, str] = MappingProxyType({})) -> Question:
    env = engine_environment(os.environ, {**ALWAYS_SET, **added})
    return Question("vllm", program.path, python_of(program.path), _SCRIPT, env, added)


def _probe_of(program: FoundBinary, facts: Mapping[str, Any]) -> Probe[Package]:
    package = Package(**{**facts, "version": facts["distributions"]["vllm"]["version"]})
    capabilities = Capabilities(
        kind="vllm",
        binary=program.path,
        found_in=program.found_in,
        version=f"vLLM {package.version} on {package.platform}",
        build=package.version,
        commit=None,
        speculation_types=named_types(command.METHODS, package.methods),
        request_fields=REQUEST_FIELDS,
        details={
            "platform": package.platform,
            "devices": [] if package.cpu else [f"{package.platform.upper()}: {package.device}"],
            "python": facts["python"],
            "methods": list(package.methods),
            "speculation_keys": list(package.keys),
            "has_synthetic": "synthetic_acceptance_rates" in package.keys,
            "arctic_inference": package.arctic_inference,
            "flags": sorted(package.options or ()),
            **_identity(facts["distributions"]),
        },
    )
    return Probe(capabilities, package)


def _identity(distributions: Mapping[str, Mapping[str, str | None]]) -> dict[str, object]:
    """Return what tells an installation: by lists of its files, since the program `vllm` itself names its Python."""
    records = {name: package["record_sha256"] for name, package in distributions.items() if package["record_sha256"]}
    return {
        "distributions": {name: package["version"] for name, package in distributions.items()},
        "sha256": hashlib.sha256(json.dumps(records, sort_keys=True).encode()).hexdigest(),
        "siblings": records,
    }


PRESSED_BLOCK = 32
"""Tokens of a block under pressure: vLLM's own 128 on a CPU are more than an answer grows by."""
MAX_LOGPROBS = 2000
"""A scorer requests so many: where answers diverge, the arm's token may be far down the list."""


class VllmEngine(LaunchedEngine[VllmSpec]):
    """Runs `vllm serve`; see `benchctl.engines.base.Engine`."""

    model_format = ADAPTER.model_format
    title = "vLLM"

    @cached_property
    def _binary(self) -> FoundBinary:
        return search(self._spec.device).find(self._spec.binary, self._option)

    @cached_property
    def _probe(self) -> Probe[Package]:
        return probe_vllm(self._binary, self._spec.env)

    def check(self, recipe: Recipe, models: ResolvedPair) -> Sequence[str]:
        """Refuse what this vLLM cannot do, all of it at once. Raises UsageError; returns warnings."""
        package = self._probe.facts
        problems = self._recipe_problems(
            recipe.arms,
            command.REFUSED_VARIABLES,
            lambda args: command.argument_problems(args, package.options),
            lambda arm: command.speculation_problems(arm.speculation, package, models) if arm.speculation else (),
        )
        problems += [*self._unfit(models.target), *command.target_problems(package, models.target)]
        self._refuse([*problems, *command.missing_options(package)])
        speculates = any(arm.speculation is not None for arm in recipe.arms)
        warnings = command.hybrid_warnings(package, models.target) if speculates else []
        if self._spec.threads is not None and not package.cpu:
            warnings.append("engine.threads has no effect on vLLM on an accelerator.")
        return warnings

    def _unfit(self, target: ResolvedModel) -> Iterator[str]:
        requested, platform = self._spec.device, self._probe.facts.platform
        if requested not in ("auto", platform):
            yield f"engine.device: this vLLM runs on {platform}, but the recipe requests {requested}."
        if platform == "cpu" and (setting := batch_invariant((), self._spec.env)):
            yield (
                f"engine.env: {setting} needs a GPU. On a CPU vLLM's batch-invariant kernels, which are Triton's, fail "
                "at the first token, and its matrix products are not batch-invariant."
            )
        longest = folder_facts(target.path)["context_length"]
        if isinstance(longest, int) and self._spec.context > longest:
            excess = f"{self._spec.context} is more than the {longest} tokens that the target was made for"
            yield f"engine.context: {excess}."

    def search_space(self, models: ResolvedPair) -> Sequence[Speculation]:
        """Return the settings worth trying; see `benchctl.engines.base.TunableEngine`."""
        return command.worth_trying(self._probe.facts, models)

    def with_schedule(self, setting: Speculation, steps: Sequence[tuple[int, int, int]]) -> Speculation | None:
        """Return the setting by batch size; see `benchctl.engines.base.LoadSchedulingEngine`."""
        return command.with_schedule(setting, steps, self._probe.facts)

    def has_schedule(self, setting: Speculation) -> bool:
        """Whether it has depths by batch size; see `benchctl.engines.base.LoadSchedulingEngine`."""
        return bool((setting.options or {}).get(command.BY_BATCH_SIZE))

    def launch(self, arm: Arm, models: ResolvedPair, *, in_use: bool = False) -> Launch:
        """Return the command line and the whole environment of a cell; `in_use`: with vLLM's own defaults."""
        probe = self._probe
        settings = command.own_settings(cpu=probe.facts.cpu, prefix=probe.facts.prefix, threads=self._spec.threads)
        argv = command.command_line(probe.program, probe.facts, self._spec, arm, models, in_use=in_use)
        env = engine_environment(os.environ, {**settings, **self._spec.env})
        return Launch(argv, env, set_by_us=(*settings, *self._spec.env), overlapping=in_use or arm.overlapping)

    def launch_in_use(self, arm: Arm, models: ResolvedPair) -> Launch:
        """See `benchctl.engines.in_use.EngineInUse`."""
        return self.launch(arm, models, in_use=True)

    unprovoked: Mapping[str, str] = MappingProxyType(
        {
            "completions": "vLLM gives a greedy request one answer only",
            "slot files": "vLLM saves no requests to files",
            "context shift": "vLLM does not shift a context",
            "small cache": "vLLM has no slots, and `preemption` fills its cache",
        }
    )

    def options_under(self, pressure: Pressure, folder: Path, cells: int) -> tuple[str, ...]:
        """Return what makes the cache hold about `cells` tokens: a request that finds no block preempts another one.

        Of the blocks vLLM keeps one for itself, and it refuses a cache that could not hold the longest request.
        """
        del pressure, folder  # there is only one: see `unprovoked`
        blocks = math.ceil(cells / PRESSED_BLOCK)
        small = ("--block-size", PRESSED_BLOCK, "--num-gpu-blocks-override", blocks + 1, "--max-model-len", cells)
        return tuple(map(str, small))

    def start(self, launch: Launch, log_path: Path) -> VllmServer:
        """Start vLLM and wait until it is healthy. Raises EngineError (`launch`, `health`)."""
        model = launch.argv[2]
        if not (Path(model) / "config.json").is_file():  # vLLM would report it as a name on the hub
            raise EngineError(f"There is no model in {model}.", kind="launch", fix="It must hold config.json.")
        access, port = make_access(by_socket="--uds" in (self._probe.facts.options or {})), free_port()
        argv = launch.command(port)
        if access.socket_path is not None:
            argv += ["--uds", str(access.socket_path)]  # host and port are then unused
        # Its processes talk over sockets in a folder, which killed ones leave behind.
        env = {**launch.env, "VLLM_RPC_BASE_PATH": str(access.folder), "VLLM_API_KEY": access.key}
        process, config = EngineProcess(argv, env, log_path, access), command.requested_config(argv)
        server = VllmServer(
            process,
            access.url(port),
            self._spec,
            model=model,
            method=command.requested_method(argv),
            overlapping=launch.overlapping,
            config=config,
        )
        self._healthy(server)
        process.remember_shared_memory()
        return server

    def start_scorer(self, launch: Launch, log_path: Path, sampling: Sampling = GREEDY) -> VllmScorer:
        """Start the target alone for scoring; `sampling` changes nothing: vLLM goes on past the end of an answer."""
        del sampling
        argv = (*launch.argv, "--max-logprobs", str(MAX_LOGPROBS))
        vocabulary = folder_facts(Path(launch.argv[2]))["vocab_size"]
        server = self.start(Launch(argv, launch.env, launch.set_by_us), log_path)
        return VllmScorer(server, argv, vocabulary if isinstance(vocabulary, int) else MAX_LOGPROBS)


class VllmScorer(RequestScorer):
    """A vLLM that scores; see `benchctl.engines.common.score`."""

    def _prefill(self, tokens: Sequence[int], start: int, top: int) -> list[Scores]:
        (choice,) = self._post(tokens, 1, 1, {"prompt_logprobs": top})["choices"]
        likeliest = [
            {id_named(token): logprob_of(figures["logprob"]) for token, figures in position.items()}
            for position in choice["prompt_logprobs"][start:]
        ]
        return [usable_scores(logprobs, len(tokens), min_tokens=2) for logprobs in likeliest]

    def _decode(self, prompt: Sequence[int], tokens: int, top: int) -> list[tuple[int, Scores]]:
        (choice,) = self._post(prompt, tokens, top, {})["choices"]
        likeliest = [
            {id_marked(name): logprob_of(value) for name, value in position.items()}
            for position in choice["logprobs"]["top_logprobs"]
        ]
        scores = [usable_scores(logprobs, len(prompt)) for logprobs in likeliest]
        ids = [id_of(token) for token in choice["token_ids"]]
        return list(zip(ids, scores, strict=True)) if len(ids) == tokens else []

    def _post(self, prompt: Sequence[int], tokens: int, top: int, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        body = scoring_body(prompt, tokens=tokens, top=top) | {"model": self._server.model, **fields}
        return self._server.http.post("/v1/completions", body, timeout_s=self._server.timeout_s)


MOST_LOGPROBS = 20
"""Log-probabilities at a position, unless the server was started with another `--max-logprobs`."""


def _metrics(pages: Pages) -> MetricsReading | None:
    return pages.metrics("vllm", "vllm:generation_tokens_total")


def _recognise(pages: Pages) -> Recognised | None:
    reading = _metrics(pages)
    if reading is None:
        return None
    version = short_line(pages.object("/version").get("version"))
    # vLLM has the counters of speculation exactly where speculation is on.
    speculates = reading.counters.rounds is not None or reading.counters.drafted is not None
    return Recognised(version, speculates, reading, (f"GET /version: vLLM {version}", str(reading)))


def _ledger(server: Recognised, extra: Mapping[str, Any], before: Ledger, after: Ledger) -> Ledger:
    del server
    metrics = extra.get("metrics")
    ledger = step_ledger(metrics) if isinstance(metrics, dict) else Ledger()
    if ledger != Ledger():
        return ledger
    return counted_since(before, after)


def _scorer(target: EndpointTarget) -> VllmScorer:
    return VllmScorer(TokenizingTarget.of(target), (), MOST_LOGPROBS)


FAMILY = ServerFamily(_recognise, _ledger, _metrics, _scorer)
