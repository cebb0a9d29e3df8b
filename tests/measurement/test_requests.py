"""Requests in flight: how many there are at a time, that an open loop does not wait, and that none is left behind."""

from __future__ import annotations

import asyncio
import resource
import time
from functools import partial

import pytest

from benchctl.measurement.requests import (
    MOST_IN_FLIGHT,
    Request,
    allow_connections,
    arrival_times,
    closed_loop,
    open_loop,
)


async def give_way() -> None:
    """Let the event loop do all that it has to do."""
    for _ in range(100):
        await asyncio.sleep(0)


class Door:
    """Requests wait behind it until it opens; it knows who came, and the most at a time.

    It opens when nobody comes any more (`opens`), or when `full` of them wait.
    """

    def __init__(self, full: int | None = None, *, opens: bool = False) -> None:
        self.open = asyncio.Event()
        self._full = full
        self.came: list[int] = []
        self.most = self.waiting = 0
        self._opens = opens

    async def ask(self, number: int) -> None:
        first = not self.came
        self.came.append(number)
        self.waiting += 1
        self.most = max(self.most, self.waiting)
        if self.waiting == self._full:
            self.open.set()
        try:
            if first and self._opens:
                await give_way()
                self.open.set()
            await self.open.wait()
        finally:
            self.waiting -= 1


def test_a_closed_loop_keeps_its_number_in_flight() -> None:
    door = Door(opens=True)
    asyncio.run(closed_loop([partial(door.ask, number) for number in range(12)], 4, door.open.set))
    assert door.most == 4
    assert sorted(door.came) == list(range(12))
    assert door.came[:4] == [0, 1, 2, 3], "in the order of the plan"
    assert door.waiting == 0


def test_an_open_loop_waits_for_no_answer() -> None:
    door = Door(full=20)
    begun = time.perf_counter()
    crowded = asyncio.run(
        open_loop([partial(door.ask, n) for n in range(20)], [begun + 0.005 * n for n in range(20)], door.open.set)
    )
    assert crowded == 0
    assert door.most == 20, "all were sent before the first was answered"


def test_no_request_is_sent_before_it_is_due() -> None:
    sent: list[float] = []
    due = [time.perf_counter() + 0.01 * n for n in range(10)]

    async def note() -> None:
        sent.append(time.perf_counter())

    asyncio.run(open_loop([note] * 10, due, lambda: None))
    assert all(sent_at >= moment for sent_at, moment in zip(sent, due, strict=True))


def test_what_finds_no_room_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchctl.measurement.requests.MOST_IN_FLIGHT", 3)
    door = Door(opens=True)
    assert asyncio.run(open_loop([partial(door.ask, n) for n in range(5)], [0.0] * 5, door.open.set)) == 2
    assert door.most == 3
    assert sorted(door.came) == list(range(5))


@pytest.mark.parametrize("failure", [RuntimeError, KeyboardInterrupt])
def test_a_failure_ends_what_is_in_flight_and_begins_nothing_more(failure: type[BaseException]) -> None:
    door = Door()

    async def fail() -> None:
        raise failure

    requests: list[Request] = [partial(door.ask, 0), fail, *(partial(door.ask, number) for number in range(2, 9))]
    with pytest.raises(failure):
        asyncio.run(closed_loop(requests, 2, door.open.set))
    assert door.open.is_set(), "what was in flight was ended"
    assert len(door.came) < 8
    assert door.waiting == 0


def test_a_cancelled_loop_ends_what_is_in_flight() -> None:
    door = Door()

    async def cancelled() -> None:
        loop = asyncio.ensure_future(closed_loop([partial(door.ask, n) for n in range(6)], 3, door.open.set))
        await give_way()
        loop.cancel()
        await loop

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancelled())
    assert door.came == [0, 1, 2]
    assert (door.open.is_set(), door.waiting) == (True, 0)


def test_a_failure_ends_an_open_loop_before_its_schedule_does() -> None:
    async def fail() -> None:
        raise RuntimeError

    later: list[None] = []

    async def note() -> None:
        later.append(None)

    with pytest.raises(RuntimeError):
        asyncio.run(open_loop([fail, note], [0.0, time.perf_counter() + 3600], lambda: None))
    assert not later


def test_arrivals_are_the_same_for_every_arm_of_a_block() -> None:
    times = arrival_times(2000, 4.0, seed=1, block=0)
    assert times == arrival_times(2000, 4.0, seed=1, block=0)
    assert times == sorted(times)
    assert times[-1] == pytest.approx(500, rel=0.1), "2000 requests at 4 a second"
    assert arrival_times(2000, 4.0, seed=1, block=1) != times
    assert arrival_times(2000, 4.0, seed=2, block=0) != times
    assert arrival_times(3, 8.0, seed=1, block=0) == pytest.approx([due_at / 2 for due_at in times[:3]]), (
        "the same, compressed"
    )


def test_there_is_a_socket_for_every_request() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, soft), hard))
    try:
        allow_connections()
        raised = resource.getrlimit(resource.RLIMIT_NOFILE)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert raised == (4 * MOST_IN_FLIGHT if hard == resource.RLIM_INFINITY else min(4 * MOST_IN_FLIGHT, hard), hard)
