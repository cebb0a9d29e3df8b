"""Sending a process of the plan: waves of requests, each answer kept with what it shows of the server's state."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from benchctl.data.record import sha256_text
from benchctl.engines.base import Completion, Rendered
from benchctl.engines.in_use import ServerInUse, ServerUnderPressure
from benchctl.errors import EngineError
from benchctl.experiments.stress.plan import SCHEMA, Request, Wave, prompt_of
from benchctl.experiments.stress.stored import StressAnswer
from benchctl.recipes.schema import Sampling

LIKELIEST = 5
"""Tokens whose log probabilities are asked for beside each token."""

PREFILL_S = 0.02
"""When a request is cancelled that is to be cancelled before its first token."""


WATCH_S = 0.1
"""Between two looks at how many requests the engine is answering."""


@dataclass
class Sender:
    """Sends requests to a server that has just started."""

    server: ServerInUse
    sampling: Sampling
    raw: bool
    """Whether the suite's prompts are sent as they are, without a chat template."""
    answers: dict[str, StressAnswer]
    """Of the same arm so far; the new ones are added."""
    began: float = 0.0
    """Seconds of `time.perf_counter` that the answers' times are counted from."""
    until: float = math.inf
    """Seconds of `time.perf_counter` from which on nothing more is sent."""
    sent: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """Path and JSON of every request, unstreamed."""
    together: list[int] = field(default_factory=list)
    """How many of these each group has whose requests are sent at the same time."""
    _slots: int = 0
    _pressed: ServerUnderPressure | None = None
    _without_ids: list[tuple[StressAnswer, Rendered, Sampling, Completion]] = field(default_factory=list)
    over: bool = False
    """Whether the engine has ended, or answers no more."""
    late: int = 0
    """Requests that were not sent because the time was up."""
    running: int | None = None
    """The most requests that the engine reported to be answering, where it does."""

    async def play(self, waves: Sequence[Wave]) -> None:
        """Send waves one after the other, as long as the engine lives. Raises EngineError where it cannot render."""
        self._slots = self.server.slots or 0
        self._pressed = self.server if isinstance(self.server, ServerUnderPressure) else None
        for wave in waves:
            if wave.clients == 1:  # a request may be made of the answer before it
                for request in wave.requests:
                    await self._send_all([request], 1)
            else:
                await self._send_all(wave.requests, wave.clients)
        for answer, prompt, sampling, done in self._without_ids:  # now that no state matters any more
            with suppress(EngineError):
                answer.token_ids = self.server.recover_token_ids(prompt, sampling, done)

    async def _send_all(self, requests: Sequence[Request], clients: int) -> None:
        if time.perf_counter() >= self.until:
            self.late += len(requests)
            return
        rendered = [(request, self._rendered(request)) for request in requests] if not self.over else []
        free, earlier = asyncio.Semaphore(clients), len(self.sent)

        async def send(request: Request, prompt: Rendered) -> None:
            async with free:
                late = time.perf_counter() >= self.until
                self.late += late
                answer = None if self.over or late else await self._answer(request, prompt)
                if answer is not None:
                    self.answers[request.id] = answer

        watch = asyncio.create_task(self._watch()) if clients > 1 else None
        await asyncio.gather(*(send(request, prompt) for request, prompt in rendered if prompt is not None))
        if watch is not None:
            watch.cancel()
        count = len(self.sent) - earlier
        self.together += [count] if clients > 1 and count else [1] * count

    async def _watch(self) -> None:
        """Read again and again how many requests the engine is answering, as long as it reports that."""
        with suppress(EngineError):
            while (running := (await asyncio.to_thread(self.server.counted)).get("running")) is not None:
                self.running = max(self.running or 0, running)
                await asyncio.sleep(WATCH_S)

    def _rendered(self, request: Request) -> Rendered | None:
        """Return the prompt of a request; `None` where an answer that it is made of failed."""
        texts = {name: answer.text for name, answer in self.answers.items() if answer.error is None}
        try:
            prompt = prompt_of(request.turns, texts, raw=self.raw)
            added = self.answers[request.half_answer_of].token_ids or () if request.half_answer_of else ()
            stop = self._stop(request, texts)
        except KeyError:
            return None
        if request.by_schema:
            schema = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
            prompt = prompt.model_copy(update={"response_format": schema})
        rendered = self.server.render(prompt)
        if request.drop or request.half_answer_of:
            if not (rendered.token_ids and (added or request.drop)):
                return None  # this server takes texts alone
            ids = (*rendered.token_ids[: len(rendered.token_ids) - request.drop], *added[: len(added) // 2])
            rendered = replace(rendered, text="", token_ids=ids)
        if stop:
            rendered = replace(rendered, settings=rendered.settings | {"stop": [stop]})
        if request.completions > 1:
            if self._pressed is None:
                return None
            rendered = self._pressed.for_several(rendered, request.completions)
        slot = request.slot if request.slot is not None and request.slot < self._slots else None
        return self.server.in_use(rendered, cached=request.cached, slot=slot)

    def _stop(self, request: Request, texts: Mapping[str, str]) -> str | None:
        """Return the stop string of a request; `None` where its answer is too short for one."""
        if request.stop is None:
            return None
        text = texts[request.stop.answer_of]
        start = int(len(text) * request.stop.start)
        return text[start : start + request.stop.length].strip("\ufffd") or None

    async def _answer(self, request: Request, prompt: Rendered) -> StressAnswer | None:
        """Return the answer; `None` where it was to list log probabilities and this server's cannot be read."""
        settings = {"max_tokens": request.tokens, "ignore_eos": request.to_the_limit}
        sampling = self.sampling.model_copy(update=settings)
        restored = await self._restored(request) if request.restores else None
        if isinstance(restored, StressAnswer):
            return restored
        self.sent.append(self.server.request_of(prompt, sampling, LIKELIEST if request.listed else 0))
        sent_at = time.perf_counter()
        sha256 = sha256_text(prompt.text or repr(prompt.token_ids))
        answer = StressAnswer(started_s=sent_at - self.began, prompt_sha256=sha256, prompt=prompt.token_ids)
        answer.restored = restored
        answer.stop = next(iter(prompt.settings.get("stop", ())), None)
        try:
            if request.listed:
                tokens = await self.server.listed(prompt, sampling, LIKELIEST)
                if tokens is None:
                    return None
                answer.token_ids = tuple(token.token for token in tokens)
                answer.listed = tuple(len(token.likeliest) for token in tokens)
                return answer
            if request.completions > 1 and self._pressed is not None:
                answers = await self._pressed.several(prompt, sampling)
                answer.completions = len(answers)
                answer.token_ids, answer.text = answers[-1] if answers else ((), "")
                return answer
            done = await self._completed(request, prompt, sampling, answer)
            if request.saves:
                await self._move_slot("save", request, request.id)
        except EngineError as error:
            answer.error = error.what
            answer.ended = not self.server.alive()
            self.over |= answer.ended or error.kind == "timeout"
            return answer
        if done is None:
            return answer
        first = (done.sent_at or sent_at) - self.began + done.ttft_s
        answer.decoded_s = (first, first + done.decode_s)
        answer.token_ids, answer.text, answer.finish = done.token_ids, done.text, done.finish_reason
        if answer.token_ids is None:
            self._without_ids.append((answer, prompt, sampling, done))
        answer.cached, answer.drafted, answer.accepted = done.cached_tokens, done.ledger.drafted, done.ledger.accepted
        return answer

    async def _restored(self, request: Request) -> int | StressAnswer:
        """Return how many tokens were restored to the request's slot, or the answer that failed with it."""
        started_s = time.perf_counter() - self.began
        try:
            return await self._move_slot("restore", request, request.restores or "")
        except EngineError as error:
            self.over |= not self.server.alive()
            return StressAnswer(started_s=started_s, error=error.what, ended=self.over)

    async def _move_slot(self, action: Literal["save", "restore"], request: Request, name: str) -> int:
        """Save or restore a slot. Raises EngineError."""
        assert self._pressed is not None  # as its engine is an EngineUnderPressure
        slot, file = request.slot or 0, f"{name.replace(' ', '-')}.bin"
        self.sent.append(self._pressed.slot_request(action, slot, file))
        return await self._pressed.move_slot(action, slot, file)

    async def _completed(
        self, request: Request, prompt: Rendered, sampling: Sampling, answer: StressAnswer
    ) -> Completion | None:
        """Return the whole answer; `None` where the request was cancelled before that. Raises EngineError."""
        if request.cancel_after is None:
            return await self.server.complete(prompt, sampling)
        tokens, enough = 0, asyncio.Event()

        def count(received: int) -> None:
            nonlocal tokens
            tokens = received
            if received >= (request.cancel_after or 0):
                enough.set()

        whole = asyncio.create_task(self.server.complete(prompt, sampling, count))
        waiting = asyncio.create_task(enough.wait() if request.cancel_after else asyncio.sleep(PREFILL_S))
        await asyncio.wait({whole, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if whole.done():
            return whole.result()
        whole.cancel()
        with suppress(asyncio.CancelledError):
            await whole
        answer.cancelled = tokens
        return None
