"""The llama.cpp adapter: probe, check, command, start; where the time of a round goes by its log; llama-perplexity."""

from __future__ import annotations

import errno
import io
import math
import os
import re
import shutil
import signal
import struct
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TypeVar

from benchctl.engines.base import Launch, Pass, PassKind
from benchctl.engines.common.launched_server import LaunchedEngine
from benchctl.engines.common.log import log_tail, read_log
from benchctl.engines.common.process import OWN_SETTINGS, engine_environment, refused_variables
from benchctl.engines.common.programs import FoundBinary, program, sibling_hashes
from benchctl.engines.llama_cpp.adapter import ADAPTER, LlamaCppSpec
from benchctl.engines.llama_cpp.command import (
    argument_problems,
    batch_problems,
    command_line,
    default_threads,
    devices_of,
    with_one_slot,
)
from benchctl.engines.llama_cpp.compile import Build
from benchctl.engines.llama_cpp.installation import PERPLEXITY, QUANTIZE, find_tool, refuse_backends_here, search
from benchctl.engines.llama_cpp.probe import Probe, probe_server
from benchctl.engines.llama_cpp.score import (
    LlamaScorer,
    LogitShift,
    split_batch,
    unsplit,
)
from benchctl.engines.llama_cpp.server import LlamaServer, start_server
from benchctl.engines.llama_cpp.source import PINNED_VERSION, extract_llama_cpp, fetch_sdist
from benchctl.engines.llama_cpp.spec_flags import (
    deepest_draft,
    speculation_problems,
    speculation_warnings,
    worth_trying,
)
from benchctl.engines.quantizing import Divergence, TextTooShortError
from benchctl.errors import EngineError, StorageError
from benchctl.models.files import ResolvedPair, file_sha256
from benchctl.models.gguf_facts import read_facts, rotates_nothing
from benchctl.models.gguf_header import read_header
from benchctl.models.quantize import Program
from benchctl.models.vocabulary import compare, end_tokens
from benchctl.paths import cache_folder
from benchctl.recipes.options import read_flags
from benchctl.recipes.schema import GREEDY, Arm, Recipe, Sampling
from benchctl.recipes.speculation import NEEDS_DRAFT_MODEL, Speculation
from benchctl.text import one_line

_TIMED = re.compile(r"^(\d{1,9})\.(\d\d)\.(\d{3})\.(\d{3}) [A-Z] (.*)$")
_TURN = "start_loop: update slots"
_LEAVE, _BACK = ": yielding to queue", ": done yielding to queue"
_DRAFTED = re.compile(r"generate_draft: .*#draft=(\d{1,6})\b")
_PLAIN = "slot decode token"
_MAY_DRAFT = "max possible draft:"
_EVALUATES = "n_batch (effective)"
_SAVED = "created speculative checkpoint"
_GOES_BACK = "restoring speculative checkpoint"

Line = tuple[float, str]
"""Seconds since the server started, and the message."""


def read_passes(log: str) -> list[Pass]:
    """Return what the passes in a log took, alike ones together; those that read a prompt are left out.

    At the most verbose level (`-lv 5`; commit 0c1e570) a turn of the server's loop leaves these lines, among others:

        start_loop: update slots
        max possible draft: 4            it may draft
        yielding to queue … done         the draft model drafts (an n-gram drafter looks up)
        created speculative checkpoint   where the target's state cannot be rolled back
        generate_draft: … #draft=4       what is verified; without a draft: slot decode token
        decode: n_batch (effective) = …
        yielding to queue … done         the target's pass
        yielding to queue … done         the draft model reads what the target read
        restoring speculative checkpoint after a partial rejection; the next turn evaluates the accepted tokens again
    """
    found: defaultdict[tuple[PassKind, int], list[float]] = defaultdict(list)
    again = False
    for turn in _turns(log):
        for kind, width, took in _passes(turn, again=again):
            found[kind, width].append(took)
        again = any(_GOES_BACK in message for _, message in turn)
    return [Pass(*key, len(times), sum(times), median(times)) for key, times in sorted(found.items())]


def _turns(log: str) -> Iterator[list[Line]]:
    turn: list[Line] = []
    for line in log.splitlines():
        found = _TIMED.match(line)
        if found is None:
            continue
        minutes, whole, thousandths, millionths = map(int, found.groups()[:4])
        entry = (60 * minutes + whole + thousandths / 1e3 + millionths / 1e6, found[5])
        if _TURN in entry[1]:
            yield turn
            turn = []
        turn.append(entry)
    yield turn


def _passes(turn: Sequence[Line], *, again: bool) -> Iterator[tuple[PassKind, int, float]]:
    """Yield what a turn did; `again`: the turn before went back to a checkpoint."""
    messages = [message for _, message in turn]
    drafted = next((int(found[1]) for message in messages if (found := _DRAFTED.search(message))), 0)
    if not drafted and not any(_PLAIN in message for message in messages):
        return  # it read a prompt, or nothing
    begins = next((place for place, message in enumerate(messages) if _EVALUATES in message), None)
    if begins is None:
        return
    before, after = turn[:begins], turn[begins:]
    width = drafted + 1
    away = list(_away(before))
    if away:
        yield "draft", drafted, away[0][1] - away[0][0]
    saved = next((time for time, message in before if _SAVED in message), None)
    if saved is not None and away:
        may = next((time for time, message in before if _MAY_DRAFT in message), away[0][0])
        yield "checkpoint", 1, saved - away[0][1] + (away[0][0] - may)
    target: PassKind = "re-evaluate" if again else "verify" if drafted else "plain"
    kinds: tuple[PassKind, ...] = (target, "draft-read")
    for kind, (left, back) in zip(kinds, _away(after), strict=False):
        yield kind, width, back - left
    for (began, message), (ended, _) in pairwise(after):
        if _GOES_BACK in message:
            yield "restore", 1, ended - began


def _away(lines: Sequence[Line]) -> Iterator[tuple[float, float]]:
    """Yield when the loop left for a computation, and when it was back."""
    left: float | None = None
    for time, message in lines:
        if message.endswith(_LEAVE):
            left = time
        elif message.endswith(_BACK) and left is not None:
            yield left, time
            left = None


_NUMBER = r"\s*:\s*(-?[\d.]+|-?nan|-?inf)"
_ERROR = r"\s*±\s*(-?[\d.]+|-?nan|-?inf)"
_LINES = {
    "divergence": rf"Mean\s+KLD{_NUMBER}{_ERROR}",
    "worst": rf"99\.9%\s+KLD{_NUMBER}()",
    "same_top": rf"Same top p{_NUMBER}{_ERROR}",
    "perplexity": rf"Mean PPL\(Q\)\s*{_NUMBER}{_ERROR}",
}
_TOO_SHORT = re.compile(r"tokenizes to only (\d+) tokens")
_HEAD = struct.Struct("<8sIii")
Result = TypeVar("Result")


_ATTEMPTS = 8
"""llama.cpp's logger may be cut off when a program ends, and the last lines, which are the result, are lost then
(llama.cpp issue 22142): of a small model on a busy machine, one time in five. The same call gives the same numbers."""


@dataclass(frozen=True)
class Perplexity:
    """llama-perplexity, and what every call of it is given; see `benchctl.engines.quantizing.DivergenceMeter`.

    It reads a text in pieces of `context` tokens and scores the second half of each, so that every scored token has
    some text before it. First the reference's distributions over the whole vocabulary are written to a file, with the
    tokens; then another model is compared with that file (`tools/perplexity/perplexity.cpp`, `--kl-divergence`).
    """

    program: Program
    threads: int
    device: str
    """As in a recipe."""

    def write_reference(self, model: Path, text: Path, target: Path, log: Path, *, context: int, pieces: int) -> int:
        """Write the distributions of `model` over the first `pieces` pieces of `text`; return how many positions were
        scored.

        Raises TextTooShortError, EngineError (`crash`, `protocol`), and OSError when the file came out short: the
        program itself does not notice a full disk.
        """
        options = ["-f", str(text), "-c", str(context), "-b", str(context), "--chunks", str(pieces)]

        def read(output: str) -> int | None:
            if found := _TOO_SHORT.search(output):
                raise TextTooShortError(int(found[1]))
            return _scored(target)

        return self._result(model, [*options, "--kl-divergence-base", str(target)], log, read)

    def compare(self, model: Path, reference: Path, log: Path, *, context: int) -> Divergence:
        """Compare `model` with a file of `write_reference`. Raises EngineError (`crash`, `protocol`)."""
        options = ["-c", str(context), "-b", str(context), "--kl-divergence", "--kl-divergence-base", str(reference)]
        return self._result(model, options, log, read_divergence)

    def _result(self, model: Path, options: Sequence[str], log: Path, read: Callable[[str], Result | None]) -> Result:
        for _ in range(_ATTEMPTS):
            if (found := read(self._run(model, options, log))) is not None:
                return found
        raise EngineError(
            "llama-perplexity gave no result, although it exited with status 0",
            kind="protocol",
            fix="Its last lines may show why; or use the build of `benchctl engines install llama.cpp`.",
            log_tail=log_tail(log),
        )

    def _run(self, model: Path, options: Sequence[str], log: Path) -> str:
        device = {"auto": [], "cpu": ["-ngl", "0", "--device", "none"]}.get(self.device, ["-ngl", "999"])
        arguments = ["-m", str(model), "-t", str(self.threads), *device, *options]
        status = self.program.run([*self.program.command, *arguments], log, None)
        if status == -signal.SIGXFSZ:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        if status != 0:
            raise EngineError(
                f"llama-perplexity {f'ended by signal {-status}' if status < 0 else f'failed with status {status}'}",
                kind="crash",
                where=str(model),
                fix="Its last lines show why; too little memory is the usual cause.",
                log_tail=log_tail(log),
            )
        return "\n".join(read_log(log))


def read_divergence(output: str) -> Divergence | None:
    """Read the table at the end of the program's output; `None` when it is not all there."""
    found: dict[str, float | None] = {}
    for name, pattern in _LINES.items():
        line = re.search(pattern, output)
        if line is None:
            return None
        for field, text in ((name, line[1]), (f"{name}_error", line[2])):
            value = float(text or "nan") / (100 if name == "same_top" else 1)
            found[field] = value if math.isfinite(value) else None
    del found["worst_error"]
    return Divergence(**found)


def reference_bytes(vocabulary: int, context: int, pieces: int) -> int:
    """Return the size of a file of `write_reference`."""
    row = 2 * ((vocabulary + 1) // 2) + 4
    return _HEAD.size + pieces * (4 * context + 2 * row * _scored_of(context))


def _scored_of(context: int) -> int:
    return context - 1 - context // 2


def _scored(file: Path) -> int | None:
    """Return how many positions a file holds, `None` when it holds none. Raises OSError when it is not whole."""
    with file.open("rb") if file.is_file() else io.BytesIO() as stream:
        head = stream.read(_HEAD.size)
    if len(head) < _HEAD.size or head[:8] != b"_logits_":
        return None
    _, context, vocabulary, pieces = _HEAD.unpack(head)
    if file.stat().st_size != reference_bytes(vocabulary, context, pieces):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return int(pieces * _scored_of(context))


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


class LlamaCppEngine(LaunchedEngine[LlamaCppSpec]):
    """Runs llama.cpp's llama-server; see `benchctl.engines.base.Engine`."""

    model_format = ADAPTER.model_format
    title = "llama.cpp"

    @cached_property
    def _found(self) -> FoundBinary:
        found = search(self._spec.device).find(self._spec.binary, self._option)
        refuse_backends_here(found)
        return replace(found, hashes={"sha256": file_sha256(found.path), "siblings": sibling_hashes(found.path)})

    @cached_property
    def _probe(self) -> Probe:
        found = self._found
        probe = probe_server(found.path, found.found_in, self._spec.env)
        build = Build.read(found.path.parent.parent) if found.found_in == "bundled" else None
        if build is None:
            return probe
        details = {**probe.capabilities.details, "left_out": list(build.left_out)}
        return replace(probe, capabilities=replace(probe.capabilities, details=details))

    def check(self, recipe: Recipe, models: ResolvedPair) -> Sequence[str]:
        """Refuse what the binary cannot do, all of it at once. Raises UsageError; returns warnings."""
        flags = self._probe.flags
        problems = [f"engine.env: {text}" for text in refused_variables(self._spec.env)]
        problems += [f"engine.args: {text}" for text in argument_problems(self._spec.args, flags)]
        problems += [*self._device_problems(), *_vocabulary_problems(recipe, models)]
        warnings = []
        if self._spec.device == "rpc":
            warnings.append("What the RPC servers are, and the memory that they take, is not known to benchctl.")
        drafts = () if models.draft is None else (models.draft.path,)
        warnings += [
            f"{one_line(path.name)} has no attention heads in layer 0, from which llama.cpp takes the rotary "
            "dimensions: on a CPU its first evaluation may never end, elsewhere positions may be lost. A folder of "
            "safetensors or hf:ORG/REPO is converted without this fault."
            for path in (models.target.path, *drafts)
            if rotates_nothing(read_header(path))
        ]
        for arm in recipe.arms:
            problems += [f"arm {arm.name}: {text}" for text in self._problems_of(arm, models)]
            warnings += [f"Arm {arm.name}: {text}" for text in speculation_warnings(arm.speculation, flags)]
        self._refuse(problems)
        return warnings

    def _problems_of(self, arm: Arm, models: ResolvedPair) -> Iterator[str]:
        flags, speculation = self._probe.flags, arm.speculation
        yield from argument_problems(arm.args, flags)
        if speculation is not None:
            yield from speculation_problems(speculation, flags)
            lacking = [name for name in speculation.types if name in NEEDS_DRAFT_MODEL and models.draft is None]
            yield from (f"{name} needs a draft model; name one in models.draft." for name in lacking)
        if flags.dialect == "ik" and arm.overlapping:
            yield "ik_llama.cpp is measured with one request at a time; leave concurrency and rate out."
        deepest = deepest_draft(speculation, flags) if speculation else 0
        yield from batch_problems([*self._spec.args, *arm.args], arm.concurrency, deepest, flags)

    def search_space(self, models: ResolvedPair) -> Sequence[Speculation]:
        """Return the settings worth trying; see `benchctl.engines.base.TunableEngine`."""
        draft = None if models.draft is None else read_header(models.draft.path).text("general.architecture") or ""
        return worth_trying(draft, read_facts(models.target.path).mtp_layers, self._probe.flags)

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
        argv = command_line(probe.binary, probe.flags, self._spec, arm, models, self._devices or ())
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

    def start_scorer(self, launch: Launch, log_path: Path, sampling: Sampling = GREEDY) -> LlamaScorer:
        """Start the target alone for scoring. Raises EngineError (`launch`, `health`)."""
        return self._scorer(launch, unsplit(with_one_slot(launch.argv), self._probe.flags), log_path, sampling)

    def start_slot_scorer(self, launch: Launch, log_path: Path, sampling: Sampling = GREEDY) -> LlamaScorer:
        """Start the target alone with the slots of `launch`. Raises EngineError (`launch`, `health`)."""
        return self._scorer(launch, unsplit(launch.argv, self._probe.flags), log_path, sampling)

    def _scorer(self, launch: Launch, argv: tuple[str, ...], log_path: Path, sampling: Sampling) -> LlamaScorer:
        server, splits = self.start(replace(launch, argv=argv), log_path), split_batch(launch.argv, self._probe.flags)
        left_out = end_tokens(read_header(Path(server.model))) if sampling.ignore_eos else frozenset()
        return LlamaScorer(server, argv, splits=splits, left_out=left_out, shift=LogitShift(sampling))

    def traced(self, launch: Launch) -> Launch | None:
        """Return the launch with a log that times every pass; `None` where this llama-server has no such level."""
        verbosity = self._probe.flags.get("-lv")
        if verbosity is None or "5: debug" not in verbosity.description:
            return None
        return replace(launch, argv=(*launch.argv, "-lv", "5"))

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
            tree, kept = Path(temporary) / "source", Path(temporary) / "kept"
            extract_llama_cpp(sdist, tree)
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
