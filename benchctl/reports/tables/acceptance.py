"""What was drafted and accepted, whole, by task and by draft position."""

from __future__ import annotations

from benchctl.analysis.results import ALL_TASKS, Acceptance, Analysis
from benchctl.reports import numbers
from benchctl.reports.columns import Column, Table, arm_column, numeric, task_column

POSITIONS = 16
"""Draft positions of one table; those beyond stand in tables of their own."""


def acceptance(analysis: Analysis) -> Table[Acceptance]:
    """A row an arm and task."""
    return Table(
        "acceptance",
        "Acceptance",
        (
            arm_column(analysis, lambda row: row.arm),
            task_column(lambda row: row.task, key="task"),
            numeric("Rate", lambda row: row.rate, numbers.percent, key="rate", explain="accepted over drafted tokens."),
            numeric("Accepted", lambda row: row.accepted, numbers.count, key="accepted"),
            numeric("Drafted", lambda row: row.drafted, numbers.count, key="drafted"),
            numeric("Rounds", lambda row: row.rounds, numbers.count, key="rounds"),
            numeric(
                "Acceptance length",
                lambda row: row.acceptance_length,
                numbers.decimal,
                key="acceptance_length",
                explain="as vLLM defines it, too: 1 + accepted / rounds, the tokens of a verify step with its bonus "
                "token.",
            ),
            numeric(
                "Tokens a round",
                lambda row: row.tokens_per_round,
                numbers.decimal,
                key="tokens_per_round",
                explain="counts the steps that had no draft, too, and those by which a recurrent model evaluates "
                "again.",
            ),
            numeric(
                "Plain steps",
                lambda row: row.plain_steps,
                numbers.count,
                key="plain_steps",
                optional=True,
                explain="those without a draft, which no acceptance length counts.",
            ),
            numeric(
                "Tokens a step",
                lambda row: row.tokens_per_step,
                numbers.decimal,
                key="tokens_per_step",
                optional=True,
                explain="the tokens after the first over all steps of the target, with a draft or without.",
            ),
            Column("", lambda row: row.position_unconditional, key="position_unconditional"),
            Column("", lambda row: row.position_conditional, key="position_conditional"),
            Column("", lambda row: row.rate_by_request, key="rate_by_request"),
            Column("", lambda row: row.rate_by_task, key="rate_by_task"),
            Column("", lambda row: row.position_drafted, key="position_drafted"),
            Column("", lambda row: row.position_rate, key="position_rate"),
            Column("", lambda row: row.draft_lengths, key="draft_lengths"),
            Column("", lambda row: row.accepted_in_round, key="accepted_in_round"),
        ),
        [row for row in analysis.acceptance if row.arm not in analysis.baselines],
        note="A dash: not reported by this engine, contradictory, or nothing drafted.",
    )


def acceptance_by_position(analysis: Analysis, *, conditional: bool = False) -> list[Table[Acceptance]]:
    """A row an arm and a column a draft position, at most `POSITIONS` in a table."""

    def shares(row: Acceptance) -> list[float]:
        return (row.position_conditional if conditional else row.position_unconditional) or []

    def place(position: int) -> Column[Acceptance]:
        def value(row: Acceptance) -> float | None:
            return shares(row)[position] if position < len(shares(row)) else None

        return numeric(
            str(position + 1), value, cell=lambda row: "" if value(row) is None else numbers.percent(value(row))
        )

    rows = [row for row in analysis.acceptance if row.task == ALL_TASKS and shares(row)]
    depth = max((len(shares(row)) for row in rows), default=0)
    title = "Acceptance by position"
    among = ", among the rounds that accepted the position before" if conditional else ", all tasks"
    return [
        Table(
            f"acceptance-{'conditional' if conditional else 'position'}-{start + 1}",
            title if not start else f"{title}, from {start + 1} on",
            (arm_column(analysis, lambda row: row.arm), *map(place, range(start, min(depth, start + POSITIONS)))),
            [row for row in rows if len(shares(row)) > start],
            note=f"Share of verify rounds that accepted the first, second, … draft token{among}.",
        )
        for start in range(0, depth, POSITIONS)
    ]
