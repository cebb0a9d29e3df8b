"""The requests of a cell, sent and recorded: each record is safe on disk the moment its answer ends.

One request at a time, or several where the arm's condition says so: a closed loop, or an open loop that sends however
many are unanswered. All run on the caller's event loop. What a request raises ends them: none is begun any more,
`abort` must end those in flight, and the error is raised once they have ended. So does cancelling. In an open loop the
times of a record count from when its request was due, so that a server that stalls cannot hide how long the requests
behind the stall waited ("coordinated omission").
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import resource
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate

from benchctl.analysis.steadiness import SHORTEST_PAUSE_S, find_pauses, never_steady, warm_up_ended
from benchctl.data.counts import refusal
from benchctl.data.record import SCHEMA_VERSION, Phase, Record, RecordError, sha256_tokens
from benchctl.data.writer import RunWriter
from benchctl.engines.base import Completion, LaunchedProcess, Progress, Rendered, Renders, Server
from benchctl.errors import EngineError
from benchctl.measurement.canary import ask_again, is_greedy
from benchctl.measurement.cell import CellContext, EngineCell
from benchctl.measurement.plan import CellPlan
from benchctl.measurement.recording import answer_fields, measured_fields, now
from benchctl.prompts.context import ContextError, with_length
from benchctl.prompts.suite import Prompt, PromptItem
from benchctl.recipes.adapters import SYNTHETIC, repeats
from benchctl.recipes.schema import Sampling
from benchctl.text import spoken
from benchctl.words.warnings import unsteady_warm_up

MOST_IN_FLIGHT = 1024
"""Most requests in flight in an open loop. Further ones are sent late, and their records say by how much."""

Request = Callable[[], Awaitable[None]]
Abort = Callable[[], object]

REQUEST_ONLY = frozenset({"http"})
"""Failures that cost a request; every other kind leaves an engine that cannot be relied on for the next."""
OPEN_LOOP_REQUEST_ONLY = REQUEST_ONLY | {"timeout"}
"""An open loop may send more than the engine can answer, and the requests that wait too long are its finding."""

WARMUP_PROMPT = Prompt(prompt="The harbour was quiet that morning, and the boats lay still. One, two, three, four,")
"""Never a prompt of the suite: a drafter that remembers across requests would meet its own answer again."""
WARMUP_TOKENS = 16


def as_warm_up(sampling: Sampling) -> Sampling:
    """Return the same sampling with an answer of a warm-up's length at most."""
    return sampling.model_copy(update={"max_tokens": min(sampling.max_tokens, WARMUP_TOKENS)})


def warm_up(server: Server, sampling: Sampling) -> tuple[Rendered, Completion]:
    """Have a server answer what is not measured. Raises EngineError."""
    rendered = server.render(WARMUP_PROMPT)
    return rendered, asyncio.run(server.complete(rendered, as_warm_up(sampling)))


@dataclass(frozen=True)
class _Request:
    """A request: the fields of its record that are set before it is sent, and the prompt as the model gets it."""

    record: Record
    prompt: Rendered
    sampling: Sampling


def render(engine: Renders, prompt: Prompt, length: int | None, text: str) -> Rendered:
    """Render a prompt, in `length` tokens as `engine` counts them where that is given: `text` pads it.

    Raises EngineError, of this request alone where it cannot have that length.
    """

    def count(prompt: Prompt) -> int:
        tokens = len(engine.render(prompt).token_ids)
        if not tokens:
            raise ContextError("this engine does not report how it tokenizes")
        return tokens

    try:
        rendered = engine.render(prompt if length is None else with_length(prompt, length, text, count))
        return replace(rendered, sampling=prompt.sampling) if prompt.sampling else rendered
    except ContextError as error:
        raise EngineError(f"The prompt cannot have this context length: {error}.", kind="http") from None


class MeasuredCell(EngineCell):
    """A cell whose answers are records of the run."""

    def __init__(self, plan: CellPlan, context: CellContext) -> None:
        super().__init__(plan, context)
        assert isinstance(context.writer, RunWriter)
        self._writer = context.writer
        self._sampling = context.recipe.sampling_of(plan.arm)
        lossy = {arm.name: arm.lossy for arm in context.writer.manifest.arms}
        self._synthetic = SYNTHETIC in lossy.get(plan.arm.name, ())
        self._drafted: int | None = None
        """Tokens drafted in all answers, warm-ups included; `None` while the engine reports none."""
        self._records: list[Record] = []
        """The records of this process, without texts and token ids."""
        self._first: tuple[Record, Rendered, Sampling] | None = None
        """Its first answer."""
        self._without_ids: list[tuple[Record, Rendered, Sampling, Completion]] = []
        self._began = 0.0
        """When its first request was about to be sent, in seconds of `time.perf_counter`; 0 before."""
        self._aborted = self._crashed = False

    def prepare(self, server: Server) -> None:
        """Send requests that are not measured."""
        self._server = server
        requests, seconds = self.context.recipe.warmup, list[float]()
        while not warm_up_ended(seconds) if requests is None else len(seconds) < requests:
            record = self._record("warmup", len(seconds), self.plan.order, "warmup")
            rendered, completion = warm_up(server, self._sampling)
            self._count(completion)
            prompt = {"prompt_sha": rendered.sha256}
            self._append(record.changed(**measured_fields(completion) | prompt))  # as evidence, without its text
            seconds.append(completion.e2e_s)
        if never_steady(seconds):
            self.context.progress.note(f"warning: {self.plan.name}: {unsteady_warm_up(seconds)}.")

    def measure(self) -> None:
        """Measure every prompt of the plan, one at a time or by the arm's condition."""
        if not self.plan.arm.overlapping:
            for item in self.plan.prompts:
                self.measure_one(item, self.plan.order)
        elif self.ready and not self.over and self.plan.prompts:
            with self.failing_alone():
                self._measure_overlapping()

    def measure_one(self, item: PromptItem, order: int) -> None:
        """Measure a prompt; `order`: the arm's turn, as recorded."""
        with self.failing_alone():
            if self.ready and not self.over and (request := self._prepared(item, order)) is not None:
                self._began = self._began or time.perf_counter()
                asyncio.run(self._measure(request, on_tokens=self.context.progress.tokens))

    def _measure_overlapping(self) -> None:
        """Measure all prompts with several in flight; what it raises leaves none in flight.

        Prompts are rendered before the first is sent, so that the server has nothing to do but answer.
        """
        plan, arm = self.plan, self.plan.arm
        prepared = [rendered for item in plan.prompts if (rendered := self._prepared(item, plan.order)) is not None]
        self._began = time.perf_counter()
        if arm.rate is None:
            asyncio.run(
                closed_loop(
                    [partial(self._measure, prepared_request) for prepared_request in prepared],
                    arm.concurrency,
                    self._abort,
                )
            )
            return
        arrivals = arrival_times(len(prepared), arm.rate, self._sampling.seed, plan.block)
        due = [self._began + arrival for arrival in arrivals]
        requests = [partial(self._measure, request, arrival) for request, arrival in zip(prepared, due, strict=True)]
        crowded = asyncio.run(open_loop(requests, due, self._abort))
        if crowded:
            message = f"{plan.name}: {crowded} requests were sent late, with {MOST_IN_FLIGHT} still in flight."
            self._writer.manifest.warnings.append(message)
            self.context.progress.note(f"warning: {message}")

    def disturbance(self) -> str | None:
        """Return in words that the machine was suspended, or which answers paused."""
        watch = self.watch.disturbance if self.watch else None
        if watch and watch.suspended_s and watch.suspended_s >= SHORTEST_PAUSE_S:
            return f"the machine was suspended for {spoken(watch.suspended_s)}"
        pauses = find_pauses(self._records, overlapping=self.plan.arm.overlapping)
        return f"it paused for {'; '.join(map(str, pauses))}" if pauses else None

    def complete(self, server: Server) -> int | None:
        """Fetch token ids that streams lacked, once nothing is timed any more; a second line replaces the record."""
        for record, rendered, sampling, completion in self._without_ids:
            ids = server.recover_token_ids(rendered, sampling, completion)
            if ids is not None:
                fields = {"token_ids": list(ids), "token_sha": sha256_tokens(ids), "token_gap": None}
                self._writer.append(record.changed(**fields))
        self._ask_first_again(server)
        return self._drafted

    def _ask_first_again(self, server: Server) -> None:
        arm = self.plan.arm
        if self._first is None or self.answers < 2 or arm.overlapping or not isinstance(server, LaunchedProcess):
            return
        engine, types = self.context.recipe.parts[arm.setup].engine, arm.speculation.types if arm.speculation else ()
        exact = is_greedy(self._sampling) and repeats(engine, types)
        self.stored.canary, completion = ask_again(server, *self._first, exact=exact, requests=self.answers - 1)
        if completion is not None:
            self._count(completion)

    def _prepared(self, item: PromptItem, order: int) -> _Request | None:
        """Render a prompt; `None` when the engine refused it, which is then recorded."""
        record = self._record(item.task, item.prompt_idx, order, "measure")
        try:
            rendered = render(self._server, item.prompt, self.plan.arm.context_length, self.context.context_text)
        except EngineError as failure:
            self._fail(record, failure)
            return None
        sampling = self._sampling.model_copy(update=rendered.sampling)
        return _Request(record.changed(prompt_sha=rendered.sha256), rendered, sampling)

    async def _measure(self, request: _Request, due: float | None = None, on_tokens: Progress | None = None) -> None:
        """Send a request, wait for its answer and keep it. `due`: seconds of `time.perf_counter`.

        One that is cancelled because the cell is over was not measured, and a resumed run sends it again.
        """
        self.context.progress.request_sent(self.plan, request.record.task, request.record.prompt_idx)
        record, sent = request.record.changed(started_at=now()), time.perf_counter()
        try:
            completion = await self._server.complete(request.prompt, request.sampling, on_tokens)
        except EngineError as failure:
            self._fail(record.changed(**self._sending(sent, due)), failure)
            return
        timing = self._sending(sent if completion.sent_at is None else completion.sent_at, due)
        if late := timing["late_s"]:
            completion = replace(completion, ttft_s=completion.ttft_s + late, e2e_s=completion.e2e_s + late)
        record = record.changed(**timing, **measured_fields(completion), **answer_fields(completion))
        self._append(record)
        self._name_refusal(record)
        self._count(completion)
        self.answers += 1
        self._first = self._first or (record, request.prompt, request.sampling)
        if completion.token_gap is not None:
            self._without_ids.append((record, request.prompt, request.sampling, completion))
        self.context.progress.answered(self.plan, completion)

    def _name_refusal(self, record: Record) -> None:
        """Say at once, and once for an arm, that the analysis will refuse the number of tokens of its answers."""
        if (reason := refusal(record)) is None:
            return
        message = f"Arm {record.label}: an answer has no decode rate, because {reason}."
        if message not in self._writer.manifest.warnings:
            self._writer.manifest.warnings.append(message)
            self.context.progress.note(f"warning: {message}")

    def _sending(self, sent: float, due: float | None) -> dict[str, float]:
        """Return when a request was sent, or was due, and by how much it was late, by the record's keys."""
        late = 0.0 if due is None else max(0.0, sent - due)
        return {"sent_s": sent - late - self._began, "late_s": late}

    def _fail(self, record: Record, failure: EngineError) -> None:
        """Record a failed request; raise when it leaves an engine that cannot be relied on."""
        if self._aborted and not self._crashed:
            return  # its connection broke because the cell is over: not measured
        self._crashed = self._crashed or failure.kind == "crash"
        error = RecordError(kind=failure.kind, message=failure.what)
        self._writer.append(record.changed(error=error))
        self.failures.append(error)
        self.context.progress.answered(self.plan, None)
        harmless = REQUEST_ONLY if self.plan.arm.rate is None else OPEN_LOOP_REQUEST_ONLY
        if failure.kind not in harmless or not self._server.alive():
            raise failure

    def _abort(self) -> None:
        """End what is in flight, with the engine."""
        self._aborted = True
        self._server.stop()

    def _append(self, record: Record) -> None:
        self._writer.append(record)
        self._records.append(record.changed(content=None, token_ids=None))

    def _count(self, completion: Completion) -> None:
        if completion.ledger.drafted is not None:
            self._drafted = (self._drafted or 0) + completion.ledger.drafted

    def _record(self, task: str, prompt_idx: int, order: int, phase: Phase) -> Record:
        return Record(
            label=self.plan.arm.name,
            task=task,
            prompt_idx=prompt_idx,
            rep=self.plan.block,
            schema_version=SCHEMA_VERSION,
            run=self._writer.manifest.run,
            block=self.plan.block,
            order=order,
            attempt=self.stored.attempt,
            phase=phase,
            synthetic=self._synthetic,
            started_at=now(),
        )


def allow_connections() -> None:
    """Let this process, and the engines that it starts, open a socket for every request in flight, where they may.

    A common limit is 1024 files, and beyond it a connection would look broken.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 4 * MOST_IN_FLIGHT
    if soft != resource.RLIM_INFINITY and soft < needed:
        with contextlib.suppress(ValueError, OSError):  # no more than this is allowed here
            resource.setrlimit(
                resource.RLIMIT_NOFILE, (needed if hard == resource.RLIM_INFINITY else min(needed, hard), hard)
            )


async def closed_loop(requests: Sequence[Request], width: int, abort: Abort) -> None:
    """Make the requests in their order, `width` at a time: the next begins when another has ended."""
    waiting = iter(requests)

    async def one_after_the_other(flight: _Flight) -> None:
        for request in waiting:
            if flight.broken.is_set():
                break
            await request()

    async with _flight(abort) as flight:
        for _ in range(min(width, len(requests))):
            flight.begin(one_after_the_other(flight))


async def open_loop(requests: Sequence[Request], due: Sequence[float], abort: Abort) -> int:
    """Begin every request when it is due, however many are unanswered. `due`: seconds of `time.perf_counter`.

    Returns how many found `MOST_IN_FLIGHT` unanswered, and so had to wait.
    """
    crowded, free_slots = 0, asyncio.Semaphore(MOST_IN_FLIGHT)

    async def when_a_slot_is_free(flight: _Flight, request: Request) -> None:
        async with free_slots:
            if not flight.broken.is_set():
                await request()

    async with _flight(abort) as flight:
        for request, due_at in zip(requests, due, strict=True):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(flight.broken.wait(), max(0.0, due_at - time.perf_counter()))
            if flight.broken.is_set():
                break
            flight.begin(when_a_slot_is_free(flight, request))
            crowded += len(flight.unanswered) > MOST_IN_FLIGHT
    return crowded


class _Flight:
    """What is in flight."""

    def __init__(self) -> None:
        self.broken = asyncio.Event()
        """Set by the first that fails."""
        self.failure: BaseException | None = None
        self.unanswered: set[asyncio.Task[None]] = set()

    def begin(self, request: Awaitable[None]) -> None:
        task = asyncio.ensure_future(request)
        self.unanswered.add(task)
        task.add_done_callback(self._on_end)

    def _on_end(self, task: asyncio.Task[None]) -> None:
        self.unanswered.discard(task)
        if not task.cancelled() and (failure := task.exception()) is not None:
            self.failure = self.failure or failure
            self.broken.set()


@contextlib.asynccontextmanager
async def _flight(abort: Abort) -> AsyncIterator[_Flight]:
    """Wait for all that is begun in the block, and raise what the first that failed raised, once all have ended."""
    flight = _Flight()
    try:
        yield flight
        if flight.unanswered and flight.failure is None:
            await asyncio.wait(flight.unanswered, return_when=asyncio.FIRST_EXCEPTION)
    except BaseException:
        for task in flight.unanswered:
            task.cancel()
        abort()
        raise
    else:
        if flight.broken.is_set():
            abort()
    finally:
        await asyncio.gather(*flight.unanswered, return_exceptions=True)
    if flight.failure is not None:
        raise flight.failure


def arrival_times(count: int, rate: float, seed: int, block: int) -> list[float]:
    """Return when each of `count` requests is due, in seconds: a Poisson process of `rate` requests a second.

    Seed and block alone decide the pattern: every arm of a block meets the same pattern, another block another, and at
    another rate it is stretched.
    """
    gaps = random.Random(f"arrivals {seed} {block}")  # noqa: S311 - nothing here is secret
    return list(accumulate(gaps.expovariate(1.0) / rate for _ in range(count)))
