"""The cost model: what a round of speculation yields, what it costs, and the acceptance from which it would pay.

With a per-token acceptance α that is the same at every position, a round at draft depth k yields

    E(α, k) = 1 + α + α² + … + α^k = (1 - α^(k+1)) / (1 - α)

tokens, the bonus token counted once (Leviathan et al. 2023, equation 1). It costs 1 + k·c + o steps of the baseline: c
a draft step, o verifying and keeping state. Records tell the sum k·c + o alone. A prediction before a measurement
adds w, what each further position costs the target's pass (0 where decoding is bound by memory bandwidth):

    S(α, k) = E(α, k) / (1 + k·(c + w) + o)

Theorem 3.8 of the paper has w = o = 0. With α = 0.8, k = 5, c = 0.1, S is 2.46, and 3.3 with the bonus token twice.

The parts of a round are from the run's own records where the engine timed them, else from separate traces: passes of
processes of their own, at their median in steps of *their* baseline, so that a machine that was slower then does not
matter, turned into seconds with the run's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from benchctl.analysis.cells import speculation_of
from benchctl.analysis.frame import ALL_TASKS
from benchctl.analysis.round_results import PARTS, Part, RoundSplit, Source, UnitCost
from benchctl.analysis.speed_results import Acceptance, Cost, SpeedUp
from benchctl.recipes.speculation import copies

if TYPE_CHECKING:
    from benchctl.analysis.acceptance import CounterColumns
    from benchctl.analysis.frame import Frame, Integers
    from benchctl.data.traces import CostTraces, PassTime


FULL_DRAFTS = 0.7
"""An arm that drafts so much of its depth a round, on average, drafts to it; others stop early."""
DRAFTED_SHARE = 1 / 3
"""Where fewer of an arm's steps had a draft, the noise of the others would be attributed to the few rounds."""


@dataclass(frozen=True)
class RoundCosts:
    """What a round costs, in decode steps of the target alone."""

    draft_step: float
    """c: a draft token."""
    overhead: float = 0.0
    """o: everything of a round that is neither drafting nor the target's pass."""
    verify_token: float = 0.0
    """w: what each further position adds to the target's pass."""
    verify: Mapping[int, float] = field(default_factory=dict)
    """The target's pass over so many tokens, in steps, where it was timed."""

    def __post_init__(self) -> None:
        for name in ("draft_step", "overhead", "verify_token"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} is a cost in target steps: expected 0 or more, got {value:g}")

    def of_round(self, depth: int) -> float:
        """Return the cost of a round that drafts `depth` tokens."""
        return self._verify(depth + 1) + depth * self.draft_step + self.overhead

    def _verify(self, width: int) -> float:
        """Return the target's pass over so many tokens: between timed widths on a line, beyond them by w."""
        timed = {1: 1.0, **self.verify}
        last = max(timed)
        if width > last:
            return timed[last] + (width - last) * self.verify_token
        return float(np.interp(width, sorted(timed), [timed[step] for step in sorted(timed)]))


@dataclass(frozen=True)
class Prediction:
    """One draft depth. `break_even_alpha` is `None` where no acceptance pays for the round."""

    depth: int
    tokens_per_round: float
    round_cost: float
    """In target steps."""
    speedup: float
    break_even_alpha: float | None


def expected_tokens(alpha: float, depth: int) -> float:
    """Return E(α, k): tokens per round, from 1 at α = 0 to k + 1 at α = 1."""
    return float(sum(alpha**power for power in range(depth + 1)))


def alpha_for(tokens: float, depth: int) -> float | None:
    """Return the α in [0, 1] with E(α, depth) = `tokens`; `None` where no α yields that many. E grows with α."""
    if not tokens <= depth + 1:
        return None
    low, high = 0.0, 1.0
    if tokens <= 1:
        return low
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if expected_tokens(middle, depth) < tokens else (low, middle)
    return high


def predict(alpha: float, depths: Sequence[int], costs: RoundCosts) -> list[Prediction]:
    """Return the prediction for every draft depth; `alpha` is the acceptance of a token, the same at every position.

    Raises ValueError for an α outside 0 to 1 and for depths below 1.
    """
    if not 0 <= alpha <= 1:
        raise ValueError(f"α is a share: expected 0 to 1, got {alpha:g}")
    if not depths or min(depths) < 1:
        raise ValueError("a draft depth is at least 1")
    rows = []
    for depth in depths:
        tokens, cost = expected_tokens(alpha, depth), costs.of_round(depth)
        rows.append(Prediction(depth, tokens, cost, tokens / cost, alpha_for(cost, depth)))
    return rows


def find_cost(
    frame: Frame, counters: CounterColumns, arm: int, speedup: Sequence[SpeedUp], acceptance: Sequence[Acceptance]
) -> Cost:
    """Put an arm's measured cost of a round beside what the model predicts; everything unknown is `None`."""
    overall = next(row for row in acceptance if row.task == ALL_TASKS)
    measured = next(row.pooled for row in speedup if row.task == ALL_TASKS)
    depth = draft_depth(frame, overall)
    length = overall.acceptance_length
    alpha = alpha_for(length, depth) if depth and length is not None else None
    sums = sum_rounds(frame, counters, arm)
    round_cost = _round_cost(sums)
    return Cost(
        arm=frame.arms[arm],
        depth=depth,
        alpha=alpha,
        draft_cost=None,
        overhead=None if round_cost is None else round_cost - 1,
        predicted=expected_tokens(alpha, depth) / round_cost if alpha is not None and depth and round_cost else None,
        measured=measured,
        break_even_alpha=alpha_for(round_cost, depth) if depth and round_cost is not None else None,
        hindsight=_hindsight(sums) if depth else None,
    )


def _hindsight(sums: Rounds | None) -> float | None:
    """Return an arm's speed-up without the time of drafting the rejected tokens.

    Drafting is taken to cost the same for every token; that fewer tokens would be verified is not counted.
    """
    draft_s = (sums.phases or {}).get("draft") if sums else None
    if sums is None or not draft_s or not sums.drafted:
        return None
    left_s = sums.decode_s - draft_s * (1 - sums.accepted / sums.drafted)
    return sums.decoded * sums.step_s / left_s if left_s > 0 else None


def draft_depth(frame: Frame, acceptance: Acceptance) -> int | None:
    """Return the depth that an arm drafts to in every round; `None` where it has none (`why_no_depth`).

    By the recipe; where the engine reports rounds, they must draft `FULL_DRAFTS` of it on average at least.
    """
    depth = speculation_of(frame, acceptance.arm).get("max")
    return depth if isinstance(depth, int) and why_no_depth(frame, acceptance) is None else None


def why_no_depth(frame: Frame, acceptance: Acceptance) -> str | None:
    """Return why an arm's rounds have no depth in common, as the end of a sentence; `None` where they do."""
    settings = speculation_of(frame, acceptance.arm)
    kind, depth = settings.get("type"), settings.get("max")
    if not isinstance(kind, str):
        return "several types draft together"
    if copies(kind):
        return "text is drafted as far as it was seen before"
    if not isinstance(depth, int):
        return "the recipe names no depth"
    verified, rounds = acceptance.verified, acceptance.rounds
    if acceptance.drafted and verified is None:
        return "the engine does not report how many of the drafted tokens it verified"
    if verified and rounds and verified > depth * rounds:
        return f"rounds verify {verified / rounds:.1f} drafted tokens on average: a tree, or deeper than {depth}"
    if verified and rounds and verified / rounds < FULL_DRAFTS * depth:
        return f"rounds verify {verified / rounds:.1f} drafted tokens on average, of {depth} at most"
    return None


def _round_cost(sums: Rounds | None) -> float | None:
    """Return the time of a verify round over that of a baseline token, on the prompts that both answered.

    Steps of the arm without a draft, and a recurrent model's evaluation after a partial rejection (it yields a token),
    count as a baseline step each. `None` where they are too many.
    """
    if sums is None or sums.rounds / (sums.rounds + sums.undrafted) < DRAFTED_SHARE:
        return None
    return max(0.0, (sums.decode_s / sums.step_s - sums.undrafted) / sums.rounds) or None


_REEVALUATED = "re-evaluate"


@dataclass(frozen=True)
class Rounds:
    """Sums over the answers of an arm with known rounds, and of the baseline to the same prompts."""

    decode_s: float
    decoded: float
    rounds: float
    drafted: float
    verified: float
    """NaN where it is not reported of an answer."""
    accepted: float
    phases: Mapping[str, float] | None
    """Seconds by phase, where every answer that drafted has them."""
    step_s: float
    """A step of the baseline."""

    @property
    def undrafted(self) -> float:
        """Steps that neither a round's own token nor an accepted draft token explains: plain, or a re-evaluation's."""
        return max(0.0, self.decoded - self.rounds - self.accepted)


@dataclass(frozen=True)
class Trace:
    """The passes of an arm in steps of its own process's baseline."""

    passes: Sequence[PassTime]
    plain_s: float
    """A pass of the traced baseline."""

    def of(self, kind: str) -> tuple[int, float, float]:
        """Return how many passes of a kind there are, the tokens in them, and how many steps they took together."""
        passes = [pass_ for pass_ in self.passes if pass_.kind == kind and pass_.width]
        count = sum(pass_.count for pass_ in passes)
        tokens = sum(pass_.count * pass_.width for pass_ in passes)
        return count, tokens, sum(pass_.count * pass_.median_s for pass_ in passes) / self.plain_s

    def mean(self, kind: str) -> float:
        """Return the steps that a pass of a kind takes, 0 where there is none."""
        count, _, steps = self.of(kind)
        return steps / count if count else 0.0


def sum_rounds(frame: Frame, counters: CounterColumns, arm: int, task: int | None = None) -> Rounds | None:
    """Add up an arm's rounds over the prompts that it and the baseline answered; `None` where no round is reported."""
    ours, theirs = frame.pairs(arm, frame.baseline)
    counted = np.isfinite(frame.decode_s[ours]) & np.isfinite(frame.decode_s[theirs]) & counters.trusted[ours]
    counted &= ~np.isnan(counters.rounds[ours]) & ~np.isnan(counters.accepted[ours])
    if task is not None:
        counted &= frame.task[ours] == task
    ours, theirs = ours[counted], theirs[counted]
    rounds = float(counters.rounds[ours].sum())
    if not rounds:
        return None
    return Rounds(
        decode_s=float(frame.decode_s[ours].sum()),
        decoded=float(frame.decoded[ours].sum()),
        rounds=rounds,
        drafted=float(np.nan_to_num(counters.drafted[ours]).sum()),
        verified=float(counters.verified[ours].sum()),
        accepted=float(counters.accepted[ours].sum()),
        phases=_phases(frame, counters, ours),
        step_s=float(frame.baseline_s(theirs).sum() / frame.decoded[theirs].sum()),
    )


def _phases(frame: Frame, counters: CounterColumns, rows: Integers) -> dict[str, float] | None:
    seconds_by_phase: dict[str, float] = {}
    for row in rows:
        phases = frame.records[row].phase_s
        if phases is None and counters.drafted[row] > 0:
            return None
        for phase, seconds in (phases or {}).items():
            seconds_by_phase[phase] = seconds_by_phase.get(phase, 0.0) + seconds
    return seconds_by_phase


def trace_of(traces: CostTraces | None, arm: str, baseline: str) -> Trace | None:
    """Return the separately timed passes of an arm, with those of its baseline; `None` where either has none."""
    if traces is None:
        return None
    by_arm = {traced.arm: traced.passes for traced in traces.arms}
    plain = next((pass_.median_s for pass_ in by_arm.get(baseline, []) if pass_.kind == "plain"), 0.0)
    return Trace(by_arm[arm], plain) if arm in by_arm and plain else None


def draft_step(rounds: Rounds, trace: Trace | None, traces: CostTraces | None) -> tuple[float, Source] | None:
    """Return the seconds that a draft token takes and how that is known; `None` where it is not."""
    if rounds.phases and rounds.drafted and "draft" in rounds.phases:
        return rounds.phases["draft"] / rounds.drafted, "run"
    _, tokens, steps = trace.of("draft") if trace else (0, 0, 0.0)
    if tokens:
        return steps / tokens * rounds.step_s, "traced"
    alone_steps = traces.draft_alone if traces else None
    if alone_steps is not None and alone_steps.tokens:
        return alone_steps.seconds / alone_steps.tokens, "alone"
    return None


def unit_costs(frame: Frame, arm: int, rounds: Rounds, traces: CostTraces | None, *, drafts: bool) -> list[UnitCost]:
    """Return the cost of each part; `drafts`: whether a model drafts, so that there is a draft step."""
    name, step_s = frame.arms[arm], rounds.step_s
    trace = trace_of(traces, name, frame.arms[frame.baseline])
    costs: list[tuple[str, float, float, float, Source]] = []
    step = draft_step(rounds, trace, traces if drafts else None) if drafts else None
    if step is not None:
        count = rounds.drafted if step[1] == "run" else trace.of("draft")[1] if trace and step[1] == "traced" else 0
        alone_tokens = traces.draft_alone.tokens if traces and traces.draft_alone and step[1] == "alone" else 0
        costs.append(("draft step", 1, step[0], count or alone_tokens, step[1]))
    phases, times = rounds.phases or {}, rounds.rounds
    if "verify" in phases and math.isfinite(rounds.verified):
        costs.append(("verify", 1 + rounds.verified / times, phases["verify"] / times, times, "run"))
    if phases.get("state"):
        costs.append(("checkpoint", 1, phases["state"] / times, times, "run"))
    kinds = {"draft-read": "draft reads", _REEVALUATED: "re-evaluation"}
    for kind in ("verify", "draft-read", "checkpoint", "restore", _REEVALUATED):
        count, tokens, steps = trace.of(kind) if trace else (0, 0, 0.0)
        if count and not (kind in phases or (kind == "draft-read" and not drafts)):
            costs.append((kinds.get(kind, kind), tokens / count, steps / count * step_s, count, "traced"))
    keys = ("what", "width", "seconds", "count", "source")
    return [
        UnitCost.model_validate(
            {**dict(zip(keys, row, strict=True)), "count": int(row[3]), "arm": name, "steps": row[2] / step_s}
        )
        for row in costs
    ]


def width_curve(traces: CostTraces | None, baseline: str, arms: Sequence[str]) -> list[tuple[int, float, int]]:
    """Return (width, steps, count) of the target's passes over so many tokens.

    Of rounds that were timed for this curve where there are any, else over all passes of `arms`.
    """
    if traces is None:
        return []
    if len(traces.widths) > 1:
        step_s = traces.widths[0].seconds
        return [(timed.width, timed.seconds / step_s, timed.count) for timed in traces.widths]
    trace = trace_of(traces, baseline, baseline)
    if trace is None:
        return []
    sums: dict[int, tuple[float, int]] = {}
    for arm in traces.arms:
        for pass_ in arm.passes if arm.arm in arms else ():
            if pass_.kind in ("plain", "verify", _REEVALUATED):
                seconds, count = sums.get(pass_.width, (0.0, 0))
                sums[pass_.width] = (seconds + pass_.count * pass_.median_s, count + pass_.count)
    return [(width, seconds / count / trace.plain_s, count) for width, (seconds, count) in sorted(sums.items())]


def split_rounds(
    frame: Frame, counters: CounterColumns, arm: int, traces: CostTraces | None, *, drafts: bool
) -> list[RoundSplit]:
    """Split the time of an arm's rounds into parts, for all tasks together and for each."""
    trace = trace_of(traces, frame.arms[arm], frame.arms[frame.baseline])
    splits = []
    for number, name in [(None, ALL_TASKS), *enumerate(frame.tasks)]:
        rounds = sum_rounds(frame, counters, arm, number)
        if rounds is not None:
            splits.append(_split(frame.arms[arm], name, rounds, trace, traces, drafts=drafts))
    return splits


def _split(
    arm: str, task: str, rounds: Rounds, trace: Trace | None, traces: CostTraces | None, *, drafts: bool
) -> RoundSplit:
    parts, sources = _known_parts(rounds, trace, traces, drafts=drafts)
    remainder: Part = "left over" if "verify" in parts else "verify and left over" if "draft" in parts else "not split"
    parts[remainder] = rounds.decode_s - sum(parts.values())
    inferred = [part for part in PARTS if part in parts and sources.get(part) in {"traced", "alone"}]
    return RoundSplit(
        arm=arm,
        task=task,
        rounds=int(rounds.rounds),
        seconds=rounds.decode_s / rounds.rounds,
        tokens=rounds.decoded / rounds.rounds,
        drafted_round_tokens=1 + rounds.accepted / rounds.rounds,
        parts={part: parts[part] / rounds.rounds for part in PARTS if part in parts},
        inferred=[*inferred, remainder],
        step_s=rounds.step_s,
    )


def _known_parts(
    rounds: Rounds, trace: Trace | None, traces: CostTraces | None, *, drafts: bool
) -> tuple[dict[Part, float], dict[Part, Source]]:
    """Return the seconds of every part that is known, and how."""
    parts: dict[Part, float] = {}
    sources: dict[Part, Source] = {}
    phases = rounds.phases or {}
    step = draft_step(rounds, trace, traces) if drafts or "draft" in phases else None
    if step is not None:
        parts["draft"], sources["draft"] = step[0] * rounds.drafted, step[1]
    if "verify" in phases:
        names: dict[str, Part] = {"verify": "verify", "state": "state", "search": "search", "plain": "plain steps"}
        timed = {part: phases[phase] for phase, part in names.items() if phases.get(phase)}
        parts |= timed
        sources |= dict.fromkeys(timed, "run")
        return parts, sources
    reevaluated = _reevaluated_share(trace) * rounds.undrafted
    if rounds.undrafted > reevaluated:
        parts["plain steps"], sources["plain steps"] = (rounds.undrafted - reevaluated) * rounds.step_s, "traced"
    if trace is None or not trace.of("verify")[0]:
        return parts, sources
    verified = trace.of("verify")[0]
    parts["verify"] = trace.mean("verify") * rounds.rounds * rounds.step_s
    reads = trace.of("draft-read")[2] / verified * rounds.rounds * rounds.step_s if drafts else 0.0
    state = trace.mean("checkpoint") * rounds.rounds
    state += (trace.mean("restore") + trace.mean(_REEVALUATED)) * reevaluated
    unmeasured: dict[Part, float] = {"draft reads": reads, "state": state * rounds.step_s}
    parts |= {part: seconds for part, seconds in unmeasured.items() if seconds}
    sources |= dict.fromkeys(("verify", "draft reads", "state"), "traced")
    return parts, sources


def _reevaluated_share(trace: Trace | None) -> float:
    """Return which share of the steps without a draft were re-evaluations, going by the passes timed separately."""
    if trace is None:
        return 0.0
    reevaluated, plain = trace.of(_REEVALUATED)[0], trace.of("plain")[0]
    return reevaluated / (reevaluated + plain) if reevaluated else 0.0
