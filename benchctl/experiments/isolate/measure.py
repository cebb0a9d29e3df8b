"""One measurement: quantize the source in a given way, run the health probes on it, compare it with the source."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from pathlib import Path

from benchctl.data.manifest import PreflightRecord
from benchctl.data.writer import LOGS
from benchctl.engines.quantizing import TextTooShortError
from benchctl.errors import EngineError, StorageError, UsageError
from benchctl.experiments.isolate.source_model import SourceModel
from benchctl.experiments.isolate.stored import Kept, Measurement, Severity, TextRead
from benchctl.measure.cell import scoring
from benchctl.measure.preflight.probes import answers, expected, probe_items
from benchctl.measure.preflight.session import check_answers, check_reading
from benchctl.models.files import Notice, made_once
from benchctl.models.gguf_facts import all_shards
from benchctl.models.quantize import quantize_to

CONTEXT = 512
"""Tokens of a piece, as llama-perplexity has it, and as the published figures of quantizations were measured."""
SHORTER = (256, 128, 64)
"""Pieces of a text that is too short for two of the usual length."""
PLACES = 100
"""llama-perplexity prints no figures for fewer scored tokens."""


class Measurer:
    """Measures a source. Large files lie in `work` and go away when they have been read."""

    def __init__(self, source: SourceModel, folder: Path, work: Path, notice: Notice) -> None:
        self._source, self._folder, self._work = source, folder, work
        self._notice = notice
        self._reference = work / "reference.kld"

    def read_text(self, text: Path, origin: str, tokens: int) -> TextRead:
        """Have the source read the text, for the others to be compared with. Raises UsageError, EngineError."""
        context = CONTEXT
        while True:
            try:
                places = self._write_reference(text, context, tokens)
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
            else:
                digest = hashlib.sha256(text.read_bytes()).hexdigest()
                return TextRead(origin=origin, sha256=digest, context=context, places=places)

    def again(self, text: Path, read: TextRead, tokens: int) -> None:
        """Write the source's distributions anew where an earlier call has removed them."""
        self._write_reference(text, read.context, tokens)

    def measure(self, kept: Kept, name: str, context: Callable[[], int]) -> Measurement:
        """Quantize the source but for the tensors that are kept, and measure what came out.

        `context` makes sure that the source has read the text, and returns the length of a piece; a source that fails
        the probes needs to read nothing.
        """
        began = time.perf_counter()
        if kept is None:
            model = self._source.files[0]
            record = self._probe(model, name)
            severity = None if record.findings else self._severity(model, name, context())
            return _measurement(None, model, record, severity, began)
        model = self._work / f"{hashlib.sha256(' '.join(sorted(kept)).encode()).hexdigest()[:16]}.gguf"
        if not model.is_file():
            self._notice(f"{name}: quantizing")
            quantize_to(self._source.files, self._source.spec_with(kept), self._source.quantizer, model)
        record = self._probe(model, name)
        found = _measurement(kept, model, record, self._severity(model, name, context()), began)
        model.unlink()
        return found

    def _write_reference(self, text: Path, context: int, tokens: int) -> int:
        places = 0

        def make(part: Path) -> None:
            nonlocal places
            self._notice("the source reads the text")
            source, log = self._source.files[0], self._log("source", "reference")
            pieces = max(2, tokens // context)
            places = self._source.divergence.write_reference(source, text, part, log, context=context, pieces=pieces)

        try:
            made_once(self._reference, make)
        except OSError as error:
            raise StorageError(
                f"the source's distributions cannot be kept: {error.strerror or error}",
                where=str(self._work),
                fix="Free some space, set BENCHCTL_CACHE to a folder on another disk, or use fewer --tokens.",
            ) from None
        return places

    def _severity(self, model: Path, name: str, context: int) -> Severity:
        self._notice(f"{name}: reading the text")
        log = self._log(name, "perplexity")
        return Severity.model_validate(self._source.divergence.compare(model, self._reference, log, context=context))

    def _probe(self, model: Path, name: str) -> PreflightRecord:
        self._notice(f"{name}: running the health probes")
        record = PreflightRecord(mode="on")
        try:
            launch, log = self._source.launch(model), self._log(name, "server")
            with scoring(self._source.scoring, launch, log) as scorer:
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


def _measurement(
    kept: Kept, model: Path, record: PreflightRecord, severity: Severity | None, began: float
) -> Measurement:
    return Measurement(
        kept=None if kept is None else sorted(kept),
        severity=severity,
        findings=record.findings,
        probes=record.probes,
        bytes=sum(file.stat().st_size for file in all_shards(model)),
        wall_s=time.perf_counter() - began,
    )
