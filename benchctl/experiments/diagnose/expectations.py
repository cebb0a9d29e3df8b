"""Two readings of an answer, side by side: the distributions of target and draft at each of its places.

For engines that report only the likeliest tokens of a model. A token that the draft does not report counts with
probability 0, so that acceptances are lower limits; what is not reported of a distribution is bounded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median

import numpy as np

from benchctl.data.traces import Expectations


def at_temperature(logprobs: Mapping[int, float], temperature: float) -> tuple[dict[int, float], float]:
    """Return a distribution at a temperature over the reported tokens, and the most mass that may lie beyond.

    `logprobs`: natural logarithms of the likeliest tokens' probabilities, by id.
    """
    best, least = max(logprobs.values()), min(logprobs.values())
    weights = {token: math.exp((value - best) / temperature) for token, value in logprobs.items()}
    beyond = max(0.0, 1.0 - sum(map(math.exp, logprobs.values())))
    # Each token beyond is no likelier than the least likely that is reported.
    most = beyond * math.exp(least * (1 / temperature - 1)) / math.exp(best / temperature)
    total = sum(weights.values())
    return {token: weight / total for token, weight in weights.items()}, most / (total + most)


def expectations(
    answer: Sequence[int],
    target: Sequence[Mapping[int, float]],
    draft: Sequence[Mapping[int, float]],
    temperature: float,
    top: int,
) -> Expectations:
    """Compare two readings of an answer, place by place; each has the logprobs of its own likeliest tokens.

    A token that the draft does not report counts with probability 0: acceptances are lower limits.
    """
    found = Expectations(starts=list(range(1, len(answer))), overlap=[], accept=[])
    beyond = []
    for place in found.starts:
        theirs, ours, token = target[place], draft[place], answer[place]
        likeliest = max(ours, key=lambda candidate: ours[candidate])
        if temperature:
            p, cut = at_temperature(theirs, temperature)
            q, also = at_temperature(ours, temperature)
            beyond.append(max(cut, also))
            found.overlap.append(
                [min(1.0, sum(min(value, q.get(candidate, 0.0)) for candidate, value in p.items()))]
            )  # but for rounding
            known = p.get(token)
            found.accept.append([min(1.0, q.get(token, 0.0) / known) if known else 0.0])
        else:
            found.overlap.append([float(likeliest == token)])
            found.accept.append([float(likeliest == token)])
        found.agree.append(likeliest == max(theirs, key=lambda candidate: theirs[candidate]))
        least, most = distances(theirs, ours, top)
        found.distance.append(least)
        found.distance_most.append(most)
    found.truncated = float(np.mean(beyond)) if beyond else 0.0
    return found


def distances(target: Mapping[int, float], draft: Mapping[int, float], top: int) -> tuple[float, float]:
    """Return the least and the most that the distance over the target's likeliest tokens can be."""
    likeliest = sorted(target, key=lambda candidate: -target[candidate])[:top]
    p = {token: math.exp(target[token]) for token in likeliest}
    q = {token: math.exp(value) for token, value in draft.items()}
    known = sum(abs(p[token] - q[token]) for token in likeliest if token in q)
    unreported = sum(p[token] for token in likeliest if token not in q)
    rest = max(0.0, 1.0 - sum(p.values()))
    outside = sum(value for token, value in q.items() if token not in p)
    free = max(
        0.0, 1.0 - sum(q.values())
    )  # of the draft's: some of it among the unreported ones of p, the others beyond
    inside = min(free, unreported)
    least = (known + unreported - inside + abs(rest - (outside + free - inside))) / 2
    most = (known + unreported + free + abs(rest - outside)) / 2 if unreported else least
    return least, max(least, most)


def typical(seconds: Sequence[float]) -> float | None:
    """Return the median of some times; `None` of none."""
    return median(seconds) if seconds else None
