"""Drawing the answers of a sampling check: every arm's engine once, every prompt with many seeds.

Every answer of the check has a seed that no other has, the baseline's included. Answers to the same seed would be
coupled: an engine that draws from a single generator gives the same text with and without speculation, a wrong sampler
nearly the same, and two correlated samples are no test of their distributions. The seeds are not consecutive either:
see `spread_seed`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchctl.data.record import RecordError
from benchctl.engines.base import Completion, Rendered, Server
from benchctl.errors import BenchctlError, EngineError, StorageError
from benchctl.experiments.sampling.stored import (
    FOLDER,
    CheckWriter,
    SampledAnswer,
    SamplingCheck,
    SamplingData,
    SamplingSettings,
    latest_check,
    open_check,
)
from benchctl.measure.cell import CellContext, EngineCell
from benchctl.measure.plan import CellPlan, EarlierProcesses, spread_over_tasks, spread_seed
from benchctl.measure.prepare import Prepared, files_of, new_manifest
from benchctl.measure.progress import RunProgress
from benchctl.measure.recording import now
from benchctl.measure.runner import Runner
from benchctl.prompts.suite import PromptItem
from benchctl.recipes.schema import Recipe, Sampling

Request = tuple[PromptItem, int]
"""A prompt and the seed of its answer."""
USUAL_TEMPERATURE = 0.8
"""Used where a recipe is greedy: at temperature 0 there is no distribution to check."""


@dataclass(frozen=True)
class CheckPlan:
    """How large a check is."""

    seeds: int = 200
    tokens: int = 32
    prompts: int = 6
    level: float = 0.01
    temperature: float | None = None
    """`None`: the recipe's own, or `USUAL_TEMPERATURE` for a greedy recipe."""


def is_greedy(sampling: Sampling) -> bool:
    """Whether there is a single answer, and so no distribution to check."""
    return sampling.temperature == 0 or sampling.top_k == 1


def sampled_recipe(recipe: Recipe, plan: CheckPlan, arms: Sequence[str] = ()) -> Recipe:
    """Return the recipe as the check runs it: sampled, short answers, the baseline first; `arms` limits the others.

    Of a recipe with several conditions the arms of the first, a request at a time.

    A greedy recipe's top-k of 1 would leave no choice of tokens, so with the temperature that replaces its 0 the
    whole vocabulary is open.
    """
    given, greedy = recipe.unconstrained("This check").sampling, is_greedy(recipe.sampling)
    temperature = plan.temperature or (USUAL_TEMPERATURE if greedy else given.temperature)
    changes = {"temperature": temperature, "max_tokens": plan.tokens, "ignore_eos": False}
    if greedy:
        changes |= {"top_k": 0, "top_p": 1.0}
    baseline = recipe.arm(recipe.baseline)
    others = [
        arm
        for arm in recipe.arms
        if recipe.group_of(arm) == recipe.group_of(baseline)
        and arm.name != baseline.name
        and (not arms or arm.name in arms)
    ]
    alone = {
        "of": None,
        "concurrency": 1,
        "rate": None,
        "temperature": None,
        "context_length": None,
    }  # whatever the recipe's conditions are
    drawn = [arm.model_copy(update=alone) for arm in (baseline, *others)]
    return recipe.model_copy(
        update={"sampling": given.model_copy(update=changes), "blocks": 1, "schedule": "blocks", "arms": drawn}
    )


def in_turn(prompts: Sequence[PromptItem], seeds: Iterable[int], count: int) -> list[Request]:
    """Return `count` requests of every prompt, prompts in turn, each with the next of the seeds."""
    return list(zip([asked for _ in range(count) for asked in prompts], seeds, strict=False))


def draw_answers(
    server: Server,
    requests: Sequence[Request],
    sampling: Sampling,
    requested: Callable[[PromptItem], None] | None = None,
) -> Iterator[tuple[PromptItem, int, Completion | None, tuple[int, ...] | None, str | None]]:
    """Make every request: yields (prompt, seed, completion, token ids, error).

    `requested` is called before each. A request that the engine refuses (`http`) is yielded as an error; raises
    EngineError for every other failure.
    """
    rendered: dict[tuple[str, int], Rendered] = {}
    for asked, _ in requests:
        if (asked.task, asked.prompt_idx) not in rendered:
            rendered[asked.task, asked.prompt_idx] = server.render(asked.prompt)
    for asked, seed in requests:
        prompt = rendered[asked.task, asked.prompt_idx]
        seeded = sampling.model_copy(update={"seed": seed})
        if requested is not None:
            requested(asked)
        try:
            done = asyncio.run(server.complete(prompt, seeded))
            ids = done.token_ids
            if ids is None:
                ids = server.recover_token_ids(prompt, seeded, done)
        except EngineError as failure:
            if failure.kind != "http" or not server.alive():
                raise
            yield asked, seed, None, None, failure.what
            continue
        yield asked, seed, done, ids, None


class SampledCell(EngineCell):
    """A cell whose answers belong to a check of the sampling: `requests`, those that are not drawn yet."""

    def __init__(self, plan: CellPlan, context: CellContext, requests: Sequence[Request]) -> None:
        super().__init__(plan, context)
        self._requests = requests
        self._drafted: int | None = None

    def measure(self) -> None:
        """Draw the answers."""
        with self.failing_alone():
            if self.server is not None:
                self._draw(self.server)

    def _draw(self, server: Server) -> None:
        plan, progress, writer = self.plan, self.context.progress, self.context.writer
        assert isinstance(writer, CheckWriter)
        drawn = draw_answers(
            server,
            self._requests,
            self.context.recipe.sampling,
            lambda asked: progress.request_sent(plan, asked.task, asked.prompt_idx),
        )
        for asked, seed, done, ids, error in drawn:
            ledger = done.ledger if done else None
            if ledger and ledger.drafted is not None:
                self._drafted = (self._drafted or 0) + ledger.drafted
            answer = SampledAnswer(
                arm=plan.arm.name,
                task=asked.task,
                prompt_idx=asked.prompt_idx,
                seed=seed,
                token_ids=None if ids is None else list(ids),
                drafted=ledger.drafted if ledger else None,
                accepted=ledger.accepted if ledger else None,
                error=error,
            )
            writer.append(answer)
            self.answers += error is None
            if error is not None:
                self.failures.append(RecordError(kind="http", message=error))
            progress.answered(plan, done)

    def complete(self, server: Server) -> int | None:
        """Return the tokens that were drafted."""
        return self._drafted


def run_check(prepared: Prepared, plan: CheckPlan, parent: Path, progress: RunProgress, command: list[str]) -> Path:
    """Draw all answers into a folder below `parent`/sampling and return it.

    `prepared` is of a `sampled_recipe`. An interrupted check with the same settings is resumed. An engine
    that fails costs its arm and no other, but for the baseline's, which ends everything. Raises
    KeyboardInterrupt, after which the check is marked as interrupted, and StorageError.
    """
    prompts = spread_over_tasks(prepared.prompts, plan.prompts)
    check = _new_check(prepared, prompts, plan, command)
    earlier = _unfinished(parent, check)
    folder, answers = parent / FOLDER / check.manifest.run, list[SampledAnswer]()
    if earlier is not None:
        folder, check, answers = earlier.folder, earlier.check, earlier.answers
        progress.note(f"{len(answers)} answers of this check are there already: {folder}")
    with CheckWriter(folder, check) as writer:
        if earlier is not None:
            answers = open_check(folder).answers  # as they are now that nobody else writes
        _draw_all(prepared, prompts, plan.seeds, writer, answers, progress)
    return folder


def _draw_all(
    prepared: Prepared,
    prompts: Sequence[PromptItem],
    count: int,
    writer: CheckWriter,
    answers: Sequence[SampledAnswer],
    progress: RunProgress,
) -> None:
    recipe, manifest = prepared.recipe, writer.manifest
    there = {(answer.arm, answer.seed) for answer in answers}
    drafted: Counter[str] = Counter()
    for answer in answers:
        drafted[answer.arm] += answer.drafted or 0
    ended = {cell.arm: cell.status for cell in manifest.cells}
    cells, requests = [], {}
    size = count * len(prompts)
    for order, arm in enumerate(recipe.arms):
        first = recipe.sampling.seed + order * size
        seeds = map(spread_seed, range(first, first + size))
        left = [request for request in in_turn(prompts, seeds, count) if (arm.name, request[1]) not in there]
        if left or ended.get(arm.name) != "finished":
            cells.append(CellPlan(0, order, arm, tuple(asked for asked, _ in left), recipe.group_of(arm)))
            requests[arm.name] = left
    runner = Runner(
        recipe,
        prepared.engines,
        prepared.launches,
        writer,
        files_of(prepared),
        {(0, arm): EarlierProcesses(drafted=count) for arm, count in drafted.items()},
        lambda cell, context: SampledCell(cell, context, requests[cell.arm.name]),
    )
    manifest.status = "started"
    progress.begin(cells)
    try:
        runner.run(cells, progress)
    except BaseException as stop:
        manifest.status, manifest.finished_at = "interrupted", now()
        if not isinstance(stop, StorageError):
            writer.save()
        raise
    finally:
        progress.end()
    latest = {cell.arm: cell.status for cell in manifest.cells}
    manifest.status = "finished" if all(status == "finished" for status in latest.values()) else "failed"
    manifest.finished_at = now()
    writer.save()


def _new_check(prepared: Prepared, prompts: Sequence[PromptItem], plan: CheckPlan, command: list[str]) -> SamplingCheck:
    recipe, manifest = prepared.recipe, new_manifest(prepared, command)
    chosen = {(asked.task, asked.prompt_idx) for asked in prompts}
    manifest.prompts = [prompt for prompt in manifest.prompts if (prompt.task, prompt.prompt_idx) in chosen]
    planned = [arm.name for arm in recipe.arms if arm.name != recipe.baseline]
    settings = SamplingSettings(seeds=plan.seeds, level=plan.level, planned=planned, seeding="spread")
    return SamplingCheck(settings=settings, manifest=manifest)


def _unfinished(parent: Path, check: SamplingCheck) -> SamplingData | None:
    """Return the latest check below `parent` where it was to do the same as `check` and was interrupted."""
    try:
        found = open_check(latest_check(parent))
    except BenchctlError:
        return None  # there is none, or none that can be read
    stored, planned = found.check.manifest, check.manifest
    same = (
        found.check.settings == check.settings
        and stored.recipe_sha256 == planned.recipe_sha256
        and stored.workload_sha256 == planned.workload_sha256
        and stored.prompts == planned.prompts
        and all(stored.engine.details.get(part) == planned.engine.details.get(part) for part in ("sha256", "siblings"))
    )
    return found if same and stored.status in ("started", "interrupted") else None
