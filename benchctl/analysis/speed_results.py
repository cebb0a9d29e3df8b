"""How fast an arm decodes, and what that is made of: speed-up, acceptance, throughput and cost.

Every ratio is a plain number (1.21 means 21 % faster, 0.29 means 71 % slower), every rate tokens per second.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from benchctl.analysis.result import Interval, Result


class NoDraft(Result):
    """The prompts of an arm for which it never drafted: what they ran against the baseline is noise, and shows it."""

    prompts: int
    pooled: float
    """Of these prompts, as measured."""
    interval: Interval | None
    """`None` below three blocks."""
    counted: bool
    """Whether they count as 1.00× in the arm's numbers: `interval` lies within ±2 % of 1."""


class SpeedUp(Result):
    """How much faster an arm decodes than the baseline, for a task or all."""

    arm: str
    task: str
    pooled: float | None
    """Tokens over time of the arm divided by that of the baseline, over the pairs that both finished."""
    median: float | None
    """Median over prompts and blocks of the paired ratio of decode rates."""
    decode_rate: float | None = None
    """Tokens a second of the arm in these pairs, over the time that counts (see `no_draft`)."""
    baseline_rate: float | None = None
    """The same of the baseline; `pooled` is `decode_rate` over it."""
    interval: Interval | None
    """Of `pooled` for these prompts, wide enough that it and those of all arms hold together (of a task: of all arms
    and tasks); `None` below three blocks. It is what every report shows."""
    pointwise: Interval | None = None
    """The same for this row alone."""
    like_these: Interval | None = None
    """Of `pooled` for prompts like these, for this row alone: the prompts are taken for a sample, too."""
    within: float | None = None
    """The smallest x for which `pooled` is shown to lie in 1 - x to 1 + x, over the same claims as `interval`."""
    p: float | None = None
    """Probability of a `pooled` at least as far from 1 where there is no difference, before any correction."""
    more_blocks: int | None = None
    """About how many more blocks would separate ±10 % from no difference, over the same claims; `None`: too many."""
    end_to_end: float | None
    """The same as `pooled`, with prefill and waiting included: what a user waits for."""
    ttft_ratio: float | None = None
    """Mean time to the first token over that of the baseline, over the same pairs: above 1 it comes later."""
    ttft_interval: Interval | None = None
    """Of `ttft_ratio`, as `interval` is."""
    length_matched: float | None
    """`pooled` with both answers of every pair cut to the length that both reached, each at its own mean rate."""
    by_block: list[float]
    """`pooled` within each block, in block order: the spread between fresh processes."""
    blocks: list[int] = Field(default_factory=list)
    """The blocks of `by_block`, counted from 1: those in which neither cell failed or was disturbed."""
    lowest_block: float | None = None
    highest_block: float | None = None
    """The ends of `by_block`; `None` where fewer than two blocks have pairs."""
    pairs: int
    prompts: int = 0
    """Of which these pairs are the answers."""
    no_draft: NoDraft | None = None
    """Of an arm without a draft model that drafted for some of the prompts alone, one request at a time."""
    pairs_unequal: int
    """Pairs with another length or finish reason."""
    pairs_missing: int
    """Prompts times blocks that either did not finish."""


AcceptanceDoubt = Literal["unchecked", "contradicted"]
"""unchecked: nothing confirms how many tokens were accepted. contradicted: counters contradict each other."""


class Acceptance(Result):
    """What was drafted and accepted, for an arm and a task or all. `None`: not reported by the engine."""

    arm: str
    task: str
    drafted: int | None
    verified: int | None = None
    """Those that the target read."""
    accepted: int | None
    rate: float | None
    """accepted / drafted."""
    doubt: AcceptanceDoubt | None = None
    """Why the rate may not be believed: shown wherever it is."""
    prompts: int = 0
    """With an answer for which the engine reports what was drafted."""
    prompts_drafted: int = 0
    """Those for which anything was drafted, in any block."""
    rounds: int | None
    acceptance_length: float | None
    """1 + accepted / rounds: tokens per verify step that had a draft, the bonus token included; vLLM's definition."""
    tokens_per_round: float | None
    """(tokens predicted - 1) / rounds, over the answers with a round: steps without a draft count, too."""
    plain_steps: int | None = None
    """Steps of the target without a draft, in the answers for which the engine reports them."""
    tokens_per_step: float | None = None
    """Tokens a step of the target, drafted or not: (n - 1) / (n - 1 - accepted), over the answers that tell what they
    accepted."""
    rate_by_request: float | None = None
    """Mean over the answers of accepted / drafted: every request counts alike, however long."""
    rate_by_task: float | None = None
    """Mean over the tasks of their rates: every task counts alike. Of the row over all tasks alone."""
    position_unconditional: list[float] | None
    """Share of rounds in which the draft token at position 0, 1, … was accepted; a shorter draft counts as not."""
    position_conditional: list[float] | None
    """Share of the rounds that accepted the position before (and drafted this one, where that is reported)."""
    position_drafted: list[int] | None = None
    """Rounds that drafted a token at position 0, 1, …, where the engine reports it."""
    position_rate: list[float] | None = None
    """accepted / drafted at position 0, 1, …: shorter drafts do not count against the late positions."""
    draft_lengths: list[int] | None = None
    """Rounds that drafted exactly 1, 2, … tokens."""
    length_rate: list[float | None] | None = None
    """accepted / drafted of these, `None` for a length that no draft had; where the engine tells what each accepted."""
    accepted_in_round: list[int] | None = None
    """Rounds that accepted exactly 0, 1, … draft tokens."""


class Throughput(Result):
    """Decode rates of an arm in a task, or over all: a distribution, a value per record in record order."""

    arm: str
    task: str
    tok_per_sec: list[float]
    """Of a task; empty over all tasks."""
    records: int = 0
    median: float | None
    pooled_rate: float | None = None
    """Tokens after the first over their time."""
    mean_rate: float | None = None
    """Of the rates of the prompts, each pooled over blocks."""
    ttft_median_s: float | None
    burst_gap_median_s: float | None = None
    """Of all gaps between bursts of tokens, as they arrived."""
    burst_gap_p95_s: float | None = None
    """From 40 gaps on: so many that two lie beyond."""
    tokens_per_burst: float | None = None
    """Tokens over bursts, each answer's first burst included."""
    prompt_tok_per_sec_median: float | None


class Cost(Result):
    """The cost model of an arm, measured beside predicted."""

    arm: str
    depth: int | None
    alpha: float | None
    """Per-token acceptance that gives the measured acceptance length at this depth."""
    draft_cost: float | None
    """c: time of a draft step over that of a target step; `None` when it was not measured."""
    overhead: float | None
    """k·c + o by the records: time of a round in baseline steps, minus 1; `None` where few steps had a draft."""
    predicted: float | None
    """E / (1 + k·c + o) with the figures above."""
    measured: float | None
    break_even_alpha: float | None
    """The acceptance from which this depth pays at the measured overhead; `None`: not known, or none would pay."""
    hindsight: float | None = None
    """The speed-up without the time of drafting the rejected tokens; `None` where the engine does not time it."""


class AnswerLength(Result):
    """An arm against its baseline, with all answers cut at so many tokens: `benchctl.analysis.answer_length`."""

    arm: str
    tokens: int
    pairs: int
    """Answers; the same at every length of an arm."""
    speedup: float
    interval: Interval | None
    """Wide enough that those of all arms and lengths hold together."""
    stretch: float | None
    """The speed-up of the tokens after the length before alone; `None` where they came with the tokens before."""
    acceptance: float | None
    """accepted / drafted of the rounds that begin in that stretch; `None`: not reported round by round."""
