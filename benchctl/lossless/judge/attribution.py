"""Where arm and baseline are two servers that ran already: is a violation speculation's, or another difference's?

benchctl knows how engines that it launches were started, and refuses arms that differ in more than speculation. Of two
endpoints it knows what they report, which is little: `-fa off` or another KV type is in no answer.
"""

from __future__ import annotations

from collections import Counter

from benchctl.analysis.answers import Answers
from benchctl.analysis.cells import attestations, speculates
from benchctl.analysis.frame import Frame
from benchctl.analysis.losslessness import Reason, because
from benchctl.analysis.output_results import Comparison, Losslessness
from benchctl.lossless.judge.verdicts import plainly_equal

VOUCHED = "only_speculation_differs"
"""The key of `engine` by which a user vouches for it."""
CONTROL = "-control"
"""What follows an arm's name in that of its control: a server that was started as the arm's, without speculation."""
_SPECULATIVE = ("speculative", "speculation", "/metrics", "draft")
"""Words of what a server reports that differ because it speculates."""


def attribute(verdict: Losslessness, frame: Frame, answers: Answers) -> Losslessness:
    """Return the verdict: of two servers a violation only where speculation alone differs, else undetermined."""
    if verdict.verdict != "violation" or not _two_servers(frame, verdict.arm):
        return verdict
    if _vouched(frame):
        return verdict.preceded(because("vouched", key=VOUCHED))
    control = _control(frame, verdict.arm)
    if control is not None and plainly_equal(frame, answers, control).all():
        return verdict.preceded(because("control-is-target", control=frame.arms[control]))
    comparisons = [_unattributed(comparison) for comparison in verdict.comparisons]
    counts = dict(sorted(Counter(comparison.outcome for comparison in comparisons).items()))
    cause = _cause(frame, verdict.arm, control)
    return verdict.preceded(cause, verdict="undetermined", comparisons=comparisons, counts=counts)


def _cause(frame: Frame, arm: str, control: int | None) -> Reason:
    """Return what may make the arm differ; the words add how to find out which it is."""
    reported = dict(zip(("reported", "baseline_reported"), _reported(frame, arm) or (None, None), strict=True))
    if not speculates(frame, frame.arms.index(arm)):
        return because("servers-differ", **reported)
    name = f"{arm}{CONTROL}" if control is None else frame.arms[control]
    return because("speculation-or-servers", control=name, measured=control is not None, key=VOUCHED, **reported)


def _two_servers(frame: Frame, arm: str) -> bool:
    urls = {planned.name: planned.url for planned in frame.manifest.arms} if frame.manifest else {}
    url = urls.get(arm)
    return url is not None and url != urls.get(frame.arms[frame.baseline])


def _vouched(frame: Frame) -> bool:
    engine = frame.manifest.recipe.get("engine") if frame.manifest else None
    return isinstance(engine, dict) and engine.get(VOUCHED) is True


def _control(frame: Frame, arm: str) -> int | None:
    """Return the arm whose server is as this arm's without speculation, by its name; `None` where there is none."""
    name = f"{arm}{CONTROL}"
    number = frame.arms.index(name) if name in frame.arms else None
    return None if number is None or speculates(frame, number) or not _two_servers(frame, name) else number


def _reported(frame: Frame, arm: str) -> tuple[str, str] | None:
    """Return the first thing that the two servers report unlike each other."""
    ours, theirs = (_facts(frame, name) for name in (arm, frame.arms[frame.baseline]))
    unlike = ((line, theirs[page]) for page, line in ours.items() if theirs.get(page, line) != line)
    return next(unlike, None)


def _facts(frame: Frame, arm: str) -> dict[str, str]:
    """Return what an arm's server reported of itself, by page."""
    evidence = [line for attestation in attestations(frame, arm) for line in attestation.evidence]
    lines = [line for line in evidence if line.startswith("GET ")]
    plain = [line for line in lines if not any(word in line for word in _SPECULATIVE)]
    return {line.partition(":")[0]: line for line in plain}


def _unattributed(comparison: Comparison) -> Comparison:
    if comparison.outcome != "violation":
        return comparison
    return comparison.model_copy(update={"outcome": "differs"})
