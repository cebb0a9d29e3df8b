"""The results of a run that varies concurrency, arrival rate, temperature, or the length of prompts or answers."""

from __future__ import annotations

from typing import Literal, get_args

from pydantic import Field

from benchctl.analysis.result import Interval, Result

Dimension = Literal["concurrency", "rate", "temperature", "context_length", "max_tokens"]
"""What a recipe can vary for all of its arms alike."""
DIMENSIONS: tuple[Dimension, ...] = get_args(Dimension)


class Quantiles(Result):
    """Quantiles of a latency over all requests of an arm, in seconds; `None`: too few lie beyond it, or timed out."""

    median: float | None
    p95: float | None
    """From 40 requests on: so many that two lie beyond."""
    p99: float | None
    """From 200 requests on."""


class Arrival(Result):
    """The open loop of an arm: requests sent by the clock, whatever is in flight."""

    sent_rate: float | None
    """Requests a second as they were really sent, between the first and the last."""
    finished_rate: float | None
    """Requests a second as they ended, between the first and the last end."""
    late_p95_s: float | None
    """How much later than intended the client sent; the largest where there are fewer than 40 requests."""
    growth: float | None
    """Seconds by which the latency grows for each second of sending, the mean of the cells' own trends without their
    first third. `None` below three cells."""
    growth_low: float | None
    growth_high: float | None
    """Its one-sided 95 % limits, by Student's t over the cells."""
    given_up: int
    """Requests that timed out: no latency counts them, and quantiles take them for longer than all others."""
    kept_up: bool | None
    """Whether the server kept up: see docs/method.md; `None` where too little is known."""


class Level(Result):
    """An arm under a condition: what a request waits for, and what all requests together get."""

    arm: str
    of: str
    """The recipe's arm."""
    is_baseline: bool
    overlapping: bool
    """Whether the engine may have worked on several requests at once."""
    judged: bool
    """Whether losslessness is assessed here: not of overlapping requests, nor of sampled answers beside greedy ones."""
    concurrency: int
    rate: float | None
    """Requests a second, as requested; `None` in a closed loop."""
    temperature: float
    context_length: int | None = None
    """Tokens that prompts were padded or cut to."""
    max_tokens: int | None = None
    """Tokens of the longest answer, where that is varied."""
    group: str | None = None
    """The group of setups that compute the target alike; `None` where the recipe has no axes."""
    axes: dict[str, str] = Field(default_factory=dict)
    """The label of its value on every axis that has to do with the arm."""
    memory_bytes: int | None = None
    """About what its engine takes, counted before the run; `None` where that is not known."""
    requests: int
    """Answered."""
    planned: int
    prompts: int
    """Requests of a cell; an arm that was decided early has fewer cells than the run has blocks."""
    ttft: Quantiles
    e2e: Quantiles
    """To the last byte. Of an open loop both count from the intended send time."""
    tpot: Quantiles
    """Time of a token after the first, a value for each request: 1 / decode rate."""
    itl: Quantiles | None = None
    """From a token to the next at the client, over the tokens of all requests; 0 within a burst, as of a draft."""
    request_rate: float | None = None
    """Tokens per second of a request after its first token: the median of requests."""
    by_block: dict[int, tuple[float, float]] = Field(default_factory=dict)
    """By block, `throughput` and `request_rate`."""
    tokens: int | None
    """All generated tokens, the first ones included."""
    makespan_s: float | None
    """From the first request sent to the last answer's end (one at a time the sum of e2e_s), over all whole cells."""
    window_s: float | None
    """The part of the makespan in which all slots of a closed loop were full; otherwise the whole makespan."""
    drain_share: float | None
    """1 - window_s / makespan_s: how much of the cells some slots were empty, filling or draining."""
    throughput: float | None
    """Tokens a second of all requests together, in the window; `None` where a cell has too few requests."""
    goodput: float | None = None
    """Requests a second that kept the recipe's `goodput` limits, over the makespan; `None` without limits."""
    in_flight: float | None
    """Requests really in flight on average: sum of e2e_s / makespan_s; in an open loop with those that were late."""
    latency_speedup: float | None
    """Tokens over the whole time of their requests, over the same of the condition's baseline: `SpeedUp.end_to_end`."""
    latency_interval: Interval | None
    throughput_speedup: float | None = None
    """`throughput` over that of the condition's baseline, over the blocks in which both answered the same prompts."""
    throughput_interval: Interval | None = None
    """Wide enough that it and those of all arms and conditions hold together."""
    throughput_by_block: list[float]
    makespan_speedup: float | None = None
    """The baseline's makespan over the arm's, over the same blocks: of a batch that ends with its longest answer."""
    makespan_interval: Interval | None = None
    arrival: Arrival | None
    """`None` for a closed loop."""

    @property
    def work(self) -> tuple[str | None, float, int | None, int | None]:
        """What it measured whatever the load: group, temperature, tokens of prompts and of answers."""
        return self.group, self.temperature, self.context_length, self.max_tokens


CrossingOutcome = Literal["crosses", "always helps", "never helps", "otherwise", "cannot be said"]
LevelDoubt = Literal["not compared", "baseline refused", "refused", "not drafted", "contains 1", "no interval"]
"""Why a level's throughput does not show the effect of speculation."""


class Crossing(Result):
    """From which concurrency on an arm no longer helps total throughput, everything else equal."""

    arm: str
    """The recipe's arm."""
    temperature: float
    outcome: CrossingOutcome
    """`otherwise`: it helps above a level at which it loses."""
    at: float | None
    """Where it `crosses`: interpolated between the two measured levels where the values pass 1, never beyond."""
    at_interval: Interval | None = None
    """From where the low ends of the levels' intervals pass 1 to where the high ends do: they hold together."""
    helps_at: list[int]
    loses_at: list[int]
    """Levels whose interval lies above, or below, 1."""
    undecided_at: list[int]
    doubts: dict[LevelDoubt, list[int]]
    """Why, and at which of `undecided_at`."""


class EqualThroughput(Result):
    """The speed of a request with an arm, where it serves as much as the baseline does at a concurrency."""

    arm: str
    """The recipe's arm."""
    labels: list[str]
    """On the recipe's axes."""
    temperature: float
    concurrency: int
    """Of the baseline."""
    throughput: float
    """Tokens per second of all requests, as the baseline's."""
    baseline_speed: float
    speed: float | None
    """Tokens per second of a request; `None`: the arm serves less at every measured concurrency."""
    ratio: float | None
    interval: Interval | None


class NotJudged(Result):
    """The conditions under which losslessness is not assessed."""

    concurrencies: list[int]
    """Closed loops with several requests at once, whose answers are not reproducible."""
    rates: list[float]
    """Open loops, for the same reason."""
    temperatures: list[float]
    """At which answers are sampled, while another condition's are greedy."""
    some_judged: bool
    """Whether losslessness is assessed under another condition."""


class Sweep(Result):
    """Everything that depends on the condition."""

    dimensions: list[Dimension]
    """The dimensions that vary, or are not at their default of one request at a time."""
    levels: list[Level]
    """Condition by condition, each with its baseline."""
    crossings: list[Crossing]
    equal_throughput: list[EqualThroughput] = Field(default_factory=list)
    unjudged: NotJudged | None
    """`None` where losslessness is assessed under every condition."""

    @property
    def over_axes(self) -> bool:
        """Whether the recipe has axes: several setups, in groups with a baseline each."""
        return any(row.group is not None for row in self.levels)
