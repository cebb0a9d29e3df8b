"""Prints the plan of `benchctl run --dry-run`: cells, cost, and the exact commands."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchctl.data.store import RunData
from benchctl.measurement.estimate import PlanSize, size_of, timings_for
from benchctl.measurement.plan import CellPlan, groups_of, make_plan, measured, remaining_plan
from benchctl.measurement.preflight import engine_faults
from benchctl.measurement.prepare import Prepared
from benchctl.recipes.schema import AutoBlocks, Recipe
from benchctl.reports.json_output import print_json
from benchctl.reports.terminal import Printout
from benchctl.text import spoken


def show_plan(prepared: Prepared, earlier: RunData | None, results: Path, *, as_json: bool) -> None:
    """Print the plan of a run; starts no engine."""
    recipe = prepared.recipe
    begun = earlier.manifest if earlier else None
    plan = remaining_plan(recipe, prepared.prompts, earlier)
    timings = timings_for(prepared, earlier, results)
    size = size_of(prepared, plan, timings, begun=begun is not None and begun.preflight is not None)
    limit = None
    if isinstance(recipe.blocks, AutoBlocks):
        done = measured(earlier, len(prepared.prompts)) if earlier else set()
        everything = make_plan(recipe, prepared.prompts, done, range(recipe.blocks.max))
        limit = size_of(prepared, everything, timings)
    if as_json:
        print_json("run --dry-run", _document(prepared, plan, limit, size))
        return
    out = Printout()
    engine = prepared.of_baseline.capabilities
    version = engine.version or "version unknown"
    out.say(f"Engine: {engine.binary or engine.kind} (found in: {engine.found_in}; {version})", whole=True)
    out.say(size.sentence, whole=True)
    between = " ⇄ " if recipe.schedule == "interleaved" else " → "
    for block in sorted({cell.block for cell in plan}):
        order = between.join(cell.arm.name for cell in plan if cell.block == block)
        out.say(f"block {block + 1}: {order}", whole=True, most=100_000)
    if (short := too_short(recipe, size)) is not None:
        out.say(f"warning: {short}", "yellow", whole=True)
    if limit is not None and limit.cells > size.cells and isinstance(recipe.blocks, AutoBlocks):
        out.say(_further(recipe.blocks, limit), whole=True)
    for name, launch in prepared.launches.items():
        out.say()
        if launch.url is not None:
            out.say(f"{name}: {launch.url}", "bold", whole=True)
            continue
        settings = " ".join(f"{key}={shlex.quote(launch.env[key])}" for key in sorted(launch.set_by_us))
        out.say(f"{name}:", "bold")
        out.say(f"  {settings} {command_text(launch.argv)}", whole=True, most=100_000)
    for warning in _warnings(prepared):
        out.say()
        out.say(f"warning: {warning}", "yellow", whole=True)


def _warnings(prepared: Prepared) -> list[str]:
    return [
        *prepared.warnings,
        *(f"arms {', '.join(fault.arms)}: {fault.sentence}" for fault in engine_faults(prepared)),
    ]


def command_text(argv: Sequence[str]) -> str:
    """Return a command line as a shell takes it; `{port}` stands for a port that is free."""
    return shlex.join(argv).replace("'{port}'", "{port}")


def too_short(recipe: Recipe, size: PlanSize) -> str | None:
    """Return that the budget of `blocks: auto` ends before the first look, as far as is known beforehand."""
    rule = recipe.blocks
    minutes = rule.minutes if isinstance(rule, AutoBlocks) else None
    if minutes is None or size.seconds is None or size.seconds <= 60 * minutes:
        return None
    first = recipe.first_blocks
    return (
        f"{first} repetitions take about {spoken(size.seconds)}, the budget is {spoken(60 * minutes)}. They are "
        "measured all the same, since fewer say nothing of another run. For less name fewer arms: --depth 4."
    )


def _further(rule: AutoBlocks, limit: PlanSize) -> str:
    """What `blocks: auto` may add to the first blocks."""
    budget = f", until {spoken(60 * rule.minutes)} are over" if rule.minutes is not None else ""
    until = (
        "of the arms that are undecided (faster, slower or within ±5 %, and which is the fastest)"
        if rule.half_width is None
        else f"until every arm's interval is within ±{100 * rule.half_width:g} %"
    )
    requests = f"{limit.cells} cells, {limit.requests} requests"
    return f"Then more repetitions {until}{budget}; at most {rule.max} in all ({requests})."


def _document(prepared: Prepared, plan: list[CellPlan], limit: PlanSize | None, size: PlanSize) -> dict[str, object]:
    engine = prepared.of_baseline.capabilities
    return {
        "recipe": prepared.recipe.model_dump(mode="json"),
        "engine": {"binary": None if engine.binary is None else str(engine.binary), "version": engine.version},
        "cells": [{"block": c.block, "order": c.order, "arm": c.arm.name, "prompts": len(c.prompts)} for c in plan],
        "commands": {name: list(launch.argv) for name, launch in prepared.launches.items()},
        "requests": size.requests,
        "tokens_at_most": size.tokens,
        "seconds": size.seconds if size.source else None,
        "size": asdict(size),
        "groups": [
            {"block": group.block, "group": group.key.setups, "arms": [cell.arm.name for cell in group.cells]}
            for group in groups_of(plan)
        ],
        "at_most": None if limit is None else {"requests": limit.requests, "seconds": limit.seconds},
        "warnings": _warnings(prepared),
    }
