"""The speed-up predicted from given numbers, by depth, and the memory that a pair of models takes.

Nothing is measured here. The cost model is in `benchctl.analysis.cost`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from benchctl.analysis.cost import Prediction, RoundCosts, predict
from benchctl.analysis.round_results import UnitCost
from benchctl.analysis.verify_widths import timed_widths
from benchctl.data.store import open_run, resolve_run
from benchctl.errors import UsageError
from benchctl.lossless.judge.run import analyse_run
from benchctl.models.footprint import (
    Footprint,
    footprint_by_hand,
    footprint_of_folder,
    footprint_of_gguf,
    has_config,
)
from benchctl.models.sources import ModelSearch

VERIFY_COSTS = {"free": 0.0, "GPU": 0.25, "CPU": 1.0}
"""What each token after the first adds to the target's pass, in target steps. Free: reading the weights takes longer
than computing with them. GPU, CPU: the most that was seen of llama.cpp. Its pull requests report, for 2 to 8 tokens,
0.05 to 0.06 on an RTX 3090 with F32 (14262), 0.10 to 0.16 with Q2_K (5434), 0.13 to 0.24 on an RX 6800 with Q4_K_S
(5351); its issue 25250 reports 0.8 on Metal with Q4_0. Two CPU cores with Q4_K_M: 0.6 to 1.0 (docs/findings.md)."""


@dataclass(frozen=True)
class Inputs:
    """What a prediction is made from."""

    alpha: float
    """Acceptance of a draft token, the same at every position."""
    depths: Sequence[int]
    costs: RoundCosts
    expert_costs: Sequence[float] = field(default_factory=list)
    """By depth, what the further experts that a verify pass reads cost, in target steps; empty: nothing."""

    def predictions(self) -> list[Prediction]:
        """Return the prediction for every depth. Raises ValueError."""
        expert_costs = self.expert_costs or [0.0] * len(self.depths)
        token_cost = self.costs.verify_token
        return [
            predict(self.alpha, [depth], replace(self.costs, verify_token=token_cost + cost / depth))[0]
            for depth, cost in zip(self.depths, expert_costs, strict=True)
        ]

    def bounds(self) -> dict[str, dict[str, Any]]:
        """Return the predictions at each of `VERIFY_COSTS`."""
        priced = {machine: replace(self.costs, verify_token=cost) for machine, cost in VERIFY_COSTS.items()}
        return {
            machine: {"verify_token": costs.verify_token, "depths": replace(self, costs=costs).predictions()}
            for machine, costs in priced.items()
        }


def best_of(predictions: Sequence[Prediction]) -> Prediction:
    """Return the depth with the highest speed-up, the smallest where several have it."""
    return max(predictions, key=lambda prediction: (prediction.speedup, -prediction.depth))


def measured_costs(name: str) -> tuple[float | None, float, dict[int, float]]:
    """Return c, w and the verify by its width as timed, in target steps; c is `None` where no model drafted.

    `name`: a run that `explain` timed, or a file of `breakeven TARGET --json`. w is the cost of each token after the
    first, over all timed passes of the target. Its pass over one token is the one that was timed with them, where there
    is one. Raises UsageError where no longer pass was timed.
    """
    if name.endswith(".json"):
        units = _units_in(Path(name))
        baseline = units[0].arm if units else ""
    else:
        units = analyse_run(open_run(resolve_run(name, Path("results")))).rounds.units
        baseline = next((unit.arm for unit in units if unit.what == "target step"), "")
    passes = [unit for unit in units if unit.what == "verify"]
    single_token = {unit.arm: unit.steps for unit in passes if unit.width == 1}
    longer = [unit for unit in passes if unit.width > 1 and (unit.arm in single_token or not single_token)]
    if not longer:
        raise UsageError("No verify pass of this run was timed.", where="--costs-of", fix=f"benchctl explain {name}")
    further_tokens = sum(unit.count * (unit.width - 1) for unit in longer)
    further_steps = sum(unit.count * (unit.steps - single_token.get(unit.arm, 1.0)) for unit in longer)
    draft_steps = [unit.steps for unit in units if unit.what == "draft step"]
    token_cost = max(0.0, further_steps / further_tokens)
    return median(draft_steps) if draft_steps else None, token_cost, timed_widths(units, baseline)


def _units_in(file: Path) -> list[UnitCost]:
    """Read the widths in a file of `breakeven TARGET --json`. Raises UsageError."""
    try:
        return [UnitCost.model_validate(unit) for unit in json.loads(file.read_text("utf-8"))["widths"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        fix = "benchctl breakeven TARGET --json > widths.json"
        raise UsageError("These are no verify widths.", where=f"--costs-of {file}", fix=fix) from None


def footprint_of(name: str | None, option: str) -> Footprint | None:
    """Return the footprint of a model that `option` names: a size, a folder, a config or a GGUF. Raises UsageError."""
    if name is None:
        return None
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


def draft_cost_by_bytes(target: Footprint | None, draft: Footprint | None, context: int) -> float:
    """Return c as the bytes that a step of the draft reads, over those of a step of the target. Raises UsageError."""
    if target is None or draft is None:
        raise UsageError(
            "The cost of a draft step is not known.",
            where="--cost",
            fix="Give it (0.1: a tenth of a target step), or --target and --draft to derive it.",
        )
    if not (target_bytes := target.read_per_step(context)):
        raise UsageError("The target has no weights.", where="--target")
    return draft.read_per_step(context) / target_bytes


def expert_costs(target: Footprint | None, depths: Sequence[int], context: int) -> list[float]:
    """Return by depth what the further experts that a verify pass reads cost, in target steps."""
    if target is None:
        return []
    step_bytes = target.read_per_step(context) or 1
    return [target.further_per_verify(depth + 1) / step_bytes for depth in depths]


def experts_read(target: Footprint | None, depths: Sequence[int]) -> dict[str, Any] | None:
    """Return the bytes that a mixture of experts reads, as plain data; `None` for another model."""
    if target is None or target.expert_share >= 1:
        return None
    verify_bytes = {str(depth): target.weights_per_step + target.further_per_verify(depth + 1) for depth in depths}
    return {
        "parameters": target.parameters,
        "active_parameters": target.active_parameters,
        "weights_bytes": target.weights,
        "step_bytes": target.weights_per_step,
        "verify_bytes": {depth: round(size) for depth, size in verify_bytes.items()},
    }


def memory_needed(
    models: Sequence[Footprint], context: int, memory_gib: float | None, bandwidth: float | None
) -> dict[str, Any] | None:
    """Return the memory that models take and read, as plain data; `None` without models.

    `memory_gib`: `None` stands for this machine's. `bandwidth`: of the memory, in GB/s; it gives the time of a step.
    """
    if not models:
        return None
    available = psutil.virtual_memory().total if memory_gib is None else memory_gib * 2**30
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
