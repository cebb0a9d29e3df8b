"""The SGLang adapter: find, probe, check, command, start.

The `binary` of SGLang is the Python that it is installed in: the option `--engine-binary`, the recipe's
`engine.binary`, `$BENCHCTL_SGLANG`, else the Python that runs benchctl.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from types import MappingProxyType

from benchctl.engines.base import Capabilities, Launch
from benchctl.engines.common.launched_server import LaunchedEngine, PackageProbe
from benchctl.engines.common.log import make_private
from benchctl.engines.common.process import EngineProcess, free_port, make_access
from benchctl.engines.common.programs import FoundBinary, named_python
from benchctl.engines.common.python_environment import Question
from benchctl.engines.registry import FoundEngine
from benchctl.engines.sglang.adapter import ADAPTER, SglangSpec
from benchctl.engines.sglang.command import (
    DEVICES,
    Option,
    Package,
    argument_problems,
    command_line,
    environment_problems,
    own_settings,
    sglang_environment,
    simulated_acceptance,
    speculation_problems,
    speculation_warnings,
    types_of,
    worth_trying,
)
from benchctl.engines.sglang.score import SglangScorer
from benchctl.engines.sglang.server import SglangServer
from benchctl.errors import BenchctlError, EngineError
from benchctl.models.resolved import ResolvedPair
from benchctl.recipes.schema import GREEDY, Arm, Recipe, Sampling
from benchctl.recipes.speculation import Speculation

_CONFIG = "--config"


class SglangEngine(LaunchedEngine[SglangSpec]):
    """Runs `python -m sglang.launch_server`; see `benchctl.engines.base.Engine`."""

    model_format = ADAPTER.model_format
    title = "SGLang"
    poll_s = 0.25

    @cached_property
    def _found(self) -> FoundBinary:
        return find_python(self._spec.binary, self._option)

    @cached_property
    def _probe(self) -> PackageProbe[Package]:
        return probe_sglang(self._found.path, self._found.found_in, self._spec.env)

    def check(self, recipe: Recipe, models: ResolvedPair) -> Sequence[str]:
        """Refuse what this SGLang cannot do, all of it at once. Raises UsageError; returns warnings."""
        package = self._probe.package
        problems = [f"engine.env: {text}" for text in environment_problems(self._spec.env)]
        problems += [f"engine.args: {text}" for text in argument_problems(self._spec.args, package.options)]
        if self._spec.device not in ("auto", *DEVICES):
            problems.append(f"engine.device: SGLang is started on {', '.join(DEVICES)}, not on {self._spec.device}.")
        warnings = []
        for arm in recipe.arms:
            here = argument_problems(arm.args, package.options)
            if arm.speculation is not None:
                here += speculation_problems(arm.speculation, package, models)
                warnings += [f"Arm {arm.name}: {text}" for text in speculation_warnings(arm.speculation)]
            problems += [f"arm {arm.name}: {text}" for text in here]
        self._refuse(problems)
        if self._spec.threads is not None:
            warnings.append("engine.threads has no effect on SGLang.")
        if _CONFIG not in package.options:
            warnings.append("This SGLang takes no settings from a file, so it listens on loopback without a key.")
        return warnings

    def search_space(self, models: ResolvedPair) -> Sequence[Speculation]:
        """Return the settings worth trying; see `benchctl.engines.base.TunableEngine`."""
        return worth_trying(self._probe.package, models)

    def launch(self, arm: Arm, models: ResolvedPair) -> Launch:
        """Return the command line and the whole environment of one cell."""
        probe, cpu = self._probe, self._spec.device == "cpu"
        argv = command_line(probe.program, probe.package, self._spec, arm, models)
        added = {**self._spec.env, **simulated_acceptance(arm.speculation)}
        env = sglang_environment(os.environ, added, cpu=cpu)
        names = (*own_settings(cpu=cpu), *added)
        return Launch(argv, env, set_by_us=names, overlapping=arm.overlapping)

    def start(self, launch: Launch, log_path: Path) -> SglangServer:
        """Start SGLang and wait until it is healthy. Raises EngineError (`launch`, `health`)."""
        access, port = make_access(by_socket=False), free_port()
        argv = [str(port) if argument == "{port}" else argument for argument in launch.argv]
        if _CONFIG in self._probe.package.options:  # the option --api-key could be read in the list of processes
            settings = access.folder / "settings.yaml"
            settings.write_text(json.dumps({"api-key": access.key}))
            argv += [_CONFIG, str(settings)]
        make_private(log_path)  # SGLang logs all of its settings
        process = EngineProcess(argv, launch.env, log_path, scratch=access.folder)
        server = SglangServer(process, log_path, access, port, self._spec, _options(argv))
        try:
            return self._healthy(server)  # passive here (see `OWN_SETTINGS`)
        except EngineError as error:
            error.log_tail = server.log_tail()  # without the key now
            raise

    def start_scorer(self, launch: Launch, log_path: Path, sampling: Sampling = GREEDY) -> SglangScorer:
        """Start the target alone for scoring; see `benchctl.engines.base.ScoringEngine`.

        `sampling` changes nothing: SGLang goes on past the end of an answer without leaving its token out.
        """
        del sampling
        server = self.start(launch, log_path)
        spec = self._spec
        return SglangScorer(server, launch.argv, context=spec.context, timeout_s=spec.request_timeout_s)


def _options(argv: Sequence[str]) -> dict[str, str]:
    """Return the options of a command line by name without dashes; one without a value is empty."""
    found = {}
    for place, argument in enumerate(argv):
        if argument.startswith("--"):
            name, equals, value = argument[2:].partition("=")
            after = argv[place + 1] if place + 1 < len(argv) else ""
            found[name.replace("-", "_")] = value if equals else "" if after.startswith("--") else after
    return found


VARIABLE = "BENCHCTL_SGLANG"
_SCRIPT = Path(__file__).with_name("ask_package.py")
_FIX = f"Name the Python that SGLang is installed in: engine.binary, --engine-binary, or {VARIABLE}."


def find_python(recipe: str | None, option: str | None) -> FoundBinary:
    """Return the Python to run. Raises EngineError (`launch`) when there is none."""
    if named := named_python(recipe, option, VARIABLE, _FIX):
        return named
    if importlib.util.find_spec("sglang") is None:
        raise EngineError("no SGLang was found", kind="launch", where="sglang", fix=_FIX)
    return FoundBinary(Path(sys.executable), "Python package")


def probe_sglang(python: Path, found_in: str, added: Mapping[str, str] = MappingProxyType({})) -> PackageProbe[Package]:
    """Probe what an installed SGLang can do; `added` is the recipe's `engine.env`. Raises EngineError (`launch`)."""
    question = Question("sglang", python, python, _SCRIPT, sglang_environment(os.environ, added, cpu=False), added)
    facts = question.known() or question.ask(lambda what, tail: _no_sglang(python, what, tail))
    try:
        package = Package(
            version=str(facts["version"]),
            algorithms=tuple(facts["algorithms"]),
            options={
                name: Option(option["takes"] == 0, _choices(option["choices"]))
                for name, option in facts["options"].items()
            },
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise _no_sglang(python, f"it does not report {error}", ()) from None
    question.keep(facts)
    capabilities = Capabilities(
        kind="sglang",
        binary=python,
        found_in=found_in,
        version=f"SGLang {package.version}",
        build=package.version,
        commit=None,
        speculation_types=types_of(package.algorithms),
        option_names=tuple(map(tuple, facts.get("names") or ([name] for name in package.options))),
        details={
            "python": facts.get("python"),
            "algorithms": list(package.algorithms),
            "flags": sorted(package.options),
            # Of the list of files that were installed, which holds every file's hash.
            "sha256": facts.get("record_sha256"),
        },
    )
    return PackageProbe(capabilities, package)


def _choices(value: object) -> tuple[str, ...] | None:
    return tuple(map(str, value)) if isinstance(value, list) else None


def _no_sglang(python: Path, what: str, tail: tuple[str, ...]) -> EngineError:
    return EngineError(f"This SGLang cannot be used: {what}", kind="launch", where=str(python), fix=_FIX, log_tail=tail)


def inventory() -> list[FoundEngine]:
    """Return where SGLang is; importing it takes 10 s and more, so it is not probed."""
    named = os.environ.get(VARIABLE)
    try:
        found = find_python(None, None)
    except BenchctlError as error:
        if named:
            return [FoundEngine("sglang", "environment", named, problem=error.what, hint=error.fix)]
        return [FoundEngine("sglang", hint=f"install it and name its Python: {VARIABLE}; see `benchctl docs engines`")]
    version = None
    if not named:
        with suppress(importlib.metadata.PackageNotFoundError):
            version = importlib.metadata.version("sglang")
    return [FoundEngine("sglang", found.found_in, str(found.path), runs=True, version=version)]
