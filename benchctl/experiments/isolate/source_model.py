"""What is examined: a source, the quantization that may break it, the families that this changes, and the text.

The text is the recipe's prompts, each with what the unquantized model answers to it: a model is measured on its own
output, so the text suits any model, whatever it was trained on.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from benchctl.engines.base import Engine, Launch, ScoringEngine
from benchctl.engines.common.programs import program
from benchctl.engines.quantizing import DivergenceMeter, QuantizingEngine
from benchctl.errors import UsageError
from benchctl.experiments.isolate.stored import Family
from benchctl.measure.cell import running
from benchctl.measure.prepare import permitted_tool, probed_engine
from benchctl.models.files import ModelFile, Notice, ResolvedModel, ResolvedPair, file_sha256
from benchctl.models.gguf_facts import tensors_of
from benchctl.models.gguf_header import TENSOR_TYPES, Tensor
from benchctl.models.quantize import Program, check_arguments
from benchctl.models.sources import locate_model
from benchctl.models.tensor_types import family, is_quantized, requested_types, takes_other_type
from benchctl.permissions import permit_part
from benchctl.prompts.load import Suite, load_suite
from benchctl.prompts.suite import Prompt, PromptItem
from benchctl.recipes.adapters import adapter_of, kinds_with
from benchctl.recipes.quantization import UNQUANTIZED, tensor_regex
from benchctl.recipes.schema import QuantizeSpec, Recipe, Sampling
from benchctl.text import one_line

USUAL_TYPE = "q8_0"
"""Tried where neither the recipe nor the user names a type."""
ANSWER = 256
"""Longest answer in tokens."""
SPARE = 1.5
"""So much more is written than requested: the chat template's tokens are counted, and are not in the text."""
_BLOCK = re.compile(r"(blk\.\d+\.)")


@dataclass(frozen=True)
class SourceModel:
    """A source that this machine can quantize and measure."""

    recipe: Recipe
    engine: Engine
    scoring: ScoringEngine
    """The same engine, as an engine that reports probabilities."""
    engine_identity: Mapping[str, object]
    """SHA-256 of the engine's binary and its libraries."""
    model: ResolvedModel
    spec: QuantizeSpec
    """The requested quantization: base type and the overrides that stay as they are."""
    families: tuple[Family, ...]
    """Those that the quantization changes, largest first."""
    suite: Suite
    prompts: tuple[PromptItem, ...]
    quantizer: Program
    divergence: DivergenceMeter

    @property
    def files(self) -> tuple[Path, ...]:
        """The source's files, the first shard first."""
        return tuple(file.path for file in self.model.files)

    def spec_with(self, kept: Collection[str]) -> QuantizeSpec:
        """Return the quantization in which the tensors of these patterns keep the source's type."""
        return spec_with(self.spec, self.families, kept, tensors_of(self.files))

    def launch(self, model: Path) -> Launch:
        """Return the baseline's command for the source, or for a file that was quantized from it."""
        first = replace(self.model.files[0], path=model)
        pair = ResolvedPair(replace(self.model, files=(first,)), None)
        return self.engine.launch(self.recipe.arm(self.recipe.baseline), pair)


def find_source_model(
    recipe: Recipe,
    *,
    recipe_folder: Path,
    base: str | None = None,
    allow_requantize: bool = False,
    binary: str | None = None,
    models_dir: Path | None = None,
    notice: Notice | None = None,
    trusted: bool = False,
) -> SourceModel:
    """Find the engine with its programs, the source and the prompts. `base` takes the place of the recipe's `quantize`.

    Raises UsageError for an engine that quantizes nothing, a source that is quantized already, a type that is no
    quantization; EngineError (`launch`) when a program is missing.
    """
    recipe = recipe.alone("benchctl diagnose isolate")
    if not adapter_of(recipe.engine.kind).quantizes:
        able = kinds_with(lambda adapter: adapter.quantizes)
        raise UsageError(
            f"tensors are isolated with {able}'s own quantization, and this recipe runs {recipe.engine.kind}",
            where="engine.kind",
            fix=f"Write a recipe for {able} with the same model.",
        )
    spec = _spec(recipe, base, allow_requantize)
    engine, capabilities, _ = probed_engine(recipe, recipe_folder, binary, trusted=trusted)
    assert isinstance(engine, QuantizingEngine)  # as its adapter declares
    if (located := engine.locate()) is not None:  # its other programs are run, too
        permit_part(located.path, located.path, recipe_folder, trusted=trusted)
        permit_part(engine.quantizer(), located.path, recipe_folder, trusted=trusted)
    quantizer, divergence = program(engine.quantizer()), engine.divergence_meter()
    suite = load_suite(recipe.prompts.suite, recipe_folder=recipe_folder)
    prompts = suite.select(recipe.prompts.tasks, recipe.prompts.limit)
    tool = partial(permitted_tool, engine, folder=recipe_folder, trusted=trusted)
    files = _source(recipe, recipe_folder, models_dir, notice, tool)
    tensors = tensors_of(files)
    done = sorted({tensor.type_name for tensor in tensors if is_quantized(tensor)})
    if done and not spec.allow_requantize:
        raise UsageError(
            f"the source is quantized already ({', '.join(done)}), so it does not show what quantizing does to it",
            where=f"models.target ({one_line(recipe.models.target.source, 120)})",
            fix="Name the f16, bf16 or f32 file as `source` in the recipe. To search what is left all the same: "
            "--allow-requantize.",
        )
    found = families_of(tensors, spec)
    if not found:
        raise UsageError("this quantization changes no tensor of the model", where=one_line(str(files[0])))
    check_arguments(
        spec.model_copy(update={"tensors": {changed.name: changed.keep for changed in found}})
    )  # before any work is done
    assert isinstance(engine, ScoringEngine)
    models = tuple(ModelFile(file, file.stat().st_size, file_sha256(file, notice)) for file in files)
    return SourceModel(
        recipe=recipe,
        engine=engine,
        scoring=engine,
        engine_identity={part: capabilities.details.get(part) for part in ("sha256", "siblings")},
        model=ResolvedModel(recipe.models.target.source, models),
        spec=spec,
        families=found,
        suite=suite,
        prompts=prompts,
        quantizer=quantizer,
        divergence=divergence,
    )


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
    known = TENSOR_TYPES.get(tensor.type_id)
    return 0.0 if known is None else known.size / known.block


def _spec(recipe: Recipe, base: str | None, allow_requantize: bool) -> QuantizeSpec:
    """Return the quantization to examine. Raises UsageError."""
    spec_of_recipe = recipe.models.target.quantize if base is None else None
    spec = spec_of_recipe or QuantizeSpec(type=base or USUAL_TYPE)
    spec = spec.model_copy(update={"allow_requantize": spec.allow_requantize or allow_requantize})
    check_arguments(spec)
    if spec.type.lower() in UNQUANTIZED:
        raise UsageError(
            f"{spec.type} is not a quantized type, so no tensor can be damaged by it",
            where="quantize.type" if spec_of_recipe else "--type",
            fix="Name the type that you want to use, such as --type q8_0 or --type q4_k_m.",
        )
    return spec


def _source(
    recipe: Recipe,
    recipe_folder: Path,
    models_dir: Path | None,
    notice: Notice | None,
    find_tool: Callable[[str], Program],
) -> tuple[Path, ...]:
    """Return the files of the recipe's target before any quantization. Raises UsageError."""
    source = recipe.models.target.source
    try:
        return locate_model(
            source, recipe_folder=recipe_folder, models_dir=models_dir, on_progress=notice, find_tool=find_tool
        )
    except UsageError as error:
        where = ": ".join(filter(None, (f"models.target ({one_line(source, 120)})", error.where)))
        raise UsageError(error.what, where=where, fix=error.fix) from None


def own_answers(source: SourceModel, tokens: int, log: Path, notice: Notice) -> str:
    """Return prompts and greedy answers of the source, some `tokens` tokens if the suite has them. EngineError."""
    sampling = Sampling(max_tokens=ANSWER)
    parts: list[str] = []
    length = 0
    with running(source.engine.start(source.launch(source.files[0]), log), log) as server:
        for asked in sorted(source.prompts, key=lambda asked: asked.prompt_idx):  # every task's first before a second
            if length >= SPARE * tokens:
                break
            notice(f"writing the text, {length} of {tokens} tokens")
            done = asyncio.run(server.complete(server.render(asked.prompt), sampling))
            parts.append(f"{_prompt_text(asked.prompt)}\n\n{done.text.strip()}\n")
            length += done.prompt_tokens + done.n_predicted
    return "\n".join(parts)


def text_of(file: Path) -> str:
    """Return the user's own text. Raises UsageError."""
    try:
        return file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UsageError(f"the text cannot be read: {reason}", where=f"--text {one_line(str(file))}") from None


def _prompt_text(prompt: Prompt) -> str:
    return prompt.prompt or "\n".join(message.content for message in prompt.messages or ())
