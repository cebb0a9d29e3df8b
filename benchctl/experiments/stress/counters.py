"""Whether a scenario provoked what it is for: from the engine's counters of each answer, and from benchctl's clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Literal

from benchctl.analysis.result import Result
from benchctl.experiments.stress.plan import CLIENTS, SCENARIOS, Request, ScenarioName
from benchctl.experiments.stress.stored import StressAnswer

FEWEST_REJECTED = 0.3
"""Share of the drafted tokens: only a rejected draft has to be taken back."""
NEAR = 0.8
"""The share of the context that a prompt and its answer must fill to be long."""
Lacking = Literal[
    "cached",
    "crowd",
    "drafted",
    "rejected",
    "constrained",
    "cancelled",
    "repeated",
    "long",
    "several",
    "restored",
    "shifted",
    "evicted",
    "preempted",
]
"""Which cause was not seen."""


class Exercised(Result):
    """What a scenario exercised in an arm."""

    requests: int
    errors: int
    cached: int | None
    """Tokens of prompts that came from the cache; `None`: not reported."""
    most_at_once: int
    """Answers that were decoded at the same time, at most, by benchctl's clock."""
    longest: int | None = None
    """Tokens of the longest prompt and its answer; `None`: not reported."""
    drafted: int | None
    accepted: int | None
    acceptance_alone: float | None
    """Of the first answers to each request that no other answer overlapped."""
    acceptance: float | None
    """Of all other answers."""
    counted: dict[str, int]
    """What the engine itself counted in all processes of the scenario: see `engines.in_use.Counted`."""
    lacking: list[Lacking]
    """Empty where every cause of the scenario was seen."""

    @property
    def rejected(self) -> float | None:
        """The share of drafted tokens that were rejected."""
        return None if not self.drafted or self.accepted is None else 1 - self.accepted / self.drafted


def exercised(
    scenario: ScenarioName,
    requests: Sequence[Request],
    answers: Mapping[str, StressAnswer],
    slots: int | None,
    context: int | None = None,
    counted: Mapping[str, int] = MappingProxyType({}),
) -> Exercised:
    """Return what the answers of an arm show. `None`: not known.

    `slots`: answers that the engine decodes at a time; `context`: tokens of the longest prompt and its answer;
    `counted`: what its own counters report.
    """
    pairs = [(request, answers[request.id]) for request in requests if request.id in answers]
    sound = [(request, answer) for request, answer in pairs if answer.error is None]
    all_answers = [answer for _, answer in sound]
    crowd = _overlapping(all_answers) if slots != 1 else [1] * len(all_answers)
    units: set[str] = set()
    alone: list[StressAnswer] = []
    later: list[StressAnswer] = []
    repeated = 0
    for (request, answer), at_once in zip(sound, crowd, strict=True):
        first = request.unit is not None and request.unit not in units
        repeated += request.unit in units
        units |= {request.unit} if request.unit else set()
        (alone if first and at_once == 1 else later).append(answer)
    drafted, accepted = (_sum(getattr(answer, name) for answer in all_answers) for name in ("drafted", "accepted"))
    cached = _sum(answer.cached for answer in all_answers)
    cached = counted.get("cached tokens") if cached is None else cached
    lengths = [len(answer.prompt) + len(answer.token_ids or ()) for answer in all_answers if answer.prompt]
    longest = max(lengths, default=0)
    at_once = min(max(crowd, default=0), counted.get("running", CLIENTS))
    rejected = 1 - accepted / drafted if drafted and accepted is not None else 0.0
    causes: list[tuple[Lacking, Sequence[ScenarioName], bool]] = [
        ("repeated", SCENARIOS, repeated > 0),
        ("cached", ("cache", "sessions", "long", "slot files"), bool(cached)),
        ("long", ("long",), context is not None and longest >= NEAR * context),
        ("several", ("completions",), any((answer.completions or 0) > 1 for answer in all_answers)),
        ("restored", ("slot files",), any(answer.restored for answer in all_answers)),
        ("shifted", ("context shift",), context is not None and longest > context),
        ("evicted", ("small cache",), counted.get("evictions", 0) > 0),
        ("preempted", ("preemption",), counted.get("preemptions", 0) > 0),
        ("crowd", ("crowd", "small cache", "preemption"), at_once > 1),
        ("constrained", ("constraint",), any(request.by_schema and answer.drafted for request, answer in sound)),
        ("cancelled", ("cancel",), any(answer.cancelled for answer in all_answers)),
        ("drafted", SCENARIOS, bool(drafted)),
        ("rejected", SCENARIOS, not drafted or rejected >= FEWEST_REJECTED),
    ]
    return Exercised(
        requests=len(pairs),
        errors=len(pairs) - len(sound),
        cached=cached,
        most_at_once=max(crowd, default=0),
        longest=longest or None,
        drafted=drafted,
        accepted=accepted,
        acceptance_alone=_acceptance(alone),
        acceptance=_acceptance(later),
        counted=dict(counted),
        lacking=[name for name, scenarios, is_seen in causes if scenario in scenarios and not is_seen],
    )


def _overlapping(answers: Sequence[StressAnswer]) -> list[int]:
    """Return for each answer how many were being decoded when it began to be, itself included."""
    spans = [answer.decoded_s or (answer.started_s, answer.started_s) for answer in answers]
    return [max(1, sum(start <= at < end for start, end in spans)) for at, _ in spans]


def _sum(values: Iterable[int | None]) -> int | None:
    reported = [value for value in values if value is not None]
    return sum(reported) if reported else None


def _acceptance(answers: Sequence[StressAnswer]) -> float | None:
    drafted, accepted = _sum(answer.drafted for answer in answers), _sum(answer.accepted for answer in answers)
    return accepted / drafted if drafted and accepted is not None else None
