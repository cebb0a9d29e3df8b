"""What to do after a run: which arm was fastest, whether to run with it, and the smallest difference it can resolve.

An arm whose speculation never fired does the baseline's work: its true speed-up is 1, so how far its interval reaches
from 1 is what this run cannot resolve (a null control that costs nothing extra).
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchctl.analysis.results import ALL_TASKS, Analysis, Verdict, open_for_others

if TYPE_CHECKING:
    from benchctl.data.manifest import ArmIdentity, Manifest


EXAMPLE_PORT = 8080
"""A run gives every engine a port of its own; a command for starting one by hand uses this one."""


@dataclass(frozen=True)
class Advice:
    """The decision that a run allows."""

    fastest: Verdict | None
    """Of the arms that drafted; `None` where none has a speed-up."""
    half_width: float | None
    """Of its interval, as a difference of ratios."""
    use: Verdict | None
    """The arm to run with: faster beyond noise, its output identical or consistent with the target."""
    sentence: str
    """What to do."""
    command: str | None
    """The engine's own command line, of `use` or else of the baseline; `None` where it is not known."""


def find_advice(analysis: Analysis, manifest: Manifest | None) -> Advice | None:
    """Return what to do; `None` where that depends on the condition (a sweep), nothing was compared, or the values were
    selected (a search)."""
    drafted = [one for one in compared_arms(analysis) if one.arm not in inactive_arms(analysis)]
    if analysis.sweep is not None or searched_values(analysis) or not drafted or _baseline_speculates(analysis):
        return None
    timed = [one for one in drafted if one.speedup is not None and one.attestation != "failed"]
    fastest = max(timed, key=lambda one: one.speedup or 0.0, default=None)
    faster = [one for one in timed if one.speed == "faster" and one.arm not in damaged_arms(analysis) and _sound(one)]
    use = max(faster, key=lambda one: one.speedup or 0.0, default=None)
    ends = fastest.interval if fastest else None
    return Advice(
        fastest=fastest,
        half_width=(ends.high - ends.low) / 2 if ends else None,
        use=use,
        sentence=_sentence(drafted, use),
        command=production_command(manifest, use.arm if use else analysis.baseline),
    )


def searched_values(analysis: Analysis) -> bool:
    """Whether the run's values were selected by a search: the best of them is biased upwards."""
    return any(warning.id == "searched" for warning in analysis.warnings)


def _sound(one: Verdict) -> bool:
    """Whether an arm's output is known to be the target's own, or consistent with it."""
    return not one.lossy and one.lossless in ("identical", "consistent with the target")


def inactive_arms(analysis: Analysis) -> list[str]:
    """The arms whose speculation was on but never drafted."""
    drafted = {row.arm: row.drafted for row in analysis.acceptance if row.task == ALL_TASKS}
    return [one.arm for one in compared_arms(analysis) if one.attestation == "idle" or drafted.get(one.arm) == 0]


def damaged_arms(analysis: Analysis) -> dict[str, int]:
    """Arm to the number of its prompts with a violation, 0 where it is the arm as a whole."""
    return {
        one.arm: one.counts.get("violation", 0)
        for one in analysis.losslessness
        if one.counts.get("violation") or (one.verdict == "violation" and not one.lossy)
    }


def resolution(analysis: Analysis) -> float | None:
    """How far from 1 the interval of an inactive arm reaches, at most, as a share; `None` without such an interval."""
    inactive = inactive_arms(analysis)
    ends = [one.interval for one in compared_arms(analysis) if one.arm in inactive and one.interval]
    return max((max(abs(one.low - 1), abs(one.high - 1)) for one in ends), default=None)


def launch_command(arm: ArmIdentity) -> str:
    """The exact command line of an arm, quoted for a POSIX shell; the address of an endpoint that ran already."""
    return " ".join(map(quoted, [*arm.env, *arm.argv])) if arm.url is None else arm.url


def quoted(word: str) -> str:
    """A word for the shell, which still finds the home folder in one that begins with it."""
    at_home = re.fullmatch(r"((?:\w+=)?~/)(.+)", word, re.DOTALL)
    return at_home[1] + shlex.quote(at_home[2]) if at_home else shlex.quote(word)


def _sentence(drafted: list[Verdict], use: Verdict | None) -> str:
    if use is not None:
        kept = "" if use.lossless == "identical" else ": its output is consistent with the target, not identical"
        others = " Whether it pays for other prompts like these is open." if open_for_others(use.like_these) else ""
        return f"Run with {use.arm} ({use.setting}){kept}.{others}"
    speeds = {one.speed for one in drafted if not one.lossy}
    if "faster" in speeds:
        return "Run the target alone until it is known whether the faster arms' output is the target's own."
    if speeds <= {"slower", "within"}:
        return "Do not speculate: run the target alone."
    if "undecided" in speeds:
        return "Do not speculate on this evidence: run the target alone, or measure more blocks (--blocks auto)."
    return "No advice: run at least three blocks on equal terms (--blocks auto)."


def production_command(manifest: Manifest | None, arm: str) -> str | None:
    """An arm's exact command line on `EXAMPLE_PORT`; `None` where it is not known."""
    found = next((one for one in manifest.arms if one.name == arm), None) if manifest else None
    if found is None or not (found.argv or found.url):
        return None
    return launch_command(found).replace("'{port}'", str(EXAMPLE_PORT))


def compared_arms(analysis: Analysis) -> list[Verdict]:
    """The verdicts on every arm but the baselines."""
    return [one for one in analysis.verdicts if one.arm not in analysis.baselines]


def _baseline_speculates(analysis: Analysis) -> bool:
    return any(warning.id == "baseline-speculates" for warning in analysis.warnings)
