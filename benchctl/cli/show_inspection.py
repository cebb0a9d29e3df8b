"""Prints a model's facts by the names that `--json` has, or what differs between two models."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchctl.models.gguf_facts import TensorGroup, all_shards, tensors_of
from benchctl.models.inspection import Change, Difference, Inspection
from benchctl.models.tensor_types import family
from benchctl.reports import numbers
from benchctl.reports.columns import Column, Table, numeric
from benchctl.reports.terminal import Printout
from benchctl.text import one_line

_TEXT_CHARACTERS = 600
_VALUE_CHARACTERS = 60
_BRIEF = ("size", "parameters", "bits_per_weight", "file_type")
"""What quantization changes."""
_APART = ("path", "tensor_types")
_BYTES = (
    *("size", "tensor_bytes", "convolution", "state", "bytes_per_sequence"),
    *("kv_bytes_per_token", "kv_bytes_at_context"),
)


def show_inspection(found: Inspection, *, brief: bool = False) -> None:
    """Print a model; `brief` leaves out what quantization does not change."""
    out, facts = Printout(), found.as_dict()
    out.say(str(found.path), "bold", whole=True)
    names = _BRIEF if brief else [name for name in facts if name not in _APART and facts[name] not in (None, [])]
    out.facts([(name.replace("_", " "), _fact(name, facts[name])) for name in names])
    out.say()
    out.table(_types(found))


def _fact(name: str, value: object) -> str:
    """Return a value of the JSON document as people read it."""
    if value is None:
        return numbers.ABSENT
    if isinstance(value, bool):
        return numbers.yes_or_no(value)
    if isinstance(value, int):
        return numbers.size(value) if name in _BYTES else f"{value:,}"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_fact(key, inner)}" for key, inner in value.items())
    if isinstance(value, list):
        return ranges(value) if isinstance(value[0], int) else "; ".join(_fact(name, inner) for inner in value)
    return one_line(f"{value:g}" if isinstance(value, float) else str(value), _TEXT_CHARACTERS)


def show_tensors(path: Path) -> None:
    """Print every tensor of a model with its type, shape and size."""
    table = Table(
        "tensors",
        "Tensors",
        (
            Column("tensor", "name", cell=lambda tensor: one_line(tensor.name, 80), heads=True),
            Column("type", "type_name"),
            Column("shape", lambda tensor: " × ".join(map(str, tensor.shape))),
            numeric("bytes", lambda tensor: "unknown" if tensor.nbytes is None else f"{tensor.nbytes:,}"),
        ),
        list(tensors_of(all_shards(path))),
    )
    out = Printout()
    out.say()
    out.table(table)


def show_difference(found: Difference) -> None:
    """Print what differs from the first model to the second."""
    out = Printout()
    for mark, model in (("−", found.first), ("+", found.second)):
        out.say(f"{mark} {model.path}  {_summary(model)}", whole=True)
    out.say()
    if found.vocabulary:
        out.say("The vocabularies differ:", "yellow")
        for sentence in found.vocabulary:
            out.say(f"  {sentence}")
    else:
        out.say("The vocabularies and special tokens are the same.")
    if not found.metadata and not found.tensors:
        out.say("The metadata and the types and shapes of all tensors are the same.")
    if found.metadata:
        out.say()
        out.table(_changes("metadata", [(change.name, change) for change in found.metadata]))
    if found.tensors:
        out.say()
        out.table(_changes("tensors", _by_family(found.tensors)))


def _changes(title: str, rows: Sequence[tuple[str, Change]]) -> Table[tuple[str, Change]]:
    return Table(
        title,
        title,
        (
            Column(title, lambda row: row[0], cell=lambda row: one_line(row[0], 80), heads=True),
            Column("−", lambda row: row[1].first, _value),
            Column("+", lambda row: row[1].second, _value),
        ),
        rows,
    )


def _by_family(changes: tuple[Change, ...]) -> list[tuple[str, Change]]:
    """Group tensors with the same change in every block on a line: `ssm_out (4 tensors)`."""
    alike: dict[tuple[str, str | None, str | None], list[Change]] = {}
    for change in changes:
        alike.setdefault((family(change.name), change.first, change.second), []).append(change)
    return [
        (f"{name} ({len(group)} tensors)" if len(group) > 1 else group[0].name, group[0])
        for (name, _, _), group in alike.items()
    ]


def _value(text: str | None) -> str:
    return "–" if text is None else one_line(text, _VALUE_CHARACTERS)


def _summary(model: Inspection) -> str:
    bits = model.facts.bits_per_weight
    return numbers.size(model.size) + ("" if bits is None else f", {bits:g} bits per weight")


def ranges(numbers: Sequence[int]) -> str:
    """Return ascending numbers shortened: `0–3, 7`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs)


def _types(found: Inspection) -> Table[tuple[str, TensorGroup]]:
    total = found.facts.tensor_bytes
    columns: tuple[Column[tuple[str, TensorGroup]], ...] = (
        Column("type", lambda row: row[0], heads=True),
        numeric("tensors", lambda row: row[1].count),
        numeric("size", lambda row: row[1].bytes, numbers.size),
        numeric("share", lambda row: row[1].bytes / total if total else None, numbers.percent),
    )
    return Table("types", "Tensors by type", columns, list(found.facts.tensor_types.items()))
