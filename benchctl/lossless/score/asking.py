"""`benchctl verify-lossless --more`: ask further prompts, untimed, until every arm has a verdict or a limit is reached.

A fresh engine of the baseline and of each arm answers them, as in the run; what it answers is evidence for verdicts on
the output alone. Prompts are those of the run's suite that its `limit` left out, then those of the other shipped suites
that have tasks of the same names, or those of a file.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchctl.analysis.asked import Asked, Stop
from benchctl.analysis.output_results import Losslessness
from benchctl.data.identity import home_relative
from benchctl.data.manifest import FurtherPrompt, Manifest
from benchctl.data.pool import facts_of_rounding, without_paths
from benchctl.data.record import Record
from benchctl.data.store import RunData, open_run
from benchctl.data.writer import FurtherWriter
from benchctl.engines.base import Completion
from benchctl.errors import EngineError, StorageError, UsageError
from benchctl.lossless.judge.selection import unchanged_prompts
from benchctl.lossless.score.session import LEAST_S, Request, Verified, verify
from benchctl.machine.describe import describe_machine
from benchctl.measurement.plan import CellPlan, by_turns
from benchctl.measurement.prepare import Prepared, files_of
from benchctl.measurement.progress import RunProgress, shown_steps
from benchctl.measurement.requests import MeasuredCell
from benchctl.measurement.resume import must_be_unchanged, prepare_again
from benchctl.measurement.run import context_of, signals_interrupt
from benchctl.measurement.runner import Runner
from benchctl.paths import shipped_folder
from benchctl.prompts.load import Suite, load_suite, prompt_sha256
from benchctl.prompts.suite import PromptItem
from benchctl.recipes.adapters import adapter_of
from benchctl.text import listed

STEP, GROWTH = 8, 4
"""Prompts that are asked before the first further verdict, and how many times as many each time after that: every
verdict lowers the level of the next (`tests_after`), so that there are few."""
READ_AGAIN = 2.0
"""Asking and replaying an answer takes about so many times as long as asking it."""

Key = tuple[str, int]
"""(task, prompt_idx)."""
_Answers = dict[str, dict[Key, Record]]
"""By arm and prompt."""
Show = Callable[[str, int, int], None]


@dataclass(frozen=True)
class AskingLimits:
    """When asking ends at the latest."""

    budget_s: float
    prompts: str | None = None
    """A prompts file; `None`: the run's own suite, then the shipped ones."""


def verify_more(run: RunData, request: Request, limits: AskingLimits) -> tuple[RunData, Verified, Asked]:
    """Verify a run, and ask further prompts for as long as an arm is open: those of `request.arms` while no violation
    is found, or else every arm that is undetermined.

    Returns the run as it then is. Raises UsageError where engine, models, prompts or machine are not the run's,
    EngineError where an engine fails while it answers, and StorageError.
    """
    until, asker, size = time.monotonic() + limits.budget_s, _Asker(run, request, limits), STEP
    asked_arms, suites = dict[str, None](), Counter[str]()
    while True:
        seconds = max(LEAST_S, until - time.monotonic())
        budget_min = seconds / 60 if request.budget_min is None else request.budget_min
        verified = verify(run, replace(request, budget_min=budget_min))
        run = open_run(run.folder)  # whose manifest has the SHA-256 of the scores
        arms = open_arms(verified.verdicts, named=bool(request.arms))
        lacking = asker.lacking(run, arms) if arms else []
        fitting = int((until - time.monotonic()) / asker.seconds_a_prompt(run, arms)) if arms else 0
        stopped = _why_stopped(verified, arms, lacking, fitting)
        if stopped is not None:
            return run, verified, Asked(arms=[*asked_arms], suites=dict(suites), stopped=stopped)
        prompts = lacking[: min(size, fitting)]
        asker.ask(run, arms, prompts, quiet=request.quiet)
        asked_arms |= dict.fromkeys(arms)
        suites.update(Path(prompt.identity.suite).name for prompt in prompts)
        run, size = open_run(run.folder), GROWTH * size


def _why_stopped(verified: Verified, arms: Sequence[str], lacking: Sequence[_Prompt], fitting: int) -> Stop | None:
    """Return why nothing more is asked of `arms`; `lacking`: what could be, `fitting`: how much time is left for."""
    if not arms or verified.failure is not None:
        undecided = any(row.verdict == "undetermined" for row in verified.verdicts)
        return "useless" if undecided else "decided"
    if not lacking:
        return "prompts"
    return "budget" if fitting < 1 else None


def open_arms(verdicts: Sequence[Losslessness], *, named: bool) -> list[str]:
    """Return the arms that are asked more. `named`: the user asks for more evidence on all of them.

    An arm with a prompt that could not be determined stays undetermined, whatever other prompts show.
    """
    if named:
        return [row.arm for row in verdicts if row.verdict != "violation" and row.comparisons]
    undetermined = [row for row in verdicts if row.verdict == "undetermined" and row.comparisons]
    return [row.arm for row in undetermined if all(prompt.outcome != "undetermined" for prompt in row.comparisons)]


@dataclass(frozen=True)
class _Prompt:
    """A prompt that may be asked, as the manifest names it and as it is sent."""

    identity: FurtherPrompt
    item: PromptItem

    @property
    def key(self) -> Key:
        return self.identity.task, self.identity.prompt_idx


class _Asker:
    """What asks: the run's recipe prepared again, and the prompts that there are."""

    def __init__(self, run: RunData, request: Request, limits: AskingLimits) -> None:
        """Raises as `verify_more`."""
        manifest = run.manifest
        where = str(run.folder)
        if manifest is None or manifest.machines:
            problem = "Further prompts are asked on the machine that measured a run, and it has none or several."
            raise UsageError(problem, where=where, fix="Run the recipe again with more prompts.")
        if not adapter_of(manifest.engine.kind).launched:
            problem = "Further prompts need a fresh engine, and this run's is an endpoint that ran already."
            raise UsageError(problem, where=where, fix="Run the recipe again with more prompts.")
        if run.integrity.damage:
            fix = "Restore it from a copy, or run the recipe again."
            raise StorageError(run.integrity.damage[0], where=where, fix=fix)
        self.prepared = prepare_again(
            run, binary=request.binary, models_dir=request.models_dir, trusted=request.trusted
        )
        must_be_unchanged(self.prepared, manifest, run.folder)
        if changed := _changed(self.prepared, manifest):
            problem = f"Since this run was made, {listed(changed)} changed, and with it how answers are rounded."
            raise UsageError(problem, where=where, fix="Run the recipe again with more prompts.")
        self.baseline_of = {name: arm.baseline for name, arm in manifest.compared().items()}
        self.prompts = list(_prompts(self.prepared, manifest, limits.prompts))

    def cells_of(self, arms: Sequence[str]) -> list[str]:
        """Return the baselines of some arms, then the arms."""
        return list(dict.fromkeys([*(self.baseline_of[arm] for arm in arms), *arms]))

    def left(self, answers: _Answers, name: str, prompts: Sequence[_Prompt]) -> list[_Prompt]:
        """Return the prompts that an arm was not asked, those left out that its baseline could not answer."""
        answered, of_baseline = answers.get(name, {}), answers.get(self.baseline_of[name], {})
        refused = {key for key, record in of_baseline.items() if record.error is not None}
        return [prompt for prompt in prompts if prompt.key not in answered and prompt.key not in refused]

    def lacking(self, run: RunData, arms: Sequence[str]) -> list[_Prompt]:
        """Return the prompts that any of these arms or its baseline was not asked, in order."""
        answers = _by_arm(run.further)
        keys = {prompt.key for name in self.cells_of(arms) for prompt in self.left(answers, name, self.prompts)}
        return [prompt for prompt in self.prompts if prompt.key in keys]

    def seconds_a_prompt(self, run: RunData, arms: Sequence[str]) -> float:
        """Return about how long a prompt takes, by the run's own answers, replaying among it."""
        total = 0.0
        for arm in self.cells_of(arms):
            seconds = [record.e2e_s for record in run.records if record.label == arm and record.e2e_s]
            total += sum(seconds) / len(seconds) if seconds else 1.0
        return READ_AGAIN * total

    def ask(self, run: RunData, arms: Sequence[str], prompts: Sequence[_Prompt], *, quiet: bool) -> None:
        """Have the baselines and then each arm answer what they were not asked. Raises EngineError, StorageError."""
        manifest, prepared, names = run.manifest, self.prepared, self.cells_of(arms)
        assert manifest is not None, "checked when this was made"
        with (
            signals_interrupt(),
            FurtherWriter(run.folder, manifest) as writer,
            shown_steps("Asking", quiet=quiet) as show,
        ):
            known = {(prompt.task, prompt.prompt_idx) for prompt in writer.further.prompts}
            writer.further.prompts += [prompt.identity for prompt in prompts if prompt.key not in known]
            writer.save()
            asked = [cell.block for cell in writer.further.cells] + [record.block for record in run.further]
            block = max([1, manifest.blocks, *(earlier + 1 for earlier in asked)])
            progress = _Steps(show, len(prompts) * len(names))
            text = context_of(prepared.recipe, prepared.recipe_folder)
            runner = Runner(
                prepared.recipe, prepared.engines, prepared.launches, writer, files_of(prepared), {}, _UntimedCell,
                context_text=text,
            )  # fmt: skip
            for order, name in enumerate(names):
                answers = _by_arm(open_run(run.folder, check=False).further)
                items = tuple(prompt.item for prompt in self.left(answers, name, prompts))
                if not items:
                    continue
                arm = prepared.recipe.arm(name)
                runner.run([CellPlan(block, order, arm, items, prepared.recipe.group_of(arm))], progress)
                if (error := writer.cells[-1].error) is not None:
                    problem = f"{name} failed while it answered further prompts: {error.message}"
                    where, tail = str(run.folder), tuple(error.log_tail)
                    raise EngineError(problem, kind=error.kind, where=where, log_tail=tail)


class _UntimedCell(MeasuredCell):
    """A cell whose times count for nothing, so that no disturbance matters."""

    def disturbance(self) -> str | None:
        """Return that nothing disturbed it."""
        return None


class _Steps(RunProgress):
    """Shows which prompt an arm is asked."""

    def __init__(self, show: Show, total: int) -> None:
        super().__init__()
        self._show, self._done, self._all = show, 0, total

    def request_sent(self, cell: CellPlan, task: str, prompt_idx: int) -> None:
        """Show what is asked."""
        self._show(f"{cell.arm.name}, {task}/{prompt_idx}", self._done, self._all)

    def answered(self, cell: CellPlan, completion: Completion | None) -> None:
        """Count it."""
        self._done += 1


def _by_arm(records: Sequence[Record]) -> _Answers:
    """Return the answers, failed ones among them, by arm and prompt."""
    answers: _Answers = {}
    for record in records:
        if record.phase == "measure":
            answers.setdefault(record.label, {})[record.task, record.prompt_idx] = record
    return answers


def _changed(prepared: Prepared, manifest: Manifest) -> list[str]:
    """Return what is not the run's: the machine, or how an arm is started."""
    changed = [] if facts_of_rounding(describe_machine()) == facts_of_rounding(manifest.machine) else ["the machine"]
    for arm in manifest.arms:
        launch = prepared.launches[arm.name]
        if without_paths(map(home_relative, launch.argv)) != without_paths(arm.argv):
            changed.append(f"the command line of {arm.name}")
    return changed


def _prompts(prepared: Prepared, manifest: Manifest, file: str | None) -> Iterator[_Prompt]:
    """Yield the prompts that may be asked: those that were asked after the run before, then new ones by suite."""
    earlier = manifest.further.prompts if manifest.further else []
    own, folder = prepared.recipe.prompts, prepared.recipe_folder
    unchanged = unchanged_prompts(manifest, own.suite, folder)
    for identity in earlier:
        prompt = unchanged.get((identity.task, identity.prompt_idx))
        if prompt is not None:
            item = PromptItem(task=identity.task, prompt_idx=identity.prompt_idx, prompt=prompt)
            yield _Prompt(identity, item)
    asked = {prompt.sha256 for prompt in (*manifest.prompts, *earlier)}
    for name, suite, prefix in _suites(prepared, manifest, file):
        tasks = own.tasks if not prefix else [*suite.tasks] if file else _same_tasks(suite, manifest)
        for item in by_turns(suite.select(tasks, None)):
            sha256 = prompt_sha256(item.prompt)
            if sha256 in asked or item.prompt.request or item.prompt.calls:
                continue
            asked.add(sha256)
            task = f"{prefix}{item.task}"
            identity = FurtherPrompt(
                task=task, prompt_idx=item.prompt_idx, sha256=sha256, suite=name, suite_task=item.task
            )
            yield _Prompt(identity, item.model_copy(update={"task": task}))


def _suites(prepared: Prepared, manifest: Manifest, file: str | None) -> Iterator[tuple[str, Suite, str]]:
    """Yield the suites with what `load_suite` finds each by, and with what the names of its tasks begin."""
    if file is not None:
        suite = load_suite(file, recipe_folder=Path.cwd())
        path = Path(file).expanduser()
        name = home_relative(path.absolute()) if path.is_file() else file
        yield name, suite, f"{suite.name}-{suite.sha256[:6]}:"
        return
    yield prepared.recipe.prompts.suite, prepared.suite, ""
    for path in sorted(shipped_folder("prompts").glob("*.json")):
        suite = load_suite(path.name, recipe_folder=path.parent)
        if suite.sha256 != prepared.suite.sha256 and suite.kind == manifest.suite.get("kind"):
            yield path.name, suite, f"{suite.name}:"


def _same_tasks(suite: Suite, manifest: Manifest) -> list[str]:
    tasks = {prompt.task for prompt in manifest.prompts}
    return [task for task in suite.tasks if task in tasks]
