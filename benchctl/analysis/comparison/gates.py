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
from typing import TYPE_CHECKING

from benchctl.analysis.comparison.compare import RunComparison
from benchctl.analysis.results import ACCEPTED, Accepted
from benchctl.analysis.statistics import LEVEL, MIN_BLOCKS, beyond_p, half_width, holm
from benchctl.errors import GateError, UsageError
from benchctl.recipes.problems import did_you_mean
from benchctl.text import one_line

if TYPE_CHECKING:
    from benchctl.analysis.comparison.changes import Ratio
    from benchctl.analysis.comparison.compare import ArmComparison

ERROR = 0.01
"""Of 100 commands in which nothing is worse than its tolerance, at most so many have a failed gate."""
MISSED = 0.05
"""Of 100 runs that are worse by the tolerance, at most so many pass."""
POWER = 0.9
"""So many blocks are advised that an unchanged arm passes with this power."""


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

    def share_at(self, distance: float) -> float:
        """Return the change to the worse, as a share, that lies so far from none on the logarithm."""
        return 1 - exp(-distance) if KINDS[self.word].falls else exp(distance) - 1


@dataclass(frozen=True)
class GateResult:
    """Whether a gate held, and why not: a sentence per arm."""

    gate: Gate
    failures: tuple[str, ...]
    note: str | None = None
    """How much worse an arm may still be where the gate passed."""
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
    missed = MISSED * (1 - found.level) / (1 - LEVEL)
    results = []
    for gate in gates:
        if gate.word == "lossy":
            results.append(GateResult(gate, tuple(_lossy(found, accept))))
        elif gate not in tests:
            results.append(GateResult(gate, (), _skipped(gate, found), skipped=True))
        else:
            failures = tuple(_failures(gate, tests[gate], worse, found, missed))
            note = None if failures else _at_worst(gate, tests[gate], missed)
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


def _failures(
    gate: Gate, tests: Sequence[ArmTest], worse: set[int], found: RunComparison, missed: float
) -> Iterator[str]:
    for test in tests:
        if id(test) in worse:
            yield test.failure()
        elif test.p is None:
            yield f"{test.arm}: undetermined. {test.doubt or ''}".rstrip()
        elif (at_worst := test.at_worst(missed)) >= gate.tolerance:
            needed = test.blocks_needed((found.a.blocks, found.b.blocks), missed)
            advice = "more runs of A and B" if needed is None else f"about {needed} blocks in each run"
            yield (
                f"{test.arm}: cannot tell. At this noise it may be {100 * gate.share_at(at_worst):.1f} % "
                f"{KINDS[gate.word].worse}, and the gate passes only where {100 * gate.share:g} % is excluded. "
                f"An arm that did not change passes with {advice}."
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


def _at_worst(gate: Gate, tests: Sequence[ArmTest], missed: float) -> str:
    """Return how much worse the arm that is known least may be."""
    distance, arm = max((test.at_worst(missed), test.arm) for test in tests)
    word, sure = KINDS[gate.word].worse, f"With {100 * (1 - missed):g} % confidence no arm is"
    return f"{sure} {word}." if distance <= 0 else f"{sure} over {100 * gate.share_at(distance):.1f} % {word} ({arm})."


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
