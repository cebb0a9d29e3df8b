"""Several requests in flight at a time: a closed loop, or an open loop that sends however many are unanswered.

All of them run on the event loop of the caller. What a request raises ends them all: none is begun any more, `abort`
must end those in flight, and the error is raised once they have ended. So does cancelling.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import resource
import time
from collections.abc import Awaitable, Callable, Sequence
from itertools import accumulate

MOST_IN_FLIGHT = 1024
"""Of an open loop; a request that finds as many unanswered is sent late, and its record has by how much."""

Request = Callable[[], Awaitable[None]]
Abort = Callable[[], object]


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
