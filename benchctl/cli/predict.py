"""`benchctl predict`: the speed-up predicted from given numbers, and whether the pair fits in memory."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from benchctl.cli import complete
from benchctl.cli.options import JsonForText, read_depths
from benchctl.errors import UsageError
from benchctl.reports.json_output import print_json

if TYPE_CHECKING:
    from benchctl.analysis.cost import Prediction
    from benchctl.reports.terminal import Printout

_MODEL_HELP = "A model, or its size: 8B@4.5 (bits)."


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
        str | None,
        typer.Option(
            metavar="RUN", help="C, W and widths as timed: explain RUN, breakeven --json.", autocompletion=complete.runs
        ),
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
    """Predict the speed-up from an acceptance rate and a cost.

    No engine starts. The model is simple: every token has the same acceptance probability, every draft step and every
    verified token the same cost. Costs are in steps of the target alone. Measure with `benchctl run` before you deploy.
    """
    from pydantic_core import to_jsonable_python

    from benchctl.analysis.cost import RoundCosts
    from benchctl.experiments.explain import forecast

    depths, widths = read_depths(depth), {}
    if costs_of is not None:
        draft_cost, token_cost, timed = forecast.measured_costs(costs_of)
        widths = timed if verify_cost is None else {}
        cost = draft_cost if cost is None else cost
        verify_cost = token_cost if verify_cost is None else verify_cost
    pair = forecast.footprint_of(target, "--target"), forecast.footprint_of(draft, "--draft")
    step_cost = forecast.draft_cost_by_bytes(*pair, context) if cost is None else cost
    try:
        costs = RoundCosts(step_cost, overhead, verify_cost or 0.0, widths)
        inputs = forecast.Inputs(alpha, depths, costs, forecast.expert_costs(pair[0], depths, context))
        document = {
            "alpha": alpha,
            "costs": {**asdict(costs), "draft_step_from_bytes_read": cost is None},
            "depths": inputs.predictions(),
            "memory": forecast.memory_needed([model for model in pair if model], context, memory, bandwidth),
            "verify_bounds": inputs.bounds() if verify_cost is None else None,
            "experts": forecast.experts_read(pair[0], depths),
        }
    except ValueError as error:
        raise UsageError(f"{error}.", fix="See: benchctl predict --help") from None
    if as_json:
        print_json("predict", to_jsonable_python(document))
    else:
        _print(document)


def _print(document: dict[str, Any]) -> None:
    from benchctl.experiments.explain.forecast import VERIFY_COSTS
    from benchctl.reports.terminal import Printout

    out, costs = Printout(), document["costs"]
    bounds = {machine: bound["depths"] for machine, bound in (document["verify_bounds"] or {}).items()}
    out.say(_headline(document["depths"], bounds), "bold")
    derived = costs["draft_step_from_bytes_read"]
    basis = " (draft bytes over target bytes: bandwidth-bound)" if derived else ""
    out.say(f"α = {document['alpha']:g}; a draft step costs {costs['draft_step']:.3g} target steps{basis}.", whole=True)
    if (experts := document["experts"]) is not None:
        weights = experts["weights_bytes"]
        shares = [f"{size / weights:.0%} at depth {depth}" for depth, size in experts["verify_bytes"].items()]
        out.say(
            f"The target is a mixture of experts: of {experts['parameters'] / 1e9:.3g}B parameters a token uses "
            f"{experts['active_parameters'] / 1e9:.3g}B. A decode step reads "
            f"{experts['step_bytes'] / weights:.0%} of the weights, a verify of k + 1 tokens about "
            f"{', '.join(shares[:4])}, if experts are chosen at random. The cost of a round includes that.",
            whole=True,
        )
    if bounds:
        out.say(
            "What verifying costs is not given (--verify-cost), so it is a range: each token after the first takes the "
            f"target 0 steps where reading the weights takes longer than computing, up to {VERIFY_COSTS['GPU']:g} on "
            f"NVIDIA and AMD GPUs (2 to 8 tokens), up to {VERIFY_COSTS['CPU']:g} on a CPU or Metal with quantized "
            "weights. To measure it: benchctl explain RUN, then --costs-of RUN."
        )
    else:
        timed = f" Widths up to {max(costs['verify'])} cost what they were timed to take." if costs["verify"] else ""
        out.say(f"Each further verified token costs {costs['verify_token']:.3g} target steps.{timed}", whole=True)
    out.say()
    _print_depths(out, document["depths"], bounds)
    if document["memory"] is not None:
        out.say()
        _print_memory(out, document["memory"])


def _headline(predictions: list[Prediction], bounds: dict[str, list[Prediction]]) -> str:
    from benchctl.experiments.explain.forecast import best_of

    if bounds:
        bests = {machine: best_of(bound) for machine, bound in bounds.items()}
        shown = {machine: f"{best.speedup:.2f}× (depth {best.depth})" for machine, best in bests.items()}
        return f"Predicted: {shown['GPU']} to {shown['free']} on a GPU, {shown['CPU']} to {shown['free']} on a CPU."
    best = best_of(predictions)
    if best.speedup > 1:
        return f"Best predicted: depth {best.depth}, {best.speedup:.2f}× the speed of no speculation."
    return f"Not predicted to pay at any of these depths: {best.speedup:.2f}× at most (depth {best.depth})."


def _print_depths(out: Printout, predictions: list[Prediction], bounds: dict[str, list[Prediction]]) -> None:
    def alpha(row: Prediction) -> str:
        return "never" if row.break_even_alpha is None else f"{row.break_even_alpha:.2f}"

    def span(free: Prediction, dear: Prediction) -> tuple[str, str]:
        return f"{dear.speedup:.2f} to {free.speedup:.2f}×", f"{alpha(free)} to {alpha(dear)}"

    headings = ["depth k", "tokens per round"]
    rows = [[f"{row.depth}", f"{row.tokens_per_round:.2f}"] for row in predictions]
    if bounds:
        headings += ["on a GPU", "break-even α", "on a CPU", "break-even α"]
        for row, free, gpu, cpu in zip(rows, bounds["free"], bounds["GPU"], bounds["CPU"], strict=True):
            row += [*span(free, gpu), *span(free, cpu)]
    else:
        headings += ["cost of a round", "speed-up", "break-even α"]
        for row, prediction in zip(rows, predictions, strict=True):
            row += [f"{prediction.round_cost:.2f}", f"{prediction.speedup:.2f}×", alpha(prediction)]
    out.rows(headings, rows, right=headings)


def _print_memory(out: Printout, memory: dict[str, Any]) -> None:
    def gib(count: int | None) -> str:
        return "not known" if count is None else f"{count / 2**30:.2f}"

    cache = f"KV cache at {memory['context']}, GiB"
    sizes = ("weights, GiB", cache, "state, GiB", "read per step, GiB", "step, ms")
    rows = []
    for model in memory["models"]:
        step = "" if model["step_s"] is None else f"{1000 * model['step_s']:.2f}"
        numbers = [gib(model[key]) for key in ("weights_bytes", "cache_bytes", "state_bytes", "read_per_step_bytes")]
        rows.append((model["name"], *numbers, step))
    out.rows(("model", *sizes), rows, right=sizes)
    verdict = "fits" if memory["fits"] else "does not fit"
    needed, available = gib(memory["needed_bytes"]), gib(memory["memory_bytes"])
    out.say(f"Together {needed} GiB: {verdict} in {available} GiB, without buffers.")
