"""How a model's facts are shown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchctl.models.inspection import Inspection
from benchctl.models.shards import all_shards, tensors_of
from benchctl.text import one_line

_TEMPLATE_CHARACTERS = 600


def show_inspection(found: Inspection, *, brief: bool = False) -> None:
    """Print a model; `brief` leaves out what quantizing does not change."""
    console = Console(highlight=False)
    facts = found.facts
    console.print(Text(one_line(str(found.path)), style="bold"), soft_wrap=True)
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    rows = [("size", _size(found)), ("weights", _weights(found))]
    if not brief:
        rows = [("model", f"{one_line(facts.name or 'unnamed', 100)} ({_said(facts.architecture)})"), *rows]
        rows += [("layers", _layers(found)), ("context", _with_unit(facts.context_length, "tokens"))]
        rows += [("recurrent state", _state(found)), ("KV cache", _cache(found)), ("vocabulary", _vocabulary(found))]
        rows += [("special tokens", _special(found)), ("chat template", _template(found))]
    for name, value in rows:
        grid.add_row(name, Text(value))
    console.print(grid)
    console.print()
    console.print(_types(found))


def show_tensors(path: Path) -> None:
    """Print every tensor of a model with its type, shape and size."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("tensor", "type", "shape", "bytes"):
        table.add_column(title, justify="right" if title == "bytes" else "left", overflow="fold")
    for tensor in tensors_of(all_shards(path)):
        shape = " × ".join(map(str, tensor.shape))
        size = "unknown" if tensor.nbytes is None else f"{tensor.nbytes:,}"
        table.add_row(Text(one_line(tensor.name, 80)), tensor.type_name, shape, size)
    console = Console(highlight=False)
    console.print()
    console.print(table)


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


def _types(found: Inspection) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("type")
    for title in ("tensors", "size", "share"):
        table.add_column(title, justify="right")
    total = found.facts.tensor_bytes
    for name, group in found.facts.tensor_types.items():
        share = f"{100 * group.bytes / total:.1f} %" if total else "–"
        table.add_row(name, str(group.count), mebibytes(group.bytes), share)
    return table


def _size(found: Inspection) -> str:
    files = "" if found.facts.files == 1 else f" in {found.facts.files} files"
    return f"{mebibytes(found.size)}{files} (GGUF version {found.facts.version})"


def _weights(found: Inspection) -> str:
    facts = found.facts
    bits = "bits per weight unknown" if facts.bits_per_weight is None else f"{facts.bits_per_weight:g} bits per weight"
    announced = "" if facts.file_type is None else f", announced as {facts.file_type}"
    return f"{facts.parameters:,} parameters, {bits}{announced}"


def _layers(found: Inspection) -> str:
    facts = found.facts
    told = {
        "attention": "attention",
        "hybrid": "hybrid: recurrent state and attention",
        "recurrent": "recurrent, without attention",
    }
    parts = [_with_unit(facts.layers, "blocks"), told[facts.memory]]
    if facts.memory == "hybrid":
        parts.append(f"recurrent in {ranges(facts.recurrent_layers)}; attention in {ranges(facts.attention_layers)}")
    if facts.mtp_layers:
        parts.append(f"{facts.mtp_layers} multi-token-prediction")
    if found.embedding_length is not None:
        parts.append(f"width {found.embedding_length:,}")
    return "; ".join(parts)


def _state(found: Inspection) -> str:
    state = found.recurrent
    if state is None:
        return "none" if found.facts.memory == "attention" else "unknown for this architecture"
    parts = f"{mebibytes(state.convolution)} convolution, {mebibytes(state.state)} state"
    return f"{mebibytes(state.total)} per sequence ({parts}; {state.layers} layers, f32)"


def _cache(found: Inspection) -> str:
    if found.kv_bytes_per_token is None:
        return "unknown for this architecture"
    if found.kv_bytes_per_token == 0:
        return "none"
    text = f"{found.kv_bytes_per_token:,} bytes per token in f16"
    if found.kv_bytes_at_context is not None:
        text += f", {mebibytes(found.kv_bytes_at_context)} at {found.facts.context_length:,} tokens"
    if found.sliding_window:
        text += f"; less where layers look back {found.sliding_window:,} tokens only"
    return text


def _vocabulary(found: Inspection) -> str:
    facts = found.facts
    if facts.vocab_size is None or found.vocabulary_sha256 is None:
        return "none in this file"
    kind = "/".join(one_line(name, 40) for name in (facts.tokenizer_model, facts.tokenizer_pre) if name)
    return f"{facts.vocab_size:,} tokens ({kind}), SHA-256 {found.vocabulary_sha256[:12]}"


def _special(found: Inspection) -> str:
    def told(text: str | None) -> str:
        return "beyond the vocabulary" if text is None else one_line(text, 40)

    lines = [
        f"{one_line(token.part, 20)} {token.id} {told(token.text)}"
        + {True: " (added to every text)", False: " (not added)", None: ""}[token.added]
        for token in found.special
    ]
    return "\n".join(lines) or "none named"


def _template(found: Inspection) -> str:
    if not found.chat_template:
        return "none"
    return one_line(found.chat_template, _TEMPLATE_CHARACTERS)


def _with_unit(value: int | None, unit: str) -> str:
    return f"{unit} unknown" if value is None else f"{value:,} {unit}"


def _said(value: str | None) -> str:
    return "architecture unknown" if value is None else one_line(value, 40)
