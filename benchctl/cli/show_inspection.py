"""Prints a model's facts, or what differs between two models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from benchctl.models.footprint import Footprint
from benchctl.models.gguf_facts import all_shards, tensors_of
from benchctl.models.inspection import VERIFIED, Changes, Difference, Inspection
from benchctl.models.tensor_types import family
from benchctl.reports.terminal import Printout
from benchctl.text import one_line, percent

_TEMPLATE_CHARACTERS = 600
_VALUE_CHARACTERS = 60


def show_inspection(inspection: Inspection, *, brief: bool = False) -> None:
    """Print a model; `brief` leaves out what quantization does not change."""
    out, facts = Printout(), inspection.facts
    out.say(str(inspection.path), "bold", whole=True)
    parts = (_file,) if brief else (_name, _file, _shape, _memory, _tokens)
    out.facts(fact for part in parts for fact in part(inspection))
    out.say()
    total = facts.tensor_bytes
    types = [
        (name, str(group.count), mebibytes(group.bytes), f"{100 * group.bytes / total:.1f} %" if total else "–")
        for name, group in facts.tensor_types.items()
    ]
    out.rows(("type", "tensors", "size", "share"), types, right=("tensors", "size", "share"))


def show_footprint(path: Path, footprint: Footprint) -> None:
    """Print the sizes of a Hugging Face folder or a `config.json`."""
    out, active = Printout(), footprint.active_parameters
    out.say(str(path), "bold", whole=True)
    uses = "" if active is None else f", of which a token uses {active:,}"
    reads = f"{mebibytes(footprint.weights)}, of which a decode step reads {mebibytes(footprint.weights_per_step)}"
    rows = [("weights", reads), ("parameters", f"{footprint.parameters or 0:,}{uses}")]
    if footprint.expert_share < 1:
        further = [f"{mebibytes(round(footprint.further_per_verify(width)))} for {width}" for width in VERIFIED]
        rows.append(("a verify reads", f"beyond a step, experts chosen at random: {', '.join(further)} tokens"))
    cache = footprint.cache_per_token
    rows.append(("KV cache", "unknown" if cache is None else f"{cache:,} bytes per token in 16 bits"))
    out.facts(rows)


def show_tensors(path: Path) -> None:
    """Print every tensor of a model with its type, shape and size."""
    rows = [
        (
            one_line(tensor.name, 80),
            tensor.type_name,
            " × ".join(map(str, tensor.shape)),
            "unknown" if tensor.nbytes is None else f"{tensor.nbytes:,}",
        )
        for tensor in tensors_of(all_shards(path))
    ]
    out = Printout()
    out.say()
    out.rows(("tensor", "type", "shape", "bytes"), rows, right=("bytes",))


def show_difference(difference: Difference) -> None:
    """Print what differs from the first model to the second."""
    out = Printout()
    for mark, model in (("−", difference.first), ("+", difference.second)):
        out.say(f"{mark} {model.path}  {_summary(model)}", whole=True)
    out.say()
    if difference.vocabulary:
        out.say("The vocabularies differ:", "yellow")
        for sentence in difference.vocabulary:
            out.say(f"  {sentence}")
    else:
        out.say("The vocabularies and special tokens are the same.")
    if not difference.metadata and not difference.tensors:
        out.say("The metadata and the types and shapes of all tensors are the same.")
    for title, changes in (("metadata", [*difference.metadata.items()]), ("tensors", _by_family(difference.tensors))):
        if changes:
            out.say()
            rows = [(one_line(name, 80), _value(first), _value(second)) for name, (first, second) in changes]
            out.rows((title, "−", "+"), rows)


def _by_family(changes: Changes) -> list[tuple[str, tuple[str | None, str | None]]]:
    """Group tensors with the same change in every block on a line: `ssm_out (4 tensors)`."""
    alike: dict[tuple[str, tuple[str | None, str | None]], list[str]] = {}
    for name, change in changes.items():
        alike.setdefault((family(name), change), []).append(name)
    return [
        (f"{part} ({len(names)} tensors)" if len(names) > 1 else names[0], change)
        for (part, change), names in alike.items()
    ]


def _value(text: str | None) -> str:
    return "–" if text is None else one_line(text, _VALUE_CHARACTERS)


def _summary(model: Inspection) -> str:
    bits = model.facts.bits_per_weight
    return mebibytes(model.size) + ("" if bits is None else f", {bits:g} bits per weight")


def mebibytes(count: int) -> str:
    """Return bytes as MiB with sensible digits: `0.52 MiB`, `1,059.9 MiB`."""
    amount = count / 2**20
    return f"{amount:,.2f} MiB" if amount < 100 else f"{amount:,.1f} MiB"


def ranges(numbers: Sequence[int]) -> str:
    """Return ascending numbers shortened: `0–3, 7`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs)


def _name(inspection: Inspection) -> Iterator[tuple[str, str]]:
    facts = inspection.facts
    yield "model", f"{one_line(facts.name or 'unnamed', 100)} ({_shown(facts.architecture, 'architecture')})"
    if inspection.refused_as is not None:
        yield "no model", inspection.refused_as


def _file(inspection: Inspection) -> Iterator[tuple[str, str]]:
    facts = inspection.facts
    files = "" if facts.files == 1 else f" in {facts.files} files"
    yield "size", f"{mebibytes(inspection.size)}{files} (GGUF version {facts.version})"
    bits = "unknown" if facts.bits_per_weight is None else f"{facts.bits_per_weight:g}"
    announced = "" if facts.file_type is None else f", declared as {facts.file_type}"
    yield "weights", f"{facts.parameters:,} parameters, {bits} bits per weight{announced}"


def _shape(inspection: Inspection) -> Iterator[tuple[str, str]]:
    facts = inspection.facts
    if read := inspection.experts_read:
        shares = ", ".join(f"{percent(share)} of them for {width}" for width, share in read.items())
        yield (
            "experts",
            f"a token uses {facts.experts_used} of {facts.experts} in a layer, {facts.active_parameters:,} parameters "
            f"in all; a verify reads, were they chosen at random, {shares} tokens",
        )
    kinds = {"hybrid": "hybrid: recurrent state and attention", "recurrent": "recurrent, without attention"}
    parts = [_shown(facts.layers, "blocks"), kinds.get(facts.memory, facts.memory)]
    if facts.memory == "hybrid":
        parts.append(f"recurrent in {ranges(facts.recurrent_layers)}; attention in {ranges(facts.attention_layers)}")
    if facts.mtp_layers:
        parts.append(f"{facts.mtp_layers} multi-token-prediction")
    if inspection.embedding_length is not None:
        parts.append(f"width {inspection.embedding_length:,}")
    yield "layers", "; ".join(parts)
    yield "context", _shown(facts.context_length, "tokens")


def _memory(inspection: Inspection) -> Iterator[tuple[str, str]]:
    state, per_token, unknown = inspection.recurrent, inspection.kv_bytes_per_token, "unknown for this architecture"
    if state is None:
        yield "recurrent state", "none" if inspection.facts.memory == "attention" else unknown
    else:
        parts = f"{mebibytes(state.convolution)} convolution, {mebibytes(state.state)} state"
        yield "recurrent state", f"{mebibytes(state.total)} per sequence ({parts}; {state.layers} layers, f32)"
    cache = unknown if per_token is None else f"{per_token:,} bytes per token in f16" if per_token else "none"
    if per_token and inspection.kv_bytes_at_context is not None:
        cache += f", {mebibytes(inspection.kv_bytes_at_context)} at {inspection.facts.context_length:,} tokens"
    if per_token and inspection.sliding_window:
        cache += f"; less in layers with a sliding window of {inspection.sliding_window:,} tokens"
    yield "KV cache", cache


def _tokens(inspection: Inspection) -> Iterator[tuple[str, str]]:
    facts, vocabulary = inspection.facts, "none in this file"
    if facts.vocab_size is not None and inspection.vocabulary_sha256 is not None:
        kind = "/".join(one_line(name, 40) for name in (facts.tokenizer_model, facts.tokenizer_pre) if name)
        vocabulary = f"{facts.vocab_size:,} tokens ({kind}), SHA-256 {inspection.vocabulary_sha256[:12]}"
    yield "vocabulary", vocabulary
    added = {True: " (added to every text)", False: " (not added)", None: ""}
    special = (
        f"{one_line(token.part, 20)} {token.id} "
        f"{'beyond the vocabulary' if token.text is None else one_line(token.text, 40)}{added[token.added]}"
        for token in inspection.special
    )
    yield "special tokens", "; ".join(special) or "none named"
    yield (
        "chat template",
        one_line(inspection.chat_template, _TEMPLATE_CHARACTERS) if inspection.chat_template else "none",
    )


def _shown(value: int | str | None, unit: str) -> str:
    """Return a name as it is, a number with what it counts."""
    if value is None:
        return f"{unit} unknown"
    return one_line(value, 40) if isinstance(value, str) else f"{value:,} {unit}"
