"""Arms that are lossy by design: labelled everywhere, and never identical, not even where every hash is equal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from benchctl.analysis.results import Losslessness, Verdict
from benchctl.recipes.adapters import SYNTHETIC

if TYPE_CHECKING:
    from benchctl.analysis.frame import Frame


def label_lossy(found: Losslessness, frame: Frame) -> Losslessness:
    """Return the verdict with the arm's settings that are lossy by design; with any, it is a violation."""
    arms = frame.manifest.arms if frame.manifest else []
    settings = next((arm.lossy for arm in arms if arm.name == found.arm and arm.lossy), [])
    if not settings:
        return found
    equal = " Equal answers are coincidence." if found.verdict == "identical" else ""
    whose = "its text is not a model's output" if SYNTHETIC in settings else "its output is not the target's own"
    reason = f"Lossy by design: {', '.join(settings)}; {whose}.{equal} {found.reason}"
    return found.model_copy(update={"verdict": "violation", "reason": reason, "lossy": settings})


def is_synthetic(frame: Frame, arm: int) -> bool:
    """Whether an arm's draft tokens were accepted at random, as its manifest says."""
    arms = frame.manifest.arms if frame.manifest else []
    return any(planned.name == frame.arms[arm] and SYNTHETIC in planned.lossy for planned in arms)


def synthetic_arms(verdicts: Iterable[Verdict]) -> set[str]:
    """Return the arms of synthetic acceptance: their speed is measured, and nothing of any draft."""
    return {verdict.arm for verdict in verdicts if SYNTHETIC in verdict.lossy}


def lossy_label(settings: list[str]) -> str:
    """Return the suffix of an arm's name in tables: empty, or ` (lossy by design: …)`."""
    return f" (lossy by design: {', '.join(settings)})" if settings else ""
