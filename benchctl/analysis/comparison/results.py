"""What comparing two runs finds: plain, serialisable results. A is the run before, B the run after."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from benchctl.analysis.comparison.workload import Change, Outputs
from benchctl.analysis.results import Interval, Result
from benchctl.analysis.statistics import LEVEL, Variance

SpeedChange = Literal["faster", "slower", "no clear difference", "unknown"]

MACHINE_CLASS = ("machine cpu", "machine usable cores", "machine accelerators")
"""What makes speeds, times, memory and energy of two machines comparable where it is equal."""


class RunFacts(Result):
    """One of the two runs."""

    run: str
    folder: str
    recipe: str
    created_at: str | None
    status: str | None
    baseline: str
    blocks: int
    failed_cells: list[str]
    damage: list[str]
    """What is not as it was written: nothing is concluded of a run that has any."""
    warnings: list[str]
    """Ids of `benchctl.analysis.warnings`, the most serious first."""


class Ratio(Result):
    """A value in both runs and how they relate; `None` where it is not known."""

    a: float | None
    b: float | None
    """Where runs were repeated, the geometric mean of `values_a`, of `values_b`."""
    ratio: float | None
    """b / a."""
    interval: Interval | None
    """Wide enough that those of all arms and runs hold together; `None` below three blocks in a run."""
    variances: list[Variance] = Field(default_factory=list)
    """Of the logarithm of the ratio: by blocks, and where runs were repeated by runs. Conclusions hold by both."""
    values_a: list[float] = Field(default_factory=list)
    values_b: list[float] = Field(default_factory=list)


class ArmComparison(Result):
    """An arm in both runs."""

    arm: str
    is_baseline: bool
    """Of run B."""
    change: SpeedChange
    """Of the speed-up over the own run's baseline; of a baseline of its decode rate. Faster or slower only where the
    interval excludes 1."""
    doubt: str | None
    """Why `change` is unknown, as a sentence."""
    rate: Ratio
    """Decode rate, tokens per second: tokens over time of the prompts that every block of all runs timed."""
    rate_length_matched: float | None
    """The ratio over only those prompts whose answers are of equal length and ending in all runs."""
    rate_doubt: str | None
    """Why nothing is said of `rate`."""
    blocks_a: int
    blocks_b: int
    prompts: int
    prompts_left_out: int
    """Prompts that some block of a run did not time."""
    speedup: Ratio
    """Over each run's own baseline, over the prompts that every block of arm and baseline timed in all runs: what
    changed of the speculation, the machine's change left out. Where requests overlap, of whole answers."""
    watched: dict[str, Ratio] = Field(default_factory=dict)
    """What gates can watch beside speed, as far as A reports it, over the prompts of `rate`: `ttft`, `memory`,
    `energy`, `acceptance TASK` (`changes.py`)."""
    acceptance_a: float | None
    acceptance_b: float | None
    lossy: list[str]
    """Settings of either run's arm that are lossy by design."""
    lossless_a: str | None
    lossless_b: str | None
    """Verdict of each run on itself; `None` for its baseline."""
    outputs: Outputs
    """Whether the answers of B equal those of A."""

    @property
    def judged(self) -> Ratio:
        """What `change` is of."""
        return self.rate if self.is_baseline else self.speedup


class OwnVerdict(Result):
    """Whether an arm of B is lossless by B's own baseline."""

    arm: str
    verdict: str
    reason: str


class RunComparison(Result):
    """Everything that `benchctl compare` finds."""

    a: RunFacts
    b: RunFacts
    more_a: list[RunFacts] = Field(default_factory=list)
    """Runs that repeat A."""
    more_b: list[RunFacts] = Field(default_factory=list)
    claims: int = 1
    """How many intervals of a kind hold together: of each arm."""
    level: float = LEVEL
    """Of an interval by itself: above 95 % where a run ended by what it showed."""
    on_trust: list[str]
    """Which parts of the workload could not be checked to be the same."""
    changed: list[Change]
    arms: list[ArmComparison]
    only_in_a: list[str]
    only_in_b: list[str]
    lossless_b: list[OwnVerdict]
    """Of every arm of B but its baseline, those that only B has included."""

    @property
    def other_machine(self) -> str | None:
        """How the machines differ, where they are of another class: then only ratios within a run can be compared."""
        differing = [change for change in self.changed if change.what in MACHINE_CLASS]
        return "; ".join(f"{change.what}: {change.a} and {change.b}" for change in differing) or None
