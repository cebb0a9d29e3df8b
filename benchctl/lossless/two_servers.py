"""Where arm and baseline are two servers that ran already: is a violation speculation's, or another difference's?

benchctl knows how engines that it launches were started, and refuses arms that differ in more than speculation. Of two
endpoints it knows what they report, which is little: `-fa off` or another KV type on one of them is in no answer.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from benchctl.analysis.cells import attestations, speculates
from benchctl.analysis.results import Comparison, Losslessness
from benchctl.lossless.verdicts import plainly_equal

if TYPE_CHECKING:
    from benchctl.analysis.answers import Answers
    from benchctl.analysis.frame import Frame

VOUCHED = "only_speculation_differs"
"""The key of `engine` by which a user vouches for it."""
_OWN = ("speculative", "speculation", "/metrics", "draft")
"""Words of what a server reports that differ because it speculates."""


def attribute(found: Losslessness, frame: Frame, answers: Answers) -> Losslessness:
    """Return the verdict: of two servers a violation only where speculation alone differs, else undetermined."""
    if found.verdict != "violation" or not _two_servers(frame, found.arm):
        return found
    if _vouched(frame):
        said = f"That speculation alone differs between the servers is taken from engine.{VOUCHED}. {found.reason}"
        return found.model_copy(update={"reason": said})
    control = _control(frame, found.arm)
    if control is not None and plainly_equal(frame, answers, control).all():
        said = f"Its own server gives the target's answers without speculation ({frame.arms[control]}). {found.reason}"
        return found.model_copy(update={"reason": said})
    comparisons = [_unattributed(comparison) for comparison in found.comparisons]
    counts = dict(sorted(Counter(comparison.outcome for comparison in comparisons).items()))
    reason = f"It differs: speculation, or another difference between the servers{_reported(frame, found.arm)}. "
    if control is not None:
        reason += f"Its own server differs without speculation, too ({frame.arms[control]}). "
    reason += (
        "To tell them apart start the baseline's server as the arm's, without speculation alone, and vouch for it: "
        f"engine.{VOUCHED}: true. {found.reason}"
    )
    update = {"verdict": "undetermined", "reason": reason, "comparisons": comparisons, "counts": counts}
    return found.model_copy(update=update)


def _two_servers(frame: Frame, arm: str) -> bool:
    urls = {planned.name: planned.url for planned in frame.manifest.arms} if frame.manifest else {}
    own = urls.get(arm)
    return own is not None and own != urls.get(frame.arms[frame.baseline])


def _vouched(frame: Frame) -> bool:
    engine = frame.manifest.recipe.get("engine") if frame.manifest else None
    return isinstance(engine, dict) and engine.get(VOUCHED) is True


def _control(frame: Frame, arm: str) -> int | None:
    """Return the arm that is the same server without speculation; `None` where there is none."""
    planned = {own.name: own for own in frame.manifest.arms} if frame.manifest else {}
    for number, name in enumerate(frame.arms):
        alike = name != arm and name in planned and planned[name].url == planned[arm].url
        if alike and not speculates(frame, number):
            return number
    return None


def _reported(frame: Frame, arm: str) -> str:
    """Return what the two report unlike each other, as a clause; empty where that is nothing."""
    ours, theirs = (_facts(frame, name) for name in (arm, frame.arms[frame.baseline]))
    unlike = [(line, other) for page, line in ours.items() if (other := theirs.get(page, line)) != line]
    return f" (it reports {unlike[0][0]}; the baseline's {unlike[0][1]})" if unlike else ""


def _facts(frame: Frame, arm: str) -> dict[str, str]:
    """Return what an arm's server reported of itself, by page."""
    lines = [line for found in attestations(frame, arm) for line in found.evidence if line.startswith("GET ")]
    plain = [line for line in lines if not any(word in line for word in _OWN)]
    return {line.partition(":")[0]: line for line in plain}


def _unattributed(comparison: Comparison) -> Comparison:
    if comparison.outcome != "violation":
        return comparison
    return comparison.model_copy(update={"outcome": "differs"})
