"""Target and draft model compared by their logprobs of an answer: acceptance, agreement, distance, place by place."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from benchctl.data.traces import Expectations


def at_temperature(logprobs: Mapping[int, float], temperature: float) -> tuple[dict[int, float], float]:
    """Return a distribution at a temperature over the reported tokens, and the most mass that may lie beyond.

    `logprobs`: natural logarithms of the likeliest tokens' probabilities, by id.
    """
    highest, lowest = max(logprobs.values()), min(logprobs.values())
    weights = {token: math.exp((value - highest) / temperature) for token, value in logprobs.items()}
    beyond = max(0.0, 1.0 - sum(map(math.exp, logprobs.values())))
    # No unreported token is likelier than the least likely reported token.
    beyond_at_most = beyond * math.exp(lowest * (1 / temperature - 1)) / math.exp(highest / temperature)
    total = sum(weights.values())
    return {token: weight / total for token, weight in weights.items()}, beyond_at_most / (total + beyond_at_most)


def expectations(
    answer: Sequence[int],
    target: Sequence[Mapping[int, float]],
    draft: Sequence[Mapping[int, float]],
    temperature: float,
    top: int,
) -> Expectations:
    """Compare two readings of an answer, place by place; each has the logprobs of its own likeliest tokens."""
    read = Expectations(starts=list(range(1, len(answer))), overlap=[], accept=[])
    beyond = []
    for start in read.starts:
        theirs, ours, token = target[start], draft[start], answer[start]
        likeliest = max(ours, key=lambda candidate: ours[candidate])
        if temperature:
            p, cut = at_temperature(theirs, temperature)
            q, also = at_temperature(ours, temperature)
            beyond.append(max(cut, also))
            overlap = sum(min(value, q.get(candidate, 0.0)) for candidate, value in p.items())
            read.overlap.append([min(1.0, overlap)])  # rounding may exceed 1
            target_chance = p.get(token)
            read.accept.append([min(1.0, q.get(token, 0.0) / target_chance) if target_chance else 0.0])
        else:
            read.overlap.append([float(likeliest == token)])
            read.accept.append([float(likeliest == token)])
        read.agree.append(likeliest == max(theirs, key=lambda candidate: theirs[candidate]))
        lower, upper = distances(theirs, ours, top)
        read.distance.append(lower)
        read.distance_most.append(upper)
    read.truncated = float(np.mean(beyond)) if beyond else 0.0
    return read


def distances(target: Mapping[int, float], draft: Mapping[int, float], top: int) -> tuple[float, float]:
    """Return the least and the most that the distance over the target's likeliest tokens can be."""
    likeliest = sorted(target, key=lambda candidate: -target[candidate])[:top]
    p = {token: math.exp(target[token]) for token in likeliest}
    q = {token: math.exp(value) for token, value in draft.items()}
    reported_difference = sum(abs(p[token] - q[token]) for token in likeliest if token in q)
    unreported = sum(p[token] for token in likeliest if token not in q)
    p_outside = max(0.0, 1.0 - sum(p.values()))
    q_outside = sum(value for token, value in q.items() if token not in p)
    free = max(0.0, 1.0 - sum(q.values()))  # mass of the draft's unreported tokens
    inside = min(free, unreported)
    lower = (reported_difference + unreported - inside + abs(p_outside - (q_outside + free - inside))) / 2
    upper = (reported_difference + unreported + free + abs(p_outside - q_outside)) / 2 if unreported else lower
    return lower, max(lower, upper)
