"""The llama.cpp adapter: probe, check, command, start."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType

from benchctl.engines.base import EngineFault, Launch, Pass
from benchctl.engines.common.launched_server import LaunchedEngine, Probe
from benchctl.engines.common.process import OWN_SETTINGS, engine_environment
from benchctl.engines.common.programs import FoundBinary, program, sibling_hashes
from benchctl.engines.in_use import Pressure
from benchctl.engines.llama_cpp.adapter import ADAPTER, LlamaCppSpec
from benchctl.engines.llama_cpp.build import Build
from benchctl.engines.llama_cpp.command import (
    argument_problems,
    batch_problems,
    command_line,
    default_threads,
    devices_of,
    with_one_slot,
)
from benchctl.engines.llama_cpp.companion import build_companion, companion_beside, no_companion
from benchctl.engines.llama_cpp.faults import Fault, faults_of_arm
from benchctl.engines.llama_cpp.installation import PERPLEXITY, QUANTIZE, find_tool, refuse_backends_here, search
from benchctl.engines.llama_cpp.pair import pair_problems
from benchctl.engines.llama_cpp.perplexity import Perplexity
from benchctl.engines.llama_cpp.probe import Flags, probe_server
from benchctl.engines.llama_cpp.replay import LlamaReplayer, start_replayer, target_launch, unreplayable
from benchctl.engines.llama_cpp.score import (
    LlamaScorer,
    LogitShift,
    split_batch,
    unsplit,
)
from benchctl.engines.llama_cpp.server import LlamaServer
from benchctl.engines.llama_cpp.source import CONVERTER, converter_script
from benchctl.engines.llama_cpp.spec_flags import (
    deepest_draft,
    speculation_problems,
    speculation_warnings,
    worth_trying,
)
from benchctl.engines.llama_cpp.start import start_server
from benchctl.engines.llama_cpp.trace import read_passes
from benchctl.errors import UsageError
from benchctl.models.files import ResolvedPair, file_sha256
from benchctl.models.gguf_facts import read_facts, rotates_nothing
from benchctl.models.gguf_header import read_header
from benchctl.models.vocabulary import end_tokens
from benchctl.recipes.options import read_flags
from benchctl.recipes.schema import GREEDY, Arm, Recipe, Sampling
from benchctl.recipes.speculation import NEEDS_DRAFT_MODEL, Speculation
from benchctl.text import one_line


class LlamaCppEngine(LaunchedEngine[LlamaCppSpec]):
    """Runs llama.cpp's llama-server; see `benchctl.engines.base.Engine`."""

    model_format = ADAPTER.model_format
    title = "llama.cpp"

    @cached_property
    def _binary(self) -> FoundBinary:
        binary = search(self._spec.device).find(self._spec.binary, self._option)
        refuse_backends_here(binary)
        return replace(binary, hashes={"sha256": file_sha256(binary.path), "siblings": sibling_hashes(binary.path)})

    @cached_property
    def _probe(self) -> Probe[Flags]:
        binary = self._binary
        probe = probe_server(binary.path, binary.found_in, self._spec.env)
        build = Build.read(binary.path.parent.parent) if binary.found_in == "bundled" else None
        details = {**probe.capabilities.details, "prompt_cache": self._spec.prefix_caching}
        if build is not None:
            details["left_out"] = list(build.left_out)
        return replace(probe, capabilities=replace(probe.capabilities, details=details))

    def check(self, recipe: Recipe, models: ResolvedPair) -> Sequence[str]:
        """Refuse what the binary cannot do, all of it at once. Raises UsageError; returns warnings."""
        flags, warnings = self._probe.facts, []
        problems = self._recipe_problems(
            recipe.arms, {}, lambda args: argument_problems(args, flags), lambda arm: self._problems_of(arm, models)
        )
        draft = None if models.draft is None else models.draft.path
        problems += [*self._device_problems(), *pair_problems(recipe, models.target.path, draft)]
        if self._spec.device == "rpc":
            warnings.append("What the RPC servers are, and the memory that they take, is not known to benchctl.")
        warnings += [
            f"{one_line(path.name)} has no attention heads in layer 0, from which llama.cpp takes the rotary "
            "dimensions: on a CPU its first evaluation may never end, elsewhere positions may be lost. A folder of "
            "safetensors or hf:ORG/REPO is converted without this fault."
            for path in filter(None, (models.target.path, draft))
            if rotates_nothing(read_header(path))
        ]
        for arm in recipe.arms:
            warnings += [f"Arm {arm.name}: {text}" for text in speculation_warnings(arm.speculation, flags)]
        self._refuse(problems)
        return warnings

    def faults(self, recipe: Recipe, models: ResolvedPair, *, in_use: bool = False) -> list[EngineFault]:
        """Return the faults of this build that arms ask for; see `benchctl.engines.base.FaultyEngine`."""
        able, arms = self._probe.capabilities, dict[Fault, list[str]]()
        for arm in recipe.arms:
            for fault in faults_of_arm(arm, self._spec, models, able, self._probe.facts, in_use=in_use):
                arms.setdefault(fault, []).append(arm.name)
        return [EngineFault(fault.sentence(able.commit), tuple(names), fault.lacks) for fault, names in arms.items()]

    def _problems_of(self, arm: Arm, models: ResolvedPair) -> Iterator[str]:
        flags, speculation = self._probe.facts, arm.speculation
        if speculation is not None:
            yield from speculation_problems(speculation, flags)
            without_draft = [name for name in speculation.types if name in NEEDS_DRAFT_MODEL and models.draft is None]
            yield from (f"{name} needs a draft model; name one in models.draft." for name in without_draft)
        if flags.dialect == "ik" and arm.overlapping:
            yield "ik_llama.cpp is measured with one request at a time; leave concurrency and rate out."
        deepest = deepest_draft(speculation, flags) if speculation else 0
        yield from batch_problems([*self._spec.args, *arm.args], arm.concurrency, deepest, flags)

    def search_space(self, models: ResolvedPair) -> Sequence[Speculation]:
        """Return the settings worth trying; see `benchctl.engines.base.TunableEngine`."""
        draft = None if models.draft is None else read_header(models.draft.path).text("general.architecture") or ""
        return worth_trying(draft, read_facts(models.target.path).mtp_layers, self._probe.facts)

    def _device_problems(self) -> list[str]:
        device, listed = self._spec.device, self._devices
        if device == "rpc":  # its servers are asked by the engine alone
            named = any(name == "rpc" for name, _ in read_flags(self._spec.args))
            return [] if named else ["engine.device: rpc needs its servers: --rpc HOST:PORT,… in engine.args."]
        if device in ("auto", "cpu") or listed is None or devices_of(device, listed):
            return []
        available = ", ".join(listed) or "no accelerator"
        return [f"engine.device: this llama-server finds {available}, but the recipe requests {device}."]

    @property
    def _devices(self) -> list[str] | None:
        """The accelerators that the binary lists; `None` where it lists none at all."""
        listed = self._probe.capabilities.details["devices"]
        return list(map(str, listed)) if isinstance(listed, list) else None

    def launch(self, arm: Arm, models: ResolvedPair) -> Launch:
        """Return the command line and the whole environment of a cell."""
        probe = self._probe
        argv = command_line(probe.program, probe.facts, self._spec, arm, models, self._devices or ())
        # Adds a line for every round to the log. Where answers overlap it is not known whose round it is.
        added = ({} if arm.overlapping else {"LLAMA_TRACE": "1"}) | self._spec.env
        env = engine_environment(os.environ, added)
        return Launch(argv, env, set_by_us=(*OWN_SETTINGS, *added), overlapping=arm.overlapping)

    unprovoked: Mapping[str, str] = MappingProxyType(
        {"preemption": "llama-server preempts no request: one that finds no room fails, as in `small cache`"}
    )

    def launch_in_use(self, arm: Arm, models: ResolvedPair) -> Launch:
        """Return the command with llama-server's own defaults. Raises UsageError for ik_llama.cpp."""
        probe = self._probe
        if probe.facts.dialect == "ik":
            message = "ik_llama.cpp is measured with one request at a time, so it cannot be stressed."
            raise UsageError(message, where=str(probe.program))
        argv = command_line(probe.program, probe.facts, self._spec, arm, models, self._devices or (), in_use=True)
        env = engine_environment(os.environ, self._spec.env)
        return Launch(argv, env, set_by_us=(*OWN_SETTINGS, *self._spec.env), overlapping=True)

    def options_under(self, pressure: Pressure, folder: Path, cells: int) -> tuple[str, ...]:
        """Return llama-server's arguments: what is given last holds. Raises UsageError where it has no such one."""
        options: dict[Pressure, tuple[str, ...]] = {
            "slot files": ("--slot-save-path", f"{folder}{os.sep}"),
            "context shift": ("--context-shift", "-np", "1", "-c", str(cells)),
            "small cache": ("--kv-unified", "-np", "4", "-c", str(cells), *self._keeping_idle_slots),
        }
        name, *_ = chosen = options[pressure]  # `preemption` is among the `unprovoked`
        if name not in self._probe.facts:
            raise UsageError(f"This llama-server has no {name}.", where=str(self._probe.program))
        return chosen

    @property
    def _keeping_idle_slots(self) -> tuple[str, ...]:
        """What has idle slots cleared when their cells are needed, not with every new request."""
        name = "--no-cache-idle-slots"
        return (name,) if name in self._probe.facts else ()

    def tool(self, name: str) -> Path:
        """Return the program `name` of the same build, such as `llama-quantize`. Raises EngineError (`launch`)."""
        if name == CONVERTER:
            return converter_script()
        return find_tool(name, self._probe.program)

    def quantizer(self) -> Path:
        """Return llama-quantize of the same build, else any. Raises EngineError (`launch`)."""
        return self.tool(QUANTIZE)

    def divergence_meter(self) -> Perplexity:
        """Return llama-perplexity of the same build. Raises EngineError (`launch`)."""
        return Perplexity(program(self.tool(PERPLEXITY)), self._spec.threads or default_threads(), self._spec.device)

    def start(self, launch: Launch, log_path: Path) -> LlamaServer:
        """Start llama-server and wait until it is healthy. Raises EngineError (`launch`, `health`)."""
        return start_server(launch, log_path, self._spec, self._probe.facts)

    def start_scorer(self, launch: Launch, log_path: Path, sampling: Sampling = GREEDY) -> LlamaScorer:
        """Start the target alone for scoring. Raises EngineError (`launch`, `health`)."""
        return self._scorer(launch, unsplit(with_one_slot(launch.argv), self._probe.facts), log_path, sampling)

    def start_slot_scorer(self, launch: Launch, log_path: Path, sampling: Sampling = GREEDY) -> LlamaScorer:
        """Start the target alone with the slots of `launch`. Raises EngineError (`launch`, `health`)."""
        return self._scorer(launch, unsplit(launch.argv, self._probe.facts), log_path, sampling)

    def _scorer(self, launch: Launch, argv: tuple[str, ...], log_path: Path, sampling: Sampling) -> LlamaScorer:
        if "--cache-ram" in self._probe.facts:
            argv = (*argv, "--cache-ram", "0")  # what is read again is read from the slot, or not kept
        server, splits = self.start(replace(launch, argv=argv), log_path), split_batch(launch.argv, self._probe.facts)
        left_out = end_tokens(read_header(Path(server.model))) if sampling.ignore_eos else frozenset()
        return LlamaScorer(server, argv, splits=splits, left_out=left_out, shift=LogitShift(sampling))

    def no_replay(self, launch: Launch) -> str | None:
        """Return why the answers of `launch` cannot be replayed; see `benchctl.engines.scoring.ReplayingEngine`."""
        reason = unreplayable(launch, self._probe.facts, self._devices or ())
        return reason or no_companion(self._probe.program, self._probe.capabilities.commit)

    def replay_launch(self, launch: Launch) -> Launch:
        """Return the launch of the target that reads the answers of `launch` again."""
        return target_launch(launch, self._probe.facts)

    def start_replayer(self, launch: Launch, log_path: Path, sampling: Sampling = GREEDY) -> LlamaReplayer:
        """Start llama-replay, built for the server's libraries where it is not there yet. Raises EngineError."""
        server = self._probe.program
        program = companion_beside(server) or build_companion(server)
        return start_replayer(program, launch, log_path, self._spec, sampling, self._probe.capabilities.commit)

    def traced(self, launch: Launch) -> Launch | None:
        """Return the launch with a log that times every pass; `None` where this llama-server has no such level."""
        verbosity = self._probe.facts.get("-lv")
        if verbosity is None or "5: debug" not in verbosity.description:
            return None
        return replace(launch, argv=(*launch.argv, "-lv", "5"))

    def read_trace(self, log: str) -> list[Pass]:
        """Return what the passes in a log took."""
        return read_passes(log)
