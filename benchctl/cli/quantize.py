"""`benchctl models quantize`: quantize a model with the engine's own llama-quantize, and read the result back."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchctl.cli.json_output import print_json
from benchctl.cli.options import EngineBinary, JsonForText, ModelsDir
from benchctl.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console

    from benchctl.recipes.schema import QuantizeSpec


def quantize(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A path, hf:ORG/REPO\\[/FILE] or bundled:NAME.")],
    base: Annotated[str, typer.Option("--type", "-t", metavar="TYPE", help="Such as q8_0 or q4_k_m.")],
    tensor: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN=TYPE",
            help="Such as ssm_out=bf16; repeatable, the first match wins.",
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Default: NAME-TYPE.gguf in this folder.")
    ] = None,
    allow_requantize: Annotated[
        bool, typer.Option("--allow-requantize", help="Accept a quantized source; loses quality.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
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
    found = inspect_model(target)
    if as_json:
        print_json("quantize", found.as_dict())
    else:
        show_inspection(found, brief=True)
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
    from benchctl.measure.run import signals_interrupt
    from benchctl.models.gguf_facts import model_name
    from benchctl.models.quantize import quantize_to
    from benchctl.models.sources import locate_model
    from benchctl.recipes.adapters import default_spec
    from benchctl.text import one_line

    engine = make_engine(default_spec(), binary=engine_binary)
    if not isinstance(engine, QuantizingEngine):
        raise TypeError("the default engine has no quantizer")
    notes = Console(stderr=True, highlight=False)
    with signals_interrupt():
        files = locate_model(
            model,
            recipe_folder=Path.cwd(),
            models_dir=models_dir,
            on_progress=lambda text: notes.print(one_line(text), markup=False),
            find_tool=lambda name: program(engine.tool(name)),
        )
        folder = Path(model).expanduser()  # a converted file of safetensors is named by its hash
        name = folder.resolve().name if folder.is_dir() else model_name(files[0])
        target = output or Path(f"{name}-{spec.type.lower()}.gguf")
        _check_free(target, force)
        with _bar(notes) as steps:
            quantize_to(files, spec, program(engine.quantizer()), target, steps=steps)
    return target


def _check_free(target: Path, force: bool) -> None:
    """Raise UsageError when the result cannot, or must not, take this name."""
    from benchctl.text import one_line

    where = one_line(str(target))
    if target.is_dir():
        raise UsageError("this is a folder", where=where, fix="Name a file: -o FILE.gguf")
    if target.exists() and not target.is_file():
        raise UsageError("this is not an ordinary file", where=where, fix="Name a new file: -o FILE.gguf")
    if target.exists() and not force:
        raise UsageError("this file exists already", where=where, fix="Overwrite it with --force.")


def _overrides(given: list[str]) -> dict[str, str]:
    """Read `PATTERN=TYPE` arguments. Raises UsageError."""
    overrides: dict[str, str] = {}
    for word in given:
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
    from rich.console import Console
    from rich.text import Text

    from benchctl.models.gguf_header import read_header
    from benchctl.models.tensor_types import fallback_sentence

    sentence = fallback_sentence(read_header(target).tensors, spec.type, spec.tensors)
    if sentence:
        Console(highlight=False, soft_wrap=True).print(Text(f"warning: {sentence}", style="yellow"))


@contextmanager
def _bar(console: Console) -> Iterator[Callable[[int, int], None] | None]:
    """Show a progress bar on a terminal, and nothing elsewhere."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn("Quantizing"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
