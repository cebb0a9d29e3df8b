"""`benchctl predict`: the speed-up predicted from given numbers, and whether the pair fits in memory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from benchctl.cli.json_output import print_json
from benchctl.cli.options import JsonForText
from benchctl.errors import StorageError, UsageError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from benchctl.analysis.cost import Prediction, RoundCosts
    from benchctl.experiments.explain.prediction import Variation
    from benchctl.models.footprint import Footprint

MOST_DEPTH = 256
_GIB = 1 << 30
_ALPHAS = tuple(step / 10 for step in range(1, 11))
_MODEL_HELP = "GGUF file, Hugging Face folder or config.json, bundled:NAME, or a size: 8B, 8B@4.5 (bits a weight)."


def predict(
    alpha: Annotated[float, typer.Option("--alpha", "-a", help="Acceptance of one draft token, 0 to 1.")],
    depth: Annotated[str, typer.Option("--depth", "-k", help="Draft depths: 1:16, or 2,4,8.")] = "1:16",
    cost: Annotated[
        float | None,
        typer.Option(
            "--cost", "-c", help="Cost of a draft step in target steps. Default: from the bytes each model reads."
        ),
    ] = None,
    overhead: Annotated[float, typer.Option(help="Further cost of a round, in target steps.")] = 0.0,
    verify_cost: Annotated[float, typer.Option(help="Cost of each further verified token, in target steps.")] = 0.0,
    target: Annotated[str | None, typer.Option("--target", "-t", metavar="MODEL", help=_MODEL_HELP)] = None,
    draft: Annotated[str | None, typer.Option("--draft", "-d", metavar="MODEL", help=_MODEL_HELP)] = None,
    context: Annotated[int, typer.Option(min=1, help="Tokens in the caches of both models.")] = 4096,
    memory: Annotated[
        float | None, typer.Option(min=0, help="Available memory in GiB. Default: this machine's.")
    ] = None,
    bandwidth: Annotated[
        float | None, typer.Option(min=0, help="Memory bandwidth in GB/s, for the time of a step.")
    ] = None,
    figure: Annotated[Path | None, typer.Option(help="Write the heat map here: .png or .svg.", dir_okay=False)] = None,
    as_json: JsonForText = False,
) -> None:
    """Predict the speed-up from acceptance, draft depth and costs, before anything is downloaded or measured.

    The model is simple: every token has the same acceptance probability, every draft step the same cost. Measure with
    `benchctl run` before you deploy.
    """
    from benchctl.analysis import cost as model
    from benchctl.experiments.explain.prediction import sensitivity

    depths = read_depths(depth)
    pair = [
        None if name is None else _footprint(name, role) for name, role in ((target, "--target"), (draft, "--draft"))
    ]
    step_cost, from_models = _draft_cost(cost, pair[0], pair[1], context)
    try:
        costs = model.RoundCosts(step_cost, overhead, verify_cost)
        rows = model.predict(alpha, depths, costs)
        changes = sensitivity(alpha, depths, costs)
    except ValueError as error:
        raise UsageError(f"{error}.", fix="See: benchctl predict --help") from None
    if figure is not None:
        _write_figure(figure, alpha, depths, costs)
    fit = _fit([model for model in pair if model is not None], context, memory, bandwidth)
    if as_json:
        _print_json(alpha, costs, from_models, rows, changes, fit)
    else:
        _print(alpha, costs, from_models, rows, changes, fit, context)


def read_depths(text: str, most: int = MOST_DEPTH) -> list[int]:
    """Return the draft depths of `1:16` or `2,4,8`, in their order. Raises UsageError."""
    first, colon, last = text.partition(":")
    parts = [first, last] if colon else text.split(",")
    if not all(part.isascii() and part.isdigit() and 1 <= int(part[:6]) <= most for part in parts):
        raise UsageError(f"Expected draft depths from 1 to {most} as 1:16 or 2,4,8.", where="--depth")
    numbers = [int(part) for part in parts]
    if colon and numbers[0] > numbers[1]:
        raise UsageError(f"The range {numbers[0]}:{numbers[1]} is empty.", where="--depth", fix="Write 1:16.")
    return list(range(numbers[0], numbers[1] + 1)) if colon else sorted(set(numbers))


def _footprint(name: str, option: str) -> Footprint:
    from benchctl.models.footprint import footprint_by_hand, footprint_of_folder, footprint_of_gguf
    from benchctl.models.sources import locate_model

    by_hand = footprint_by_hand(name)
    if by_hand is not None:
        return by_hand
    path = Path(name).expanduser()
    try:
        if (path / "config.json").is_file() or path.name == "config.json":
            return footprint_of_folder(path)
        return footprint_of_gguf(locate_model(name, recipe_folder=Path.cwd())[0])
    except UsageError as error:
        where = ": ".join(filter(None, (option, error.where)))
        raise UsageError(error.what, where=where, fix=error.fix) from None


def _draft_cost(
    given: float | None, target: Footprint | None, draft: Footprint | None, context: int
) -> tuple[float, bool]:
    """Return c, and whether it was derived from the bytes that a step reads."""
    if given is not None:
        return given, False
    if target is None or draft is None:
        raise UsageError(
            "The cost of a draft step is not known.",
            where="--cost",
            fix="Give it (0.1: a tenth of a target step), or --target and --draft to derive it.",
        )
    read = target.read_per_step(context)
    if not read:
        raise UsageError("The target has no weights.", where="--target")
    return draft.read_per_step(context) / read, True


def _fit(
    models: list[Footprint], context: int, memory_gib: float | None, bandwidth: float | None
) -> dict[str, Any] | None:
    """Return the memory that the models take and read, as plain data; `None` where none was given."""
    import psutil

    if not models:
        return None
    available = psutil.virtual_memory().total if memory_gib is None else memory_gib * _GIB
    needed = sum(model.at(context) for model in models)
    return {
        "context": context,
        "needed_bytes": needed,
        "memory_bytes": int(available),
        "fits": needed <= available,
        "models": [
            {
                "name": model.name,
                "weights_bytes": model.weights,
                "cache_bytes": None if model.cache_per_token is None else context * model.cache_per_token,
                "state_bytes": model.state,
                "read_per_step_bytes": model.read_per_step(context),
                "step_s": model.read_per_step(context) / (bandwidth * 1e9) if bandwidth else None,
            }
            for model in models
        ],
    }


def _write_figure(file: Path, alpha: float, depths: list[int], costs: RoundCosts) -> None:
    from benchctl.experiments.explain.prediction import draw, speedup_grid
    from benchctl.reports.figures import style

    if file.suffix not in {".png", ".svg"}:
        raise UsageError("A figure is written as .png or .svg.", where="--figure")
    alphas = [step / 50 for step in range(51)]
    with style.styled():
        drawn = draw(alphas, depths, speedup_grid(alphas, depths, costs), alpha)
        content = style.to_svg(drawn).encode() if file.suffix == ".svg" else style.to_png(drawn)
    try:
        file.write_bytes(content)
    except OSError as error:
        raise StorageError(f"The figure cannot be written: {error.strerror}.", where=str(file)) from None


def _print_json(
    alpha: float,
    costs: RoundCosts,
    from_models: bool,
    rows: list[Prediction],
    changes: list[Variation],
    fit: dict[str, Any] | None,
) -> None:
    from dataclasses import asdict

    document = {
        "alpha": alpha,
        "costs": asdict(costs) | {"draft_step_from_bytes_read": from_models},
        "depths": [asdict(row) for row in rows],
        "sensitivity": [asdict(row) for row in changes],
        "memory": fit,
    }
    print_json("predict", document)


def _print(
    alpha: float,
    costs: RoundCosts,
    from_models: bool,
    rows: list[Prediction],
    changes: list[Variation],
    fit: dict[str, Any] | None,
    context: int,
) -> None:
    from rich.console import Console
    from rich.text import Text

    from benchctl.experiments.explain.prediction import best_of

    console = Console(highlight=False)
    best = best_of(rows)
    if best.speedup > 1:
        head = f"Best predicted: depth {best.depth}, {best.speedup:.2f}× the speed of no speculation."
    else:
        head = f"Not predicted to pay at any of these depths: {best.speedup:.2f}× at most (depth {best.depth})."
    console.print(Text(head, style="bold"))
    how = " (draft bytes over target bytes: bandwidth-bound)" if from_models else ""
    console.print(f"α = {alpha:g}; a draft step costs {costs.draft_step:.3g} target steps{how}.", soft_wrap=True)
    console.print()
    _print_depths(console, rows)
    console.print()
    console.print("Speed-up by acceptance α (rows) and depth k (columns):")
    console.print(_heat_map([row.depth for row in rows], costs))
    console.print()
    console.print("Sensitivity:")
    for change in changes:
        console.print(Text(f"  {change.changed}: {change.speedup:.2f}× at depth {change.depth}"))
    if fit is not None:
        console.print()
        _print_fit(console, fit, context)


def _print_depths(console: Console, rows: list[Prediction]) -> None:
    from benchctl.reports.terminal import print_rows

    headings = ("depth k", "tokens per round", "cost of a round", "speed-up", "break-even α")
    cells = [
        (
            f"{row.depth}",
            f"{row.tokens_per_round:.2f}",
            f"{row.round_cost:.2f}",
            f"{row.speedup:.2f}×",
            "never" if row.break_even_alpha is None else f"{row.break_even_alpha:.2f}",
        )
        for row in rows
    ]
    print_rows(console, headings, cells, right=headings)


def _heat_map(depths: list[int], costs: RoundCosts) -> Table:
    """Return the grid as coloured cells: orange below 1, blue above, and the numbers, readable without colour."""
    from rich.table import Table
    from rich.text import Text

    from benchctl.experiments.explain.prediction import speedup_grid

    columns = depths if len(depths) <= 12 else depths[:: -(-len(depths) // 12)]
    table = Table(box=None, pad_edge=False, padding=(0, 0), header_style="bold")
    table.add_column("α", justify="right")
    for depth in columns:
        table.add_column(str(depth), justify="right", min_width=6)
    for alpha, row in zip(_ALPHAS, speedup_grid(_ALPHAS, columns, costs), strict=True):
        cells = [Text(f" {value:.2f} ", style=f"black on {_colour(float(value))}") for value in row]
        table.add_row(f"{alpha:.1f} ", *cells)
    return table


def _colour(speedup: float) -> str:
    for limit, colour in ((0.7, "#e08214"), (0.95, "#fdb863"), (1.05, "#f7f7f7"), (1.5, "#b2abd2")):
        if speedup < limit:
            return colour
    return "#8073ac"


def _print_fit(console: Console, fit: dict[str, Any], context: int) -> None:
    from benchctl.reports.terminal import print_rows

    def gib(count: int | None) -> str:
        return "not known" if count is None else f"{count / _GIB:.2f}"

    sizes = ("weights, GiB", f"KV cache at {context}, GiB", "state, GiB", "read per step, GiB", "step, ms")
    rows = []
    for model in fit["models"]:
        step = "" if model["step_s"] is None else f"{1000 * model['step_s']:.2f}"
        numbers = [gib(model[key]) for key in ("weights_bytes", "cache_bytes", "state_bytes", "read_per_step_bytes")]
        rows.append((model["name"], *numbers, step))
    print_rows(console, ("model", *sizes), rows, right=sizes)
    fits = "fits" if fit["fits"] else "does not fit"
    console.print(
        f"Together {gib(fit['needed_bytes'])} GiB: {fits} in {gib(fit['memory_bytes'])} GiB, without buffers."
    )
