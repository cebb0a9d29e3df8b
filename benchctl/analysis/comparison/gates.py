"""Gates: changes between two runs that fail a CI job. What cannot be determined fails a gate, with the reason.

Every arm (of `acceptance` every task) is a test of the hypothesis that it got no worse than the gate's tolerance:
Student's t on the logarithm of B over A, one-sided, by the variances of the comparison (`changes.py`). Holm's step-down
over all tests of all gates that noise can fail holds the error rate of the whole command at `ERROR`. A gate passes only
where every arm is shown to be worse by less than the tolerance (a non-inferiority test; each arm at `MISSED`, since all
must pass: Berger 1982). Where neither is shown the gate cannot tell, which is no pass (`benchmarks/gates.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil, exp, inf, isfinite, log
from statistics import NormalDist, harmonic_mean
from typing import TYPE_CHECKING, Literal

from benchctl.analysis.comparison.changes import Doubt
from benchctl.analysis.output_results import ACCEPTED, Accepted
from benchctl.analysis.statistics import LEVEL, beyond_p, half_width, holm
from benchctl.errors import UsageError
from benchctl.recipes.problems import did_you_mean

if TYPE_CHECKING:
    from benchctl.analysis.comparison.changes import Ratio
    from benchctl.analysis.comparison.compare import ArmComparison, ArmVerdict, RunComparison
    from benchctl.analysis.comparison.workload import Change

ERROR = 0.01
"""The largest share of commands with a failed gate although nothing is worse than its tolerance."""
MISSED = 0.05
"""The largest share of runs that pass although they are worse by the tolerance."""
POWER = 0.9
"""The advised number of blocks lets an unchanged arm pass with this probability."""


@dataclass(frozen=True)
class _Kind:
    """What a gate watches."""

    falls: bool = False
    """Whether less is worse."""
    absolute: bool = False
    """Whether it holds for a class of machine alone."""


KINDS = {
    "slower": _Kind(falls=True),
    "slower-absolute": _Kind(falls=True, absolute=True),
    "acceptance": _Kind(falls=True),
    "ttft": _Kind(absolute=True),
    "memory": _Kind(absolute=True),
    "energy": _Kind(absolute=True),
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

    def share_at(self, distance: float) -> float:
        """Return the change to the worse, as a share, that lies so far from none on the logarithm."""
        return 1 - exp(-distance) if KINDS[self.word].falls else exp(distance) - 1


FailureCode = Literal[
    "worse", "undetermined", "cannot tell", "not in B", "not reported", "no compared arm", "no common arm",
    "not judged", "lossy",
]  # fmt: skip


@dataclass(frozen=True)
class GateFailure:
    """Why a gate did not hold."""

    code: FailureCode
    """`worse`: beyond noise. `undetermined`: by the `doubt`. `cannot tell`: at this noise the arm may be worse by the
    share `at_worst`. `not in B`: the arm. `not reported`: by A in every block of an arm. `no compared arm`: none beside
    a baseline; `no common arm`: none at all. `not judged`: no arm of B, where `overlapping` because requests overlap.
    `lossy`: by the verdict of B."""
    arm: str = ""
    """With the task of an acceptance length."""
    change: Ratio | None = None
    doubt: Doubt | None = None
    at_worst: float | None = None
    blocks: int | None = None
    """In how many of each run an arm that did not change passes; `None`: more runs are needed."""
    overlapping: bool = False
    verdict: ArmVerdict | None = None


@dataclass(frozen=True)
class WorstCase:
    """How much worse the arm that is known least may be where a gate passed; nothing where the share is negative."""

    arm: str
    share: float
    confidence: float


@dataclass(frozen=True)
class GateResult:
    """Whether a gate held, and why not: a failure per arm."""

    gate: Gate
    failures: tuple[GateFailure, ...]
    at_worst: WorstCase | None = None
    other_machine: tuple[Change, ...] = ()
    """Why it was not checked: it holds for a class of machine alone, and A was measured on another."""

    @property
    def skipped(self) -> bool:
        """Whether it was not checked."""
        return bool(self.other_machine)

    @property
    def passed(self) -> bool:
        """Whether there is no failure."""
        return not self.failures


def parse_gate(text: str) -> Gate:
    """Read `slower:3%`, another gate with a tolerance, or `lossy`. Raises UsageError, with the nearest valid word."""
    word, colon, amount = (part.strip() for part in text.partition(":"))
    match = _AMOUNT.fullmatch(amount)
    if word == "lossy" and not colon:
        return Gate("lossy")
    if word in KINDS and match and float(match[1]) < 100:
        return Gate(word, float(match[1]) / 100)
    message = f"There is no gate {word!r}.{did_you_mean(word, GATES)}"
    if word in GATES:
        message = "`lossy` takes no amount." if word == "lossy" else f"`{word}` needs 0 to 100 %, not {amount!r}."
    raise UsageError(message, where=f"--fail-if {text}", fix=_FIX)


@dataclass(frozen=True)
class ArmTest:
    """Whether an arm is worse than a gate's tolerance."""

    gate: Gate
    arm: str
    change: Ratio
    doubt: Doubt | None

    @cached_property
    def p(self) -> float | None:
        """The larger of the p-values by each variance; `None`: undetermined."""
        if self.doubt or self.change.ratio is None or not self.change.variances:
            return None
        return max(beyond_p(self.distance - self.gate.tolerance, variance) for variance in self.change.variances)

    @property
    def distance(self) -> float:
        """How far the change lies to the worse, on the logarithm."""
        change = log(self.change.ratio or 1.0)
        return -change if KINDS[self.gate.word].falls else change

    def at_worst(self, error: float) -> float:
        """Return how far the change may lie to the worse: one-sided, by blocks and by repeated runs."""
        return self.distance + max(half_width(variance, 1 - 2 * error) for variance in self.change.variances)

    def blocks_needed(self, blocks: Sequence[int], error: float) -> int | None:
        """Return in how many blocks of each run an unchanged arm passes with `POWER`; `None`: more runs are needed.

        n·V·((z(1 - error) + z(POWER)) / tolerance)², V the variance at `blocks` of the runs, n their harmonic mean.
        """
        of_blocks = self.change.variances[0].value
        if any(variance.value > of_blocks for variance in self.change.variances[1:]):
            return None
        quantiles = NormalDist().inv_cdf(1 - error) + NormalDist().inv_cdf(POWER)
        times = of_blocks * (quantiles / self.gate.tolerance) ** 2 if self.gate.tolerance else inf
        return ceil(max(times, 1.2) * harmonic_mean(blocks)) if isfinite(times) else None

    @property
    def is_noisy(self) -> bool:
        """Whether it can fail by chance: blocks that are all equal, as most acceptance lengths are, cannot."""
        return any(variance.value for variance in self.change.variances)


def check_gates(gates: Sequence[Gate], comparison: RunComparison, accept: Accepted = "exact") -> list[GateResult]:
    """Check a comparison against all gates of a command; `accept`: which verdicts `lossy` lets pass."""
    other_machine = tuple(comparison.other_machine)
    skipped = {gate for gate in gates if gate.word != "lossy" and KINDS[gate.word].absolute and other_machine}
    tests = {gate: list(tests_of(gate, comparison)) for gate in gates if gate.word != "lossy" and gate not in skipped}
    error = ERROR * (1 - comparison.level) / (1 - LEVEL)
    worse = find_worse([test for of_gate in tests.values() for test in of_gate], error)
    missed = MISSED * (1 - comparison.level) / (1 - LEVEL)
    results = []
    for gate in gates:
        if gate.word == "lossy":
            results.append(GateResult(gate, tuple(_lossy(comparison, accept))))
        elif gate in skipped:
            results.append(GateResult(gate, (), other_machine=other_machine))
        else:
            failures = tuple(_failures(gate, tests[gate], worse, comparison, missed))
            results.append(GateResult(gate, failures, None if failures else _worst_case(gate, tests[gate], missed)))
    return results


def find_worse(tests: Sequence[ArmTest], error: float) -> set[int]:
    """Return the `id` of the tests of which it is shown, at this error rate of all together."""
    determined = [(test, p) for test in tests if (p := test.p) is not None]
    noisy = [(test, p) for test, p in determined if test.is_noisy]
    adjusted = holm([p for _, p in noisy])
    worse = {id(test) for (test, _), p in zip(noisy, adjusted, strict=True) if p < error}
    return worse | {id(test) for test, p in determined if not test.is_noisy and p < error}


def tests_of(gate: Gate, comparison: RunComparison) -> Iterator[ArmTest]:
    """Yield what a gate tests, arm by arm; `lossy` tests nothing."""
    for arm in comparison.arms:
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


def _doubt(arm: ArmComparison, change: Ratio) -> Doubt | None:
    if change.ratio is None:
        return Doubt(code="not reported")
    if not change.variances:
        return arm.rate_doubt or Doubt(code="few blocks")
    return None


def _failures(
    gate: Gate, tests: Sequence[ArmTest], worse: set[int], comparison: RunComparison, missed: float
) -> Iterator[GateFailure]:
    for test in tests:
        if id(test) in worse:
            yield GateFailure("worse", test.arm, change=test.change)
        elif test.p is None:
            yield GateFailure("undetermined", test.arm, doubt=test.doubt)
        elif (at_worst := test.at_worst(missed)) >= gate.tolerance:
            blocks = test.blocks_needed((comparison.a.blocks, comparison.b.blocks), missed)
            yield GateFailure("cannot tell", test.arm, at_worst=gate.share_at(at_worst), blocks=blocks)
    yield from (GateFailure("not in B", name) for name in comparison.only_in_a)
    if tests or comparison.only_in_a:
        return
    if gate.word not in ("slower", "slower-absolute"):
        yield GateFailure("not reported")
    else:
        yield GateFailure("no compared arm" if comparison.arms else "no common arm")


def _worst_case(gate: Gate, tests: Sequence[ArmTest], missed: float) -> WorstCase:
    """Return how much worse the arm that is known least may be."""
    distance, arm = max((test.at_worst(missed), test.arm) for test in tests)
    return WorstCase(arm, gate.share_at(distance), 1 - missed)


def _lossy(comparison: RunComparison, accept: Accepted) -> list[GateFailure]:
    judged = [arm for arm in comparison.lossless_b if arm.verdict != "not judged"]
    if not judged:
        return [GateFailure("not judged", overlapping=bool(comparison.lossless_b))]
    lossy = [arm for arm in judged if arm.verdict not in ACCEPTED[accept]]
    return [GateFailure("lossy", arm.arm, verdict=arm) for arm in lossy]
