"""`benchctl predict`: the speed-up predicted from given numbers, and whether the pair fits in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from benchctl.cli import complete
from benchctl.cli.options import JsonForText, read_depths
from benchctl.errors import UsageError
from benchctl.reports.json_output import print_json

if TYPE_CHECKING:
    from benchctl.analysis.cost import Prediction, RoundCosts
    from benchctl.models.footprint import Footprint
    from benchctl.reports.terminal import Printout

VERIFY = {"free": 0.0, "GPU": 0.25, "CPU": 1.0}
"""What each token after the first adds to the target's pass, in target steps: free where reading the weights takes
longer than computing with them, and the most that was seen of llama.cpp on GPUs and on CPUs. Its pull requests have,
for 2 to 8 tokens, 0.05 to 0.06 of an RTX 3090 with F32 (14262) and 0.10 to 0.16 with Q2_K (5434), 0.13 to 0.24 of an
RX 6800 with Q4_K_S (5351); its issue 25250 has 0.8 of Metal with Q4_0. Two CPU cores with Q4_K_M: 0.6 to 1.0
(docs/findings.md)."""
_GIB = 1 << 30
_MODEL_HELP = "A model, or its size: 8B@4.5 (bits)."


@dataclass(frozen=True)
class _Bound:
    """The predictions at a price of `VERIFY`."""

    verify_token: float
    depths: list[Prediction]


@dataclass(frozen=True)
class _Forecast:
    """What is predicted of a pair, by the keys of the document."""

    alpha: float
    costs: RoundCosts
    depths: list[Prediction]
    sensitivity: list[Variation]
    memory: dict[str, Any] | None
    verify_bounds: dict[str, _Bound] | None
    """By the names of `VERIFY`, where the price of verifying was not given."""
    experts: dict[str, Any] | None
    """What a target of experts reads."""
    from_models: bool
    """Whether the cost of a draft step was derived from the bytes that a step reads."""


def predict(
    alpha: Annotated[float, typer.Option("--alpha", "-a", metavar="A", help="Acceptance of a draft token.")],
    depth: Annotated[str, typer.Option("--depth", metavar="K1,K2", help="Draft depths: 2,4,8 or 1:8.")] = "1:16",
    cost: Annotated[
        float | None,
        typer.Option("--cost", "-c", metavar="C", help="Of a draft step, in target steps.", show_default="by bytes"),
    ] = None,
    verify_cost: Annotated[
        float | None, typer.Option(min=0, metavar="W", help="Of each further verified token.", show_default="a range")
    ] = None,
    overhead: Annotated[float, typer.Option(metavar="O", help="Further cost of a round.")] = 0.0,
    costs_of: Annotated[
        str | None, typer.Option(metavar="RUN", help="C and W as explain timed them.", autocompletion=complete.runs)
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
    as_json: JsonForText = False,
) -> None:
    """Predict the speed-up from numbers alone; starts no engine.

    The model is simple: every token has the same acceptance probability, every draft step and every verified token the
    same cost. Costs are in steps of the target alone. Measure with `benchctl run` before you deploy.
    """
    from benchctl.analysis import cost as model

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
        further = _further_costs(pair[0], depths, context)
        at = {
            on: _Bound(price, predicted(alpha, depths, replace(costs, verify_token=price), further))
            for on, price in VERIFY.items()
        }
        found = _Forecast(
            alpha=alpha,
            costs=costs,
            depths=predicted(alpha, depths, costs, further),
            sensitivity=sensitivity(alpha, depths, costs, further),
            memory=_memory([model for model in pair if model is not None], context, memory, bandwidth),
            verify_bounds=at if verify_cost is None else None,
            experts=None if pair[0] is None or pair[0].expert_share >= 1 else _experts(pair[0], depths),
            from_models=from_models,
        )
    except ValueError as error:
        raise UsageError(f"{error}.", fix="See: benchctl predict --help") from None
    if as_json:
        document = asdict(found)
        document["costs"]["draft_step_from_bytes_read"] = document.pop("from_models")
        print_json("predict", document)
    else:
        _print(found)


def measured_costs(run: str) -> tuple[float | None, float]:
    """Return (c, w) of a run as `explain` has timed it, in target steps; c is `None` where no model drafted.

    w: of each token after the first, over all timed passes of the target; its pass over a token as it was timed with
    them, where it was. Raises UsageError where no longer pass was timed.
    """
    from statistics import median

    from benchctl.data.store import open_run, resolve_run
    from benchctl.lossless.judge.run import analyse_run

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
    from benchctl.models.footprint import footprint_by_hand, footprint_of_folder, footprint_of_gguf, has_config
    from benchctl.models.sources import ModelSearch

    by_hand = footprint_by_hand(name)
    if by_hand is not None:
        return by_hand
    path = Path(name).expanduser()
    try:
        if has_config(path):
            return footprint_of_folder(path)
        return footprint_of_gguf(ModelSearch(Path.cwd()).files(name)[0])
    except UsageError as error:
        error.where = ": ".join(filter(None, (option, error.where)))
        raise


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


def _further_costs(target: Footprint | None, depths: Sequence[int], context: int) -> list[float]:
    """Return what the further experts that a verify reads cost, in target steps, by depth."""
    if target is None:
        return [0.0] * len(depths)
    step = target.read_per_step(context) or 1
    return [target.further_per_verify(depth + 1) / step for depth in depths]


def _experts(target: Footprint, depths: list[int]) -> dict[str, Any]:
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


def _memory(
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


def _print(found: _Forecast) -> None:
    from benchctl.reports.terminal import Printout

    out, costs = Printout(), found.costs
    out.say(_headline(found), "bold")
    how = " (draft bytes over target bytes: bandwidth-bound)" if found.from_models else ""
    out.say(f"α = {found.alpha:g}; a draft step costs {costs.draft_step:.3g} target steps{how}.", whole=True)
    if (experts := found.experts) is not None:
        weights = experts["weights_bytes"]
        shares = [f"{size / weights:.0%} at depth {depth}" for depth, size in experts["verify_bytes"].items()]
        out.say(
            f"The target is a mixture of experts: of {experts['parameters'] / 1e9:.3g}B parameters a token uses "
            f"{experts['active_parameters'] / 1e9:.3g}B. A decode step reads "
            f"{experts['step_bytes'] / weights:.0%} of the weights, a verify of k + 1 tokens about "
            f"{', '.join(shares[:4])}, were experts chosen at random: that is in the cost of a round.",
            whole=True,
        )
    if found.verify_bounds:
        out.say(
            "What verifying costs is not given (--verify-cost), so it is a range: each token after the first takes the "
            f"target 0 steps where reading the weights takes longer than computing, up to {VERIFY['GPU']:g} on NVIDIA "
            f"and AMD GPUs (2 to 8 tokens), up to {VERIFY['CPU']:g} on a CPU or Metal with quantized weights. "
            "To measure it: benchctl explain RUN, then --costs-of RUN."
        )
    else:
        out.say(f"Each further verified token costs {costs.verify_token:.3g} target steps.")
    out.say()
    _print_depths(out, found)
    if not found.verify_bounds:
        out.say()
        out.say("Sensitivity:")
        for change in found.sensitivity:
            out.say(f"  {change.changed}: {change.speedup:.2f}× at depth {change.depth}")
    if found.memory is not None:
        out.say()
        _print_memory(out, found.memory)


def _headline(found: _Forecast) -> str:
    if found.verify_bounds:
        ends = {on: best_of(at.depths) for on, at in found.verify_bounds.items()}
        told = {on: f"{end.speedup:.2f}× (depth {end.depth})" for on, end in ends.items()}
        return f"Predicted: {told['GPU']} to {told['free']} on a GPU, {told['CPU']} to {told['free']} on a CPU."
    best = best_of(found.depths)
    if best.speedup > 1:
        return f"Best predicted: depth {best.depth}, {best.speedup:.2f}× the speed of no speculation."
    return f"Not predicted to pay at any of these depths: {best.speedup:.2f}× at most (depth {best.depth})."


def _print_depths(out: Printout, found: _Forecast) -> None:
    def alpha(row: Prediction) -> str:
        return "never" if row.break_even_alpha is None else f"{row.break_even_alpha:.2f}"

    def span(free: Prediction, most: Prediction) -> tuple[str, str]:
        return f"{most.speedup:.2f} to {free.speedup:.2f}×", f"{alpha(free)} to {alpha(most)}"

    headings = ["depth k", "tokens per round"]
    if found.verify_bounds:
        free, gpu, cpu = (found.verify_bounds[on].depths for on in ("free", "GPU", "CPU"))
        costs: list[tuple[str, ...]] = [
            (*span(least, at), *span(least, most)) for least, at, most in zip(free, gpu, cpu, strict=True)
        ]
        headings += ["on a GPU", "break-even α", "on a CPU", "break-even α"]
    else:
        costs = [(f"{row.round_cost:.2f}", f"{row.speedup:.2f}×", alpha(row)) for row in found.depths]
        headings += ["cost of a round", "speed-up", "break-even α"]
    cells = [
        (f"{row.depth}", f"{row.tokens_per_round:.2f}", *cost) for row, cost in zip(found.depths, costs, strict=True)
    ]
    out.rows(headings, cells, right=headings)


def _print_memory(out: Printout, memory: dict[str, Any]) -> None:
    def gib(count: int | None) -> str:
        return "not known" if count is None else f"{count / _GIB:.2f}"

    cache = f"KV cache at {memory['context']}, GiB"
    sizes = ("weights, GiB", cache, "state, GiB", "read per step, GiB", "step, ms")
    rows = []
    for model in memory["models"]:
        step = "" if model["step_s"] is None else f"{1000 * model['step_s']:.2f}"
        numbers = [gib(model[key]) for key in ("weights_bytes", "cache_bytes", "state_bytes", "read_per_step_bytes")]
        rows.append((model["name"], *numbers, step))
    out.rows(("model", *sizes), rows, right=sizes)
    fits = "fits" if memory["fits"] else "does not fit"
    total, free = gib(memory["needed_bytes"]), gib(memory["memory_bytes"])
    out.say(f"Together {total} GiB: {fits} in {free} GiB, without buffers.")


ALPHA_STEP = 0.05
"""How far the sensitivity varies α."""
COST_FACTOR = 1.25
"""By what it varies the cost of a draft step."""
OVERHEAD_STEP = 0.1
"""What it adds to the overhead of a round, in target steps."""


@dataclass(frozen=True)
class Variation:
    """What the best depth and its speed-up become when a number is another."""

    changed: str
    depth: int
    speedup: float


def best_of(rows: Sequence[Prediction]) -> Prediction:
    """Return the depth with the highest speed-up, the smallest where several have it."""
    return max(rows, key=lambda row: (row.speedup, -row.depth))


def predicted(alpha: float, depths: Sequence[int], costs: RoundCosts, further: Sequence[float]) -> list[Prediction]:
    """Return the prediction for every draft depth. Raises ValueError.

    `further`: by depth, what a verify costs beyond `costs`, in target steps.
    """
    from benchctl.analysis import cost as model

    return [
        model.predict(alpha, [depth], replace(costs, verify_token=costs.verify_token + more / depth))[0]
        for depth, more in zip(depths, further, strict=True)
    ]


def sensitivity(alpha: float, depths: Sequence[int], costs: RoundCosts, further: Sequence[float]) -> list[Variation]:
    """Return what the best depth becomes when α, c or o turns out different from what was given."""
    dearer, cheaper = costs.draft_step * COST_FACTOR, costs.draft_step / COST_FACTOR
    alphas = (max(0.0, alpha - ALPHA_STEP), min(1.0, alpha + ALPHA_STEP))
    cases = [(f"α {other:.2f} instead of {alpha:.2f}", other, costs) for other in alphas]
    cases += [
        (f"a draft step costs {cost:.3g} instead of {costs.draft_step:.3g}", alpha, replace(costs, draft_step=cost))
        for cost in (dearer, cheaper)
    ]
    more = replace(costs, overhead=costs.overhead + OVERHEAD_STEP)
    cases.append((f"a round costs {OVERHEAD_STEP:g} target steps more", alpha, more))
    bests = [(changed, best_of(predicted(at, depths, paid, further))) for changed, at, paid in cases]
    return [Variation(changed, best.depth, best.speedup) for changed, best in bests]
