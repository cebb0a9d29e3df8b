"""Several requests in flight at a time: a closed loop, or an open one that sends whatever is still unanswered.

What a request raises ends them all: none is begun any more, `abort` must end those in flight, and the error is raised
once every thread is gone. So does an interrupt.
"""

from __future__ import annotations

import contextlib
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from threading import Event, Lock

MOST_IN_FLIGHT = 1024
"""Threads of an open loop; a request that finds none free is sent late, and its record says how much."""

Request = Callable[[], None]
Abort = Callable[[], object]


def allow_connections() -> None:
    """Let this process, and the engines that it starts, open a socket for every request in flight, where they may.

    A common limit is 1024 files, and beyond it a connection would look broken.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4 * MOST_IN_FLIGHT
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):  # no more than this is allowed here
            resource.setrlimit(
                resource.RLIMIT_NOFILE, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard)
            )


def closed_loop(requests: Sequence[Request], width: int, abort: Abort) -> None:
    """Make the requests in their order, `width` at a time: the next begins when one has ended."""
    with _threads(width, abort) as (begin, _):
        for request in requests:
            begin(request)


def open_loop(requests: Sequence[Request], due: Sequence[float], abort: Abort) -> int:
    """Begin every request when it is due, however many are unanswered. `due`: seconds of `time.perf_counter`.

    Returns how many found `MOST_IN_FLIGHT` unanswered, and so had to wait for a thread.
    """
    crowded = 0
    with _threads(min(MOST_IN_FLIGHT, len(requests)), abort) as (begin, broken):
        for request, at in zip(requests, due, strict=True):
            if broken.wait(max(0.0, at - time.perf_counter())):
                break
            crowded += begin(request) > MOST_IN_FLIGHT
    return crowded


@contextlib.contextmanager
def _threads(width: int, abort: Abort) -> Iterator[tuple[Callable[[Request], int], Event]]:
    """Yield what begins a request (and returns how many have not ended), and an event for the first that failed.

    Leaving waits for them all.
    """
    pool = ThreadPoolExecutor(max(1, width), thread_name_prefix="request")
    begun: list[Future[None]] = []
    broken = Event()
    ended, counting = 0, Lock()

    def unless_broken(request: Request) -> None:
        if not broken.is_set():
            request()

    def look(future: Future[None]) -> None:
        nonlocal ended
        with counting:
            ended += 1
        if not future.cancelled() and future.exception() is not None:
            broken.set()

    def begin(request: Request) -> int:
        begun.append(pool.submit(unless_broken, request))
        begun[-1].add_done_callback(look)
        return len(begun) - ended

    try:
        yield begin, broken
        done = wait(begun, return_when=FIRST_EXCEPTION).done
        for future in begun:
            if future in done:
                future.result()
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        abort()
        raise
    finally:
        pool.shutdown()
