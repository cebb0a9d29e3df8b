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
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate

from benchctl.data.record import SCHEMA_VERSION, Phase, Record, RecordError, sha256_tokens
from benchctl.data.writer import RunWriter
from benchctl.engines.base import Completion, Progress, Rendered, Renders, Server
from benchctl.errors import EngineError
from benchctl.measure.cell import CellContext
from benchctl.measure.plan import CellPlan
from benchctl.measure.recording import answer_fields, measured_fields, now
from benchctl.prompts.context import ContextError, fitted
from benchctl.prompts.suite import Prompt, PromptItem
from benchctl.recipes.adapters import SYNTHETIC
from benchctl.recipes.schema import Sampling

MOST_IN_FLIGHT = 1024
"""Of an open loop; a request that finds as many unanswered is sent late, and its record has by how much."""

Request = Callable[[], Awaitable[None]]
Abort = Callable[[], object]

REQUEST_ONLY = frozenset({"http"})
"""Failures that cost a request; every other kind leaves an engine that cannot be relied on for the next."""
OPEN_LOOP_REQUEST_ONLY = REQUEST_ONLY | {"timeout"}
"""An open loop may send more than the engine can answer, and the requests that wait too long are its finding."""

WARMUP_PROMPT = Prompt(prompt="The harbour was quiet that morning, and the boats lay still. One, two, three, four,")
"""Never a prompt of the suite: a drafter that remembers across requests would meet its own answer again."""
WARMUP_TOKENS = 32


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


def _unseen(count: int) -> None:
    """Show nothing of the tokens of a request that is not alone in flight."""


def fitted_for(engine: Renders, prompt: Prompt, length: int, text: str) -> Prompt:
    """Return the prompt in `length` tokens, as `engine` counts them. Raises ContextError, EngineError."""

    def count(prompt: Prompt) -> int:
        tokens = len(engine.render(prompt).token_ids)
        if not tokens:
            raise ContextError("this engine does not report how it tokenizes")
        return tokens

    return fitted(prompt, length, text, count)


class CellRequests:
    """The requests of a process of a cell, and their results so far."""

    def __init__(self, server: Server, plan: CellPlan, attempt: int, context: CellContext) -> None:
        writer, recipe = context.writer, context.recipe
        assert isinstance(writer, RunWriter)
        self.answers = 0
        """Measured requests that ended well."""
        self.drafted: int | None = None
        """Tokens drafted in all answers, warm-ups included; `None` while the engine reports none."""
        self.failures: list[RecordError] = []
        self._server = server
        self._plan = plan
        self._attempt = attempt
        self._context_text = context.context_text
        self._warmups = recipe.warmup
        self._sampling = recipe.sampling_of(plan.arm)
        self._writer = writer
        self._progress = context.progress
        arms = {arm.name: arm.lossy for arm in writer.manifest.arms}
        self._synthetic = SYNTHETIC in arms.get(plan.arm.name, ())
        self._without_ids: list[tuple[Record, Rendered, Completion]] = []
        self._began: float | None = None
        self._over = False
        self._crashed = False

    def warm_up(self) -> None:
        """Send requests that are not measured."""
        for number in range(self._warmups):
            record = self._record("warmup", number, self._plan.order, "warmup")
            rendered, completion = warm_up(self._server, self._sampling)
            self._count(completion)
            prompt = {"prompt_sha": rendered.sha256}
            self._writer.append(record.changed(**measured_fields(completion) | prompt))  # as evidence, without its text

    def send(self, item: PromptItem, order: int) -> None:
        """Measure a prompt. Raises EngineError when the engine cannot be relied on any more."""
        request = self._prepared(item, order)
        if request is not None:
            asyncio.run(self._measure(request, self._begin(), None, self._progress.tokens))

    def send_overlapping(self, items: Sequence[PromptItem], order: int) -> None:
        """Measure prompts with several in flight, by the arm's condition; raises as `send`, with none left in flight.

        Prompts are rendered before the first is sent, so that the server has nothing to do but answer.
        """
        arm = self._plan.arm
        prepared = [request for item in items if (request := self._prepared(item, order)) is not None]
        began = self._begin()
        if arm.rate is None:
            requests = [partial(self._measure, request, began, None, _unseen) for request in prepared]
            asyncio.run(closed_loop(requests, arm.concurrency, self._abort))
            return
        seed, block = self._sampling.seed, self._plan.block
        due = [began + at for at in arrival_times(len(prepared), arm.rate, seed, block)]
        timed = zip(prepared, due, strict=True)
        requests = [partial(self._measure, request, began, at, _unseen) for request, at in timed]
        crowded = asyncio.run(open_loop(requests, due, self._abort))
        if crowded:
            message = f"{self._plan.name}: {crowded} requests were sent late, with {MOST_IN_FLIGHT} still in flight."
            self._writer.manifest.warnings.append(message)
            self._progress.note(f"warning: {message}")

    def recover(self) -> None:
        """Fetch token ids that streams lacked, once nothing is timed any more; a second line replaces the record."""
        for record, rendered, completion in self._without_ids:
            ids = self._server.recover_token_ids(rendered, self._sampling, completion)
            if ids is not None:
                fields = {"token_ids": list(ids), "token_sha": sha256_tokens(ids), "token_gap": None}
                self._writer.append(record.changed(**fields))

    def _begin(self) -> float:
        """Return when the measuring of this cell began: now, the first time."""
        self._began = time.perf_counter() if self._began is None else self._began
        return self._began

    def _prepared(self, item: PromptItem, order: int) -> _Request | None:
        """Render a prompt; `None` when the engine refused it, which is then recorded."""
        record = self._record(item.task, item.prompt_idx, order, "measure")
        try:
            rendered = self._server.render(self._fitted(item.prompt))
        except EngineError as failure:
            self._fail(record, failure)
            return None
        return _Request(record.changed(prompt_sha=rendered.sha256), rendered)

    def _fitted(self, prompt: Prompt) -> Prompt:
        """Return the prompt in the length of the arm's condition. Raises EngineError (of this request)."""
        if self._plan.arm.context_length is None:
            return prompt
        try:
            return fitted_for(self._server, prompt, self._plan.arm.context_length, self._context_text)
        except ContextError as error:
            raise EngineError(f"The prompt cannot be measured at this context length: {error}.", kind="http") from None

    async def _measure(self, request: _Request, began: float, due: float | None, on_tokens: Progress) -> None:
        """Send a request, wait for its answer and keep it. `began`, `due`: seconds of `time.perf_counter`.

        One that is cancelled because the cell is over was not measured, and a resumed run sends it again.
        """
        self._progress.request_sent(self._plan, request.record.task, request.record.prompt_idx)
        record, sent = request.record.changed(started_at=now()), time.perf_counter()
        try:
            completion = await self._server.complete(request.prompt, self._sampling, on_tokens)
        except EngineError as failure:
            late = 0.0 if due is None else max(0.0, sent - due)
            self._fail(record.changed(sent_s=sent - late - began, late_s=late), failure)
            return
        sent = sent if completion.sent_at is None else completion.sent_at
        late = 0.0 if due is None else max(0.0, sent - due)
        if late:
            completion = replace(completion, ttft_s=completion.ttft_s + late, e2e_s=completion.e2e_s + late)
        timing = {"sent_s": sent - late - began, "late_s": late}
        record = record.changed(**timing, **measured_fields(completion), **answer_fields(completion))
        self._writer.append(record)
        self._count(completion)
        self.answers += 1
        if completion.token_gap is not None:
            self._without_ids.append((record, request.prompt, completion))
        self._progress.answered(self._plan, completion)

    def _fail(self, record: Record, failure: EngineError) -> None:
        """Record a failed request; raise when it leaves an engine that cannot be relied on."""
        if self._over and not self._crashed:
            return  # its connection broke because the cell is over: not measured
        self._crashed = self._crashed or failure.kind == "crash"
        error = RecordError(kind=failure.kind, message=failure.what)
        self._writer.append(record.changed(error=error))
        self.failures.append(error)
        self._progress.answered(self._plan, None)
        harmless = REQUEST_ONLY if self._plan.arm.rate is None else OPEN_LOOP_REQUEST_ONLY
        if failure.kind not in harmless or not self._server.alive():
            raise failure

    def _abort(self) -> None:
        """End what is in flight, with the engine."""
        self._over = True
        self._server.stop()

    def _count(self, completion: Completion) -> None:
        if completion.ledger.drafted is not None:
            self.drafted = (self.drafted or 0) + completion.ledger.drafted

    def _record(self, task: str, prompt_idx: int, order: int, phase: Phase) -> Record:
        return Record(
            label=self._plan.arm.name,
            task=task,
            prompt_idx=prompt_idx,
            rep=self._plan.block,
            schema_version=SCHEMA_VERSION,
            run=self._writer.manifest.run,
            block=self._plan.block,
            order=order,
            attempt=self._attempt,
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
    flight, waiting = _Flight(abort), iter(requests)

    async def one_after_the_other() -> None:
        for request in waiting:
            if flight.broken.is_set():
                break
            await request()

    async with flight:
        for _ in range(min(width, len(requests))):
            flight.begin(one_after_the_other())


async def open_loop(requests: Sequence[Request], due: Sequence[float], abort: Abort) -> int:
    """Begin every request when it is due, however many are unanswered. `due`: seconds of `time.perf_counter`.

    Returns how many found `MOST_IN_FLIGHT` unanswered, and so had to wait.
    """
    crowded, flight, free_slots = 0, _Flight(abort), asyncio.Semaphore(MOST_IN_FLIGHT)

    async def when_a_slot_is_free(request: Request) -> None:
        async with free_slots:
            if not flight.broken.is_set():
                await request()

    async with flight:
        for request, at in zip(requests, due, strict=True):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(flight.broken.wait(), max(0.0, at - time.perf_counter()))
            if flight.broken.is_set():
                break
            flight.begin(when_a_slot_is_free(request))
            crowded += flight.unanswered > MOST_IN_FLIGHT
    return crowded


class _Flight:
    """What is in flight: leaving waits for all of it, and raises what the first that failed raised."""

    def __init__(self, abort: Abort) -> None:
        self.broken = asyncio.Event()
        """Set by the first that fails."""
        self.unanswered = 0
        self._abort = abort
        self._begun: list[asyncio.Task[None]] = []
        self._failure: BaseException | None = None

    def begin(self, request: Awaitable[None]) -> None:
        self._begun.append(asyncio.ensure_future(request))
        self._begun[-1].add_done_callback(self._on_end)
        self.unanswered += 1

    def _on_end(self, task: asyncio.Task[None]) -> None:
        self.unanswered -= 1
        if not task.cancelled() and (failure := task.exception()) is not None:
            self._failure = self._failure or failure
            self.broken.set()

    async def __aenter__(self) -> None:
        return None

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: object) -> None:
        try:
            if value is None and self._begun:
                await asyncio.wait(self._begun, return_when=asyncio.FIRST_EXCEPTION)
        except asyncio.CancelledError as cancelled:
            value = cancelled
            raise
        finally:
            if value is not None:
                for task in self._begun:
                    task.cancel()
            if value is not None or self._failure is not None:
                self._abort()
            await asyncio.gather(*self._begun, return_exceptions=True)
        if value is None and self._failure is not None:
            raise self._failure


def arrival_times(count: int, rate: float, seed: int, block: int) -> list[float]:
    """Return when each of `count` requests is due, in seconds: a Poisson process of `rate` requests a second.

    Seed and block alone decide the pattern: every arm of a block meets the same pattern, another block another, and at
    another rate it is stretched.
    """
    gaps = random.Random(f"arrivals {seed} {block}")  # noqa: S311 - nothing here is secret
    return list(accumulate(gaps.expovariate(1.0) / rate for _ in range(count)))
