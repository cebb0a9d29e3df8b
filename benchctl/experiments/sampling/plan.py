"""How large a check is: options of the command."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer


@dataclass(frozen=True)
class CheckPlan:
    """How large a check is."""

    seeds: Annotated[int, typer.Option(min=2, metavar="N", help="Answers per prompt and arm.")] = 200
    prompts: Annotated[int, typer.Option("--count", min=1, metavar="N", help="Prompts, from the tasks in turn.")] = 6
    tokens: Annotated[int, typer.Option(min=2, metavar="N", help="Longest answer.")] = 32
    temperature: Annotated[
        float | None, typer.Option(min=0.01, max=10, metavar="T", show_default="the recipe's, or 0.8")
    ] = None
    level: Annotated[float, typer.Option(min=0.0001, max=0.05, metavar="P", help="Family-wise.")] = 0.01


USUAL = CheckPlan()
