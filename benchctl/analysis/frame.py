"""The frame: a run's measured records as columns, a row per record, sorted by block, arm and prompt.

Everything else in this package computes on it. A value that was not reported is NaN here, never 0. Sorting
makes every number independent of the order in which the records were read.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import log1p
from operator import attrgetter
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from benchctl.data.counts import refusals
from benchctl.data.manifest import FurtherPrompt, Manifest
from benchctl.data.record import Record
from benchctl.errors import UsageError
from benchctl.recipes.relations import unscored_constraints

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Integers = NDArray[np.int64]
    Booleans = NDArray[np.bool_]

T = TypeVar("T")

ALL_TASKS = "all"
"""The task name of a row that pools every task."""
PromptKey = tuple[str, int]
"""(task, prompt_idx)."""

ENGINE_NUMBERS = ("tok_per_sec", "prompt_per_sec", "draft_n", "verified", "draft_n_accepted", "rounds", "plain_steps")
CLIENT_NUMBERS = ("client_tok_per_sec", "ttft_s", "e2e_s")
NUMBERS = ENGINE_NUMBERS + CLIENT_NUMBERS
"""The numbers of a record that `Frame.column` gives."""
DISTURBED, OUTLYING = 0.15, 5.0
"""A cell is disturbed when it is slower than the arm's median cell by more than this share, and by this z-score."""
ENOUGH_CELLS = 4
"""Of three cells of an arm nobody can tell which is disturbed."""


@dataclass(frozen=True)
class Frame:
    """Columns have an entry per record; `arm`, `block`, `task` and `prompt` are indices into the tuples below them."""

    records: list[Record]
    arms: tuple[str, ...]
    """In the recipe's order; without a manifest the baseline first, then by name."""
    baseline: int
    tasks: tuple[str, ...]
    prompts: tuple[PromptKey, ...]
    blocks: tuple[int, ...]
    """Every block that was planned or recorded, in order."""
    arm: Integers
    block: Integers
    task: Integers
    prompt: Integers
    answered: Booleans
    """Whether the request finished without an error."""
    predicted: Floats
    """Tokens that came out, the first included; NaN where the server's count of them is refused."""
    decoded: Floats
    """Tokens after the first, which prefill makes: n_predicted - 1; NaN where there is no rate."""
    timed_s: Floats
    """Seconds for `decoded`: decoded / rate; NaN where there is no rate."""
    manifest: Manifest | None
    refused: list[str | None]
    """Why the number of tokens of each record is refused; `None` where nothing contradicts it."""
    again: int | None = None
    """The arm that is a second cell of the baseline in every block; `None` where there is none."""
    pooled: bool = False
    """Whether what lacks was never asked: `benchctl.data.store.RunData.pooled`."""

    @cached_property
    def decode_s(self) -> Floats:
        """`timed_s`, NaN in disturbed cells: what every speed is computed of."""
        return np.where(self.disturbed[self.arm, self.block], np.nan, self.timed_s)

    @cached_property
    def disturbed(self) -> Booleans:
        """Which cells ran far slower than others of their arm, (arms, blocks); never where requests overlap.

        By the modified z-score (Iglewicz & Hoaglin 1993): 0.6745 distance / MAD, the MAD that of all cells of arms
        with one baseline. Other work on a machine makes cells slower, never faster, so fast ones stay.
        """
        slow: Booleans = np.zeros(self.slowness.shape, dtype=np.bool_)
        compared = self.manifest.compared(self.arms[self.baseline]) if self.manifest else {}
        group = [compared[name].baseline if name in compared else None for name in self.arms]
        overlapping = {arm.name for arm in self.manifest.arms if arm.overlapping} if self.manifest else set()
        for baseline in dict.fromkeys(group):
            arms = [n for n, name in enumerate(self.arms) if group[n] == baseline and name not in overlapping]
            distance = self.slowness[arms]
            timed = np.isfinite(distance)
            if timed.any():
                threshold = max(-log1p(-DISTURBED), OUTLYING / 0.6745 * float(np.median(np.abs(distance[timed]))))
                slow[arms] = (distance > threshold) & (timed.sum(axis=1) >= ENOUGH_CELLS)[:, np.newaxis]
        return slow

    @cached_property
    def slowness(self) -> Floats:
        """How much slower each cell is than its arm's median cell, on the logarithm, (arms, blocks); NaN: not timed.

        The median over the cell's prompts, each beside its own median over the arm's blocks.
        """
        pace = np.append(self.timed_s / self.decoded, np.nan)[self.row_at]  # what -1 points at: no record
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # nothing was timed
            logs = np.log(pace) - np.nanmedian(np.log(pace), axis=1, keepdims=True)
            slowness: Floats = np.nanmedian(logs, axis=2)
        return slowness

    @cached_property
    def rate(self) -> Floats:
        """Decode rate in tokens per second, NaN where it is not known, and in disturbed cells."""
        return self.decoded / self.decode_s

    def baseline_s(self, rows: Integers) -> Floats:
        """Return the seconds for `decoded` of some of the baseline's rows, at the mean pace of both of its cells.

        This and `baseline_e2e_s` are the baseline's time in every number of an arm.
        """
        return self._of_both_cells(rows, self.decode_s, self.decoded)

    def baseline_e2e_s(self, rows: Integers) -> Floats:
        """Return the same for whole answers: the seconds from request to last byte."""
        return self._of_both_cells(rows, self.column("e2e_s"), self.predicted)

    def _of_both_cells(self, rows: Integers, seconds: Floats, tokens: Floats) -> Floats:
        cell_seconds = seconds[rows]
        if self.again is None:
            return cell_seconds
        second = self.row_at[self.again, self.block[rows], self.prompt[rows]]
        with np.errstate(divide="ignore", invalid="ignore"):  # an answer that failed has no tokens
            pace = np.where((second >= 0) & self.answered[second], seconds[second] / tokens[second], np.nan)
        return np.where(np.isfinite(pace), (cell_seconds + pace * tokens[rows]) / 2, cell_seconds)

    @cached_property
    def work(self) -> Floats:
        """A number that is equal for equal length and finish reason."""
        endings = {None: 0.0, "stop": 0.25, "length": 0.5}
        return self.predicted + [endings[record.finish_reason] for record in self.records]

    @cached_property
    def constrained(self) -> dict[PromptKey, str]:
        """What constrains answers and no score takes into account, by prompt: a key of its request or of `sampling`."""
        if self.manifest is None:
            return {}
        unscored = unscored_constraints(self.manifest.recipe)
        if unscored:
            return dict.fromkeys(self.prompts, unscored[0])
        return {
            (prompt.task, prompt.prompt_idx): prompt.constrained
            for prompt in self.manifest.prompts
            if prompt.constrained is not None
        }

    @cached_property
    def stopped(self) -> frozenset[PromptKey]:
        """The prompts whose answers a stop string may end, behind any token."""
        prompts = self.manifest.prompts if self.manifest else ()
        return frozenset((item.task, item.prompt_idx) for item in prompts if item.rules is not None and item.rules.stop)

    @cached_property
    def row_at(self) -> Integers:
        """The row of every measurement, (arms, blocks, prompts); -1 where there is none."""
        table = np.full((len(self.arms), len(self.blocks), len(self.prompts)), -1, dtype=np.int64)
        table[self.arm, self.block, self.prompt] = np.arange(len(self.records))
        return table

    def asked(self, arm: int) -> Booleans:
        """Return which prompts an arm was, or should have been, asked together with the baseline."""
        if not self.pooled:
            return np.ones(len(self.prompts), dtype=np.bool_)
        pairs = (self.row_at[arm] >= 0) & (self.row_at[self.baseline] >= 0)
        asked: Booleans = pairs.any(axis=0)
        return asked

    @cached_property
    def further(self) -> Booleans:
        """Which prompts were asked after the run."""
        named = self.manifest.prompts if self.manifest else ()
        later = {(prompt.task, prompt.prompt_idx) for prompt in named if isinstance(prompt, FurtherPrompt)}
        return np.array([key in later for key in self.prompts], dtype=np.bool_)

    @property
    def run_blocks(self) -> int:
        """How many blocks the run has, without what was asked after it."""
        return self.manifest.blocks if self.pooled and self.manifest else len(self.blocks)

    def blocks_of(self, arm: int) -> int:
        """Return in how many blocks an arm was to be measured: fewer than there are where it was decided before."""
        return min(len(self.blocks), self._ended.get(self.arms[arm], len(self.blocks)))

    @cached_property
    def _ended(self) -> dict[str, int]:
        return self.manifest.ended() if self.manifest else {}

    def until(self, blocks: int) -> Frame:
        """Return the frame as it was after so many blocks; rows keep their numbers."""
        if blocks >= len(self.blocks):
            return self
        end = int(np.searchsorted(self.block, blocks))
        columns = {name: getattr(self, name)[:end] for name in _BY_ROW}
        return replace(self, blocks=self.blocks[:blocks], **columns)

    def by_task(self, rows: Integers) -> Iterator[tuple[str, Booleans]]:
        """Yield all tasks together and each by name, with which of some rows are of it."""
        yield ALL_TASKS, np.ones(len(rows), dtype=np.bool_)
        yield from ((name, self.task[rows] == number) for number, name in enumerate(self.tasks))

    @property
    def compared(self) -> list[int]:
        """The arms that are compared with the baseline."""
        return [arm for arm in range(len(self.arms)) if arm not in (self.baseline, self.again)]

    def rows(self, arm: int) -> Integers:
        """Return the rows of an arm, sorted by block and prompt."""
        return np.flatnonzero(self.arm == arm)

    def pairs(self, arm: int, other_arm: int) -> tuple[Integers, Integers]:
        """Return the rows of two arms that answer the same prompt in the same block, errors among them."""
        ours, theirs = self.row_at[arm].ravel(), self.row_at[other_arm].ravel()
        answered = (ours >= 0) & (theirs >= 0)
        return ours[answered], theirs[answered]

    def column(self, key: str) -> Floats:
        """Return a number of every record as a column, by its key (of `NUMBERS`); NaN where it is not reported."""
        return self._columns[key]

    @cached_property
    def _columns(self) -> dict[str, Floats]:
        table = np.array(list(map(attrgetter(*NUMBERS), self.records)), dtype=np.float64).reshape(-1, len(NUMBERS))
        return dict(zip(NUMBERS, table.T, strict=True))

    def name(self, row: int) -> str:
        """Name a record for people: `block 2, spec_d4, code/3`."""
        task, index = self.prompts[self.prompt[row]]
        return f"{self.cell_name(int(self.block[row]), int(self.arm[row]))}, {task}/{index}"

    def cell_name(self, block: int, arm: int) -> str:
        """Name a cell as the run did: blocks count from 1."""
        return f"block {block + 1}, {self.arms[arm]}"


_BY_ROW = "records", "block", "arm", "prompt", "task", "answered", "predicted", "decoded", "timed_s", "refused"


def make_frame(
    records: Iterable[Record], manifest: Manifest | None, baseline: str | None = None, *, pooled: bool = False
) -> Frame:
    """Lay out the measured records (warm-ups are left out). Raises UsageError when there is no such baseline."""
    measured = [record for record in records if record.phase == "measure"]
    labels = [record.label for record in measured]
    keys = list(map(attrgetter("task", "prompt_idx"), measured))
    numbers = [record.key[0] for record in measured]

    baseline_name = baseline or (manifest.baseline if manifest else "baseline")
    planned = [arm.name for arm in manifest.arms] if manifest else []
    arms = planned + sorted(set(labels) - set(planned), key=lambda name: (name != baseline_name, _natural(name)))
    if baseline_name not in arms:
        raise UsageError(
            f"No arm is called {baseline_name!r}, so there is nothing to compare with.",
            fix=f"Name the baseline with --baseline; the arms are: {', '.join(arms) or 'none'}.",
        )
    tasks, prompts = _workload(set(keys), manifest)
    begun = max(1, manifest.blocks) if manifest else 0  # `blocks: auto` that was cut off early has begun none
    blocks = sorted(set(numbers) | set(range(begun)))

    compared = manifest.compared(baseline_name) if manifest else {}

    arm_of, task_of, prompt_of, block_of = _positions(arms), _positions(tasks), _positions(prompts), _positions(blocks)
    block = np.array([block_of[number] for number in numbers], dtype=np.int64)
    arm = np.array([arm_of[label] for label in labels], dtype=np.int64)
    prompt = np.array([prompt_of[key] for key in keys], dtype=np.int64)
    order = np.lexsort((prompt, arm, block))
    ordered = [measured[index] for index in order.tolist()]
    prompt_task = np.array([task_of[task] for task, _ in prompts], dtype=np.int64)
    answered = np.array([record.error is None for record in ordered], dtype=bool)
    refused = refusals(ordered)
    counts = [np.nan if reason else record.n_predicted for record, reason in zip(ordered, refused, strict=True)]
    predicted = np.array(counts, dtype=np.float64)
    speeds = [r.tok_per_sec if r.client_tok_per_sec is None else r.client_tok_per_sec for r in ordered]
    rate = np.array(speeds, dtype=np.float64)  # numpy reads None as NaN
    timed = answered & (predicted >= 2) & (rate > 0) & np.isfinite(rate)
    decoded = np.where(timed, predicted - 1, np.nan)
    return Frame(
        records=ordered,
        arms=tuple(arms),
        baseline=arm_of[baseline_name],
        tasks=tuple(tasks),
        prompts=tuple(prompts),
        blocks=tuple(blocks),
        block=block[order],
        arm=arm[order],
        prompt=prompt[order],
        task=prompt_task[prompt[order]],
        answered=answered,
        predicted=predicted,
        decoded=decoded,
        timed_s=decoded / rate,
        manifest=manifest,
        refused=refused,
        pooled=pooled,
        again=arm_of.get(compared[baseline_name].again or "") if baseline_name in compared else None,
    )


def _workload(recorded: set[PromptKey], manifest: Manifest | None) -> tuple[list[str], list[PromptKey]]:
    """Tasks and prompts: as the manifest orders them, then those that only the records have."""
    planned = [(prompt.task, prompt.prompt_idx) for prompt in manifest.prompts] if manifest else []
    keys = dict.fromkeys(planned + sorted(recorded))
    tasks = list(dict.fromkeys(task for task, _ in keys))
    rank = _positions(tasks)
    return tasks, sorted(keys, key=lambda key: (rank[key[0]], key[1]))


def _positions(values: Iterable[T]) -> dict[T, int]:
    return {value: position for position, value in enumerate(values)}


def _natural(name: str) -> list[tuple[int, str]]:
    """A sort key that puts spec_d2 before spec_d16."""
    return [(int(part) if part.isdigit() else -1, part) for part in re.split(r"(\d+)", name)]
