"""How a run was measured, from its manifest: machine, engine, model files, commands, and every engine process."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from benchctl.analysis.results import Analysis
from benchctl.data.cell import Cell
from benchctl.data.integrity import Integrity
from benchctl.data.manifest import EngineIdentity, Manifest, ModelIdentity, SetupIdentity
from benchctl.recipes.source import bundled_names
from benchctl.reports.columns import Cell as TableCell
from benchctl.reports.columns import Code, Column, Folded, Piece, Table, arm_column, numeric
from benchctl.text import listed
from benchctl.words import numbers

Fact = tuple[str, TableCell]
LONG_LIST = 20
"""Longer lists (all flags of an engine) are counted, not printed."""


def flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield (name, value) of every leaf of nested `values`, in their order; names of nested ones are joined by `·`."""
    for key, value in values.items():
        name = f"{prefix}{str(key).replace('_', ' ')}"
        if isinstance(value, Mapping):
            yield from flatten(value, f"{name} · ")
        elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
            for number, item in enumerate(value, start=1):
                yield from flatten(item if isinstance(item, Mapping) else {"": item}, f"{name} {number} · ")
        else:
            yield _leaf(name, value)


def _leaf(name: str, value: object) -> tuple[str, str]:
    if value is None:
        return name, "not known"
    if isinstance(value, bool):
        return name, "yes" if value else "no"
    if isinstance(value, list) and len(value) > LONG_LIST:
        return name, f"{len(value)} entries, listed in the run's manifest.json"
    if isinstance(value, list):
        return name, ", ".join(map(str, value)) or "none"
    if name.endswith(" bytes") and isinstance(value, int):
        return name.removesuffix("bytes").rstrip(" ·"), numbers.size(value)
    if isinstance(value, int):
        return name, numbers.count(value)
    return name, str(int(value) if isinstance(value, float) and value.is_integer() else value)


def glance(manifest: Manifest) -> list[Fact]:
    """What ran, in a few lines: models with their quantization, engine build, hardware."""
    setups = _setups(manifest)
    return [
        *(("target", line) for line in _models(setup.target for setup in setups)),
        *(("draft", line) for line in _models(setup.draft for setup in setups if setup.draft is not None)),
        *(("engine", ", ".join([line, *engine_settings(manifest)])) for line in _engines(manifest)),
        ("hardware", hardware(manifest)),
    ]


def engine_settings(manifest: Manifest) -> list[str]:
    """Return the precision and the engine's own options that the recipe sets for all arms, as ends of a sentence."""
    if any(axis.partition(".")[0] == "engine" for setup in manifest.setups for axis in setup.axes):
        return []
    engine = manifest.recipe.get("engine") or {}
    dtype, args = engine.get("dtype"), engine.get("args")
    options = shlex.join(map(str, args)) if isinstance(args, list) else ""
    return [*([f"in {dtype}"] if dtype not in (None, "auto") else []), *([f"with {options}"] if options else [])]


def hardware(manifest: Manifest) -> str:
    """Return processor, memory and GPUs, as far as they are reported."""
    machine = manifest.machine
    memory = machine.get("memory_bytes")
    parts = [
        processor(machine),
        f"{numbers.size(memory)} memory" if isinstance(memory, int) else "",
        *cards(machine),
    ]
    return ", ".join(filter(None, parts))


def processor(machine: Mapping[str, Any]) -> str:
    """Return the processor and its cores, as far as they are reported."""
    cores = machine.get("cores")
    return f"{machine.get('cpu') or 'processor not known'}{f', {cores} cores' if cores else ''}"


def source_name(source: str) -> str:
    """Return the last part of a model's source, without its folders or its organisation."""
    return source.rstrip("/").rpartition("/")[2]


def short_names(manifest: Manifest) -> tuple[str, str]:
    """Return the engines with their builds, and the models; a model's types of weights where its name lacks them."""

    def named(models: Iterable[ModelIdentity]) -> str:
        types: dict[str, list[str]] = {}
        for model in models:
            name = source_name(model.source).removesuffix(".gguf")
            kinds, kind = types.setdefault(name, []), weights_of(model.facts)
            kinds += [kind] if kind and kind not in kinds else []
        return ", ".join(map(_with_types, types, types.values()))

    setups = _setups(manifest)
    drafts = named(setup.draft for setup in setups if setup.draft is not None)
    engines = re.sub(r"\(build \S+, commit (\w+)\)", r"(\1)", ", ".join(_engines(manifest)))
    return engines, f"Target {named(setup.target for setup in setups)}{f'; draft {drafts}' if drafts else ''}"


def _with_types(name: str, kinds: Sequence[str]) -> str:
    """Return a model's name with its types of weights; of several none is a part of the name."""
    if len(kinds) < 2:
        return f"{name} ({kinds[0]})" if kinds and kinds[0] not in name.lower() else name
    ending = next((kind for kind in kinds if name.lower().endswith(kind)), "")
    return f"{name[: len(name) - len(ending)].rstrip('-._')} in {listed(kinds)}"


def demonstrates(manifest: Manifest) -> bool:
    """Whether a target or draft is a model that benchctl ships, or was made of one, which keeps its name."""
    names = bundled_names()
    models = [model for setup in _setups(manifest) for model in (setup.target, setup.draft) if model is not None]
    return any(model.source.startswith("bundled:") or model.facts.get("name") in names for model in models)


def _setups(manifest: Manifest) -> Sequence[Manifest | SetupIdentity]:
    return manifest.setups or [manifest]


def _engines(manifest: Manifest) -> list[str]:
    """Each engine with its build, once."""
    return list(dict.fromkeys(engine_line(setup.engine) for setup in _setups(manifest)))


def engine_line(engine: EngineIdentity) -> str:
    """Return an engine's kind, once, and its build."""
    version = (engine.version or engine.build or "(build not reported)").removeprefix("version: ")
    return version if version.lower().startswith(engine.kind) else f"{engine.kind} {version}"


def cards(machine: Mapping[str, Any]) -> list[str]:
    """Return a text for each kind of GPU: how many, their name, power limit and links, as far as reported."""
    pairs = zip_longest(machine.get("accelerators") or [], machine.get("accelerator_settings") or [])
    texts = Counter(_card(device, setting) for device, setting in pairs if device is not None)
    return [f"{number} × {text}" if number > 1 else text for text, number in texts.items()]


def _card(device: object, setting: object) -> str:
    facts, links = (part if isinstance(part, Mapping) else {} for part in (device, setting))
    limit, width, nvlinks = facts.get("power_limit_w"), links.get("pcie_width"), links.get("nvlinks")
    parts = [
        str(facts.get("name", device)),
        f"{limit:g} W" if isinstance(limit, int | float) else "",
        f"PCIe {links.get('pcie_generation_max', '')} x{width}" if width else "",  # the current one falls when idle
        f"{nvlinks} NVLinks" if nvlinks else "",
    ]
    return ", ".join(filter(None, parts))


FLOATS = ("f32", "f16", "bf16")


def weights_of(facts: Mapping[str, Any]) -> str | None:
    """Return the type of a model's weights: by its name, or of most bytes where either is no quantization."""
    name = facts.get("file_type") or facts.get("quantization") or facts.get("dtype") or facts.get("torch_dtype")
    sizes = {kind: tensors["bytes"] for kind, tensors in (facts.get("tensor_types") or {}).items()}
    largest = max(sizes, key=lambda kind: sizes[kind], default=None)
    return largest if largest is not None and (name in (None, *FLOATS) or largest in FLOATS) else name


def _models(models: Iterable[ModelIdentity]) -> list[str]:
    """A line a source: its name, and each type of weights that it was run with."""
    types: dict[str, list[str]] = {}
    for model in models:
        bits = model.facts.get("bits_per_weight")
        weights = weights_of(model.facts) or "quantization not reported"
        line = f"{weights}, {bits:.3g} bits per weight" if bits else weights
        types[model.source] = list(dict.fromkeys([*types.get(model.source, []), line]))
    return [f"{source}, {'; '.join(lines)}" for source, lines in types.items()]


def run_facts(manifest: Manifest, analysis: Analysis, integrity: Integrity) -> list[Fact]:
    """Identity, time and workload of the run."""
    until = f" to {numbers.moment(manifest.finished_at)}" if manifest.finished_at else ""
    tasks = "task" if len(analysis.tasks) == 1 else "tasks"
    names = ", ".join(analysis.tasks)
    return [
        ("benchctl", manifest.benchctl_version),
        ("run", (Code(manifest.run), manifest.status)),
        ("time", numbers.moment(manifest.created_at) + until),
        ("prompts", f"{len(manifest.prompts)} in {len(analysis.tasks)} {tasks}: {names}"),
        ("recipe SHA-256", Code(manifest.recipe_sha256)),
        ("workload SHA-256", Code(manifest.workload_sha256)),
        ("files", integrity.sentence.removeprefix("Files: ")),
    ]


def engine_facts(manifest: Manifest) -> list[Fact]:
    """The engine: kind, binary, build, and its speculation types."""
    identity = manifest.engine
    return [
        ("kind", identity.kind),
        *((name, getattr(identity, name) or "not reported") for name in ("version", "build", "commit")),
        ("binary", f"{identity.binary or 'not started by benchctl'} (found in: {identity.found_in})"),
        ("speculation types", ", ".join(identity.speculation_types) or "none"),
        *flatten(identity.details),
    ]


def sections(manifest: Manifest, analysis: Analysis, integrity: Integrity) -> dict[str, list[Fact]]:
    """Heading to what is known: machine, engine, prompts."""
    return {
        "Run": run_facts(manifest, analysis, integrity),
        "Machine": list(flatten(manifest.machine)),
        "Engine": engine_facts(manifest),
        "Prompts": list(flatten(manifest.suite or {})),
    }


def models(manifest: Manifest) -> list[tuple[str, str, list[Fact]]]:
    """The target and the draft, if any: role, source, facts; of a run over axes those of all setups."""
    by_digest: dict[str, tuple[str, ModelIdentity, list[str]]] = {}
    pairs = [(setup.name, setup.target, setup.draft) for setup in manifest.setups] or [
        ("", manifest.target, manifest.draft)
    ]
    for name, target, draft in pairs:
        for role, model in (("Target", target), ("Draft", draft)):
            if model is not None:
                key = role + ",".join(file.sha256 for file in model.files)
                by_digest.setdefault(key, (role, model, []))[2].append(name)
    return [
        (role, model.source, [*([("setups", ", ".join(names))] if any(names) else []), *_model_facts(model)])
        for role, model, names in by_digest.values()
    ]


def _model_facts(model: ModelIdentity) -> list[Fact]:
    files: list[Fact] = [
        fact
        for file in model.files
        for fact in (("file", (Code(file.name), numbers.size(file.size))), ("SHA-256", Code(file.sha256)))
    ]
    return [*files, *flatten(model.facts)]


def cells(manifest: Manifest, analysis: Analysis) -> Table[Cell]:
    """A row an engine process, with the evidence that it ran as the recipe says."""
    return Table(
        "cells",
        "Every engine process, and the evidence that it ran as requested",
        (
            numeric("Block", lambda row: row.block + 1),
            numeric("Place", lambda row: row.order + 1),
            arm_column(analysis),
            Column("Status", _status),
            Column("Attested", "attestation.state"),
            numeric("Start-up", "startup_s", numbers.seconds),
            numeric("Wall", "wall_s", numbers.seconds),
            numeric("Load before", "load_before", numbers.decimal),
            Column("Evidence", lambda row: None, cell=_evidence, wrap=True),
        ),
        manifest.cells,
    )


def _status(cell: Cell) -> str:
    attempt = f" (attempt {cell.attempt + 1})" if cell.attempt else ""
    return f"{cell.status}{attempt}, not used" if cell.discarded else f"{cell.status}{attempt}"


def _evidence(cell: Cell) -> tuple[Piece, ...]:
    pieces: list[Piece] = []
    if cell.error:
        pieces += [f"{cell.error.kind}:", Code(cell.error.message), *filter(None, [cell.error.remedy])]
    if cell.attestation:
        lines = tuple(cell.attestation.evidence)
        pieces += [Code(cell.attestation.reason)] if cell.attestation.reason else []
        summary = f"{len(lines)} observation{'' if len(lines) == 1 else 's'}"
        pieces += [Folded(summary, lines)] if lines else []
    return tuple(pieces)


def recipe_yaml(manifest: Manifest) -> str:
    """The recipe as it was run, as YAML."""
    import yaml

    return yaml.safe_dump(manifest.recipe, sort_keys=False, allow_unicode=True, width=100)
