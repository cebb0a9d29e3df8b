"""Speed with speculation: speed-up, acceptance, the cost of a round, throughput, energy and memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest
from operator import itemgetter
from typing import Any

from benchctl.analysis.cells import NOT_RECORDED, Resources
from benchctl.analysis.frame import ALL_TASKS
from benchctl.analysis.results import Analysis
from benchctl.analysis.speed_results import Acceptance, AnswerLength, Cost, SpeedUp, Throughput
from benchctl.analysis.thinking import Thinking
from benchctl.reports.columns import (
    DOUBTS,
    Cell,
    Column,
    Table,
    Tone,
    acceptance_rate,
    arm_column,
    for_programs,
    interval,
    numeric,
    task_column,
)
from benchctl.words import numbers

SPEED_TONE: dict[str, Tone] = {"faster": "good", "slower": "bad"}


def speedups(analysis: Analysis) -> Table[SpeedUp]:
    """A row an arm and task."""
    return Table(
        "speedup",
        "Speed-up",
        (
            arm_column(analysis),
            task_column(),
            *for_programs(baseline=lambda row: analysis.compared[row.arm].baseline),
            numeric("Pooled", "pooled", numbers.ratio).means("tokens over time."),
            interval("95 % interval", "interval", absent=numbers.no_interval(analysis)),
            *for_programs("decode_rate", "baseline_rate"),
            numeric("Median pair", "median", numbers.ratio).means(
                "median over prompts and blocks of the paired ratio."
            ),
            numeric("End to end", "end_to_end", numbers.ratio).means("with prefill and queueing."),
            numeric("TTFT ratio", "ttft_ratio", numbers.ratio, optional=True).means(
                "time to the first token over the baseline's."
            ),
            interval("TTFT ratio, 95 %", "ttft_interval", optional=True),
            numeric("Equal length", "length_matched", numbers.ratio).means(
                "both answers of every pair cut to their common length."
            ),
            numeric("By block", "by_block", _each(numbers.ratio)),
            *for_programs("lowest_block", "highest_block"),
            numeric("More blocks", lambda row: row.more_blocks or None, key="more_blocks", optional=True).means(
                "about so many further blocks would show a difference of 10 %."
            ),
            numeric("Without a draft", "no_draft.pooled", numbers.ratio, key="no_draft", optional=True).means(
                "prompts for which nothing was drafted; within ±2 % they count as 1.00× in the other columns."
            ),
            numeric("Pairs", "pairs"),
            numeric("Unequal", "pairs_unequal").means("pairs that differ in length or finish reason."),
            numeric("Missing", "pairs_missing").means("prompts that either arm did not finish."),
        ),
        [*analysis.speedups, *analysis.second_cells],
        note="95 % interval: of the pooled ratio for exactly these prompts; all intervals of arms (in a task: of arms "
        "and tasks) are correct together."
        + "".join(
            f" {row.arm} is the baseline measured a second time, beside its first cell: its difference from 1.00× is "
            "noise. Every other row uses both cells."
            for row in analysis.second_cells
            if row.task == ALL_TASKS
        ),
    )


def costs(analysis: Analysis) -> Table[Cost]:
    """A row an arm: the cost model."""
    return Table(
        "costs",
        "Cost of a round",
        (
            arm_column(analysis),
            *for_programs(baseline=lambda row: analysis.compared[row.arm].baseline),
            numeric("Depth k", "depth"),
            numeric("α measured", "alpha", numbers.percent).means("probability that the target accepts a draft token."),
            numeric("Break-even α", "break_even_alpha", cell=_break_even),
            numeric("Draft step / target step", "draft_cost", numbers.decimal, optional=True),
            numeric("Overhead of a round", "overhead", numbers.decimal).means(
                "time of a round over that of a baseline step, minus 1 (k·c + o)."
            ),
            numeric("Speed-up predicted", "predicted", numbers.ratio).means(
                "E / (1 + k·c + o) with E = (1 − α^(k+1)) / (1 − α) tokens per round."
            ),
            numeric("Measured", "measured", numbers.ratio),
        ),
        [row for row in analysis.costs if row.arm not in analysis.baselines],
        note="All are estimates from this run, as uncertain as its speed-up.",
    )


def answer_lengths(analysis: Analysis) -> Table[AnswerLength]:
    """A row an arm and length of the answer."""
    return Table(
        "answer-length",
        "By length of the answer",
        (
            arm_column(analysis),
            numeric("Tokens", "tokens", numbers.count),
            numeric("Speed-up", "speedup", numbers.ratio).means("all answers cut at so many tokens."),
            interval("95 % interval", "interval", absent=numbers.no_interval(analysis)),
            numeric("In this stretch", "stretch", numbers.ratio).means("of the tokens after the length before alone."),
            numeric("Accepted", "acceptance", numbers.percent, optional=True).means("in this stretch."),
            numeric("Answers", "pairs").means("those that reach the arm's longest length; the same in all its rows."),
        ),
        analysis.answer_lengths,
        note="By the client's times. All intervals of arms and lengths are correct together.",
    )


def throughput(analysis: Analysis) -> Table[Throughput]:
    """A row an arm and task, medians."""
    return Table(
        "throughput-medians",
        "Throughput",
        (
            arm_column(analysis),
            task_column(),
            numeric("Decode, median", "median", numbers.rate, unit="tok/s", key="tok_per_sec_median"),
            numeric("Decode, mean", "mean_rate", numbers.rate, unit="tok/s").means("every prompt counts the same."),
            numeric("Prefill, median", "prompt_tok_per_sec_median", numbers.rate, unit="tok/s"),
            numeric("TTFT, median", "ttft_median_s", numbers.seconds),
            numeric("Gap, median / p95", "burst_gap_median_s", cell=_gap, unit="ms", optional=True).means(
                "between bursts of tokens as they arrive: the inter-token latency that a reader sees."
            ),
            *for_programs("burst_gap_p95_s"),
            numeric("Tokens per burst", "tokens_per_burst", numbers.decimal, optional=True),
            numeric("Records", "records"),
        ),
        analysis.throughput,
    )


def decode_rates(analysis: Analysis) -> Table[tuple[str, str, int, float]]:
    """A row a record, for programs."""
    return Table(
        "throughput",
        "Decode rate of every record",
        for_programs(
            **{name: itemgetter(number) for number, name in enumerate(("arm", "task", "record", "tok_per_sec"))}
        ),
        [
            (row.arm, row.task, number, rate)
            for row in analysis.throughput
            for number, rate in enumerate(row.tok_per_sec)
        ],
    )


def _gap(row: Throughput) -> str:
    return " / ".join(map(numbers.milliseconds, (row.burst_gap_median_s, row.burst_gap_p95_s)))


def _each(write: Callable[[float], str]) -> Callable[[Sequence[float]], str]:
    return lambda values: " ".join(map(write, values)) or numbers.ABSENT


def _break_even(row: Cost) -> Cell:
    if row.break_even_alpha is None and row.overhead is not None and row.depth is not None:
        return "over 100 %"
    return numbers.percent(row.break_even_alpha)


def resources(analysis: Analysis) -> Table[Resources]:
    """A row for every arm; none for a run of an older benchctl, which did not record them."""
    rows = [resource for resource in analysis.resources if _is_recorded(resource)]
    columns: list[Column[Resources]] = [
        arm_column(analysis),
        numeric("Energy", "joules_per_token", "{:.3g}".format, unit="J/token").means(
            "of the whole machine while the arm was measured, per generated token, prefill included."
        ),
        numeric("above idle", "above_idle_per_token", "{:.3g}".format, unit="J/token", optional=True).means(
            "minus the idle power measured before the run."
        ),
        numeric(
            "against baseline", "against_baseline", numbers.ratio, key="energy_against_baseline", optional=True
        ).means("energy per token over the baseline's."),
        numeric("Peak memory", "resident_bytes", numbers.size).means(
            "resident set of all engine processes; mapped model files included."
        ),
        numeric("on the GPU", "device_bytes", numbers.size, optional=True).means(_reserved(rows)),
        numeric("in swap", lambda row: row.swapped_bytes or None, numbers.size, key="swapped_bytes", optional=True),
        numeric("Checkpoint", "checkpoint_bytes", numbers.size, optional=True).means(
            "saved recurrent state of a sequence, target and draft, from the engine's log."
        ),
    ]
    columns += [
        numeric(
            header,
            _mean(name),
            numbers.size if name.endswith("bytes") else "{:.0f}".format,
            unit=unit,
            key=f"mean_{name}",
        )
        for name, (header, unit) in _MEANS.items()
        if any(name in row.means for row in rows)
    ]
    return Table("resources", "Energy and memory", columns, rows, note=_note(rows))


def _reserved(rows: Sequence[Resources]) -> str:
    """Return that memory of a GPU is what engines reserve; empty where all of it is what arms need."""
    kinds = {row.device_reserved for row in rows if row.device_bytes is not None}
    reserved = "reserved by the engine at its start, whatever the arm needs."
    return "" if True not in kinds else f"of some arms {reserved}" if False in kinds else reserved


_MEANS = {
    "processor_w": ("Processor, mean", "W"),
    "processor_mhz": ("clock", "MHz"),
    "processor_c": ("temperature", "°C"),
    "memory_bytes": ("Machine's memory in use, mean", ""),
    "gpu_w": ("GPU, mean", "W"),
    "gpu_mhz": ("GPU clock", "MHz"),
    "gpu_c": ("GPU temperature", "°C"),
    "gpu_bytes": ("GPU memory in use, mean", ""),
    "gpu_capped": ("at its power limit", "%"),
}
"""Of what was read every second while an arm was measured; the series are in the manifest."""


def _mean(name: str) -> Callable[[Resources], float | None]:
    return lambda row: row.means.get(name)


def _is_recorded(row: Resources) -> bool:
    return row.joules_per_token is not None or row.resident_bytes is not None or row.untold != NOT_RECORDED


def _note(rows: list[Resources]) -> str:
    reasons = dict.fromkeys(row.untold for row in rows if row.untold is not None)
    sources = dict.fromkeys(kind for row in rows for kind in row.told_by)
    parts = [f"Energy is reported for: {', '.join(sources)}."] if sources else []
    parts += [f"Energy is not reported: {reason}." for reason in reasons]
    if any(row.device_untold for row in rows):
        parts.append("GPU memory is not reported: neither nvidia-smi nor the kernel (fdinfo) tells it for this device.")
    return " ".join(parts)


POSITIONS = 16
"""Draft positions of a table."""


def thinking(analysis: Analysis) -> Table[Thinking]:
    """A row an arm whose answers think; none where no answer does."""

    def both(name: str, header: str, write: Callable[[Any], Cell], *, optional: bool = False) -> list[Column[Thinking]]:
        return [
            numeric(f"{header} {side}", f"{side}.{name}", write, key=f"{side}_{name}", optional=optional)
            for side in ("inside", "outside")
        ]

    return Table(
        "thinking",
        "Inside and outside of thinking",
        (
            arm_column(analysis),
            numeric("Answers", "answers", numbers.count),
            *both("tokens", "Tokens", numbers.count),
            *both("tok_s", "tok/s", numbers.rate),
            *both("rate", "Accepted", numbers.percent, optional=True),
            *both("length", "Acceptance length", numbers.decimal, optional=True),
            *both("diverging", "Diverge first", numbers.count, optional=True),
        ),
        analysis.thinking or [],
        note="Thinking ends with `</think>`, or where the server no longer sends reasoning apart, to the round."
        if analysis.thinking
        else "",
    )


def acceptance(analysis: Analysis) -> Table[Acceptance]:
    """A row an arm and task."""
    rows = [row for row in analysis.acceptance if row.arm not in analysis.baselines]
    verified: Column[Acceptance] = numeric("Verified", "verified", numbers.count).means(
        "drafted tokens that the target read; a dash: not reported."
    )
    return Table(
        "acceptance",
        "Acceptance",
        (
            arm_column(analysis),
            task_column(),
            acceptance_rate("Rate", "rate", "doubt").means("accepted over drafted tokens."),
            *for_programs("doubt"),
            numeric("Accepted", "accepted", numbers.count),
            numeric("Drafted", "drafted", numbers.count),
            *(
                [verified]
                if any(row.drafted and row.verified != row.drafted for row in rows)
                else for_programs("verified")
            ),
            numeric("Prompts", _prompts_drafted, numbers.count, key="prompts_drafted", optional=True).means(
                "prompts for which something was drafted, if not for all."
            ),
            numeric("Rounds", "rounds", numbers.count),
            numeric("Acceptance length", "acceptance_length", numbers.decimal).means(
                "1 + accepted / rounds (as in vLLM): tokens per drafted round, its bonus token included."
            ),
            numeric("With plain steps", "tokens_per_round", numbers.decimal).means(
                "all tokens after the first over the drafted rounds, including those of steps without a draft and of "
                "evaluations that a recurrent model repeats."
            ),
            numeric("Plain steps", "plain_steps", numbers.count, optional=True).means(
                "steps without a draft, not in the acceptance length."
            ),
            numeric("Tokens per step", "tokens_per_step", numbers.decimal, optional=True).means(
                "tokens after the first over all steps of the target, with or without a draft."
            ),
            numeric("Mean of requests", "rate_by_request", numbers.percent, optional=True).means(
                "mean of the rates of the answers."
            ),
            numeric("Mean of tasks", "rate_by_task", numbers.percent, optional=True).means(
                "mean of the rates of the tasks."
            ),
            *for_programs("position_unconditional", "position_conditional", "position_drafted"),
            numeric("By position, of those drafted", "position_rate", _each(numbers.percent), optional=True).means(
                "accepted over drafted at the first, second, … position; a draft that ended before is not counted."
            ),
            numeric("Drafts by length", "draft_lengths", cell=_by_length, optional=True).means(
                "rounds that drafted exactly 1, 2, … tokens, and how many of these tokens were accepted."
            ),
            *for_programs("length_rate", "accepted_in_round"),
        ),
        rows,
        note=" ".join(
            [
                "A dash: not reported by this engine, contradictory, or nothing drafted.",
                *(text for doubt, text in DOUBTS.items() if any(row.doubt == doubt for row in rows)),
            ]
        ),
    )


def by_position(analysis: Analysis) -> Table[Acceptance]:
    """A row per arm and a column per draft position, at most `POSITIONS`."""

    def place(position: int) -> Column[Acceptance]:
        def share(row: Acceptance) -> float | None:
            return next(iter((row.position_unconditional or [])[position:]), None)

        return numeric(str(position + 1), share, numbers.percent, absent="")

    rows = [row for row in analysis.acceptance if row.task == ALL_TASKS and row.position_unconditional]
    depth = max((len(row.position_unconditional or ()) for row in rows), default=0)
    return Table(
        "acceptance-position",
        "Acceptance by position",
        (arm_column(analysis), *map(place, range(min(depth, POSITIONS)))),
        rows,
        note="Share of verify rounds that accepted the first, second, … draft token, all tasks."
        + (" Later positions are in acceptance.csv." if depth > POSITIONS else ""),
    )


def _prompts_drafted(row: Acceptance) -> int | None:
    return row.prompts_drafted if row.prompts_drafted < row.prompts else None


def _by_length(row: Acceptance) -> str:
    counts = row.draft_lengths or ()
    shares = ["" if share is None else f" ({numbers.percent(share)})" for share in row.length_rate or ()]
    counted = zip_longest(counts, shares[: len(counts)], fillvalue="")
    return ", ".join(f"{count}{share}" for count, share in counted) or numbers.ABSENT
