"""The source model with the quantization that may break it, and quantizations that leave some tensors as they are."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchctl.engines.common.programs import program
from benchctl.engines.quantizing import DivergenceMeter, QuantizingEngine
from benchctl.errors import UsageError
from benchctl.experiments.isolate.stored import Family
from benchctl.measurement.prepare import Prepared, PreparedSetup, RecipeContext
from benchctl.models.files import Notice
from benchctl.models.gguf_facts import tensors_of
from benchctl.models.gguf_header import Tensor
from benchctl.models.quantize import Program, check_arguments, checked
from benchctl.models.tensor_types import family, requested_types, takes_other_type
from benchctl.permissions import permit_tool
from benchctl.recipes.adapters import adapter_of, kinds_with
from benchctl.recipes.quantization import UNQUANTIZED, tensor_regex
from benchctl.recipes.schema import ModelPair, ModelSpec, QuantizeSpec, Recipe
from benchctl.text import one_line

USUAL_TYPE = "q8_0"
"""The type that is used if neither the recipe nor the user names one."""
_BLOCK = re.compile(r"(blk\.\d+\.)")


@dataclass(frozen=True)
class SourceModel:
    """A source model that this machine can quantize and measure."""

    prepared: Prepared
    """The recipe's baseline on the unquantized source."""
    spec: QuantizeSpec
    """The requested quantization: base type and the overrides that stay as they are."""
    families: tuple[Family, ...]
    """Families that the quantization changes, largest first."""
    quantizer: Program
    divergence: DivergenceMeter

    @property
    def setup(self) -> PreparedSetup:
        """The prepared engine with the source."""
        return self.prepared.of_baseline

    @property
    def files(self) -> tuple[Path, ...]:
        """The source's files, the first shard first."""
        return tuple(file.path for file in self.setup.models.target.files)

    def spec_with(self, patterns: Collection[str]) -> QuantizeSpec:
        """Return the quantization in which the tensors of these patterns keep the source's type."""
        return spec_with(self.spec, self.families, patterns, tensors_of(self.files))


def find_source_model(
    context: RecipeContext,
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
    recipe = context.recipe.alone("benchctl isolate")
    if not adapter_of(recipe.engine.kind).quantizes:
        able = kinds_with(lambda adapter: adapter.quantizes)
        raise UsageError(
            f"tensors are isolated with {able}'s own quantization, and this recipe runs {recipe.engine.kind}",
            where="engine.kind",
            fix=f"Write a recipe for {able} with the same model.",
        )
    spec = _spec(recipe, base, allow_requantize)
    target = ModelPair(target=ModelSpec(source=recipe.models.target.source))  # the unquantized source
    baseline = recipe.arm(recipe.baseline).model_copy(update={"setup": None, "group": None})
    source_recipe = recipe.model_copy(update={"models": target, "arms": [baseline], "setups": []})
    prepared = context.prepare(binary, models_dir, notice, source_recipe)
    engine = prepared.of_baseline.engine
    assert isinstance(engine, QuantizingEngine)  # as its adapter declares
    quantizer, divergence = program(engine.quantizer()), engine.divergence_meter()
    if (located := engine.locate()) is not None:
        for tool in (quantizer, divergence.program):
            permit_tool(Path(tool.command[-1]), located.path, context.folder, trusted=context.trusted)
    files = [file.path for file in prepared.of_baseline.models.target.files]
    families = families_of(tensors_of(files), spec)
    if not families:
        raise UsageError("this quantization changes no tensor of the model", where=one_line(str(files[0])))
    everything = {changed.name: changed.keep for changed in families}
    checked(files, spec.model_copy(update={"tensors": everything}))  # before any work is done
    return SourceModel(prepared, spec, families, quantizer, divergence)


def families_of(tensors: Sequence[Tensor], spec: QuantizeSpec) -> tuple[Family, ...]:
    """Return the families that `spec` changes, largest first. Raises UsageError for overrides without effect."""
    requested = requested_types(tensors, spec.tensors)
    changed: dict[str, list[Tensor]] = {}
    for tensor in tensors:
        if takes_other_type(tensor) and requested.get(tensor.name) not in {*UNQUANTIZED, tensor.type_name}:
            changed.setdefault(family(tensor.name), []).append(tensor)
    families = [
        Family(
            name=name,
            tensors=len(members),
            parameters=sum(tensor.elements for tensor in members),
            keep=max(members, key=lambda tensor: (tensor.nbytes or 0) / tensor.elements).type_name,
            layers=[
                f"{block[1]}{name}" for tensor in members if (block := _BLOCK.match(tensor.name)) and len(members) > 1
            ],
        )
        for name, members in changed.items()
    ]
    return tuple(sorted(families, key=lambda changed_family: (-changed_family.parameters, changed_family.name)))


def spec_with(
    spec: QuantizeSpec, families: Sequence[Family], patterns: Collection[str], tensors: Sequence[Tensor]
) -> QuantizeSpec:
    """Return `spec` with the tensors of `patterns` (families, or single blocks) left as they are.

    An override of `spec` that has nothing left to decide is dropped: llama-quantize takes the first that matches.
    """
    types = {pattern: changed.keep for changed in families for pattern in (changed.name, *changed.layers)}
    overrides = {pattern: types[pattern] for pattern in sorted(patterns)}
    names = [tensor.name for tensor in tensors if takes_other_type(tensor)]
    decided = {name for name in names for pattern in overrides if re.search(tensor_regex(pattern), name)}
    for pattern, kind in spec.tensors.items():
        matching = {name for name in names if re.search(tensor_regex(pattern), name)}
        if matching - decided:
            overrides[pattern] = kind
        decided |= matching
    return spec.model_copy(update={"tensors": overrides})


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
