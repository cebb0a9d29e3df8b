"""The result of a search: the measurements as a table, the damaging tensors in sentences, and the repair."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchctl.errors import UsageError
from benchctl.experiments.isolate.search import DamagingTensors, damage, recall
from benchctl.experiments.isolate.stored import ISOLATION, Family, Isolation, Measurement, read_isolation
from benchctl.models.quantize import quantize_arguments
from benchctl.reports.columns import Column, Name, Table, numeric
from benchctl.reports.tables.study import Tensors
from benchctl.reports.terminal import Printout
from benchctl.text import listed, one_line, plural
from benchctl.words import numbers

if TYPE_CHECKING:
    from benchctl.experiments.isolate.source import SourceModel

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


@dataclass(frozen=True)
class Row:
    """A measured configuration."""

    order: tuple[int, ...]
    """Sort key: first the source, then the full quantization, then tensors kept, then tensors quantized alone."""
    tensors: str
    """Such as `unquantized`, `all q8_0`, `kept: ssm_out`, `only: ssm_out`."""
    role: str | None
    """Role of the family, if a single family is kept or quantized alone."""
    damage: Sequence[str]
    """Why the output counts as broken, as ends of sentences; empty when it is sound."""
    measurement: Measurement

    @property
    def flawed(self) -> int:
        """Health probes that were answered degenerately."""
        return sum(probe.flaw is not None for probe in self.measurement.probes)

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data, without the text of the probes' answers."""
        described = {"what": self.tensors, "role": self.role, "damage": self.damage, "flawed": self.flawed}
        return {**described, "probes": len(self.measurement.probes), **self.measurement.model_dump(exclude={"probes"})}


OUTPUT: tuple[Column[Row], ...] = (
    Column("Tensors", "tensors", Name, heads=True),
    Column("Role", "role"),
    Column(
        "Output",
        lambda row: "; ".join(row.damage) or "sound",
        tone=lambda row: "bad" if row.damage else "good",
        wrap=True,
    ),
)
MEASURED: tuple[Column[Row], ...] = (
    *OUTPUT[:2],
    Column("Output", lambda row: "BROKEN" if row.damage else "sound", tone=lambda row: "bad" if row.damage else "good"),
    numeric("KL", lambda row: _with_error(row, "divergence", 1, 5)),
    numeric("Top-1 %", lambda row: _with_error(row, "same_top", 100, 2)),
    numeric("Perplexity", lambda row: _with_error(row, "perplexity", 1, 3)),
    numeric("Flawed", lambda row: f"{row.flawed}/{len(row.measurement.probes)}"),
    numeric("Size", "measurement.bytes", numbers.size),
)


def _with_error(row: Row, key: str, scale: float, digits: int) -> str | None:
    """Return a value with its standard error, both times `scale`; `None` where nothing was compared."""
    severity = row.measurement.severity
    if severity is None:
        return None
    value, error = getattr(severity, key), getattr(severity, f"{key}_error")
    if value is None:
        return "no number"
    spread = "" if error is None else f" ± {scale * error:.{digits}f}"
    return f"{round(scale * value, digits) + 0.0:.{digits}f}{spread}"  # + 0.0 avoids -0


def rows(isolation: Isolation, limit: float) -> list[Row]:
    """Return a row for each measurement, in an order to read; `limit`: nats beyond which it counts as damaged."""
    table_rows = [
        Row(*_described(measured.kept, isolation.families, isolation.type), damage(measured, limit), measured)
        for measured in isolation.measurements
    ]
    return sorted(table_rows, key=lambda row: row.order)


def _described(
    patterns: Sequence[str] | None, families: Sequence[Family], base: str
) -> tuple[tuple[int, ...], str, str | None]:
    """Return the sort key of a row, its name, and the role of its single family."""
    if not patterns:
        return ((0,), "unquantized", None) if patterns is None else ((1,), f"all {base}", None)
    quantized: list[str] = []
    for family in families:
        if family.name not in patterns:
            quantized_layers = [layer for layer in family.layers if layer not in patterns]
            quantized += [family.name] if len(quantized_layers) == len(family.layers) else quantized_layers
    only = len(patterns) > len(quantized)
    named = quantized if only else patterns
    families_named = {name.split(".", 2)[-1] if name.startswith("blk.") else name for name in named}
    role = _ROLES.get(families_named.pop()) if len(families_named) == 1 else None
    order = (2 + only, any(pattern.startswith("blk.") for pattern in patterns), len(named) > 1)
    return order, f"{'only' if only else 'kept'}: {', '.join(named)}", role


def tensors_beside(run: Path, named: Path | None) -> Tensors | None:
    """Return the table of the search that was named, else of the newest beside the run.

    Raises UsageError where the named folder holds none, StorageError.
    """
    files = run.resolve().parent.glob(f"isolate-*/{ISOLATION}") if named is None and run.is_dir() else ()
    newest = max(files, key=lambda file: file.stat().st_mtime, default=None)
    folder = newest.parent if newest is not None else named
    isolation = None if folder is None else read_isolation(folder)
    if isolation is None and named is not None:
        fix = f"Name the folder that holds {ISOLATION}."
        raise UsageError("There is no search of `benchctl isolate` here.", where=str(named), fix=fix)
    return None if isolation is None else tensor_table(isolation)


def tensor_table(isolation: Isolation) -> Tensors:
    """Return tensors kept, role and output as published; of an unfinished search by its health probes alone."""
    damaging = recall(isolation)
    table_rows = rows(isolation, float("inf") if damaging is None else damaging.limit)
    note = "The search was interrupted: only the health probes are reported." if damaging is None else ""
    source = isolation.source.files[0].name if isolation.source.files else isolation.source.source
    title = f"Tensors ({one_line(isolation.type)}) of {one_line(source)}"
    plain = [{"kept": row.tensors, "role": row.role, "damage": row.damage} for row in table_rows]
    return Tensors(Table("study-tensors", title, OUTPUT, table_rows, note), plain)


def document(source: SourceModel, isolation: Isolation, damaging: DamagingTensors, folder: Path) -> dict[str, Any]:
    """Return everything as plain data."""
    return {
        "folder": str(folder),
        "source": isolation.source.model_dump(),
        "type": isolation.type,
        "text": None if isolation.text is None else isolation.text.model_dump(),
        "finding": asdict(damaging),
        "repair": _repair(source, damaging),
        "rows": [row.as_dict() for row in rows(isolation, damaging.limit)],
    }


def _repair(source: SourceModel, damaging: DamagingTensors) -> dict[str, Any] | None:
    """Return the recipe's words and the command that repair the model; `None` where nothing is to be repaired."""
    if not damaging.kept:
        return None
    spec = source.spec_with(damaging.kept)
    file = source.files[0]
    target = Path(f"{file.stem}-{spec.type.lower()}-repaired.gguf")
    return {
        "quantize": {"type": spec.type, "tensors": dict(spec.tensors)},
        "command": shlex.join([*source.quantizer.command, *quantize_arguments(spec, file, target)]),
    }


def show_isolation(
    isolation: Isolation, damaging: DamagingTensors, repair: dict[str, Any] | None, folder: Path
) -> None:
    """Print the table, the damaging tensors, the rule and the repair."""
    out = Printout()
    out.table(Table("isolation", "Tensors", MEASURED, rows(isolation, damaging.limit)))
    out.say()
    out.say(_conclusion(isolation, damaging))
    for name, layers in damaging.layers.items():
        needed = "every layer" if layers.whole else _shown(layers.repair)
        out.say(
            f"Of {one_line(name)}, keeping {needed} is enough; quantized alone, {_shown(layers.breaking)} breaks it."
        )
    if isolation.text is not None:
        count, text = damaging.evaluations, isolation.text
        typical = (
            "" if damaging.usual is None else f" (typical for {isolation.type} on this model: {damaging.usual:.2g})"
        )
        out.say(f"Broken: a health probe fails that passes on the source, or KL above {damaging.limit:.3g}{typical}.")
        out.say(f"{count} {plural(count, 'quantization')} measured; a family at a time: {damaging.one_by_one}.")
        out.say(
            "KL: mean Kullback-Leibler divergence from the unquantized model in nats, over "
            f"{text.places} scored tokens of {text.origin}, in pieces of {text.context}."
        )
    if repair is not None:
        tensors = ", ".join(f'"{pattern}": {kind}' for pattern, kind in repair["quantize"]["tensors"].items())
        out.say()
        out.say("In the recipe:", "bold")
        out.say(f"  quantize: {{type: {repair['quantize']['type']}, tensors: {{{tensors}}}}}", whole=True, most=4000)
        out.say("By hand:", "bold")
        out.say(f"  {repair['command']}", whole=True, most=4000)
    out.say()
    out.say(f"All measurements: {folder}", "dim", whole=True)


def _conclusion(isolation: Isolation, damaging: DamagingTensors) -> str:
    base, repair = isolation.type, _shown(damaging.repair)
    if damaging.verdict == "source damaged":
        problems = " ".join(one_line(problem.seen, 400) for problem in isolation.measurements[0].findings)
        return f"The model is broken before it is quantized: {problems}"
    if damaging.verdict == "healthy":
        return f"{base} does not damage this model; nothing needs repair."
    breaks_alone = f"Quantized alone, {_shown(damaging.breaking)} breaks it."
    if damaging.verdict == "spread":
        spread = f"the damage is spread over {len(damaging.repair)} of {len(isolation.families)} families"
        return f"{base} breaks this model, and {spread}: choose a finer type, or keep {repair}. {breaks_alone}"
    return f"{base} breaks this model, and keeping {repair} repairs it. {breaks_alone}"


def _shown(names: Sequence[str]) -> str:
    return listed(one_line(name, 60) for name in names) or "nothing"
