"""The measurements as a table: tensors kept, role, whether the output is sound, and how severe the damage is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchctl.errors import UsageError
from benchctl.experiments.isolate.search import damage, recall
from benchctl.experiments.isolate.stored import ISOLATION, Family, Isolation, Measurement, read_isolation
from benchctl.reports.columns import Column, Name, Table
from benchctl.reports.tables.study import Tensors
from benchctl.text import one_line

_ROLES = {
    "token_embd": "token embedding",
    "output": "output head",
    "attn_q": "attention query",
    "attn_k": "attention key",
    "attn_v": "attention value",
    "attn_qkv": "attention query, key and value",
    "attn_output": "attention output",
    "attn_gate": "attention gate",
    "attn_q_a": "attention query, compressed",
    "attn_q_b": "attention query, restored",
    "attn_kv_a_mqa": "attention key and value, compressed",
    "attn_kv_b": "attention key and value, restored",
    "ffn_gate": "feed-forward gate",
    "ffn_up": "feed-forward up",
    "ffn_down": "feed-forward down",
    "ffn_gate_exps": "experts' gate",
    "ffn_up_exps": "experts' up",
    "ffn_down_exps": "experts' down",
    "ffn_gate_shexp": "shared expert's gate",
    "ffn_up_shexp": "shared expert's up",
    "ffn_down_shexp": "shared expert's down",
    "ssm_in": "recurrent input",
    "ssm_out": "recurrent output",
    "ssm_x": "recurrent parameters",
    "ssm_dt": "recurrent step size",
    "ssm_alpha": "recurrent decay",
    "ssm_beta": "recurrent write strength",
    "ssm_ba": "recurrent decay and write strength",
}


def role(family: str) -> str | None:
    """Return the role of a family; `None` for an unknown family."""
    return _ROLES.get(family)


@dataclass(frozen=True)
class Row:
    """One configuration."""

    what: str
    """Such as `unquantized`, `all q8_0`, `kept: ssm_out`, `only: ssm_out`."""
    role: str | None
    """Of a single family that is kept, or quantized alone."""
    damage: tuple[str, ...]
    """Why the output counts as broken, as ends of sentences; empty when it is sound."""
    flawed: int
    """Health probes that were answered degenerately …"""
    probes: int
    """… of so many."""
    measurement: Measurement

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain data, without the text of the probes' answers."""
        found = self.measurement.model_dump(exclude={"probes"})
        return {**{key: value for key, value in asdict(self).items() if key != "measurement"}, **found}


def rows(isolation: Isolation, limit: float) -> list[Row]:
    """Return the rows in an order to read: the source, the full quantization, kept, quantized alone, groups."""
    found = []
    for measurement in isolation.measurements:
        place, what, of_family = _described(measurement, isolation.families, isolation.type)
        flawed = sum(probe.flaw is not None for probe in measurement.probes)
        reasons = tuple(damage(measurement, limit))
        found.append((place, Row(what, of_family, reasons, flawed, len(measurement.probes), measurement)))
    return [row for _, row in sorted(found, key=lambda pair: pair[0])]


def _described(measurement: Measurement, families: Sequence[Family], base: str) -> tuple[int, str, str | None]:
    """Return the place of a row, its name, and the role of its single family."""
    if measurement.kept is None:
        return 0, "unquantized", None
    if not measurement.kept:
        return 1, f"all {base}", None
    kept = set(measurement.kept)
    quantized: list[str] = []
    for family in families:
        if family.name not in kept:
            rest = [layer for layer in family.layers if layer not in kept]
            quantized += [family.name] if len(rest) == len(family.layers) else rest
    in_layers = any(pattern.startswith("blk.") for pattern in kept)
    if len(kept) <= len(quantized):
        single = _family_of(measurement.kept)
        return (4 if in_layers else 2 if single else 3), f"kept: {', '.join(measurement.kept)}", single and role(single)
    single = _family_of(quantized)
    place = (7 if in_layers else 5) if len(quantized) == 1 else (8 if in_layers else 6)
    return place, f"only: {', '.join(quantized)}", single and role(single)


def _family_of(patterns: Sequence[str]) -> str | None:
    """Return the family that all patterns are of; `None` when they are of several."""
    names = {pattern.split(".", 2)[-1] if pattern.startswith("blk.") else pattern for pattern in patterns}
    return names.pop() if len(names) == 1 else None


def tensors_beside(run: Path, named: Path | None) -> Tensors | None:
    """Return the table of the search that was named, else of the newest beside the run.

    Raises UsageError where the named folder holds none, StorageError.
    """
    if named is None:
        files = run.resolve().parent.glob(f"isolate-*/{ISOLATION}") if run.is_dir() else ()
        newest = max(files, key=lambda file: file.stat().st_mtime, default=None)
        found = None if newest is None else read_isolation(newest.parent)
        return None if found is None else tensor_table(found)
    found = read_isolation(named)
    if found is None:
        raise UsageError(
            "There is no search of `benchctl diagnose isolate` here.",
            where=str(named),
            fix=f"Name the folder that holds {ISOLATION}.",
        )
    return tensor_table(found)


def tensor_table(isolation: Isolation) -> Tensors:
    """Return tensors kept, role and output as published; of an unfinished search by its health probes alone."""
    finding = recall(isolation)
    found = rows(isolation, float("inf") if finding is None else finding.limit)
    columns: list[Column[Row]] = [
        Column("Tensors", lambda row: row.what, cell=lambda row: Name(row.what), heads=True),
        Column("Role", lambda row: row.role),
        Column(
            "Output",
            lambda row: "; ".join(row.damage) or "sound",
            tone=lambda row: "bad" if row.damage else "good",
            wrap=True,
        ),
    ]
    note = "The search was interrupted: only the health probes are reported." if finding is None else ""
    source = isolation.source.files[0].name if isolation.source.files else isolation.source.source
    title = f"Tensors ({one_line(isolation.type)}) of {one_line(source)}"
    plain = [{"kept": row.what, "role": row.role, "damage": row.damage} for row in found]
    return Tensors(Table("study-tensors", title, columns, found, note), plain)
