"""What comparing two runs finds: plain, serialisable results. A is the run before, B the one after."""

from __future__ import annotations

from typing import Literal

from benchctl.analysis.comparison.workload import Change, Outputs
from benchctl.analysis.results import Interval, Result

SpeedChange = Literal["faster", "slower", "no clear difference", "unknown"]


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
    ratio: float | None
    """b / a."""
    interval: Interval | None
    """`None` below three blocks in either run."""


class ArmComparison(Result):
    """One arm in both runs."""

    arm: str
    is_baseline: bool
    """Of run B."""
    rate: Ratio
    """Decode rate, tokens per second: tokens over time of the prompts that every block of both runs timed."""
    rate_length_matched: float | None
    """The ratio over only those prompts whose answers are of equal length and ending in both runs."""
    blocks_a: int
    blocks_b: int
    prompts: int
    prompts_left_out: int
    """Prompts that some block of either run did not time."""
    speed: SpeedChange
    """Faster or slower only where the interval of `rate` excludes 1."""
    doubt: str | None
    """Why `speed` is unknown, as a sentence."""
    speedup: Ratio
    """Pooled speed-up over each run's own baseline: what changed of the speculation, the machine's change left out."""
    acceptance_a: float | None
    acceptance_b: float | None
    lossy: list[str]
    """Settings of either run's arm that are lossy by design."""
    lossless_a: str | None
    lossless_b: str | None
    """Verdict of each run on itself; `None` for its baseline."""
    outputs: Outputs
    """Whether the answers of B equal those of A."""


class OwnVerdict(Result):
    """Whether an arm of B is lossless by B's own baseline."""

    arm: str
    verdict: str
    reason: str


class RunComparison(Result):
    """Everything that `benchctl compare` finds."""

    a: RunFacts
    b: RunFacts
    on_trust: list[str]
    """Which parts of the workload could not be checked to be the same."""
    changed: list[Change]
    arms: list[ArmComparison]
    only_in_a: list[str]
    only_in_b: list[str]
    lossless_b: list[OwnVerdict]
    """Of every arm of B but its baseline, those that only B has included."""
