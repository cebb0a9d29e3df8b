"""Judging whether an endpoint ran as the recipe says. What it does not show is said, neither believed nor refused."""

from __future__ import annotations

from dataclasses import dataclass

from benchctl.engines.base import Attestation
from benchctl.engines.openai.discovery import Endpoint

_ASK = "Ask whoever runs the endpoint how it was started, or write the recipe as it was."


@dataclass(frozen=True)
class Observed:
    """What a cell showed."""

    speculation: str | None
    """What the recipe says that this endpoint does; `None`: nothing."""
    first: Endpoint
    last: Endpoint
    drafted: int | None
    """Draft tokens of our answers; `None` when nothing was told of any."""
    answers: int
    accepted: int = 0
    """Draft tokens accepted in our answers, as far as it is told."""
    shared: int = 0
    """Answers during which the endpoint generated other people's tokens too."""
    cached: int = 0
    """Answers whose prompt was partly taken from a cache."""
    only_chat: bool = False


def attest(seen: Observed) -> Attestation:
    """Return the attestation of a cell."""
    evidence = [*seen.last.evidence, f"draft tokens of our answers: {_told(seen.drafted)}"]
    if seen.shared:
        evidence.append(f"{seen.shared} of {seen.answers} answers shared the endpoint with other requests")
    if seen.cached:
        evidence.append(f"{seen.cached} of {seen.answers} prompts were partly taken from a cache: short TTFT")
    if seen.only_chat:
        evidence.append("no /v1/completions: raw prompts were sent as a message of the user")
    if (seen.first.family, seen.first.version) != (seen.last.family, seen.last.version):
        was, now = (f"{one.family} {one.version}" for one in (seen.first, seen.last))
        reason = f"Another server answers than at the start: {now}, not {was}."
        return Attestation("failed", tuple(evidence), reason, "Run it again while nothing is deployed.")
    if seen.speculation is None:
        return _alone(seen, tuple(evidence))
    return _speculating(seen, (*evidence, f"type and depth: not shown; the recipe says {seen.speculation}"))


def _alone(seen: Observed, evidence: tuple[str, ...]) -> Attestation:
    """The target alone was asked for."""
    if seen.drafted or seen.accepted:
        reason = (
            f"The arm asks for no speculation, but the endpoint drafted {seen.drafted or seen.accepted} tokens for it."
        )
        return Attestation("failed", evidence, reason, _ASK)
    if seen.last.speculates:
        reason = "The arm asks for no speculation, but the endpoint shows that it has it on."
        return Attestation("failed", evidence, reason, _ASK)
    if seen.last.speculates is False:
        return Attestation("off", evidence)
    return Attestation("unverified", evidence, "The endpoint does not show whether it speculated; none was asked for.")


def _speculating(seen: Observed, evidence: tuple[str, ...]) -> Attestation:
    if seen.drafted or seen.accepted:
        return Attestation("active", evidence)
    if seen.last.speculates is False:
        reason = f"The recipe says {seen.speculation}, but the endpoint shows that it does not speculate."
        return Attestation("failed", evidence, reason, _ASK)
    if seen.last.speculates and (seen.drafted == 0 or not seen.answers):
        return Attestation("idle", evidence)
    known = "has speculation on, but not whether it drafted" if seen.last.speculates else "speculated"
    lead = "The endpoint shows that it" if seen.last.speculates else "The endpoint does not show whether it"
    reason = f"{lead} {known}; the recipe says {seen.speculation}."
    return Attestation("unverified", evidence, reason)


def _told(count: int | None) -> str:
    return "not reported" if count is None else str(count)
