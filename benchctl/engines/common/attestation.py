"""What attesting a launched engine is everywhere: evidence, what does not match it, and the state that follows.

It fails closed: without evidence there is no confirmation. What counts as evidence is each engine's own.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchctl.engines.base import Attestation
from benchctl.engines.common.log import READ_THE_LOG, Reason
from benchctl.text import one_line

ROUNDS_NEED_TOKENS = 3
"""Shorter answers have no draft: the first token is prefill's, the last is never drafted."""
CHECK_THE_DRAFT = (
    "Read the engine's log; check that models.draft belongs to the target and that its context is long enough."
)


def concluded(evidence: Sequence[str], failure: Reason | None, *, requested: bool, drafted: object) -> Attestation:
    """Return the attestation of a cell: `failed` for what does not match, else `off`, `active` or `idle`.

    `requested`: whether its command line requests speculation; `drafted`: anything true where drafts were seen.
    """
    if failure is not None:
        return Attestation("failed", tuple(evidence), *failure)
    return Attestation("off" if not requested else "active" if drafted else "idle", tuple(evidence))


def other_model(served: str | None, requested: str | None) -> Reason | None:
    """Return what is wrong where the server that answers serves another model than its command line names."""
    if served == requested:
        return None
    what = f"The server that answers serves {one_line(str(served), 200)}, not {requested}."
    return what, "Another program uses the port; run it again."


def unrequested(what: str) -> Reason:
    """Return what is wrong with an arm without speculation; `what` shows that it speculates."""
    remedy = "Remove what turns speculation on from engine.args, the arm's args and engine.env."
    return f"The arm requests no speculation, but {what}.", remedy


def drafted_nothing(name: str, longest: int, fix: str = READ_THE_LOG, *, did: str = "drafted") -> Reason | None:
    """Return what is wrong with a type that always drafts, where it did not; `longest`: tokens of an answer."""
    if longest < ROUNDS_NEED_TOKENS:
        return None
    return f"{name} is on, but nothing was {did} in answers of up to {longest} tokens.", fix
