"""Drafted and accepted tokens: overall, by task and by draft position."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from benchctl.analysis.results import ALL_TASKS, Acceptance, Analysis
from benchctl.reports import numbers
from benchctl.reports.columns import Column, Table, arm_column, for_programs, numeric, task_column

POSITIONS = 16
"""Draft positions of one table; later ones are in further tables."""


def acceptance(analysis: Analysis) -> Table[Acceptance]:
    """A row an arm and task."""
    return Table(
        "acceptance",
        "Acceptance",
        (
            arm_column(analysis, lambda row: row.arm),
            task_column(lambda row: row.task, key="task"),
            numeric("Rate", "rate", numbers.percent, explain="accepted over drafted tokens."),
            numeric("Accepted", "accepted", numbers.count),
            numeric("Drafted", "drafted", numbers.count),
            numeric(
                "Prompts",
                lambda row: row.prompts_drafted if row.prompts_drafted < row.prompts else None,
                numbers.count,
                key="prompts_drafted",
                optional=True,
                explain="those for which anything was drafted, where not for all.",
            ),
            numeric("Rounds", "rounds", numbers.count),
            numeric(
                "Acceptance length",
                "acceptance_length",
                numbers.decimal,
                explain="1 + accepted / rounds (as in vLLM): tokens per drafted round, its bonus token included.",
            ),
            numeric(
                "With plain steps",
                "tokens_per_round",
                numbers.decimal,
                explain="all tokens after the first over the drafted rounds: also those of steps without a draft, and "
                "of evaluations that a recurrent model repeats.",
            ),
            numeric(
                "Plain steps",
                "plain_steps",
                numbers.count,
                optional=True,
                explain="steps without a draft, not in the acceptance length.",
            ),
            numeric(
                "Tokens per step",
                "tokens_per_step",
                numbers.decimal,
                optional=True,
                explain="tokens after the first over all steps of the target, with or without a draft.",
            ),
            numeric(
                "Mean of requests",
                "rate_by_request",
                numbers.percent,
                optional=True,
                explain="mean of the rates of the answers.",
            ),
            numeric(
                "Mean of tasks",
                "rate_by_task",
                numbers.percent,
                optional=True,
                explain="mean of the rates of the tasks.",
            ),
            for_programs("position_unconditional"),
            for_programs("position_conditional"),
            for_programs("position_drafted"),
            for_programs("position_rate"),
            for_programs("draft_lengths"),
            for_programs("accepted_in_round"),
        ),
        [row for row in analysis.acceptance if row.arm not in analysis.baselines],
        note="A dash: not reported by this engine, contradictory, or nothing drafted.",
    )


def acceptance_by_position(analysis: Analysis, *, conditional: bool = False) -> list[Table[Acceptance]]:
    """A row per arm and a column per draft position, at most `POSITIONS` in a table."""
    among = (
        ", among the rounds that accepted the previous position and drafted this one" if conditional else ", all tasks"
    )
    return _by_number(
        analysis,
        f"acceptance-{'conditional' if conditional else 'position'}",
        "Acceptance by position, given the previous one" if conditional else "Acceptance by position",
        lambda row: row.position_conditional if conditional else row.position_unconditional,
        numbers.percent,
        f"Share of verify rounds that accepted the first, second, … draft token{among}.",
    )


def rounds(analysis: Analysis) -> list[Table[Acceptance]]:
    """Rounds by the number of accepted, and of drafted, tokens: a row per arm, a column per number."""
    accepted = _by_number(
        analysis,
        "rounds-accepted",
        "Rounds by accepted tokens",
        lambda row: row.accepted_in_round,
        numbers.count,
        "Rounds that accepted exactly this number of draft tokens, all tasks.",
        first=0,
    )
    drafted = _by_number(
        analysis,
        "rounds-drafted",
        "Rounds by draft length",
        lambda row: row.draft_lengths,
        numbers.count,
        "Rounds that drafted exactly this number of tokens, all tasks.",
    )
    reached = _by_number(
        analysis,
        "rounds-position",
        "Accepted of the drafted, by position",
        lambda row: row.position_rate,
        numbers.percent,
        "Share of the tokens drafted at that position that were accepted; shorter drafts do not count.",
    )
    return [*accepted, *drafted, *reached]


def _by_number(
    analysis: Analysis,
    name: str,
    title: str,
    values: Callable[[Acceptance], Sequence[float] | None],
    write: Callable[[Any], str],
    note: str,
    *,
    first: int = 1,
) -> list[Table[Acceptance]]:
    """A row an arm, a column a number from `first` on, at most `POSITIONS` in a table."""

    def place(position: int) -> Column[Acceptance]:
        def value(row: Acceptance) -> float | None:
            reported = values(row) or []
            return reported[position] if position < len(reported) else None

        return numeric(str(position + first), value, cell=lambda row: "" if value(row) is None else write(value(row)))

    rows = [row for row in analysis.acceptance if row.task == ALL_TASKS and values(row)]
    depth = max((len(values(row) or []) for row in rows), default=0)
    return [
        Table(
            f"{name}-{start + first}",
            title if not start else f"{title}, from {start + first} on",
            (arm_column(analysis, lambda row: row.arm), *map(place, range(start, min(depth, start + POSITIONS)))),
            [row for row in rows if len(values(row) or []) > start],
            note=note,
        )
        for start in range(0, depth, POSITIONS)
    ]
