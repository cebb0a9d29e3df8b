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
CONTROL = "-control"
"""What follows an arm's name in that of its control: a server that was started as the arm's, without speculation."""
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
        said = f"Without speculation its server gives the target's answers ({frame.arms[control]}). {found.reason}"
        return found.model_copy(update={"reason": said})
    comparisons = [_unattributed(comparison) for comparison in found.comparisons]
    counts = dict(sorted(Counter(comparison.outcome for comparison in comparisons).items()))
    reason = f"{_cause(frame, found.arm, control)} {found.reason}"
    update = {"verdict": "undetermined", "reason": reason, "comparisons": comparisons, "counts": counts}
    return found.model_copy(update=update)


def _cause(frame: Frame, arm: str, control: int | None) -> str:
    """Return what may make the arm differ, and how to find out which it is."""
    reported = _reported(frame, arm)
    if not speculates(frame, frame.arms.index(arm)):
        return f"It differs, and does not speculate: the servers differ in something else{reported}."
    told = (
        f"To tell them apart measure a server that is started as the arm's without speculation, as arm {arm}{CONTROL}, "
    )
    told += f"or vouch that speculation alone differs: engine.{VOUCHED}: true."
    if control is not None:
        told = (
            f"Its server differs without speculation, too ({frame.arms[control]}); start the baseline's as the arm's."
        )
    return f"It differs: speculation, or another difference between the servers{reported}. {told}"


def _two_servers(frame: Frame, arm: str) -> bool:
    urls = {planned.name: planned.url for planned in frame.manifest.arms} if frame.manifest else {}
    own = urls.get(arm)
    return own is not None and own != urls.get(frame.arms[frame.baseline])


def _vouched(frame: Frame) -> bool:
    engine = frame.manifest.recipe.get("engine") if frame.manifest else None
    return isinstance(engine, dict) and engine.get(VOUCHED) is True


def _control(frame: Frame, arm: str) -> int | None:
    """Return the arm whose server is as this arm's without speculation, by its name; `None` where there is none."""
    name = f"{arm}{CONTROL}"
    number = frame.arms.index(name) if name in frame.arms else None
    return None if number is None or speculates(frame, number) or not _two_servers(frame, name) else number


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
