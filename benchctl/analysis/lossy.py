"""Arms that are lossy by design: labelled everywhere, and never identical, not even where every hash is equal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from benchctl.analysis.cells import identity_of
from benchctl.analysis.results import Losslessness, Verdict
from benchctl.recipes.adapters import SYNTHETIC

if TYPE_CHECKING:
    from benchctl.analysis.frame import Frame


def label_lossy(found: Losslessness, frame: Frame) -> Losslessness:
    """Return the verdict with the arm's settings that are lossy by design; with any, it is a violation."""
    identity = identity_of(frame.manifest, found.arm)
    settings = identity.lossy if identity else []
    if not settings:
        return found
    equal = " Equal answers are coincidence." if found.verdict == "identical" else ""
    whose = "its text is not a model's output" if SYNTHETIC in settings else "its output is not the target's own"
    reason = f"Lossy by design: {', '.join(settings)}; {whose}.{equal} {found.reason}"
    return found.model_copy(update={"verdict": "violation", "reason": reason, "lossy": settings})


def is_synthetic(frame: Frame, arm: int) -> bool:
    """Whether an arm's draft tokens were accepted at random, as its manifest says."""
    identity = identity_of(frame.manifest, frame.arms[arm])
    return identity is not None and SYNTHETIC in identity.lossy


def synthetic_arms(verdicts: Iterable[Verdict]) -> set[str]:
    """Return the arms of synthetic acceptance: their speed is measured, and nothing of any draft."""
    return {verdict.arm for verdict in verdicts if SYNTHETIC in verdict.lossy}


def lossy_label(settings: list[str]) -> str:
    """Return the suffix of an arm's name in tables: empty, or ` (lossy by design: …)`."""
    return f" (lossy by design: {', '.join(settings)})" if settings else ""
