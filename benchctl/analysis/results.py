"""Everything found in a run, as plain, serialisable results that reports draw and programs read.

`Analysis` is written as `analysis.json` beside a report. Every number in it is a pure function of the records and the
manifest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import ConfigDict, Field, model_serializer

from benchctl.analysis.accuracy import Accuracy
from benchctl.analysis.cells import Resources
from benchctl.analysis.conditions.results import Sweep
from benchctl.analysis.decision_results import Decision, Verdict
from benchctl.analysis.frame import ALL_TASKS
from benchctl.analysis.output_results import Losslessness, SelfConsistency
from benchctl.analysis.result import Fact, Result
from benchctl.analysis.round_results import BreakEven, RoundModel
from benchctl.analysis.speed_results import Acceptance, AnswerLength, Cost, SpeedUp, Throughput
from benchctl.analysis.thinking import Thinking
from benchctl.data.manifest import DecidedArm, StopReason
from benchctl.data.rounds import LeftOut
from benchctl.recipes.groups import ComparedArm

if TYPE_CHECKING:
    from pydantic import SerializerFunctionWrapHandler


class Caution(Result):
    """Something that makes a number less trustworthy. The set of ids is closed: `benchctl.analysis.warnings`.

    `benchctl.words.warnings` says what was observed, why it matters and what to do.
    """

    id: str
    where: str
    facts: list[Fact]


class Stopping(Result):
    """What `blocks: auto` came to."""

    half_width: float | None
    """As requested: half the width of every arm's interval, as a share of its speed-up. `None`: until decided."""
    max_blocks: int
    budget_min: float | None
    blocks: int
    """Measured."""
    decided: dict[str, DecidedArm]
    """What was decided of an arm, and after how many blocks."""
    rivals: list[str]
    """The faster arms of which it is open whether they are the fastest."""
    reason: StopReason | None
    """Why it ended, as the run stored it; `None` while it has not."""
    half_widths: dict[str, float | None]
    """Of every arm that could be compared, by these records."""
    spent_s: float


class Analysis(Result):
    """Everything found in a run."""

    schema_version: int = Field(default=1, alias="schema")
    run: str
    recipe: str
    baseline: str
    """Of a sweep the recipe's name of it, which each condition has an arm of: `baselines`."""
    arms: list[str]
    """In the recipe's order, the baseline among them; of a sweep condition by condition."""
    compared: dict[str, ComparedArm]
    """What every arm is compared with, and what it ran on, by its name."""
    tasks: list[str]
    blocks: int
    records: int
    failed_cells: list[str]
    """`block 2, spec_d4: reason`."""
    verdicts: list[Verdict]
    speedups: list[SpeedUp]
    second_cells: list[SpeedUp] = Field(default_factory=list)
    """The second cells of baselines, each against the first cell alone: how far two equal processes lie apart."""
    acceptance: list[Acceptance]
    throughput: list[Throughput]
    losslessness: list[Losslessness]
    consistency: list[SelfConsistency]
    costs: list[Cost]
    rounds: RoundModel = Field(default_factory=RoundModel)
    """What rounds are made of."""
    left_out: list[LeftOut] | None = None
    """What drafts left out of the model, of a run with traces; else left out."""
    accuracy: Accuracy | None = None
    """Of a suite whose prompts carry their answers; else left out."""
    thinking: list[Thinking] | None = None
    """Of answers that think; else left out."""
    breakeven: BreakEven | None = None
    """Of a run with arms of synthetic acceptance."""
    answer_lengths: list[AnswerLength] = Field(default_factory=list)
    """By length of the answer, as far as it is known when each token came; one request at a time."""
    resources: list[Resources] = Field(default_factory=list)
    """Energy and memory, a row for every arm."""
    warnings: list[Caution]
    stopping: Stopping | None = None
    """Of a run with `blocks: auto`."""
    decision: Decision | None = None
    """`None` where nothing was compared, the baseline speculates, or the values were selected by a search."""
    sweep: Sweep | None = None
    """Of a run that varies concurrency, rate or temperature, or sends several requests at once; else left out."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    def speedup_of(self, arm: str, task: str = ALL_TASKS) -> SpeedUp | None:
        """Return the speed-up of an arm in a task; `None` where it has none."""
        return next((row for row in self.speedups if (row.arm, row.task) == (arm, task)), None)

    def acceptance_of(self, arm: str) -> Acceptance | None:
        """Return the acceptance of an arm over all tasks; `None` where it has none."""
        return next((row for row in self.acceptance if (row.arm, row.task) == (arm, ALL_TASKS)), None)

    def losslessness_of(self, arm: str) -> Losslessness | None:
        """Return the verdict on an arm's output; `None` where it has none."""
        return next((row for row in self.losslessness if row.arm == arm), None)

    @property
    def baselines(self) -> set[str]:
        """The arms that others are compared with, in each group."""
        return {arm.baseline for arm in self.compared.values()}

    @property
    def settings(self) -> list[str]:
        """The recipe's arms, whatever the conditions that each ran under."""
        return list(dict.fromkeys(arm.of for arm in self.compared.values())) if self.sweep else self.arms

    @model_serializer(mode="wrap")
    def _leave_out_what_is_not_there(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        document: dict[str, Any] = handler(self)
        absent = {name for name in ("accuracy", "left_out", "thinking", "sweep") if getattr(self, name) is None}
        return {name: value for name, value in document.items() if name not in absent}
