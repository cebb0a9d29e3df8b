"""Checking that an endpoint ran as the recipe says. What it does not report is named, neither confirmed nor refused."""

from __future__ import annotations

from dataclasses import dataclass

from benchctl.engines.base import Attestation
from benchctl.engines.openai.discovery import Endpoint

_REMEDY = "Check how the endpoint was launched, and write the recipe accordingly."


@dataclass(frozen=True)
class Observed:
    """What was observed of a cell."""

    speculation: str | None
    """The speculation that the recipe states for this endpoint; `None`: none."""
    first: Endpoint
    last: Endpoint
    drafted: int | None
    """Draft tokens of our answers; `None` when they are not reported."""
    answers: int
    accepted: int = 0
    """Draft tokens accepted in our answers, as far as they are reported."""
    shared: int = 0
    """Answers during which the endpoint also generated tokens for other clients."""
    cached: int = 0
    """Answers whose prompt was partly taken from a cache."""
    only_chat: bool = False


def attest(observed: Observed) -> Attestation:
    """Return the attestation of a cell."""
    evidence = [*observed.last.evidence, f"draft tokens of our answers: {_rendered(observed.drafted)}"]
    if observed.shared:
        evidence.append(f"{observed.shared} of {observed.answers} answers shared the endpoint with other requests")
    if observed.cached:
        evidence.append(
            f"{observed.cached} of {observed.answers} prompts were partly taken from a cache, which shortens TTFT"
        )
    if observed.only_chat:
        evidence.append("no /v1/completions: raw prompts were sent as a user message")
    if (observed.first.family, observed.first.version) != (observed.last.family, observed.last.version):
        was, now = (f"{server.family} {server.version}" for server in (observed.first, observed.last))
        reason = f"A different server answers than at the start: {now}, not {was}."
        return Attestation("failed", tuple(evidence), reason, "Run it again while nothing is deployed.")
    if observed.speculation is None:
        return _alone(observed, tuple(evidence))
    return _speculating(observed, (*evidence, f"type and depth: not reported; the recipe says {observed.speculation}"))


def _alone(observed: Observed, evidence: tuple[str, ...]) -> Attestation:
    """Without speculation in the recipe."""
    if observed.drafted or observed.accepted:
        count = observed.drafted or observed.accepted
        reason = f"The arm requests no speculation, but the endpoint drafted {count} tokens for it."
        return Attestation("failed", evidence, reason, _REMEDY)
    if observed.last.speculates:
        reason = "The arm requests no speculation, but the endpoint reports that it is on."
        return Attestation("failed", evidence, reason, _REMEDY)
    if observed.last.speculates is False:
        return Attestation("off", evidence)
    return Attestation(
        "unverified", evidence, "The endpoint does not report whether it speculated; none was requested."
    )


def _speculating(observed: Observed, evidence: tuple[str, ...]) -> Attestation:
    if observed.drafted or observed.accepted:
        return Attestation("active", evidence)
    if observed.last.speculates is False:
        reason = f"The recipe says {observed.speculation}, but the endpoint reports that it does not speculate."
        return Attestation("failed", evidence, reason, _REMEDY)
    if observed.last.speculates and (observed.drafted == 0 or not observed.answers):
        return Attestation("idle", evidence)
    known = "has speculation on, but not whether it drafted" if observed.last.speculates else "speculated"
    lead = "The endpoint reports that it" if observed.last.speculates else "The endpoint does not report whether it"
    reason = f"{lead} {known}; the recipe says {observed.speculation}."
    return Attestation("unverified", evidence, reason)


def _rendered(count: int | None) -> str:
    return "not reported" if count is None else str(count)
