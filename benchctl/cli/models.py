"""`benchctl models`: list, inspect and quantize models."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchctl.cli import options
from benchctl.cli.options import EngineBinary, JsonForText, ModelsDir
from benchctl.errors import UsageError
from benchctl.reports.json_output import print_json
from benchctl.text import one_line
from benchctl.writing import refuse_overwriting

if TYPE_CHECKING:
    from benchctl.models.shipped import BundledModel
    from benchctl.recipes.schema import QuantizeSpec

app = typer.Typer(help="List, inspect and quantize models; prompt suites.", no_args_is_help=True)

Model = Annotated[str, typer.Argument(metavar="MODEL", help="A path, hf:ORG/REPO\\[/FILE] or bundled:NAME.")]
_HASH_CHARACTERS = 12


@app.command("list")
def list_models(as_json: JsonForText = False) -> None:
    """List the models that come with benchctl."""
    from benchctl.models.shipped import bundled_models

    models = bundled_models()
    if as_json:
        print_json("models list", [model.as_dict() for model in models])
    elif models:
        _print_models(models)
    else:
        typer.echo("This installation of benchctl has no bundled models.", err=True)


@app.command("inspect")
def inspect(
    model: Model,
    diff: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Show what differs from MODEL to this model instead.")
    ] = None,
    tensors: Annotated[bool, typer.Option("--tensors", help="Also list every tensor.")] = False,
    models_dir: ModelsDir = None,
    as_json: JsonForText = False,
) -> None:
    """Show what a GGUF model is: architecture, tensors, vocabulary, template.

    Reads only the headers (of every shard), so it is quick and needs little memory. Of a Hugging Face folder, or a
    config.json alone, it shows the sizes.
    """
    from benchctl.models.footprint import has_config

    folder = Path(model).expanduser()
    if has_config(folder):
        if diff is not None or tensors:
            raise UsageError("--diff and --tensors need GGUF files", where=one_line(model))
        _show_sizes(folder, as_json)
        return
    from benchctl.models.inspection import Difference, compare_models, inspect_model
    from benchctl.models.sources import ModelSearch

    search = ModelSearch(Path.cwd(), models_dir)
    first, *second = (search.files(source)[0] for source in (model, *([diff] if diff is not None else [])))
    inspection = compare_models(first, second[0]) if second else inspect_model(first)
    if as_json:
        print_json("inspect", inspection.as_dict())
        return
    from benchctl.cli.show_inspection import show_difference, show_inspection, show_tensors

    if isinstance(inspection, Difference):
        show_difference(inspection)
        return
    show_inspection(inspection)
    if tensors:
        show_tensors(inspection.path)


def _show_sizes(folder: Path, as_json: bool) -> None:
    from dataclasses import asdict

    from benchctl.cli.show_inspection import show_footprint
    from benchctl.models.footprint import footprint_of_folder

    sizes = footprint_of_folder(folder)
    if as_json:
        print_json("inspect", {"path": str(folder), **asdict(sizes)})
    else:
        show_footprint(folder, sizes)


@app.command("quantize")
def quantize(
    model: Model,
    base: Annotated[str, typer.Option("--type", "-t", metavar="TYPE", help="Such as q8_0 or q4_k_m.")],
    tensor: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN=TYPE", help="Such as ssm_out=bf16; repeatable, the first match wins."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Default: NAME-TYPE.gguf in this folder.")
    ] = None,
    allow_requantize: Annotated[
        bool, typer.Option("--allow-requantize", help="Accept a quantized source; loses quality.")
    ] = False,
    force: options.Force = False,
    engine_binary: EngineBinary = None,
    models_dir: ModelsDir = None,
    as_json: JsonForText = False,
) -> None:
    """Quantize a model with llama-quantize, with types per tensor on request.

    Settings that llama-quantize would silently ignore or replace are refused before it starts. The file appears only
    when it is complete and as requested.
    """
    from benchctl.cli.show_inspection import show_inspection
    from benchctl.models.inspection import inspect_model
    from benchctl.models.quantize import check_arguments
    from benchctl.recipes.schema import QuantizeSpec

    spec = QuantizeSpec(type=base, tensors=_overrides(tensor or []), allow_requantize=allow_requantize)
    check_arguments(spec)
    if output is not None:
        _check_free(output, force)
    target = _quantized(model, spec, output, force=force, engine_binary=engine_binary, models_dir=models_dir)
    inspection = inspect_model(target)
    if as_json:
        print_json("quantize", inspection.as_dict())
    else:
        show_inspection(inspection, brief=True)
        _show_fallbacks(target, spec)


def _quantized(
    model: str,
    spec: QuantizeSpec,
    output: Path | None,
    *,
    force: bool,
    engine_binary: str | None,
    models_dir: Path | None,
) -> Path:
    """Find the model, quantize it with progress on stderr, and return the file that was written."""
    from rich.console import Console

    from benchctl.engines.common.programs import program
    from benchctl.engines.quantizing import QuantizingEngine
    from benchctl.engines.registry import make_engine
    from benchctl.measurement.progress import shown_steps
    from benchctl.measurement.run import signals_interrupt
    from benchctl.models.gguf_facts import model_name
    from benchctl.models.quantize import quantize_to
    from benchctl.models.sources import ModelSearch
    from benchctl.recipes.adapters import default_spec

    engine = make_engine(default_spec(), binary=engine_binary)
    if not isinstance(engine, QuantizingEngine):
        raise TypeError("the default engine has no quantizer")
    notes = Console(stderr=True, highlight=False)
    with signals_interrupt():
        search = ModelSearch(
            Path.cwd(),
            models_dir,
            notice=lambda text: notes.print(one_line(text), markup=False),
            find_tool=lambda name: program(engine.tool(name)),
            may_run_code=True,  # the model was typed
        )
        files = search.files(model)
        folder = Path(model).expanduser()  # a converted file of safetensors is named by its hash
        name = folder.resolve().name if folder.is_dir() else model_name(files[0])
        target = output or Path(f"{name}-{spec.type.lower()}.gguf")
        _check_free(target, force)
        with shown_steps() as show:
            steps = partial(show, "Quantizing")
            quantize_to(files, spec, program(engine.quantizer()), target, steps=steps)
    return target


def _check_free(target: Path, force: bool) -> None:
    """Raise UsageError when the result cannot, or must not, take this name."""

    where = one_line(str(target))
    if target.is_dir():
        raise UsageError("this is a folder", where=where, fix="Name a file: -o FILE.gguf")
    if target.exists() and not target.is_file():
        raise UsageError("this is not an ordinary file", where=where, fix="Name a new file: -o FILE.gguf")
    refuse_overwriting(target, force)


def _overrides(words: list[str]) -> dict[str, str]:
    """Read `PATTERN=TYPE` arguments. Raises UsageError."""
    overrides: dict[str, str] = {}
    for word in words:
        pattern, equals, kind = word.partition("=")
        if not equals or not pattern or not kind:
            raise UsageError(
                "expected PATTERN=TYPE", where=f"--tensor {word}", fix="For example: --tensor ssm_out=bf16"
            )
        if overrides.setdefault(pattern, kind) != kind:
            raise UsageError("this pattern was given before, with another type", where=f"--tensor {word}")
    return overrides


def _show_fallbacks(target: Path, spec: QuantizeSpec) -> None:
    """Print where llama-quantize replaced the base type, because rows did not fit it."""
    from benchctl.models.gguf_header import read_header
    from benchctl.models.tensor_types import fallback_sentence
    from benchctl.reports.terminal import Printout

    if sentence := fallback_sentence(read_header(target).tensors, spec.type, spec.tensors):
        Printout().say(f"warning: {sentence}", "yellow", whole=True)


def _print_models(models: tuple[BundledModel, ...]) -> None:
    from benchctl.reports.columns import Column, Table, numeric
    from benchctl.reports.terminal import Printout

    columns: tuple[Column[BundledModel], ...] = (
        Column("name", lambda model: f"bundled:{model.name}", heads=True),
        Column("role", "role"),
        Column("architecture", "architecture"),
        numeric("parameters", "parameters", lambda count: f"{count / 1e6:.2f} M"),
        numeric("MB", "size", lambda size: f"{size / 1e6:.1f}"),
        Column("sha256", lambda model: model.sha256, lambda sha256: sha256[:_HASH_CHARACTERS]),
        Column("licence", "licence"),
    )
    Printout().table(Table("models", "Models", columns, models))
