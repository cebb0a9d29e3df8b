"""Arms that are lossy by design: labelled everywhere, and never identical, not even where every hash is equal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchctl.analysis.results import Losslessness

if TYPE_CHECKING:
    from benchctl.analysis.frame import Frame


def label_lossy(found: Losslessness, frame: Frame) -> Losslessness:
    """Return the verdict with the arm's settings that are lossy by design; with any, it is a violation."""
    arms = frame.manifest.arms if frame.manifest else []
    settings = next((arm.lossy for arm in arms if arm.name == found.arm and arm.lossy), [])
    if not settings:
        return found
    equal = " Equal answers are luck." if found.verdict == "identical" else ""
    reason = f"Lossy by design: {', '.join(settings)}; what it says is not the target's own.{equal} {found.reason}"
    return found.model_copy(update={"verdict": "violation", "reason": reason, "lossy": settings})


def lossy_label(settings: list[str]) -> str:
    """Return what stands beside the name of an arm in tables: nothing, or ` (lossy by design: …)`."""
    return f" (lossy by design: {', '.join(settings)})" if settings else ""
