"""The preflight: is the target sound, do target and draft fit, does the context, is the quantization as requested?

It runs before anything is measured, in processes of its own, and takes seconds; a broken model answers as fast as a
sound model, and a benchmark of it looks fine.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchctl.data.manifest import PreflightRecord
from benchctl.engines.base import Engine, EngineFault, FaultyEngine, Launch
from benchctl.engines.scoring import Scorer, ScoringEngine
from benchctl.errors import EngineError, GateError
from benchctl.measurement.cell import scoring
from benchctl.measurement.memory import SHARE, free_bytes
from benchctl.measurement.prepare import Prepared, PreparedSetup, device_names
from benchctl.measurement.probes import (
    agreement,
    answers,
    check_agreement,
    check_answers,
    check_reading,
    expected,
    probe_items,
)
from benchctl.models.files import ResolvedModel, ResolvedPair
from benchctl.models.gguf_facts import all_shards, tensors_of
from benchctl.models.gguf_header import read_header
from benchctl.models.tensor_types import fallback_sentence, requested_types
from benchctl.models.vocabulary import differences
from benchctl.prompts.suite import PromptItem
from benchctl.recipes.schema import QuantizeSpec
from benchctl.text import one_line

_LONGEST = 16
"""So many of the longest prompts, by characters, are counted in tokens."""


def preflight(prepared: Prepared, log: Path) -> PreflightRecord:
    """Check models, probes and context; the engine's log goes to `log`. Raises nothing for what it finds."""
    record = PreflightRecord(mode=prepared.recipe.preflight)
    for fault in engine_faults(prepared):
        record.find("engine-fault", f"arms {', '.join(fault.arms)}", fault.sentence)
    if record.mode == "off":
        record.checked.append("The target was not checked: the recipe has `preflight: off`.")
        return record
    began = time.perf_counter()
    groups = {setup.name: setup.group for setup in prepared.recipe.setups}
    probed: set[str | None] = set()
    for name, setup in prepared.setups.items():
        setup_record = PreflightRecord(mode=record.mode)
        group = groups.get(name or "")
        setup_log = log if name is None else log.with_name(f"{log.stem}-{name}{log.suffix}")
        # Setups of a group have the same target.
        _check_setup(prepared, setup, setup_log, setup_record, probe=group not in probed)
        probed.add(group)
        where = "" if name is None else f" ({name})"
        for finding in setup_record.findings:
            record.find(finding.id, f"{finding.where}{where}", finding.seen)
        record.checked += [f"{sentence}{where}" for sentence in setup_record.checked]
        record.probes += setup_record.probes
    record.wall_s = time.perf_counter() - began
    return record


def engine_faults(prepared: Prepared, *, in_use: bool = False) -> list[EngineFault]:
    """Return every fault on the engines' lists that arms ask for. `in_use`: with several slots, caches, any request."""
    return [
        fault
        for setup in prepared.setups.values()
        if isinstance(setup.engine, FaultyEngine)
        for fault in setup.engine.faults(setup.recipe, setup.models, in_use=in_use)
    ]


def _check_setup(prepared: Prepared, setup: PreparedSetup, log: Path, record: PreflightRecord, *, probe: bool) -> None:
    """Check an engine with a pair of models; `probe`: and have the target answer."""
    _vocabulary(setup, record)
    pair, files = setup.recipe.models, setup.models
    for role, spec, model in (("target", pair.target, files.target), ("draft", pair.draft, files.draft)):
        if spec is not None and spec.quantize is not None and model is not None and (probe or role == "draft"):
            _quantization(f"models.{role}", spec.quantize, model, record)
    if not probe:
        return
    reason, engine = why_not_probed(setup.engine), setup.engine
    if reason is not None:
        record.checked.append(f"The target was not probed: {reason}.")
    elif isinstance(engine, ScoringEngine):
        try:
            _probe(prepared, setup, engine, log, record)
        except EngineError as error:
            tail = f" Its last line: {one_line(error.log_tail[-1], 200)}" if error.log_tail else ""
            record.find("preflight-failed", "models.target", f"{error.what}{tail}")


def why_not_probed(engine: Engine) -> str | None:
    """Return why the target of an engine is not probed, or `None` when it is."""
    if engine.model_format != "gguf":
        return "that needs a GGUF file, which has the vocabulary"
    return None if isinstance(engine, ScoringEngine) else "this engine does not report probabilities"


def stop_if_strict(record: PreflightRecord, folder: Path) -> None:
    """Raise GateError when the recipe is strict and something was found."""
    if not record.holds:
        raise GateError(
            "The preflight found what a strict recipe does not allow: "
            + " ".join(finding.seen for finding in record.findings),
            where=str(folder),
            fix="Fix it, or write `preflight: on` to measure all the same; the report then warns.",
        )


def _vocabulary(setup: PreparedSetup, record: PreflightRecord) -> None:
    draft = setup.models.draft
    uses_it = any(arm.speculation and "draft-simple" in arm.speculation.types for arm in setup.recipe.arms)
    if draft is None or not uses_it or setup.engine.model_format != "gguf":
        return  # folders are compared, as strictly, before anything starts
    headers = [read_header(path) for path in (setup.models.target.path, draft.path)]
    if any(header.count("tokenizer.ggml.tokens") is None for header in headers):
        record.checked.append("The vocabularies could not be compared: a file has none.")
    elif reasons := differences(headers[0], headers[1], speaking=True):
        evidence = f"Target and draft differ (the target is named first): {'; '.join(reasons)}."
        record.find("vocabulary-differs", "models.draft", evidence)
    else:
        record.checked.append("Target and draft have the same tokens and special tokens.")


def _quantization(role: str, quantization: QuantizeSpec, model: ResolvedModel, record: PreflightRecord) -> None:
    tensors = tensors_of(all_shards(model.path))
    types = {tensor.name: tensor.type_name for tensor in tensors}
    requested = requested_types(tensors, quantization.tensors)
    differing = [name for name, kind in requested.items() if types[name] != kind]
    sentence = fallback_sentence(tensors, quantization.type, quantization.tensors)
    if differing:
        evidence = f"{len(differing)} tensors are not of the requested type, such as {one_line(differing[0], 80)}."
        record.find("quantization-differs", role, evidence)
    if sentence:
        record.find("quantization-differs", role, f"{sentence[0].upper()}{sentence[1:]}.")
    if not differing and not sentence:
        overrides = f"{len(requested)} tensors otherwise"
        record.checked.append(f"{role} is quantized as requested: {quantization.type}, {overrides}.")


def _probe(prepared: Prepared, setup: PreparedSetup, engine: ScoringEngine, log: Path, record: PreflightRecord) -> None:
    """Have the target answer, and score the source of its quantization, if any, at the same places. EngineError."""
    target = setup.models.target
    with scoring(engine, prepared.launches[setup.recipe.baseline], log) as scorer:
        _context(prepared.prompts, setup, scorer, record)
        probe_answers = list(answers(scorer, target.path, probe_items()))
        check_answers(probe_answers, record)
        check_reading(*expected(scorer, probe_answers), record)
    if target.unquantized is None:
        return
    size = sum(shard.stat().st_size for shard in all_shards(target.unquantized))
    memory, free = free_bytes(setup.recipe.device, device_names(setup.capabilities))
    if size > SHARE * free:
        record.checked.append(
            f"The unquantized target was not probed: its {size >> 20} MiB do not fit the free {memory}."
        )
        return
    try:
        with scoring(engine, launch_of(setup, target.unquantized), log.with_suffix(".source.log")) as reference:
            compared = agreement(reference, probe_answers)
    except EngineError as error:
        record.checked.append(f"The unquantized target could not be probed: {error.what}")
        return
    check_agreement(compared, record)


def launch_of(setup: PreparedSetup, model: Path) -> Launch:
    """Return the baseline's command for another target, without a draft."""
    replaced = replace(setup.models.target, files=(replace(setup.models.target.files[0], path=model),))
    return setup.engine.launch(setup.recipe.arm(setup.recipe.baseline), ResolvedPair(replaced, None))


def _context(prompts: Sequence[PromptItem], setup: PreparedSetup, scorer: Scorer, record: PreflightRecord) -> None:
    def characters(index: int) -> int:
        prompt = prompts[index].prompt
        return len(prompt.prompt or "") + sum(len(message.text) for message in prompt.messages or ())

    recipe, max_tokens = setup.recipe, setup.recipe.sampling.max_tokens
    longest = sorted(range(len(prompts)), key=characters)[-_LONGEST:]
    lengths = {index: len(scorer.render(prompts[index].prompt).token_ids) for index in longest}
    index, length = max(lengths.items(), key=lambda counted: counted[1])
    item = prompts[index]
    depth = max((arm.speculation.max or 0 for arm in recipe.arms if arm.speculation), default=0)
    needed = length + max_tokens + depth
    evidence = (
        f"The longest prompt, {item.task}/{item.prompt_idx}, has {length} tokens; with {max_tokens} of answer "
        f"and a draft of {depth} that is {needed} of a context of {recipe.engine.context}."
    )
    limit = setup.models.target.facts.get("context_length")
    if needed > recipe.engine.context:
        record.find("context-too-short", "engine.context", evidence)
    elif limit is not None and needed > limit:
        record.find("context-too-short", "models.target", f"{evidence} The model was made for {limit}.")
    else:
        record.checked.append(evidence)
