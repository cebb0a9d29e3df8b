"""Drafted and accepted tokens: overall, by task and by draft position."""

from __future__ import annotations

from benchctl.analysis.results import ALL_TASKS, Acceptance, Analysis
from benchctl.reports import numbers
from benchctl.reports.columns import Column, Table, arm_column, for_programs, numeric, task_column

POSITIONS = 16
"""Draft positions of a table."""


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
            numeric(
                "By position, of those drafted",
                "position_rate",
                cell=lambda row: " ".join(map(numbers.percent, row.position_rate or ())) or numbers.ABSENT,
                optional=True,
                explain="accepted over drafted at the first, second, … position: a draft that ended is no rejection.",
            ),
            numeric(
                "Drafts by length",
                "draft_lengths",
                cell=lambda row: " ".join(map(str, row.draft_lengths or ())) or numbers.ABSENT,
                optional=True,
                explain="rounds that drafted exactly 1, 2, … tokens.",
            ),
            for_programs("accepted_in_round"),
        ),
        [row for row in analysis.acceptance if row.arm not in analysis.baselines],
        note="A dash: not reported by this engine, contradictory, or nothing drafted.",
    )


def by_position(analysis: Analysis) -> Table[Acceptance]:
    """A row per arm and a column per draft position, at most `POSITIONS`."""

    def place(position: int) -> Column[Acceptance]:
        def share(row: Acceptance) -> float | None:
            return next(iter((row.position_unconditional or [])[position:]), None)

        return numeric(str(position + 1), share, lambda value: "" if value is None else numbers.percent(value))

    rows = [row for row in analysis.acceptance if row.task == ALL_TASKS and row.position_unconditional]
    depth = max((len(row.position_unconditional or ()) for row in rows), default=0)
    return Table(
        "acceptance-position",
        "Acceptance by position",
        (arm_column(analysis, lambda row: row.arm), *map(place, range(min(depth, POSITIONS)))),
        rows,
        note="Share of verify rounds that accepted the first, second, … draft token, all tasks."
        + (" Later positions are in acceptance.csv." if depth > POSITIONS else ""),
    )
