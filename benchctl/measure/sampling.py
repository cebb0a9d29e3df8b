"""Drawing the answers of a sampling check: every arm's engine once, every prompt with many seeds.

Every answer of the check has a seed that no other has, the baseline's included. Answers to the same seed would be
coupled: an engine that draws from one generator gives the same text with and without speculation, a wrong sampler
nearly the same, and two samples that hang together are no test of their distributions.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from benchctl.data.manifest import Cell
from benchctl.data.sampling import (
    ANSWERS,
    FOLDER,
    SampledAnswer,
    SamplingCheck,
    SamplingSettings,
    write_check,
)
from benchctl.data.writer import LOGS, cannot_write
from benchctl.engines.base import Completion, Rendered, Server
from benchctl.errors import EngineError
from benchctl.measure.plan import CellPlan
from benchctl.measure.prepare import Prepared, new_manifest
from benchctl.measure.progress import RunProgress
from benchctl.measure.recording import attestation_record, cell_error, must_hold, now
from benchctl.prompts.suite import PromptItem
from benchctl.recipes.schema import Recipe, Sampling

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
    """Whether there is only one answer, and so no distribution to check."""
    return sampling.temperature == 0 or sampling.top_k == 1


def sampled_recipe(recipe: Recipe, plan: CheckPlan, arms: Sequence[str] = ()) -> Recipe:
    """Return the recipe as the check runs it: sampled, short answers, the baseline first; `arms` limits the others.

    Of a recipe with several conditions the arms of the first, one request at a time.

    A greedy recipe's top-k of 1 would leave one token to choose from, so with the temperature that replaces its 0 the
    whole vocabulary is open.
    """
    given, greedy = recipe.sampling, is_greedy(recipe.sampling)
    temperature = plan.temperature or (USUAL_TEMPERATURE if greedy else given.temperature)
    changes = {"temperature": temperature, "max_tokens": plan.tokens, "ignore_eos": False}
    if greedy:
        changes |= {"top_k": 0, "top_p": 1.0}
    baseline = recipe.arm(recipe.baseline)
    others = [
        arm
        for arm in recipe.arms
        if arm.condition == baseline.condition and arm.name != baseline.name and (not arms or arm.name in arms)
    ]
    alone = {"of": None, "concurrency": 1, "rate": None, "temperature": None}  # whatever the recipe's conditions are
    drawn = [arm.model_copy(update=alone) for arm in (baseline, *others)]
    return recipe.model_copy(update={"sampling": given.model_copy(update=changes), "blocks": 1, "arms": drawn})


def spread_over_tasks(prompts: Iterable[PromptItem], count: int) -> tuple[PromptItem, ...]:
    """Return `count` prompts, taken from the tasks in turn, in the order of the suite."""
    by_task: dict[str, list[PromptItem]] = {}
    order = list(prompts)
    for item in order:
        by_task.setdefault(item.task, []).append(item)
    turns = [item for turn in itertools.zip_longest(*by_task.values()) for item in turn if item is not None]
    chosen = {(item.task, item.prompt_idx) for item in turns[:count]}
    return tuple(item for item in order if (item.task, item.prompt_idx) in chosen)


def draw_answers(
    server: Server,
    prompts: Sequence[PromptItem],
    sampling: Sampling,
    seeds: Iterator[int],
    count: int,
    asked: Callable[[PromptItem], None] | None = None,
) -> Iterator[tuple[PromptItem, int, Completion | None, tuple[int, ...] | None, str | None]]:
    """Ask every prompt `count` times: yields (prompt, seed, completion, token ids, error), prompts in turn.

    `asked` is called before each request. One that the engine refuses (`http`) is yielded as an error; raises
    EngineError for every other failure.
    """
    rendered: list[Rendered] = [server.render(item.prompt) for item in prompts]
    for _ in range(count):
        for item, prompt in zip(prompts, rendered, strict=True):
            seeded = sampling.model_copy(update={"seed": next(seeds)})
            if asked is not None:
                asked(item)
            try:
                done = server.complete(prompt, seeded)
                ids = done.token_ids
                if ids is None:
                    ids = server.recover_token_ids(prompt, seeded, done)
            except EngineError as failure:
                if failure.kind != "http" or not server.alive():
                    raise
                yield item, seeded.seed, None, None, failure.what
                continue
            yield item, seeded.seed, done, ids, None


def run_check(prepared: Prepared, plan: CheckPlan, parent: Path, progress: RunProgress, command: list[str]) -> Path:
    """Draw all answers into a new folder below `parent`/sampling and return it.

    `prepared` is of a `sampled_recipe`. An engine that fails costs its arm and no other, but for the
    baseline's, with which everything ends. Raises KeyboardInterrupt,
    after which the check says that it was interrupted, and StorageError.
    """
    recipe = prepared.recipe
    prompts = spread_over_tasks(prepared.prompts, plan.prompts)
    asked = {(item.task, item.prompt_idx) for item in prompts}
    manifest = new_manifest(prepared, command)
    manifest.prompts = [one for one in manifest.prompts if (one.task, one.prompt_idx) in asked]
    planned = [arm.name for arm in recipe.arms if arm.name != recipe.baseline]
    settings = SamplingSettings(seeds=plan.seeds, level=plan.level, planned=planned)
    check = SamplingCheck(settings=settings, manifest=manifest)
    folder = parent / FOLDER / manifest.run
    cells = [CellPlan(0, order, arm, prompts * plan.seeds) for order, arm in enumerate(recipe.arms)]
    seeds = itertools.count(recipe.sampling.seed)
    progress.begin(cells)
    try:
        (folder / LOGS).mkdir(parents=True)
        write_check(folder, check)
        with (folder / ANSWERS).open("w", encoding="ascii") as stream:
            for cell in cells:
                progress.cell_started(cell)
                outcome = _draw(prepared, cell, prompts, seeds, plan.seeds, folder, stream, progress)
                stream.flush()
                manifest.cells.append(outcome)
                write_check(folder, check)
                progress.cell_ended(cell, None if outcome.error is None else outcome.error.message)
                if outcome.status == "failed" and cell.arm.name == recipe.baseline:
                    break  # There is nothing to compare the others with.
    except OSError as error:
        raise cannot_write(error, folder) from None
    except BaseException:
        manifest.status, manifest.finished_at = "interrupted", now()
        write_check(folder, check)
        raise
    finally:
        progress.end()
    manifest.status = "failed" if any(cell.status == "failed" for cell in manifest.cells) else "finished"
    manifest.finished_at = now()
    write_check(folder, check)
    return folder


def _draw(
    prepared: Prepared,
    cell: CellPlan,
    prompts: Sequence[PromptItem],
    seeds: Iterator[int],
    count: int,
    folder: Path,
    stream: TextIO,
    progress: RunProgress,
) -> Cell:
    """Run one arm's engine and write its answers."""
    log = folder / LOGS / f"{cell.arm.name}.log"
    outcome = Cell(
        block=0,
        arm=cell.arm.name,
        order=cell.order,
        status="interrupted",
        started_at=now(),
        wall_s=0.0,
        log=f"{LOGS}/{log.name}",
    )
    clock = time.perf_counter()
    server: Server | None = None
    drafted: int | None = None
    try:
        server = prepared.engine.start(prepared.launches[cell.arm.name], log)
        outcome.startup_s = time.perf_counter() - clock
        _attested(server, None, outcome)
        progress.cell_ready(cell)
        drawn = draw_answers(
            server,
            prompts,
            prepared.recipe.sampling,
            seeds,
            count,
            lambda item: progress.asked(cell, item.task, item.prompt_idx),
        )
        for item, seed, done, ids, error in drawn:
            ledger = done.ledger if done else None
            if ledger and ledger.drafted is not None:
                drafted = (drafted or 0) + ledger.drafted
            answer = SampledAnswer(
                arm=cell.arm.name,
                task=item.task,
                prompt_idx=item.prompt_idx,
                seed=seed,
                token_ids=None if ids is None else list(ids),
                drafted=ledger.drafted if ledger else None,
                accepted=ledger.accepted if ledger else None,
                error=error,
            )
            stream.write(answer.model_dump_json() + "\n")
            progress.answered(cell, done)
        _attested(server, drafted, outcome)
        outcome.status = "finished"
    except EngineError as failure:
        outcome.status = "failed"
        outcome.error = cell_error(failure)
    finally:
        if server is not None:
            outcome.exit_status = server.stop()
        outcome.wall_s = time.perf_counter() - clock
    return outcome


def _attested(server: Server, drafted: int | None, cell: Cell) -> None:
    """Judge the engine and keep the evidence. Raises EngineError (`attestation`) when it is not what was asked for."""
    found = server.attest(drafted)
    cell.attestation = attestation_record(found)
    must_hold(found, server)
