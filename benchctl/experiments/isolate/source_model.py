"""What is examined: a source, the quantization that may break it, and the families that this changes."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchctl.engines.common.programs import program
from benchctl.engines.quantizing import DivergenceMeter, QuantizingEngine
from benchctl.errors import UsageError
from benchctl.experiments.isolate.stored import Family
from benchctl.measure.prepare import Prepared, PreparedSetup
from benchctl.measure.requested import Standing
from benchctl.models.files import Notice
from benchctl.models.gguf_facts import tensors_of
from benchctl.models.gguf_header import Tensor, tensor_types
from benchctl.models.quantize import Program, check_arguments, checked
from benchctl.models.tensor_types import family, requested_types, takes_other_type
from benchctl.permissions import permit_part
from benchctl.recipes.adapters import adapter_of, kinds_with
from benchctl.recipes.quantization import UNQUANTIZED, tensor_regex
from benchctl.recipes.schema import ModelPair, ModelSpec, QuantizeSpec, Recipe
from benchctl.text import one_line

USUAL_TYPE = "q8_0"
"""Tried where neither the recipe nor the user names a type."""
_BLOCK = re.compile(r"(blk\.\d+\.)")


@dataclass(frozen=True)
class SourceModel:
    """A source that this machine can quantize and measure."""

    prepared: Prepared
    """The recipe's baseline on the source, nothing quantized."""
    spec: QuantizeSpec
    """The requested quantization: base type and the overrides that stay as they are."""
    families: tuple[Family, ...]
    """Those that the quantization changes, largest first."""
    quantizer: Program
    divergence: DivergenceMeter

    @property
    def setup(self) -> PreparedSetup:
        """The engine with the source."""
        return self.prepared.of_baseline

    @property
    def files(self) -> tuple[Path, ...]:
        """The source's files, the first shard first."""
        return tuple(file.path for file in self.setup.models.target.files)

    def spec_with(self, kept: Collection[str]) -> QuantizeSpec:
        """Return the quantization in which the tensors of these patterns keep the source's type."""
        return spec_with(self.spec, self.families, kept, tensors_of(self.files))


def find_source_model(
    standing: Standing,
    *,
    base: str | None = None,
    allow_requantize: bool = False,
    binary: str | None = None,
    models_dir: Path | None = None,
    notice: Notice | None = None,
) -> SourceModel:
    """Find the engine with its programs, the source and the prompts. `base` takes the place of the recipe's `quantize`.

    Raises UsageError for an engine that quantizes nothing, a source that is quantized already, a type that is no
    quantization; EngineError (`launch`) when a program is missing.
    """
    recipe = standing.recipe.alone("benchctl diagnose isolate")
    if not adapter_of(recipe.engine.kind).quantizes:
        able = kinds_with(lambda adapter: adapter.quantizes)
        raise UsageError(
            f"tensors are isolated with {able}'s own quantization, and this recipe runs {recipe.engine.kind}",
            where="engine.kind",
            fix=f"Write a recipe for {able} with the same model.",
        )
    spec = _spec(recipe, base, allow_requantize)
    prepared = standing.prepare(binary, models_dir, notice, _of_the_source(recipe))
    engine = prepared.of_baseline.engine
    assert isinstance(engine, QuantizingEngine)  # as its adapter declares
    quantizer, divergence = program(engine.quantizer()), engine.divergence_meter()
    if (located := engine.locate()) is not None:
        for tool in (quantizer, divergence.program):
            permit_part(Path(tool.command[-1]), located.path, standing.folder, trusted=standing.trusted)
    files = [file.path for file in prepared.of_baseline.models.target.files]
    families = families_of(tensors_of(files), spec)
    if not families:
        raise UsageError("this quantization changes no tensor of the model", where=one_line(str(files[0])))
    everything = {changed.name: changed.keep for changed in families}
    checked(files, spec.model_copy(update={"tensors": everything}))  # before any work is done
    return SourceModel(prepared, spec, families, quantizer, divergence)


def _of_the_source(recipe: Recipe) -> Recipe:
    """Return the recipe of the target alone, as it is before any quantization."""
    baseline = recipe.arm(recipe.baseline).model_copy(update={"setup": None, "group": None})
    models = ModelPair(target=ModelSpec(source=recipe.models.target.source))
    return recipe.model_copy(update={"models": models, "arms": [baseline], "setups": []})


def families_of(tensors: Sequence[Tensor], spec: QuantizeSpec) -> tuple[Family, ...]:
    """Return the families that `spec` changes, largest first. Raises UsageError for overrides without effect."""
    requested = requested_types(tensors, spec.tensors)
    changed: dict[str, list[Tensor]] = {}
    for tensor in tensors:
        if takes_other_type(tensor) and requested.get(tensor.name) not in {*UNQUANTIZED, tensor.type_name}:
            changed.setdefault(family(tensor.name), []).append(tensor)
    found = [
        Family(
            name=name,
            tensors=len(members),
            parameters=sum(tensor.elements for tensor in members),
            keep=max(members, key=_bits).type_name,
            layers=[
                f"{block[1]}{name}" for tensor in members if (block := _BLOCK.match(tensor.name)) and len(members) > 1
            ],
        )
        for name, members in changed.items()
    ]
    return tuple(sorted(found, key=lambda changed_family: (-changed_family.parameters, changed_family.name)))


def spec_with(
    spec: QuantizeSpec, families: Sequence[Family], kept: Collection[str], tensors: Sequence[Tensor]
) -> QuantizeSpec:
    """Return `spec` with the tensors of the patterns in `kept` (families, or single blocks) left as they are.

    An override of `spec` that has nothing left to decide is dropped: llama-quantize takes the first that matches.
    """
    types = {pattern: known.keep for known in families for pattern in (known.name, *known.layers)}
    overrides = {pattern: types[pattern] for pattern in sorted(kept)}
    names = [tensor.name for tensor in tensors if takes_other_type(tensor)]
    taken = {name for name in names for pattern in overrides if re.search(tensor_regex(pattern), name)}
    for pattern, kind in spec.tensors.items():
        matching = {name for name in names if re.search(tensor_regex(pattern), name)}
        if matching - taken:
            overrides[pattern] = kind
        taken |= matching
    return spec.model_copy(update={"tensors": overrides})


def _bits(tensor: Tensor) -> float:
    known = tensor_types().get(tensor.type_id)
    return 0.0 if known is None else known.size / known.block


def _spec(recipe: Recipe, base: str | None, allow_requantize: bool) -> QuantizeSpec:
    """Return the quantization to examine. Raises UsageError."""
    spec = (recipe.models.target.quantize if base is None else None) or QuantizeSpec(type=base or USUAL_TYPE)
    spec = spec.model_copy(update={"allow_requantize": spec.allow_requantize or allow_requantize})
    check_arguments(spec)
    if spec.type.lower() in UNQUANTIZED:
        raise UsageError(
            f"{spec.type} is not a quantized type, so no tensor can be damaged by it",
            where="quantize.type" if base is None else "--type",
            fix="Name the type that you want to use, such as --type q8_0 or --type q4_k_m.",
        )
    return spec
