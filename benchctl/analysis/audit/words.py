"""What an audit found of an arm, in sentences."""

from __future__ import annotations

from benchctl.analysis.results import ArmAudit, Seen


def told_of(audit: ArmAudit) -> str:
    """Say what was found, or what is missing, in a sentence or two."""
    if audit.lacking is not None:
        return f"As a whole it cannot be told: {audit.lacking}."
    where = f"{audit.tokens:,} tokens of {_count(audit.answers, 'answer')}"
    if audit.answers < audit.of:
        where += f", sampled from {audit.of},"
    how = "at once" if audit.by_prefill else "token by token"
    noise = "the change between prefill and decode" if audit.by_prefill else "its own noise at the arm's verify width"
    seen = f"Scored whole on the target alone, {how}, {where} leave its likeliest token {_times(audit.diverged)}"
    wanted = f"{noise} alone makes {audit.expected or 0:.1f}"
    if audit.violates:
        return f"{seen}; {wanted}, and does not explain {_unexplained(audit)}."
    limit = f"at most {audit.excess_limit or 0:.2g} per 1,000 tokens beyond it, at 95 %"
    return f"{seen}; {wanted}: compatible with it (p = {_p(audit.p)}; {limit}). {_power(audit)}"


def _unexplained(audit: ArmAudit) -> str:
    found = []
    if audit.beyond:
        found.append(f"{_count(audit.beyond, 'divergence')} at margins above {audit.floor or 0:.3g} nats")
    if audit.p_adjusted is not None and (audit.p_adjusted <= 0.005 or not found):
        found.append(f"where and how often they are (p = {_p(audit.p)})")
    return ", nor ".join(found)


def _power(audit: ArmAudit) -> str:
    return f"An engine that accepts the target's runner-up {'; '.join(map(_seen, audit.seen))}." if audit.seen else ""


def _seen(one: Seen) -> str:
    chance = f"within {one.nats:g} nats would have been seen with a chance of {100 * one.chance:.0f} %"
    if one.chance >= 0.9:
        return chance
    return f"{chance} (90 % need {f'about {one.prompts:,} prompts' if one.prompts else 'far more prompts'})"


def _p(p: float | None) -> str:
    return "–" if p is None else f"{p:.2g}" if p > 0 else "0: this target has no noise"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
