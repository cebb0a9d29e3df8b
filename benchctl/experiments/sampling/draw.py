"""Drawing the answers of a sampling check: every arm's engine once, every prompt with many seeds.

Every answer of the check has a seed that no other has, the baseline's included. Answers to the same seed would be
coupled: an engine that draws from a single generator gives the same text with and without speculation, a wrong sampler
nearly the same, and two correlated samples are no test of their distributions. The seeds are not consecutive either:
see `spread_seed`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

from benchctl.data.record import RecordError
from benchctl.engines.base import Completion, Rendered, Server
from benchctl.errors import BenchctlError, EngineError, StorageError, UsageError
from benchctl.experiments.sampling.plan import CheckPlan
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
from benchctl.measurement.cell import CellContext, EngineCell
from benchctl.measurement.manifest import new_manifest
from benchctl.measurement.plan import CellPlan, EarlierProcesses, spread_over_tasks, spread_seed
from benchctl.measurement.prepare import Prepared, files_of
from benchctl.measurement.progress import RunProgress
from benchctl.measurement.recording import now
from benchctl.measurement.runner import Runner
from benchctl.prompts.suite import PromptItem
from benchctl.recipes.schema import Arm, Recipe, Sampling

Request = tuple[PromptItem, int]
"""A prompt and the seed of its answer."""
USUAL_TEMPERATURE = 0.8
"""Used where a recipe is greedy: at temperature 0 there is no distribution to check."""
ALONE = {"of": None, "concurrency": 1, "rate": None, "temperature": None, "context_length": None}
"""An arm's keys where it answers a request at a time, whatever the recipe's conditions are."""


def sampled_recipe(recipe: Recipe, plan: CheckPlan, arms: Sequence[str] = ()) -> Recipe:
    """Return the recipe as the check runs it: sampled, short answers, the baseline first; `arms` limits the others.

    Of a recipe with several conditions the arms of the first, a request at a time. A greedy recipe's top-k of 1 would
    leave no choice of tokens, so with the temperature that replaces its 0 the whole vocabulary is open. Raises
    UsageError for arms that cannot be compared.
    """
    sampling = recipe.unconstrained("This check").sampling
    greedy = sampling.temperature == 0 or sampling.top_k == 1
    changes = {"temperature": USUAL_TEMPERATURE, "top_k": 0, "top_p": 1.0} if greedy else {}
    changes |= {"max_tokens": plan.tokens, "ignore_eos": False}
    changes |= {"temperature": plan.temperature} if plan.temperature else {}
    compared = [arm.model_copy(update=ALONE) for arm in _compared(recipe, arms)]
    return recipe.model_copy(
        update={
            "sampling": sampling.model_copy(update=changes),
            "blocks": 1,
            "schedule": "blocks",
            "baseline": compared[0].name,
            "arms": compared,
        }
    )


def _compared(recipe: Recipe, chosen: Sequence[str]) -> list[Arm]:
    """Return the baseline and the arms that are comparable with it, of those that were chosen. Raises UsageError."""
    arms = {arm.name: arm for arm in recipe.arms}
    first = arms[recipe.baseline]
    group = recipe.group_of(first)
    comparable = {name: arm for name, arm in arms.items() if arm is not first and recipe.group_of(arm) == group}
    if not comparable:
        raise UsageError("There is only the baseline, so there is nothing to compare.", where=recipe.name)
    for name in chosen:
        if name not in comparable:
            fix = f"The arms are: {', '.join(comparable)}."
            raise UsageError(f"There is no arm {name!r}.", where="--arm", fix=fix)
    return [first, *(arm for arm in comparable.values() if not chosen or arm.name in chosen)]


def in_turn(prompts: Sequence[PromptItem], seeds: Iterable[int], count: int) -> list[Request]:
    """Return `count` requests of every prompt, prompts in turn, each with the next of the seeds."""
    return list(zip([*prompts] * count, seeds, strict=False))


def draw_answers(
    server: Server, arm: str, requests: Iterable[Request], sampling: Sampling
) -> Iterator[tuple[SampledAnswer, Completion | None]]:
    """Make every request: yields the answer, and the completion that it came with.

    A request that the engine refuses (`http`) is yielded as an error; raises EngineError for every other failure.
    """
    rendered: dict[tuple[str, int], Rendered] = {}
    for item, seed in requests:
        key = (item.task, item.prompt_idx)
        prompt = rendered[key] = rendered.get(key) or server.render(item.prompt)
        seeded = sampling.model_copy(update={"seed": seed})
        answer = SampledAnswer(arm=arm, task=item.task, prompt_idx=item.prompt_idx, seed=seed)
        try:
            done = asyncio.run(server.complete(prompt, seeded))
            reported = done.token_ids
            ids = server.recover_token_ids(prompt, seeded, done) if reported is None else reported
        except EngineError as failure:
            if failure.kind != "http" or not server.alive():
                raise
            answer.error = failure.what
            yield answer, None
            continue
        answer.token_ids = None if ids is None else list(ids)
        answer.drafted, answer.accepted = done.ledger.drafted, done.ledger.accepted
        yield answer, done


class SampledCell(EngineCell):
    """A cell whose answers belong to a check of the sampling: `requests`, those that are not drawn yet."""

    def __init__(self, plan: CellPlan, context: CellContext, requests: Sequence[Request]) -> None:
        super().__init__(plan, context)
        self._requests = requests
        self._drafted: list[int] = []

    def measure(self) -> None:
        """Draw the answers."""
        writer, arm, sampling = self.context.writer, self.plan.arm.name, self.context.recipe.sampling
        assert isinstance(writer, CheckWriter)
        with self.failing_alone():
            for answer, done in draw_answers(self.server, arm, self._sent(), sampling) if self.server else ():
                writer.append(answer)
                if answer.drafted is not None:
                    self._drafted.append(answer.drafted)
                if answer.error is None:
                    self.answers += 1
                else:
                    self.failures.append(RecordError(kind="http", message=answer.error))
                self.context.progress.answered(self.plan, done)

    def _sent(self) -> Iterator[Request]:
        for item, seed in self._requests:
            self.context.progress.request_sent(self.plan, item.task, item.prompt_idx)
            yield item, seed

    def complete(self, server: Server) -> int | None:
        """Return the tokens that were drafted."""
        return sum(self._drafted) if self._drafted else None


def run_check(prepared: Prepared, plan: CheckPlan, parent: Path, progress: RunProgress, command: list[str]) -> Path:
    """Draw all answers into a folder below `parent`/sampling and return it.

    `prepared` is of a `sampled_recipe`. An interrupted check with the same settings is resumed. An engine
    that fails costs its arm and no other, but for the baseline's, which ends everything. Raises
    KeyboardInterrupt, after which the check is marked as interrupted, and StorageError.
    """
    planned = [arm.name for arm in prepared.recipe.arms if arm.name != prepared.recipe.baseline]
    settings = SamplingSettings(seeds=plan.seeds, level=plan.level, planned=planned, seeding="spread")
    check = SamplingCheck(settings=settings, manifest=new_manifest(prepared, command))
    prepared = replace(prepared, prompts=spread_over_tasks(prepared.prompts, plan.prompts))
    prompt_keys = {(item.task, item.prompt_idx) for item in prepared.prompts}
    check.manifest.prompts = [item for item in check.manifest.prompts if (item.task, item.prompt_idx) in prompt_keys]
    folder = parent / FOLDER / check.manifest.run
    earlier = _unfinished(parent, check)
    if earlier is not None:
        folder, check = earlier.folder, earlier.check
        progress.note(f"{len(earlier.answers)} answers of this check are there already: {folder}")
    check.manifest.status = "started"  # before the first answer: more may follow than the manifest knows
    with CheckWriter(folder, check) as writer:
        drawn_answers = open_check(folder).answers  # as they are now that nobody else writes
        _draw_all(prepared, plan.seeds, writer, drawn_answers, progress)
    return folder


def _unfinished(parent: Path, check: SamplingCheck) -> SamplingData | None:
    """Return the latest check below `parent` where it was to do the same as `check` and was interrupted."""
    try:
        latest = open_check(latest_check(parent))
    except BenchctlError:
        return None  # there is none, or none that can be read
    interrupted = latest.check.manifest.status in ("started", "interrupted")
    return latest if interrupted and not latest.integrity.damage and _what(latest.check) == _what(check) else None


def _what(check: SamplingCheck) -> tuple[object, ...]:
    """Return everything that its answers depend on."""
    manifest, engine = check.manifest, check.manifest.engine.details
    hashes = manifest.recipe_sha256, manifest.workload_sha256, engine.get("sha256"), engine.get("siblings")
    return check.settings, manifest.prompts, *hashes


def _draw_all(
    prepared: Prepared, seeds: int, writer: CheckWriter, drawn_answers: Sequence[SampledAnswer], progress: RunProgress
) -> None:
    """Draw what is not there, arm by arm, `seeds` answers to each prompt."""
    recipe, manifest = prepared.recipe, writer.manifest
    drawn = {(answer.arm, answer.seed) for answer in drawn_answers}
    drafted: Counter[str] = Counter()
    for answer in drawn_answers:
        drafted[answer.arm] += answer.drafted or 0
    ended = {cell.arm: cell.status for cell in manifest.cells}
    numbered = map(spread_seed, count(recipe.sampling.seed))
    remaining: dict[str, list[Request]] = {}
    for arm in recipe.arms:
        requests = in_turn(prepared.prompts, numbered, seeds)
        remaining[arm.name] = [request for request in requests if (arm.name, request[1]) not in drawn]
    cells = [
        CellPlan(0, order, arm, tuple(item for item, _ in remaining[arm.name]), recipe.group_of(arm))
        for order, arm in enumerate(recipe.arms)
        if remaining[arm.name] or ended.get(arm.name) != "finished"
    ]
    runner = Runner(
        recipe,
        prepared.engines,
        prepared.launches,
        writer,
        files_of(prepared),
        {(0, arm): EarlierProcesses(drafted=tokens) for arm, tokens in drafted.items()},
        lambda cell, context: SampledCell(cell, context, remaining[cell.arm.name]),
    )
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
