"""The preflight: is the target sound, do target and draft fit, does the context, is the quantization as asked?

It runs before anything is measured, in processes of its own, and takes seconds; a broken model answers as fast as a
sound one, and a benchmark of it looks fine.
"""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

from benchctl.data.manifest import PreflightRecord
from benchctl.engines.base import Launch, Scorer, ScoringEngine
from benchctl.errors import EngineError, GateError
from benchctl.measure.cell import scoring
from benchctl.measure.memory import SHARE, free_bytes
from benchctl.measure.preflight.probes import agreement, answers, expected, probe_items
from benchctl.measure.preflight.verdicts import check_agreement, check_answers, check_reading
from benchctl.measure.prepare import Prepared, seen_devices
from benchctl.models.gguf_header import read_header
from benchctl.models.resolved import ResolvedModel, ResolvedPair
from benchctl.models.shards import all_shards, tensors_of
from benchctl.models.tensor_types import fallback_sentence, wanted_types
from benchctl.models.vocabulary import differences
from benchctl.recipes.schema import ModelSpec
from benchctl.text import one_line

_LONGEST = 16
"""So many of the longest prompts, by characters, are counted in tokens."""


def preflight(prepared: Prepared, log: Path) -> PreflightRecord:
    """Look at models, probes and context; the engine's log goes to `log`. Raises nothing for what it finds."""
    record = PreflightRecord(mode=prepared.recipe.preflight)
    if record.mode == "off":
        record.checked.append("Nothing was looked at: the recipe says `preflight: off`.")
        return record
    began = time.perf_counter()
    _vocabulary(prepared, record)
    for role, spec, model in _models(prepared):
        if spec.quantize is not None:
            _quantization(role, spec, model, record)
    unasked, engine = why_not_asked(prepared), prepared.engine
    if unasked is not None:
        record.checked.append(f"The target was not asked anything: {unasked}.")
    elif isinstance(engine, ScoringEngine):
        try:
            _probe(prepared, engine, log, record)
        except EngineError as error:
            tail = f" Its last line: {one_line(error.log_tail[-1], 200)}" if error.log_tail else ""
            record.find("preflight-failed", "models.target", f"{error.what}{tail}")
    record.wall_s = time.perf_counter() - began
    return record


def why_not_asked(prepared: Prepared) -> str | None:
    """Return why the target of these models and this engine is not asked anything, or `None` when it is."""
    if prepared.engine.model_format != "gguf":
        return "that needs a GGUF file, which tells its vocabulary"
    return None if isinstance(prepared.engine, ScoringEngine) else "this engine does not tell its probabilities"


def stop_if_strict(record: PreflightRecord, folder: Path) -> None:
    """Raise GateError when the recipe is strict and something was found."""
    if not record.holds:
        raise GateError(
            "The preflight found what a strict recipe does not allow: " + " ".join(one.seen for one in record.findings),
            where=str(folder),
            fix="Mend it, or write `preflight: on` to measure all the same; the report then warns.",
        )


def _models(prepared: Prepared) -> list[tuple[str, ModelSpec, ResolvedModel]]:
    pair, files = prepared.recipe.models, prepared.models
    found = [("models.target", pair.target, files.target)]
    if pair.draft is not None and files.draft is not None:
        found.append(("models.draft", pair.draft, files.draft))
    return found


def _vocabulary(prepared: Prepared, record: PreflightRecord) -> None:
    draft = prepared.models.draft
    uses_it = any(arm.speculation and "draft-simple" in arm.speculation.types for arm in prepared.recipe.arms)
    if draft is None or not uses_it or prepared.engine.model_format != "gguf":
        return  # folders are compared, as strictly, before anything starts
    headers = [read_header(path) for path in (prepared.models.target.path, draft.path)]
    if any(header.count("tokenizer.ggml.tokens") is None for header in headers):
        record.checked.append("The vocabularies could not be compared: a file holds none.")
    elif found := differences(headers[0], headers[1], speaking=True):
        seen = f"Target and draft differ (the target is named first): {'; '.join(found)}."
        record.find("vocabulary-differs", "models.draft", seen)
    else:
        record.checked.append("Target and draft have the same tokens and special tokens.")


def _quantization(role: str, spec: ModelSpec, model: ResolvedModel, record: PreflightRecord) -> None:
    asked = spec.quantize
    assert asked is not None
    tensors = tensors_of(all_shards(model.path))
    types = {tensor.name: tensor.type_name for tensor in tensors}
    wanted = wanted_types(tensors, asked.tensors)
    wrong = [name for name, kind in wanted.items() if types[name] != kind]
    sentence = fallback_sentence(tensors, asked.type, asked.tensors)
    if wrong:
        seen = f"{len(wrong)} tensors are not of the type that was asked for, such as {one_line(wrong[0], 80)}."
        record.find("quantization-differs", role, seen)
    if sentence:
        record.find("quantization-differs", role, f"{sentence[0].upper()}{sentence[1:]}.")
    if not wrong and not sentence:
        record.checked.append(f"{role} is quantized as asked: {asked.type}, {len(wanted)} tensors otherwise.")


def _probe(prepared: Prepared, engine: ScoringEngine, log: Path, record: PreflightRecord) -> None:
    """Have the target answer, and the source of its quantization, if there is one, be asked the same. EngineError."""
    target = prepared.models.target
    with scoring(engine, prepared.launches[prepared.recipe.baseline], log) as scorer:
        _context(prepared, scorer, record)
        found = list(answers(scorer, target.path, probe_items()))
        check_answers(found, record)
        check_reading(*expected(scorer, found), record)
    if target.unquantized is None:
        return
    size = sum(shard.stat().st_size for shard in all_shards(target.unquantized))
    memory, free = free_bytes(prepared.recipe.device, seen_devices(prepared.capabilities))
    if size > SHARE * free:
        record.checked.append(
            f"The unquantized target was not asked: its {size >> 20} MiB do not fit the free {memory}."
        )
        return
    try:
        with scoring(engine, _launch_of(prepared, target.unquantized), log.with_suffix(".source.log")) as reference:
            compared = agreement(reference, found)
    except EngineError as error:
        record.checked.append(f"The unquantized target could not be asked: {error.what}")
        return
    check_agreement(compared, record)


def _launch_of(prepared: Prepared, model: Path) -> Launch:
    """Return the baseline's command for another target."""
    other = dataclasses.replace(
        prepared.models.target, files=(dataclasses.replace(prepared.models.target.files[0], path=model),)
    )
    return prepared.engine.launch(prepared.recipe.arm(prepared.recipe.baseline), ResolvedPair(other, None))


def _context(prepared: Prepared, scorer: Scorer, record: PreflightRecord) -> None:
    def characters(index: int) -> int:
        prompt = prepared.prompts[index].prompt
        return len(prompt.prompt or "") + sum(len(message.content) for message in prompt.messages or ())

    recipe = prepared.recipe
    longest = sorted(range(len(prepared.prompts)), key=characters)[-_LONGEST:]
    lengths = {index: len(scorer.render(prepared.prompts[index].prompt).token_ids) for index in longest}
    index = max(lengths, key=lambda index: lengths[index])
    item = prepared.prompts[index]
    depth = max((arm.speculation.max or 0 for arm in recipe.arms if arm.speculation), default=0)
    needed = lengths[index] + recipe.sampling.max_tokens + depth
    seen = (
        f"The longest prompt, {item.task}/{item.prompt_idx}, has {lengths[index]} tokens; with "
        f"{recipe.sampling.max_tokens} of answer and a draft of {depth} that is {needed} of a context of "
        f"{recipe.engine.context}."
    )
    trained = read_header(prepared.models.target.path)
    limit = trained.integer(f"{trained.text('general.architecture')}.context_length")
    if needed > recipe.engine.context:
        record.find("context-too-short", "engine.context", seen)
    elif limit is not None and needed > limit:
        record.find("context-too-short", "models.target", f"{seen} The model was made for {limit}.")
    else:
        record.checked.append(seen)
