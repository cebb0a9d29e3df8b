"""The session: a search requests what to measure next, and every measurement is on the disk before the next request."""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from rich.text import Text

from benchctl import __version__
from benchctl.data.chain import canonical_sha256
from benchctl.data.identity import model_identity
from benchctl.data.manifest import PreflightRecord
from benchctl.data.writer import LOGS, cannot_write, folder_lock
from benchctl.engines.quantizing import TextTooShortError
from benchctl.errors import EngineError, StorageError, UsageError
from benchctl.experiments.isolate.source_model import SourceModel, own_answers, text_of
from benchctl.experiments.isolate.stored import (
    TEXT,
    Isolation,
    Kept,
    Measurement,
    Severity,
    TextRead,
    read_isolation,
    write_isolation,
)
from benchctl.measure.cell import scoring
from benchctl.measure.preflight import SUITE, answers, check_answers, check_reading, expected, probe_items
from benchctl.measure.progress import Display
from benchctl.measure.recording import now
from benchctl.models.files import file_sha256, made_once
from benchctl.models.gguf_facts import all_shards
from benchctl.models.quantize import quantize_to
from benchctl.paths import cache_folder, shipped_folder
from benchctl.text import one_line

Finding = TypeVar("Finding")
Search = Generator[Kept, Measurement, Finding]
"""Yields what to measure, is sent the measurement, and returns what it concludes."""

TOKENS = 4096
"""Length of the text; half of it is scored."""


class IsolateDisplay:
    """A line a measurement, and on a terminal the current step."""

    def __init__(self, display: Display) -> None:
        self.display = display
        self.count = 0

    def measured(self, found: Measurement, *, stored: bool) -> None:
        """Print a line for a configuration that is measured, or was (`stored`)."""
        self.count += 1
        kept = found.kept
        what = "unquantized" if kept is None else f"{len(kept)} kept" if kept else "all quantized"
        what += f" ({one_line(kept[0], 60)})" if kept is not None and len(kept) == 1 else ""
        how = ", ".join(dict.fromkeys(finding.id for finding in found.findings)) or "probes sound"
        line = f"{what}: {how}, divergence {found.spoken_divergence}{' (from before)' if stored else ''}"
        self.display.line(Text(f"[{self.count}] {line}"))


@dataclass(frozen=True)
class TextSource:
    """Which text is read: the user's `file`, or the source's own answers to the recipe's prompts."""

    file: Path | None = None
    tokens: int = TOKENS


def isolate(
    source: SourceModel, search: Callable[[], Search[Finding]], wish: TextSource, out: Path, progress: IsolateDisplay
) -> tuple[Path, Isolation, Finding]:
    """Measure until the search has its answer; return the folder, all measurements and that answer.

    What an earlier call with the same inputs has measured is not measured again. Raises KeyboardInterrupt, after which
    the next call continues; EngineError, StorageError, UsageError.
    """
    inputs = _inputs(source, wish)
    key = canonical_sha256(inputs)
    folder = out / source.recipe.name / f"isolate-{source.spec.type.lower()}-{key[:12]}"
    with folder_lock(folder, "measuring here"):
        isolation = read_isolation(folder) or _new(source, inputs, key)
        if isolation.measurements:
            progress.display.note(f"{len(isolation.measurements)} measurements are there already: {folder}")
        session = _Session(source, isolation, folder, wish, progress)
        try:
            finding = session.run(search())
        except KeyboardInterrupt as stop:
            stop.args = (f"Interrupted; the same command continues from what is measured: {folder}",)
            raise
        shutil.rmtree(session.work, ignore_errors=True)
    return folder, isolation, finding


CONTEXT = 512
"""Tokens of a piece, as llama-perplexity has it, and as the published figures of quantizations were measured."""
SHORTER = (256, 128, 64)
"""Pieces of a text that is too short for two of the usual length."""
PLACES = 100
"""llama-perplexity prints no figures for fewer scored tokens."""


class _Session:
    """Measures what a search asks for. Large files lie in `work` and go away when they have been read."""

    def __init__(
        self, source: SourceModel, isolation: Isolation, folder: Path, wish: TextSource, progress: IsolateDisplay
    ) -> None:
        self._source, self._isolation, self._folder = source, isolation, folder
        self._wish, self._progress, self._notice = wish, progress, progress.display.update
        self.work = cache_folder() / "isolate" / isolation.key
        self._reference, self._has_reference = self.work / "reference.kld", False

    def run(self, search: Search[Finding]) -> Finding:
        """Answer the search's requests, from what is stored where it was measured before."""
        try:
            request = next(search)
            while True:
                found = self._isolation.measured(request)
                stored = found is not None
                if found is None:
                    found = self._measure(request, f"{len(self._isolation.measurements):02d}")
                    self._isolation.measurements.append(found)
                    self._isolation.wall_s += found.wall_s
                    write_isolation(self._folder, self._isolation)
                self._progress.measured(found, stored=stored)
                request = search.send(found)
        except StopIteration as end:
            answer: Finding = end.value
            return answer

    def _measure(self, kept: Kept, name: str) -> Measurement:
        """Quantize the source but for the tensors that are kept, and measure what came out.

        The source has to have read the text for that; a source that fails the probes needs to read nothing.
        """
        began = time.perf_counter()
        model = self._source.files[0] if kept is None else self._quantized(kept, name)
        record = self._probe(model, name)
        severity = None if kept is None and record.findings else self._severity(model, name)
        found = Measurement(
            kept=None if kept is None else sorted(kept),
            severity=severity,
            findings=record.findings,
            probes=record.probes,
            bytes=sum(file.stat().st_size for file in all_shards(model)),
            wall_s=time.perf_counter() - began,
        )
        if kept is not None:
            model.unlink()
        return found

    def _quantized(self, kept: frozenset[str], name: str) -> Path:
        model = self.work / f"{hashlib.sha256(' '.join(sorted(kept)).encode()).hexdigest()[:16]}.gguf"
        if not model.is_file():
            self._notice(f"{name}: quantizing")
            quantize_to(self._source.files, self._source.spec_with(kept), self._source.quantizer, model)
        return model

    def _severity(self, model: Path, name: str) -> Severity:
        context = self._read_text()
        self._notice(f"{name}: reading the text")
        log = self._log(name, "perplexity")
        return Severity.model_validate(self._source.divergence.compare(model, self._reference, log, context=context))

    def _probe(self, model: Path, name: str) -> PreflightRecord:
        self._notice(f"{name}: running the health probes")
        record = PreflightRecord(mode="on")
        try:
            with scoring(self._source.scoring, self._source.launch(model), self._log(name, "server")) as scorer:
                found = list(answers(scorer, model, probe_items()))
                check_answers(found, record)
                check_reading(*expected(scorer, found), record)
        except EngineError as error:
            if error.kind != "protocol":
                raise
            record.find("preflight-failed", "models.target", error.what)  # logits that are no numbers
        return record

    def _log(self, name: str, part: str) -> Path:
        return self._folder / LOGS / f"{name}.{part}.log"

    def _read_text(self) -> int:
        """Make sure that the source has read the text; return the length of a piece. Raises UsageError, EngineError."""
        isolation, text = self._isolation, self._folder / TEXT
        if isolation.text is None:
            origin = self._write_text(text)
            context, places = self._first_reading(text, origin)
            digest = hashlib.sha256(text.read_bytes()).hexdigest()
            isolation.text = TextRead(origin=origin, sha256=digest, context=context, places=places)
            write_isolation(self._folder, isolation)
        elif not self._has_reference:
            if not text.is_file() or hashlib.sha256(text.read_bytes()).hexdigest() != isolation.text.sha256:
                fix = "Remove the folder to measure again."
                raise StorageError("the text that was measured is missing or has changed", where=str(text), fix=fix)
            self._write_reference(text, isolation.text.context)  # an earlier call has removed it
        self._has_reference = True
        return isolation.text.context

    def _write_text(self, text: Path) -> str:
        """Write the text, and return where it came from."""
        if self._wish.file is not None:
            content, origin = text_of(self._wish.file), self._wish.file.name
        else:
            content = own_answers(self._source, self._wish.tokens, self._folder / LOGS / "text.log", self._notice)
            origin = f"{self._source.suite.name}, with the source's own answers"
        try:
            text.write_text(content, encoding="utf-8")
        except OSError as error:
            raise cannot_write(error, text) from None
        return origin

    def _first_reading(self, text: Path, origin: str) -> tuple[int, int]:
        """Have the source read the text, in shorter pieces where it is short; return their length and the places."""
        context = CONTEXT
        while True:
            try:
                return context, self._write_reference(text, context)
            except TextTooShortError as error:
                fitting = [
                    length
                    for length in SHORTER
                    if length < context and error.tokens // length * (length // 2 - 1) >= PLACES
                ]
                if not fitting:
                    raise UsageError(
                        f"the text has {error.tokens} tokens, which are too few to measure with",
                        where=origin,
                        fix="Name a longer text with --text FILE, or more prompts in the recipe.",
                    ) from None
                context = fitting[0]

    def _write_reference(self, text: Path, context: int) -> int:
        """Write the source's distributions over the text, for the others to be compared with; return the places."""
        places = 0

        def make(part: Path) -> None:
            nonlocal places
            self._notice("the source reads the text")
            source, log = self._source.files[0], self._log("source", "reference")
            pieces = max(2, self._wish.tokens // context)
            places = self._source.divergence.write_reference(source, text, part, log, context=context, pieces=pieces)

        try:
            made_once(self._reference, make)
        except OSError as error:
            raise StorageError(
                f"the source's distributions cannot be kept: {error.strerror or error}",
                where=str(self.work),
                fix="Free some space, set BENCHCTL_CACHE to a folder on another disk, or use fewer --tokens.",
            ) from None
        return places


def _inputs(source: SourceModel, wish: TextSource) -> dict[str, Any]:
    """Return everything that a measurement depends on."""
    recipe, spec = source.recipe, source.spec
    own = {"suite": source.suite.sha256, "tasks": recipe.prompts.tasks, "limit": recipe.prompts.limit}
    return {
        "source": [file.sha256 for file in source.model.files],
        "type": spec.type.lower(),
        "tensors": list(spec.tensors.items()),
        "text": own if wish.file is None else hashlib.sha256(text_of(wish.file).encode("utf-8")).hexdigest(),
        "tokens": wish.tokens,
        "probes": file_sha256(shipped_folder("prompts") / SUITE),
        "device": recipe.device,
        "engine": dict(source.engine_identity),
        "quantizer": source.quantizer.build,
        "perplexity": source.divergence.program.build,
    }


def _new(source: SourceModel, inputs: dict[str, Any], key: str) -> Isolation:
    return Isolation(
        benchctl_version=__version__,
        created_at=now(),
        recipe_name=source.recipe.name,
        key=key,
        asked=inputs,
        source=model_identity(source.model),
        type=source.spec.type.lower(),
        families=list(source.families),
    )
