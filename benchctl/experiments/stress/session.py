"""Running a stress test: every process of the plan for the control and for each arm, then scores and short plans.

An engine is started as people run it: with its own caches, slots and batches, and the recipe's arguments on top.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast, get_args

from benchctl.data.writer import LOGS, folder_lock
from benchctl.engines.in_use import Counted, EngineUnderPressure, Pressure, ServerInUse
from benchctl.engines.scoring import Scorer, ScoringEngine
from benchctl.errors import EngineError
from benchctl.experiments.stress.judge import judge_stress
from benchctl.experiments.stress.plan import Plan, ProcessPlan, ScenarioName
from benchctl.experiments.stress.preparing import StressSettings, in_use, inapplicable
from benchctl.experiments.stress.reproduce import reproduce
from benchctl.experiments.stress.scoring import Progress, find_divergences, gap_of, score
from benchctl.experiments.stress.send import Sender
from benchctl.experiments.stress.sizing import measured_plan
from benchctl.experiments.stress.stored import FOLDER, ListedFault, Played, StressTest, write_stress
from benchctl.measurement.cell import fresh_log, running
from benchctl.measurement.manifest import new_manifest
from benchctl.measurement.preflight import engine_faults
from benchctl.measurement.prepare import Prepared
from benchctl.measurement.recording import now
from benchctl.recipes.schema import Sampling

SLOTS = "slots"
"""The folder of slot files within a test's."""
FACTORS = (1.0, 1.5, 2.0)
"""A small cache is enlarged by these, until the control answers everything."""
PLAN_SHARE, SCORING_SHARE = 0.7, 0.85
"""Of the budget: until then requests of the plan are sent, and divergences scored. Short plans have the rest."""
OVERRUN = 2.0
"""A process may take so many times its share of the time that is left, so that every scenario has its turn."""


def stress(
    prepared: Prepared, settings: StressSettings, out: Path, command: list[str], progress: Progress
) -> tuple[Path, StressTest]:
    """Run a stress test of a `stressed_recipe`; return its folder and what was answered.

    Raises EngineError where an engine cannot be started, StorageError, and KeyboardInterrupt, after which what was
    answered is kept.
    """
    used = replace(prepared, launches=in_use(prepared))
    reasons = inapplicable(prepared, settings)
    test = StressTest(
        manifest=new_manifest(used, command),
        plan=Plan(seed=settings.seed, size=0, processes=()),
        faults=[ListedFault(**vars(fault)) for fault in engine_faults(prepared, in_use=True)],
        inapplicable=reasons,
    )
    folder = out / prepared.recipe.name / FOLDER / test.manifest.run
    with folder_lock(folder, "testing here"):
        (folder / LOGS).mkdir(exist_ok=True)
        session = _Session(prepared, used, settings, test, folder, progress)
        try:
            session.run()
        except BaseException as stop:
            session.keep("interrupted" if isinstance(stop, KeyboardInterrupt) else "failed")
            raise
        session.keep("finished")
    return folder, test


class _Session:
    def __init__(
        self,
        prepared: Prepared,
        used: Prepared,
        settings: StressSettings,
        test: StressTest,
        folder: Path,
        progress: Progress,
    ) -> None:
        """`prepared`: as benchctl measures; `used`: the same with the launches of `in_use`."""
        self._prepared, self._used, self._settings, self._test = prepared, used, settings, test
        self._folder, self._progress = folder, progress
        self._began = time.perf_counter()
        self._sampling: Sampling = prepared.recipe.sampling
        self._raw = prepared.suite.kind == "raw"
        self._baseline = prepared.recipe.baseline
        test.played = {name: Played() for name in used.launches}

    def keep(self, status: str) -> None:
        """Store what there is."""
        test = self._test.model_copy(update={"status": status})
        test.manifest.status = "started" if status == "started" else "finished"
        test.manifest.finished_at = None if status == "started" else now()
        self._test.status = test.status
        write_stress(self._folder, test)

    def _left_s(self, share: float = 1.0) -> float:
        """Return the seconds until this share of the budget is spent."""
        return share * self._settings.budget_s - (time.perf_counter() - self._began)

    def run(self) -> None:
        """Measure the noise, send the plan, score what diverges, shorten what fails."""
        self._progress("the noise of the control", 0, 0)
        scenarios = [name for name in self._settings.scenarios if name not in self._test.inapplicable]
        left_s = partial(self._left_s, PLAN_SHARE)
        self._test.plan, cost = measured_plan(
            self._prepared, self._settings, scenarios, self._test, self._started, left_s
        )
        self._startup_s = cost.startup_s
        processes = self._test.plan.processes
        costs = [cost.process_s(process) for process in processes]
        for number, process in enumerate(processes):
            share = min(1.0, OVERRUN * costs[number] / sum(costs[number:]))
            if self._left_s(PLAN_SHARE) <= self._startup_s * len(self._used.launches):
                self._test.skipped.append(process.name)
                continue
            for index, arm in enumerate(self._used.launches):
                self._progress(f"{process.name} of {arm}", number, len(processes))
                self._play(process, arm, len(self._used.launches) - index, share)
            self.keep("started")
        find_divergences(self._test)
        with self._scorer() as target:
            rest = score(self._test, target, lambda: self._left_s(SCORING_SHARE) > 0, self._progress)
            self._test.skipped += [f"{rest} divergences to be scored"] if rest else []
            self.keep("started")
            self._shorten(target)

    @contextmanager
    def _scorer(self) -> Iterator[Scorer | None]:
        """Have the target alone running, where something is to be scored and its logits can be read."""
        setup = self._prepared.of_baseline
        if not any(played.divergences for played in self._test.played.values()):
            yield None
        elif not isinstance(setup.engine, ScoringEngine):
            self._test.unscored = f"benchctl cannot read logits of the engine {setup.capabilities.kind}"
            yield None
        elif self._left_s(SCORING_SHARE) <= self._startup_s:
            self._test.unscored = "the time was spent (raise --budget)"
            yield None
        else:
            log = fresh_log(self._folder, "scored-target")[1]
            try:
                target = setup.engine.start_scorer(self._prepared.launches[self._baseline], log, self._sampling)
            except EngineError as error:
                self._test.unscored = error.what
                yield None
                return
            with running(target, log):
                yield target

    def _shorten(self, target: Scorer | None) -> None:
        """Find the shortest plan for what is wrong, in what is left of the time."""
        wrong = [result for result in judge_stress(self._test) if result.verdict in ("violation", "fails")]
        if any(launch.url is not None for launch in self._used.launches.values()):
            wrong = []  # an endpoint keeps its state, so no attempt would begin as the first did
        for number, result in enumerate(wrong):
            left_s = self._left_s()
            if left_s <= self._startup_s:
                self._test.skipped.append(f"the shortest plan for {result.scenario} of {result.arm}")
                continue
            self._progress(f"the shortest plan for {result.scenario} of {result.arm}", 0, 0)
            shortest = reproduce(
                self._test,
                result,
                partial(self._started, name="short", scenario=result.scenario),
                self._sender,
                lambda answer, divergence: gap_of(self._test, target, answer, divergence),
                time.perf_counter() + left_s / (len(wrong) - number),
            )
            if shortest is not None:
                self._test.reproductions.append(shortest)

    def _started(self, arm: str, name: str, scenario: ScenarioName | None = None) -> ServerInUse:
        """Start an arm's engine. Raises EngineError."""
        launch = self._used.launches[arm]
        added = self._test.options.get(scenario, ()) if scenario else ()
        for file in (self._folder / SLOTS).glob("*.bin"):
            file.unlink()  # a slot is restored from what this process has saved
        _, log = fresh_log(self._folder, f"{name.replace(' ', '-')}-{arm}")
        server = self._used.setup_of(arm).engine.start(replace(launch, argv=(*launch.argv, *added)), log)
        assert isinstance(server, ServerInUse)  # as its engine is an EngineInUse
        return server

    def _sender(self, server: ServerInUse, played: Played, until: float) -> Sender:
        return Sender(server, self._sampling, self._raw, played.answers, self._began, until)

    def _play(self, process: ProcessPlan, arm: str, arms: int, share: float) -> None:
        """Send a process, in this share of what is left, divided among so many arms.

        A small cache is as large as the control needs: see `FACTORS`.
        """
        played, scenario = self._test.played[arm], process.scenario
        small = scenario == "small cache" and arm == self._baseline
        counts: dict[Counted, int] = {}
        for factor in FACTORS if small else FACTORS[:1]:
            if arm == self._baseline and scenario in get_args(Pressure):
                self._put_under(cast("Pressure", scenario), int(factor * (process.cells or 0)), process.cells)
            for member in process.requests:
                played.answers.pop(member.id, None)
            with running(self._started(arm, process.name, scenario)) as server:
                left_s = share * self._left_s(PLAN_SHARE) - self._startup_s * (arms - 1)
                sender = self._sender(server, played, time.perf_counter() + left_s / arms)
                asyncio.run(sender.play(process.waves))
                with suppress(EngineError):  # a server that has ended counts no more
                    counts = {**server.counted()}
            answers = [played.answers.get(member.id) for member in process.requests]
            if all(answer is None or answer.error is None for answer in answers):
                break
        totals = played.counted.setdefault(scenario, {})
        totals |= {name: totals.get(name, 0) + count for name, count in counts.items() if name != "running"}
        if sender.running is not None:
            totals["running"] = max(totals.get("running", 0), sender.running)
        if sender.late:
            unsent = f"{sender.late} of {len(answers)} requests of {process.name} of {arm}"
            self._test.skipped.append(f"{scenario} ({unsent})")

    def _put_under(self, pressure: Pressure, cells: int, bounded: int | None) -> None:
        """Note what is added to the commands of a scenario. Raises UsageError where the engine lacks it."""
        engine = self._used.of_baseline.engine
        assert isinstance(engine, EngineUnderPressure)  # as `stress` has checked
        folder = self._folder.resolve() / SLOTS
        folder.mkdir(exist_ok=True)
        self._test.options[pressure] = engine.options_under(pressure, folder, cells)
        if bounded is not None:
            self._test.contexts[pressure] = cells
