"""`benchctl explain --predict`: the speed-up predicted from given numbers, and whether the pair fits in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from benchctl.cli import complete
from benchctl.cli.json_output import print_json
from benchctl.cli.options import JsonForText, read_depths
from benchctl.errors import StorageError, UsageError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from benchctl.analysis.cost import Prediction, RoundCosts
    from benchctl.experiments.explain.prediction import FurtherCost, Variation
    from benchctl.models.footprint import Footprint

    Bounds = Mapping[str, list[Prediction]]
    """The predictions for each price of `VERIFY`, in its order."""

VERIFY = {"free": 0.0, "GPU": 0.25, "CPU": 1.0}
"""What each token after the first adds to the target's pass, in target steps: free where reading the weights takes
longer than computing with them, and the most that was seen of llama.cpp on GPUs and on CPUs. Its pull requests have,
for 2 to 8 tokens, 0.05 to 0.06 of an RTX 3090 with F32 (14262) and 0.10 to 0.16 with Q2_K (5434), 0.13 to 0.24 of an
RX 6800 with Q4_K_S (5351); its issue 25250 has 0.8 of Metal with Q4_0. Two CPU cores with Q4_K_M: 0.6 to 1.0
(docs/findings.md)."""
_GIB = 1 << 30
_ALPHAS = tuple(step / 10 for step in range(1, 11))
_MODEL_HELP = "A model, or its size: 8B@4.5 (bits)."


def predict(
    alpha: Annotated[float, typer.Option("--alpha", "-a", metavar="A", help="Acceptance of one draft token.")],
    depth: Annotated[str, typer.Option("--depth", "-k", metavar="K1,K2", help="Draft depths: 2,4,8 or 1:8.")] = "1:16",
    cost: Annotated[
        float | None,
        typer.Option("--cost", "-c", metavar="C", help="Of a draft step, in target steps.", show_default="by bytes"),
    ] = None,
    verify_cost: Annotated[
        float | None,
        typer.Option(min=0, metavar="W", help="Of each further verified token.", show_default="a range"),
    ] = None,
    overhead: Annotated[float, typer.Option(metavar="O", help="Further cost of a round.")] = 0.0,
    costs_of: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="C and W as explain timed them.", autocompletion=complete.runs),
    ] = None,
    target: Annotated[str | None, typer.Option("--target", "-t", "-m", metavar="MODEL", help=_MODEL_HELP)] = None,
    draft: Annotated[str | None, typer.Option("--draft", "-d", "-md", metavar="MODEL", help="As --target.")] = None,
    context: Annotated[int, typer.Option(min=1, metavar="N", help="Tokens in the models' caches.")] = 4096,
    memory: Annotated[
        float | None, typer.Option(min=0, metavar="GIB", help="Memory.", show_default="this machine's")
    ] = None,
    bandwidth: Annotated[
        float | None, typer.Option(min=0, metavar="GB/S", help="Of the memory: a step's time.")
    ] = None,
    figure: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw it: .png or .svg.", dir_okay=False)] = None,
    as_json: JsonForText = False,
) -> None:
    """Predict the speed-up from numbers alone; starts no engine.

    The model is simple: every token has the same acceptance probability, every draft step and every verified token the
    same cost. Costs are in steps of the target alone. Measure with `benchctl run` before you deploy.
    """
    from benchctl.analysis import cost as model
    from benchctl.experiments.explain.prediction import nothing_further, predicted, sensitivity

    depths = read_depths(depth)
    if costs_of is not None:
        timed = measured_costs(costs_of)
        cost = timed[0] if cost is None else cost
        verify_cost = timed[1] if verify_cost is None else verify_cost
    pair = [
        None if name is None else _footprint(name, role) for name, role in ((target, "--target"), (draft, "--draft"))
    ]
    step_cost, from_models = _draft_cost(cost, pair[0], pair[1], context)
    try:
        costs = model.RoundCosts(step_cost, overhead, verify_cost or 0.0)
        further = nothing_further if pair[0] is None else _expert_cost(pair[0], context)
        rows = predicted(alpha, depths, costs, further)
        at = {on: predicted(alpha, depths, replace(costs, verify_token=each), further) for on, each in VERIFY.items()}
        changes = sensitivity(alpha, depths, costs, further)
    except ValueError as error:
        raise UsageError(f"{error}.", fix="See: benchctl explain --predict --help") from None
    if figure is not None:
        _write_figure(figure, alpha, depths, costs, further)
    fit = _fit([model for model in pair if model is not None], context, memory, bandwidth)
    bounds = at if verify_cost is None else None
    mixture = None if pair[0] is None or pair[0].expert_share >= 1 else _mixture(pair[0], depths)
    if as_json:
        _print_json(alpha, costs, from_models, rows, changes, fit, bounds, mixture)
    else:
        _print(alpha, costs, from_models, rows, changes, fit, context, bounds, further, mixture)


def measured_costs(run: str) -> tuple[float | None, float]:
    """Return (c, w) of a run as `explain` has timed it, in target steps; c is `None` where no model drafted.

    w: of each token after the first, over all timed passes of the target; its pass over one token as it was timed with
    them, where it was. Raises UsageError where no longer pass was timed.
    """
    from statistics import median

    from benchctl.data.store import open_run, resolve_run
    from benchctl.lossless.analysed import analyse_run

    units = analyse_run(open_run(resolve_run(run, Path("results")))).rounds.units
    verified = [unit for unit in units if unit.what == "verify"]
    of_one = {unit.arm: unit.steps for unit in verified if unit.width == 1}
    longer = [unit for unit in verified if unit.width > 1 and (unit.arm in of_one or not of_one)]
    if not longer:
        raise UsageError("No verify pass of this run was timed.", where="--costs-of", fix=f"benchctl explain {run}")
    tokens = sum(unit.count * (unit.width - 1) for unit in longer)
    more = sum(unit.count * (unit.steps - of_one.get(unit.arm, 1.0)) for unit in longer)
    drafted = [unit.steps for unit in units if unit.what == "draft step"]
    return median(drafted) if drafted else None, max(0.0, more / tokens)


def _footprint(name: str, option: str) -> Footprint:
    from benchctl.models.footprint import footprint_by_hand, footprint_of_folder, footprint_of_gguf
    from benchctl.models.sources import locate_model

    by_hand = footprint_by_hand(name)
    if by_hand is not None:
        return by_hand
    path = Path(name).expanduser()
    try:
        if (path / "config.json").is_file():
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


def _expert_cost(target: Footprint, context: int) -> FurtherCost:
    """Return what the further experts that a verify reads cost, in target steps."""
    step = target.read_per_step(context) or 1
    return lambda depth: target.further_per_verify(depth + 1) / step


def _mixture(target: Footprint, depths: list[int]) -> dict[str, Any]:
    """Return what a target of experts reads, as plain data."""
    return {
        "parameters": target.parameters,
        "active_parameters": target.active_parameters,
        "weights_bytes": target.weights,
        "step_bytes": target.weights_per_step,
        "verify_bytes": {
            str(depth): round(target.weights_per_step + target.further_per_verify(depth + 1)) for depth in depths
        },
    }


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


def _write_figure(file: Path, alpha: float, depths: list[int], costs: RoundCosts, further: FurtherCost) -> None:
    from benchctl.experiments.explain.prediction import draw, speedup_grid
    from benchctl.reports.figures import style

    if file.suffix not in {".png", ".svg"}:
        raise UsageError("A figure is written as .png or .svg.", where="--figure")
    alphas = [step / 50 for step in range(51)]
    with style.styled():
        drawn = draw(alphas, depths, speedup_grid(alphas, depths, costs, further), alpha, costs.verify_token)
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
    bounds: Bounds | None,
    mixture: dict[str, Any] | None,
) -> None:
    from dataclasses import asdict

    document: dict[str, Any] = {
        "alpha": alpha,
        "costs": asdict(costs) | {"draft_step_from_bytes_read": from_models},
        "depths": [asdict(row) for row in rows],
        "sensitivity": [asdict(row) for row in changes],
        "memory": fit,
        "verify_bounds": None,
        "experts": mixture,
    }
    if bounds:
        document["verify_bounds"] = {
            on: {"verify_token": VERIFY[on], "depths": [asdict(row) for row in at]} for on, at in bounds.items()
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
    bounds: Bounds | None,
    further: FurtherCost,
    mixture: dict[str, Any] | None,
) -> None:
    from rich.console import Console
    from rich.text import Text

    from benchctl.experiments.explain.prediction import best_of

    console = Console(highlight=False)
    best = best_of(rows)
    if bounds:
        ends = {on: best_of(at) for on, at in bounds.items()}
        told = {on: f"{end.speedup:.2f}× (depth {end.depth})" for on, end in ends.items()}
        head = f"Predicted: {told['GPU']} to {told['free']} on a GPU, {told['CPU']} to {told['free']} on a CPU."
    elif best.speedup > 1:
        head = f"Best predicted: depth {best.depth}, {best.speedup:.2f}× the speed of no speculation."
    else:
        head = f"Not predicted to pay at any of these depths: {best.speedup:.2f}× at most (depth {best.depth})."
    console.print(Text(head, style="bold"))
    how = " (draft bytes over target bytes: bandwidth-bound)" if from_models else ""
    console.print(f"α = {alpha:g}; a draft step costs {costs.draft_step:.3g} target steps{how}.", soft_wrap=True)
    if mixture is not None:
        shares = [
            f"{size / mixture['weights_bytes']:.0%} at depth {depth}" for depth, size in mixture["verify_bytes"].items()
        ]
        console.print(
            f"The target is a mixture of experts: of {mixture['parameters'] / 1e9:.3g}B parameters a token uses "
            f"{mixture['active_parameters'] / 1e9:.3g}B. A decode step reads "
            f"{mixture['step_bytes'] / mixture['weights_bytes']:.0%} of the weights, a verify of k + 1 tokens about "
            f"{', '.join(shares[:4])}, were experts chosen at random: that is in the cost of a round.",
            soft_wrap=True,
        )
    if bounds:
        console.print(
            "What verifying costs is not given (--verify-cost), so it is a range. Each token after the first takes the "
            "target 0 steps where reading the weights takes longer than computing; seen of llama.cpp are up to "
            f"{VERIFY['GPU']:g} on NVIDIA and AMD GPUs (2 to 8 tokens), up to {VERIFY['CPU']:g} on a CPU or Metal with "
            "quantized weights. To measure it: benchctl explain RUN, then --costs-of RUN."
        )
    else:
        console.print(f"Each further verified token costs {costs.verify_token:.3g} target steps.")
    console.print()
    _print_depths(console, rows, bounds)
    if not bounds:
        _print_variations(console, rows, costs, changes, further)
    if fit is not None:
        console.print()
        _print_fit(console, fit, context)


def _print_variations(
    console: Console, rows: list[Prediction], costs: RoundCosts, changes: list[Variation], further: FurtherCost
) -> None:
    console.print("\nSpeed-up by acceptance α (rows) and depth k (columns):")
    console.print(_heat_map([row.depth for row in rows], costs, further))
    console.print("\nSensitivity:")
    for change in changes:
        console.print(f"  {change.changed}: {change.speedup:.2f}× at depth {change.depth}")


def _print_depths(console: Console, rows: list[Prediction], bounds: Bounds | None) -> None:
    from benchctl.reports.terminal import print_rows

    def alpha(row: Prediction) -> str:
        return "never" if row.break_even_alpha is None else f"{row.break_even_alpha:.2f}"

    def span(free: Prediction, most: Prediction) -> tuple[str, str]:
        return f"{most.speedup:.2f} to {free.speedup:.2f}×", f"{alpha(free)} to {alpha(most)}"

    first = [(f"{row.depth}", f"{row.tokens_per_round:.2f}") for row in rows]
    if bounds:
        on_gpu, on_cpu = (list(map(span, bounds["free"], bounds[on])) for on in ("GPU", "CPU"))
        cells = [(*row, *gpu, *cpu) for row, gpu, cpu in zip(first, on_gpu, on_cpu, strict=True)]
        headings = ["depth k", "tokens", "on a GPU", "break-even α", "on a CPU", "break-even α"]
        print_rows(console, headings, cells, right=headings)
        return
    headings = ["depth k", "tokens per round", "cost of a round", "speed-up", "break-even α"]
    priced = [
        (*start, f"{row.round_cost:.2f}", f"{row.speedup:.2f}×", alpha(row))
        for start, row in zip(first, rows, strict=True)
    ]
    print_rows(console, headings, priced, right=headings)


def _heat_map(depths: list[int], costs: RoundCosts, further: FurtherCost) -> Table:
    """Return the grid as coloured cells: orange below 1, blue above, and the numbers, readable without colour."""
    from rich.table import Table
    from rich.text import Text

    from benchctl.experiments.explain.prediction import speedup_grid

    columns = depths if len(depths) <= 12 else depths[:: -(-len(depths) // 12)]
    table = Table(box=None, pad_edge=False, padding=(0, 0), header_style="bold")
    table.add_column("α", justify="right")
    for depth in columns:
        table.add_column(str(depth), justify="right", min_width=6)
    for alpha, row in zip(_ALPHAS, speedup_grid(_ALPHAS, columns, costs, further), strict=True):
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
