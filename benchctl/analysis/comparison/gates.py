"""Gates: changes between two runs that fail a CI job. What cannot be determined fails a gate, with the reason.

Every arm (of `acceptance` every task) is a test of the hypothesis that it got no worse than the gate's tolerance:
Student's t on the logarithm of B over A, one-sided, by the variances of the comparison (`changes.py`). Holm's step-down
over all tests of all gates that noise can fail holds the error rate of the whole command at `ERROR`. A gate passes only
where, of every arm, a change that nobody would let pass (`Gate.excluded`) is excluded; where noise hides it, the gate
cannot tell, which is no pass (`benchmarks/gates.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import exp, log
from typing import TYPE_CHECKING

from benchctl.analysis.comparison.compare import RunComparison
from benchctl.analysis.results import ACCEPTED, Accepted
from benchctl.analysis.statistics import LEVEL, MIN_BLOCKS, beyond_p, chance_beyond, found_beyond, half_width, holm
from benchctl.errors import GateError, UsageError
from benchctl.recipes.problems import did_you_mean
from benchctl.text import one_line

if TYPE_CHECKING:
    from benchctl.analysis.comparison.changes import Ratio
    from benchctl.analysis.comparison.compare import ArmComparison

ERROR = 0.01
"""Of 100 commands in which nothing is worse than its tolerance, at most so many have a failed gate."""
POWER = 0.9
"""A passed gate names the change that it finds with this power."""

EXCLUDED = 0.3
"""A slow-down that no gate of a smaller tolerance lets pass."""
MISSED = 0.001
"""Share of runs with a change of `Gate.excluded` that pass."""
MISSED_BY_RUNS = 0.02
"""The same by what repeated runs differ by, of which few show little: at `MISSED` no three of them would do."""
FALSE_ALARMS = 0.001
"""Where more unchanged runs than this share fail at a gate's tolerance, it is said."""
BETWEEN_RUNS = 0.01
"""Assumed standard deviation of the logarithm of a time from run to run, where no run was repeated."""


@dataclass(frozen=True)
class _Kind:
    """What a gate watches. `absolute`: nothing that an unlike machine can be held to."""

    what: str
    worse: str
    """The word for a change to the worse, beyond the tolerance."""
    absolute: bool = False

    @property
    def falls(self) -> bool:
        """Whether less is worse."""
        return self.worse != "higher"


KINDS = {
    "slower": _Kind("speed-up over the own run's baseline", "slower"),
    "slower-absolute": _Kind("decode rate", "slower", absolute=True),
    "acceptance": _Kind("acceptance length", "lower"),
    "ttft": _Kind("median time to the first token", "higher", absolute=True),
    "memory": _Kind("peak memory", "higher", absolute=True),
    "energy": _Kind("energy a token", "higher", absolute=True),
}
GATES = (*KINDS, "lossy")
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)\s*%")
_FIX = (
    "The gates are: slower:N% (the speed-up over the own run's baseline), slower-absolute:N% (tok/s, the baseline's, "
    "too), acceptance:N%, ttft:N%, memory:N%, energy:N%, such as slower:3%, and lossy."
)


@dataclass(frozen=True)
class Gate:
    """A word of `GATES`, and by which share of A's value an arm may be worse; `lossy` has none."""

    word: str
    share: float = 0.0

    def __str__(self) -> str:
        """Return the gate as it is written."""
        return self.word if self.word == "lossy" else f"{self.word}:{100 * self.share:g}%"

    @property
    def tolerance(self) -> float:
        """On the logarithm, positive."""
        return -log(1 - self.share) if KINDS[self.word].falls else log(1 + self.share)

    @property
    def excluded(self) -> float:
        """On the logarithm: the change that must be excluded before the gate passes."""
        return max(-log(1 - EXCLUDED), 3 * self.tolerance)

    def share_at(self, distance: float) -> float:
        """Return the change to the worse, as a share, that lies so far from none on the logarithm."""
        return 1 - exp(-distance) if KINDS[self.word].falls else exp(distance) - 1


@dataclass(frozen=True)
class GateResult:
    """Whether a gate held, and why not: a sentence per arm."""

    gate: Gate
    failures: tuple[str, ...]
    note: str | None = None
    """What a gate that passed could not have detected."""
    skipped: bool = False
    """Whether it was not checked, as `note` says: it holds for a single class of machine."""

    @property
    def passed(self) -> bool:
        """Whether there is no failure."""
        return not self.failures

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return {**vars(self), "gate": str(self.gate), "passed": self.passed}


def parse_gate(text: str) -> Gate:
    """Read `slower:3%`, another gate with a tolerance, or `lossy`. Raises UsageError, with the nearest valid word."""
    word, colon, amount = (part.strip() for part in text.partition(":"))
    match = _AMOUNT.fullmatch(amount)
    if word == "lossy" and not colon:
        return Gate("lossy")
    if word in KINDS and match and float(match[1]) < 100:
        return Gate(word, float(match[1]) / 100)
    wrong = f"There is no gate {word!r}.{did_you_mean(word, GATES)}"
    if word in GATES:
        wrong = "`lossy` takes no amount." if word == "lossy" else f"`{word}` needs 0 to 100 %, not {amount!r}."
    raise UsageError(wrong, where=f"--fail-if {text}", fix=_FIX)


@dataclass(frozen=True)
class ArmTest:
    """Whether an arm is worse than a gate's tolerance."""

    gate: Gate
    arm: str
    change: Ratio
    doubt: str | None

    @cached_property
    def p(self) -> float | None:
        """By the variance that shows least; `None`: undetermined."""
        if self.doubt or self.change.ratio is None or not self.change.variances:
            return None
        return max(beyond_p(self.distance - self.gate.tolerance, variance) for variance in self.change.variances)

    @property
    def distance(self) -> float:
        """How far the change lies to the worse, on the logarithm."""
        change = log(self.change.ratio or 1.0)
        return -change if KINDS[self.gate.word].falls else change

    @property
    def at_worst(self) -> float:
        """How far the change may lie to the worse: one-sided, by blocks, and where runs were repeated by those."""
        return self.distance + max(
            half_width(variance, 1 - 2 * error)
            for variance, error in zip(self.change.variances, (MISSED, MISSED_BY_RUNS), strict=False)
        )

    @property
    def is_noisy(self) -> bool:
        """Whether it can fail by chance: blocks that are all equal, as most acceptance lengths are, cannot."""
        return any(variance.value for variance in self.change.variances)

    def chance(self, share: float, error: float, between: float = 0.0) -> float:
        """Return the power of a test to find an arm worse by a share; `between`: variance that blocks do not show."""
        truth = Gate(self.gate.word, share).tolerance - self.gate.tolerance
        return min(chance_beyond(truth, variance, error, between) for variance in self.change.variances)

    @property
    def between(self) -> float:
        """The variance assumed between runs, of two arms of two; 0 where repeated runs show it, or nothing is timed."""
        times = {"slower": 4, "slower-absolute": 2, "ttft": 2}.get(self.gate.word, 0)
        return times * BETWEEN_RUNS**2 if len(self.change.variances) == 1 else 0.0

    def found(self, error: float) -> float:
        """Return the share that is found with `POWER`."""
        widest = max(found_beyond(variance, error, POWER) for variance in self.change.variances)
        return self.gate.share_at(self.gate.tolerance + widest)

    def failure(self) -> str:
        """Return what is said where it is worse."""
        kind, interval, ratio = KINDS[self.gate.word], self.change.interval, self.change.ratio
        known = f" (95 % interval {interval.low:.3f} to {interval.high:.3f})" if interval else ""
        percent = f"{100 * self.gate.share:g} % beyond noise."
        return f"{self.arm}: {ratio:.3f}× A's {kind.what}{known}, {kind.worse} by more than {percent}"


def check_gates(gates: Sequence[Gate], found: RunComparison, accept: Accepted = "identical") -> list[GateResult]:
    """Check a comparison against all gates of a command; `accept`: which verdicts `lossy` lets pass."""
    tests = {gate: list(tests_of(gate, found)) for gate in gates if gate.word != "lossy" and not _skipped(gate, found)}
    error = ERROR * (1 - found.level) / (1 - LEVEL)
    worse = find_worse([test for of_gate in tests.values() for test in of_gate], error)
    noisy = sum(test.p is not None and test.is_noisy for of_gate in tests.values() for test in of_gate)
    results = []
    for gate in gates:
        if gate.word == "lossy":
            results.append(GateResult(gate, tuple(_lossy(found, accept))))
        elif gate not in tests:
            results.append(GateResult(gate, (), _skipped(gate, found), skipped=True))
        else:
            failures = tuple(_failures(gate, tests[gate], worse, found))
            note = None if failures else _unseen(gate, tests[gate], error / max(1, noisy))
            results.append(GateResult(gate, failures, note))
    return results


def find_worse(tests: Sequence[ArmTest], error: float) -> set[int]:
    """Return the `id` of the tests of which it is shown, at this error rate of all together."""
    known = [(test, p) for test in tests if (p := test.p) is not None]
    noisy = [(test, p) for test, p in known if test.is_noisy]
    adjusted = holm([p for _, p in noisy])
    worse = {id(test) for (test, _), p in zip(noisy, adjusted, strict=True) if p < error}
    return worse | {id(test) for test, p in known if not test.is_noisy and p < error}


def _skipped(gate: Gate, found: RunComparison) -> str | None:
    if found.other_machine is None or not KINDS[gate.word].absolute:
        return None
    return f"Not gated, because A was measured on another machine; only ratios within a run are. {found.other_machine}."


def tests_of(gate: Gate, found: RunComparison) -> Iterator[ArmTest]:
    """Yield what a gate tests, arm by arm; `lossy` tests nothing."""
    for arm in found.arms:
        if gate.word == "slower":
            if not arm.is_baseline:
                yield ArmTest(gate, arm.arm, arm.speedup, arm.doubt)
        elif gate.word == "slower-absolute":
            yield ArmTest(gate, arm.arm, arm.rate, arm.rate_doubt)
        else:
            for quantity, change in arm.watched.items():
                word, _, task = quantity.partition(" ")
                if word == gate.word:
                    yield ArmTest(gate, f"{arm.arm}, {task}" if task else arm.arm, change, _doubt(arm, change))


def _doubt(arm: ArmComparison, change: Ratio) -> str | None:
    if change.ratio is None:
        return "B does not report it in every block."
    if not change.variances:
        return arm.rate_doubt or f"Below {MIN_BLOCKS} blocks in each run nothing is concluded."
    return None


def _failures(gate: Gate, tests: Sequence[ArmTest], worse: set[int], found: RunComparison) -> Iterator[str]:
    for test in tests:
        if id(test) in worse:
            yield test.failure()
        elif test.p is None:
            yield f"{test.arm}: undetermined. {test.doubt or ''}".rstrip()
        elif test.at_worst >= gate.excluded:
            may, must = (100 * gate.share_at(distance) for distance in (test.at_worst, gate.excluded))
            yield (
                f"{test.arm}: cannot tell. At this noise it may be {may:.0f} % {KINDS[gate.word].worse}, and a gate "
                f"passes only where {must:.0f} % is excluded: measure more blocks, of the baseline, too."
            )
    yield from (f"{name}: undetermined, because B has no such arm." for name in found.only_in_a)
    if tests or found.only_in_a:
        return
    if gate.word not in ("slower", "slower-absolute"):
        yield f"undetermined, because A reports no {KINDS[gate.word].what} in every block of an arm."
    elif found.arms:
        yield "undetermined, because no arm beside a baseline was compared; slower-absolute judges the baseline, too."
    else:
        yield "undetermined, because the runs have no arm in common."


def _unseen(gate: Gate, tests: Sequence[ArmTest], error: float) -> str:
    """Return which change would have been found, and how often an unchanged run fails; `error`: of a single test."""
    share, name = max((test.found(error), test.arm) for test in tests)
    false = sum(test.chance(0.0, error, test.between) for test in tests)
    change = {"slower": "a slow-down", "lower": "a fall", "higher": "a rise"}[KINDS[gate.word].worse]
    note = f"At this noise {change} is detected from {100 * share:.1f} % on, in 9 of 10 runs ({name} is the noisiest)."
    if false <= FALSE_ALARMS:
        return note
    return f"{note} Of 1,000 unchanged runs {1000 * false:.1f} fail: a wider tolerance, or more blocks, would be safer."


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
