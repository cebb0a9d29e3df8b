"""Measures the configurations that a search requests, and stores each measurement before the next.

Every model reads the same text: the recipe's prompts, each with the unquantized model's answer. So the text suits any
model, whatever it was trained on.
"""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from rich.text import Text

from benchctl.data.digests import canonical_sha256
from benchctl.data.identity import model_identity
from benchctl.data.manifest import PreflightRecord
from benchctl.data.writer import LOGS, folder_lock
from benchctl.engines.quantizing import Divergence, TextTooShortError
from benchctl.engines.scoring import ScoringEngine
from benchctl.errors import EngineError, StorageError, UsageError
from benchctl.experiments.isolate.search import Measure
from benchctl.experiments.isolate.source import SourceModel
from benchctl.experiments.isolate.stored import (
    TEXT,
    Isolation,
    Kept,
    Measurement,
    TextRead,
    read_isolation,
    write_isolation,
)
from benchctl.measurement.cell import running, scoring
from benchctl.measurement.preflight import launch_of
from benchctl.measurement.probes import SUITE, answers, check_answers, check_reading, expected, probe_items
from benchctl.measurement.progress import Display
from benchctl.models.files import file_sha256, made_once
from benchctl.models.gguf_facts import all_shards
from benchctl.models.quantize import quantize_to
from benchctl.paths import cache_folder, shipped_folder
from benchctl.recipes.schema import Sampling
from benchctl.text import one_line
from benchctl.writing import write_whole

Found = TypeVar("Found")
TOKENS = 4096
"""Length of the text; half of it is scored."""
CONTEXT = 512
"""Tokens of a piece, as llama-perplexity has it, and as the published figures of quantizations were measured."""
SHORTER = (256, 128, 64)
"""Pieces of a text that is too short for two of the usual length."""
PLACES = 100
"""llama-perplexity prints no figures for fewer scored tokens."""
ANSWER = 256
"""Longest answer in tokens."""
SPARE = 1.5
"""So many times the requested tokens are generated: the chat template's are counted, but are not in the text."""


def isolate(
    source: SourceModel,
    search: Callable[[Measure], Found],
    out: Path,
    display: Display,
    *,
    text: Path | None = None,
    tokens: int = TOKENS,
) -> tuple[Path, Isolation, Found]:
    """Measure what a search asks for; return the folder, all measurements and what the search returns.

    `text`: the user's own. What an earlier call with the same inputs has measured is not measured again. Raises
    KeyboardInterrupt, after which the next call continues; EngineError, StorageError, UsageError.
    """
    inputs = _inputs(source, text, tokens)
    key = canonical_sha256(inputs)
    folder = out / source.prepared.recipe.name / f"isolate-{source.spec.type.lower()}-{key[:12]}"
    with folder_lock(folder, "measuring here"):
        isolation = read_isolation(folder) or Isolation(
            recipe_name=source.prepared.recipe.name,
            key=key,
            asked=inputs,
            source=model_identity(source.setup.models.target),
            type=source.spec.type.lower(),
            families=list(source.families),
        )
        if isolation.measurements:
            display.note(f"{len(isolation.measurements)} measurements are there already: {folder}")
        session = _Session(source, isolation, folder, display, text, tokens)
        try:
            result = search(session.measure)
        except KeyboardInterrupt as stop:
            stop.args = (f"Interrupted; the same command continues from what is measured: {folder}",)
            raise
        shutil.rmtree(session.work, ignore_errors=True)
    return folder, isolation, result


class _Session:
    """Measures configurations. Large files lie in `work` and go away when they have been read."""

    def __init__(
        self,
        source: SourceModel,
        isolation: Isolation,
        folder: Path,
        display: Display,
        user_text: Path | None,
        tokens: int,
    ) -> None:
        self._source, self._isolation, self._folder, self._display = source, isolation, folder, display
        self._user_text, self._tokens = user_text, tokens
        self.work = cache_folder() / "isolate" / isolation.key

    def measure(self, keep: Kept) -> Measurement:
        """Measure a configuration and save it, unless that was done before."""
        isolation = self._isolation
        measurement = isolation.measured(keep)
        if measurement is None:
            measurement = self._measure(keep, f"{len(isolation.measurements):02d}")
            isolation.measurements.append(measurement)
            isolation.wall_s += measurement.wall_s
            write_isolation(self._folder, isolation)
            self._display.line(Text(f"[{len(isolation.measurements)}] {_in_words(measurement)}"))
        return measurement

    def _measure(self, keep: Kept, name: str) -> Measurement:
        """Quantize the source but for the tensors that are kept, and measure what came out.

        The source has to have read the text for that; a source that fails the probes needs to read nothing.
        """
        began = time.perf_counter()
        model = self._source.files[0] if keep is None else self._quantized(keep, name)
        record = self._probe(model, name)
        severity = None if keep is None and record.findings else self._severity(model, name)
        measurement = Measurement(
            kept=None if keep is None else sorted(keep),
            severity=severity,
            findings=record.findings,
            probes=record.probes,
            bytes=sum(file.stat().st_size for file in all_shards(model)),
            wall_s=time.perf_counter() - began,
        )
        if keep is not None:
            model.unlink()
        return measurement

    def _quantized(self, keep: frozenset[str], name: str) -> Path:
        model = self.work / f"{hashlib.sha256(' '.join(sorted(keep)).encode()).hexdigest()[:16]}.gguf"
        if not model.is_file():
            self._display.update(f"{name}: quantizing")
            quantize_to(self._source.files, self._source.spec_with(keep), self._source.quantizer, model)
        return model

    def _probe(self, model: Path, name: str) -> PreflightRecord:
        self._display.update(f"{name}: running the health probes")
        setup, record = self._source.setup, PreflightRecord(mode="on")
        assert isinstance(setup.engine, ScoringEngine)  # every engine that quantizes also scores
        try:
            with scoring(setup.engine, launch_of(setup, model), self._log(name, "server")) as scorer:
                replies = list(answers(scorer, model, probe_items()))
                check_answers(replies, record)
                check_reading(*expected(scorer, replies), record)
        except EngineError as error:
            if error.kind != "protocol":
                raise
            record.find("preflight-failed", "models.target", error.what)  # the logits are not numbers
        return record

    def _severity(self, model: Path, name: str) -> Divergence:
        reference, context = self._reference()
        self._display.update(f"{name}: reading the text")
        return self._source.divergence.compare(model, reference, self._log(name, "perplexity"), context=context)

    def _reference(self) -> tuple[Path, int]:
        """Return the source's distributions over the text, made where they are not there, and the length of a piece.

        Raises UsageError for too short a text, StorageError where it changed since it was read, EngineError.
        """
        text, reference, read = self._folder / TEXT, self.work / "reference.kld", self._isolation.text
        if read is None:
            reference.unlink(missing_ok=True)  # left by a call that was killed
            origin, context = self._write_text(text), CONTEXT
            try:
                places = self._read_by_source(text, reference, context)
            except TextTooShortError as error:
                context = _shorter(error.tokens, origin)
                places = self._read_by_source(text, reference, context)
            read = TextRead(origin=origin, sha256=_sha256(text), context=context, places=places)
            self._isolation.text = read
            write_isolation(self._folder, self._isolation)
        elif not text.is_file() or _sha256(text) != read.sha256:
            fix = "Remove the folder to measure again."
            raise StorageError("the text that was measured is missing or has changed", where=str(text), fix=fix)
        else:
            self._read_by_source(text, reference, read.context)
        return reference, read.context

    def _write_text(self, text: Path) -> str:
        """Write the text, and return where it came from."""
        if self._user_text is not None:
            content, origin = text_of(self._user_text), self._user_text.name
        else:
            content = self._answers()
            origin = f"{self._source.prepared.suite.name}, with the source's own answers"
        write_whole(text, content)
        return origin

    def _answers(self) -> str:
        """Return prompts and greedy answers of the source, some `tokens` tokens if the suite has them. EngineError."""
        source, log = self._source, self._log("text")
        parts: list[str] = []
        length = 0
        with running(source.setup.engine.start(launch_of(source.setup, source.files[0]), log), log) as server:
            for item in sorted(source.prepared.prompts, key=lambda item: item.prompt_idx):  # task by task in turn
                if length >= SPARE * self._tokens:
                    break
                self._display.update(f"writing the text, {length} of {self._tokens} tokens")
                done = asyncio.run(server.complete(server.render(item.prompt), Sampling(max_tokens=ANSWER)))
                question = item.prompt.prompt or "\n".join(message.text for message in item.prompt.messages or ())
                parts.append(f"{question}\n\n{done.text.strip()}\n")
                length += done.prompt_tokens + done.n_predicted
        return "\n".join(parts)

    def _read_by_source(self, text: Path, reference: Path, context: int) -> int:
        """Write the source's distributions over the text unless they are there; return the places that were scored."""
        places = 0

        def make(part: Path) -> None:
            nonlocal places
            self._display.update("the source reads the text")
            source, pieces = self._source, max(2, self._tokens // context)
            log = self._log("source", "reference")
            places = source.divergence.write_reference(source.files[0], text, part, log, context=context, pieces=pieces)

        try:
            made_once(reference, make)
        except OSError as error:
            raise StorageError(
                f"the source's distributions cannot be kept: {error.strerror or error}",
                where=str(self.work),
                fix="Free some space, set BENCHCTL_CACHE to a folder on another disk, or use fewer --tokens.",
            ) from None
        return places

    def _log(self, *name: str) -> Path:
        return self._folder / LOGS / f"{'.'.join(name)}.log"


def _shorter(tokens: int, origin: str) -> int:
    """Return the longest piece of which a text has two, and places enough. Raises UsageError where none is."""
    for context in SHORTER:
        if tokens >= 2 * context and tokens // context * (context // 2 - 1) >= PLACES:
            return context
    raise UsageError(
        f"the text has {tokens} tokens, which are too few to measure with",
        where=origin,
        fix="Name a longer text with --text FILE, or more prompts in the recipe.",
    )


def text_of(file: Path) -> str:
    """Return the user's own text. Raises UsageError."""
    try:
        return file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UsageError(f"the text cannot be read: {reason}", where=f"--text {one_line(str(file))}") from None


def _sha256(text: Path) -> str:
    return hashlib.sha256(text.read_bytes()).hexdigest()


def _in_words(measurement: Measurement) -> str:
    if measurement.kept is None:
        configuration = "unquantized"
    else:
        configuration = one_line(f"kept: {', '.join(measurement.kept)}", 80) if measurement.kept else "all quantized"
    health = ", ".join(dict.fromkeys(finding.id for finding in measurement.findings)) or "probes sound"
    divergence = "" if measurement.severity is None else f", divergence {measurement.divergence:.5f}"
    return f"{configuration}: {health}{divergence}"


def _inputs(source: SourceModel, text: Path | None, tokens: int) -> dict[str, Any]:
    """Return everything that a measurement depends on."""
    prepared, spec, engine = source.prepared, source.spec, source.setup.capabilities.details
    prompts = prepared.recipe.prompts
    suite_identity = {"suite": prepared.suite.sha256, "tasks": prompts.tasks, "limit": prompts.limit}
    return {
        "source": [file.sha256 for file in source.setup.models.target.files],
        "type": spec.type.lower(),
        "tensors": list(spec.tensors.items()),
        "text": suite_identity if text is None else hashlib.sha256(text_of(text).encode("utf-8")).hexdigest(),
        "tokens": tokens,
        "probes": file_sha256(shipped_folder("prompts") / SUITE),
        "device": prepared.recipe.device,
        "engine": {part: engine.get(part) for part in ("sha256", "siblings")},
        "quantizer": source.quantizer.build,
        "perplexity": source.divergence.program.build,
    }
