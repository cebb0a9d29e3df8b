"""Gates: changes between two runs that fail a CI job. What cannot be determined fails a gate, with the reason."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchctl.analysis.results import ACCEPTED, Accepted
from benchctl.errors import GateError, UsageError
from benchctl.recipes.problems import did_you_mean
from benchctl.text import one_line

if TYPE_CHECKING:
    from benchctl.analysis.comparison.results import Ratio, RunComparison

GATES = ("slower", "slower-absolute", "lossy")
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)\s*%")
_FIX = (
    "The gates are: slower:N% (the speed-up over the own run's baseline), slower-absolute:N% (tok/s, the baseline's, "
    "too), such as slower:3%, and lossy."
)


@dataclass(frozen=True)
class Gate:
    """`slower`, `slower-absolute`: by more than a share of A's speed-up, or decode rate; or `lossy`."""

    word: str
    share: float = 0.0

    def __str__(self) -> str:
        """Return the gate as it is written."""
        return self.word if self.word == "lossy" else f"{self.word}:{100 * self.share:g}%"


@dataclass(frozen=True)
class GateResult:
    """Whether a gate held, and why not: a sentence per arm."""

    gate: Gate
    failures: tuple[str, ...]
    note: str | None = None
    """What a gate that passed could not have detected."""

    @property
    def passed(self) -> bool:
        """Whether there is no failure."""
        return not self.failures

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return {"gate": str(self.gate), "passed": self.passed, "failures": self.failures, "note": self.note}


def parse_gate(text: str) -> Gate:
    """Read `slower:3%`, `slower-absolute:3%` or `lossy`. Raises UsageError, with the nearest valid word."""
    word, colon, amount = (part.strip() for part in text.partition(":"))
    wrong = None
    if word not in GATES:
        wrong = f"There is no gate {word!r}.{did_you_mean(word, GATES)}"
    elif word == "lossy":
        wrong = "`lossy` takes no amount." if colon else None
    else:
        match = _AMOUNT.fullmatch(amount)
        if match and float(match[1]) < 100:
            return Gate(word, float(match[1]) / 100)
        wrong = f"`{word}` needs a percentage from 0 to 100, not {amount!r}."
    if wrong:
        raise UsageError(wrong, where=f"--fail-if {text}", fix=_FIX)
    return Gate("lossy")


@dataclass(frozen=True)
class _Judged:
    """The change of one arm that a gate judges."""

    arm: str
    change: Ratio
    doubt: str | None


def check_gate(gate: Gate, found: RunComparison, accept: Accepted = "identical") -> GateResult:
    """Check a comparison against a gate; `accept`: which verdicts `lossy` lets pass."""
    if gate.word == "lossy":
        return GateResult(gate, tuple(_lossy(found, accept)))
    judged = _judged(gate, found)
    failures = [failure for arm in judged if (failure := _slower(arm, gate))]
    failures += [f"{name}: undetermined, because B has no such arm." for name in found.only_in_a]
    if not judged and not failures:
        failures.append(
            "undetermined, because no arm beside a baseline was compared; slower-absolute judges the baseline, too."
            if found.arms
            else "undetermined, because the runs have no arm in common."
        )
    return GateResult(gate, tuple(failures), None if failures else _unseen(judged, gate.share))


def _judged(gate: Gate, found: RunComparison) -> list[_Judged]:
    if gate.word == "slower":
        return [_Judged(arm.arm, arm.speedup, arm.doubt) for arm in found.arms if not arm.is_baseline]
    return [_Judged(arm.arm, arm.rate, arm.rate_doubt) for arm in found.arms]


def _slower(arm: _Judged, gate: Gate) -> str | None:
    ratio, interval = arm.change.ratio, arm.change.interval
    if arm.doubt or ratio is None or interval is None:
        return f"{arm.arm}: undetermined. {arm.doubt or ''}".rstrip()
    if interval.high < 1 - gate.share:
        what = "speed-up over the own run's baseline" if gate.word == "slower" else "decode rate"
        return (
            f"{arm.arm}: {ratio:.3f}× A's {what} (95 % interval {interval.low:.3f} to {interval.high:.3f}), "
            f"slower by more than {100 * gate.share:g} % beyond noise."
        )
    return None


def _unseen(judged: Sequence[_Judged], share: float) -> str:
    """Return the smallest slow-down that is detected in every arm, and the arm that sets it."""
    limits = [
        ((1 - share) * arm.change.ratio / arm.change.interval.high, arm.arm)
        for arm in judged
        if arm.change.ratio and arm.change.interval
    ]
    limit, name = min(limits)
    percent = 100 * (1 - limit)
    return f"At this noise a slow-down is detected from {percent:.1f} % on in every arm ({name} is the noisiest)."


def _lossy(found: RunComparison, accept: Accepted) -> list[str]:
    judged = [arm for arm in found.lossless_b if arm.verdict != "not judged"]
    if not judged:
        many = " one request at a time" if found.lossless_b else ""
        return [f"undetermined, because no arm of B beside its baseline was compared{many}."]
    return [f"{arm.arm}: {arm.verdict}. {arm.reason}" for arm in judged if arm.verdict not in ACCEPTED[accept]]


def gate_error(found: RunComparison, checked: Sequence[GateResult]) -> GateError:
    """Return the error that lists the failed gates and the reasons."""
    failed = [result for result in checked if not result.passed]
    lines = [f"{len(failed)} of {len(checked)} {'gate' if len(checked) == 1 else 'gates'} failed."]
    lines += [f"  {result.gate}: {one_line(reason)}" for result in failed for reason in result.failures]
    return GateError("\n".join(lines), where=f"{found.a.run} and {found.b.run}")
