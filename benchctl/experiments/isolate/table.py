"""What a search found: the measurements as a table, the finding in sentences, and the repair."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchctl.errors import UsageError
from benchctl.experiments.isolate.search import BEYOND_USUAL, LEAST, MOST, Finding, damage, recall
from benchctl.experiments.isolate.stored import ISOLATION, Family, Isolation, Measurement, read_isolation, with_error
from benchctl.models.quantize import quantize_arguments
from benchctl.reports import numbers
from benchctl.reports.columns import Column, Name, Table, numeric
from benchctl.reports.tables.study import Tensors
from benchctl.reports.terminal import Printout
from benchctl.text import listed, one_line

if TYPE_CHECKING:
    from benchctl.experiments.isolate.source_model import SourceModel

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
    """A configuration."""

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


OUTPUT: tuple[Column[Row], ...] = (
    Column("Tensors", "what", Name, heads=True),
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
    numeric("KL", "measurement.spoken_divergence"),
    numeric("Top-1 %", lambda row: _severity(row, "same_top", 100, 2)),
    numeric("Perplexity", lambda row: _severity(row, "perplexity", 1, 3)),
    numeric("Flawed", lambda row: f"{row.flawed}/{row.probes}"),
    numeric("Size", "measurement.bytes", numbers.size),
)


def _severity(row: Row, key: str, scale: float, digits: int) -> str | None:
    found = row.measurement.severity
    return None if found is None else with_error(getattr(found, key), getattr(found, f"{key}_error"), scale, digits)


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
        return (
            (4 if in_layers else 2 if single else 3),
            f"kept: {', '.join(measurement.kept)}",
            single and _ROLES.get(single),
        )
    single = _family_of(quantized)
    place = (7 if in_layers else 5) if len(quantized) == 1 else (8 if in_layers else 6)
    return place, f"only: {', '.join(quantized)}", single and _ROLES.get(single)


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
    note = "The search was interrupted: only the health probes are reported." if finding is None else ""
    source = isolation.source.files[0].name if isolation.source.files else isolation.source.source
    title = f"Tensors ({one_line(isolation.type)}) of {one_line(source)}"
    plain = [{"kept": row.what, "role": row.role, "damage": row.damage} for row in found]
    return Tensors(Table("study-tensors", title, OUTPUT, found, note), plain)


def repair_of(source: SourceModel, finding: Finding) -> dict[str, Any] | None:
    """Return the recipe's words and the command that repair the model; `None` where nothing is to be repaired."""
    if not finding.kept:
        return None
    spec = source.spec_with(finding.kept)
    file = source.files[0]
    target = Path(f"{file.stem}-{spec.type.lower()}-repaired.gguf")
    return {
        "quantize": {"type": spec.type, "tensors": dict(spec.tensors)},
        "command": shlex.join([*source.quantizer.command, *quantize_arguments(spec, file, target)]),
    }


def show_isolation(
    isolation: Isolation, finding: Finding, table: Sequence[Row], repair: dict[str, Any] | None, folder: Path
) -> None:
    """Print the table, the finding, the rule and the repair."""
    out = Printout()
    out.table(Table("isolation", "Tensors", MEASURED, table))
    out.say()
    for sentence in _sentences(isolation, finding):
        out.say(sentence)
    if isolation.text is not None:
        text = isolation.text
        read = f"{text.places} scored tokens of {text.origin}, in pieces of {text.context}"
        out.say(f"KL: mean Kullback-Leibler divergence from the unquantized model in nats, over {read}.")
    if repair is not None:
        tensors = ", ".join(f'"{pattern}": {kind}' for pattern, kind in repair["quantize"]["tensors"].items())
        out.say()
        out.say("In the recipe:", "bold")
        out.say(f"  quantize: {{type: {repair['quantize']['type']}, tensors: {{{tensors}}}}}", whole=True, most=4000)
        out.say("By hand:", "bold")
        out.say(f"  {repair['command']}", whole=True, most=4000)
    out.say()
    out.say(f"All measurements: {folder}", "dim", whole=True)


def _sentences(isolation: Isolation, finding: Finding) -> list[str]:
    base = isolation.type
    measured = "1 quantization was" if finding.evaluations == 1 else f"{finding.evaluations} quantizations were"
    count = f"{measured} measured; testing a family at a time would take {finding.one_by_one}."
    rule = f"Broken: a health probe fails that passes on the source, or KL above {_limit(finding, base)}."
    repair, breaking = _shown(finding.repair), _shown(finding.breaking)
    answers = {
        "source damaged": "The model is broken before it is quantized: "
        + " ".join(
            one_line(found.seen, 400) for measurement in isolation.measurements[:1] for found in measurement.findings
        ),
        "healthy": f"{base} does not damage this model; nothing needs repair.",
        "one family": f"{base} breaks this model, and keeping {repair} repairs it.",
        "several families": f"{base} breaks this model, and no single family repairs it: keeping {repair} does.",
        "spread": f"{base} breaks this model, and the damage is spread: repair takes {len(finding.repair)} of "
        f"{len(isolation.families)} families ({repair}). Choose a finer type.",
    }
    lines = [answers[finding.verdict]]
    if finding.verdict == "source damaged":
        return lines
    if finding.repair:
        lines.append(
            f"Quantized alone, {breaking} {'breaks' if len(finding.breaking) == 1 else 'each break'} it."
            if finding.breaking
            else "No family breaks it when it alone is quantized: the damage adds up."
        )
    for name, layers in finding.layers.items():
        needed = "it takes every layer" if layers.whole else f"keeping {_shown(layers.repair)} is enough"
        lines.append(
            f"Of {one_line(name)}, {needed}; "
            + (f"{_shown(layers.breaking)} break it alone." if layers.breaking else "no layer breaks it alone.")
        )
    return [*lines, rule, count]


def _limit(finding: Finding, base: str) -> str:
    """Return the limit and its origin."""
    if finding.usual is None:
        return f"{finding.limit:.3g}"
    if finding.limit == MOST:
        return f"{MOST:g}, which is damage in any type (typical for {base} on this model: {finding.usual:.2g})"
    if finding.limit == LEAST:
        return f"{LEAST:g}, the smallest that counts as damage (typical for {base} on this model: {finding.usual:.2g})"
    return f"{finding.limit:.3g}, {BEYOND_USUAL:g} times what is typical for {base} on this model"


def _shown(names: Sequence[str]) -> str:
    return listed(one_line(name, 60) for name in names) or "nothing"
