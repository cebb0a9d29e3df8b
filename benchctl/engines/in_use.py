"""An engine as people run it, with caches, slots and crowds: what a stress test needs of an adapter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from benchctl.engines.base import Launch, Rendered, Server
from benchctl.models.files import ResolvedPair
from benchctl.recipes.schema import Arm, Sampling


@runtime_checkable
class EngineInUse(Protocol):
    """An engine that can also be started with its own defaults: caches, slots and batches as people run it."""

    @property
    def unprovoked(self) -> Mapping[str, str]:
        """Scenarios of a stress test that it cannot be put into, and why, each as the end of a sentence."""

    def launch_in_use(self, arm: Arm, models: ResolvedPair) -> Launch:
        """Return the command of a cell without what benchctl sets for its measurement. Raises UsageError."""


Pressure = Literal["slot files", "context shift", "small cache", "preemption"]
"""What an engine is put under by arguments of its own: slots are saved to files, a full context is shifted, one small
cache serves all slots, a small cache has running requests preempted."""
Counted = Literal["cached tokens", "preemptions", "evictions", "rounds", "drafted", "accepted", "running"]
"""What a server counts over all its requests; `running` is how many it is answering now."""


@runtime_checkable
class EngineUnderPressure(EngineInUse, Protocol):
    """An engine that has such arguments."""

    def options_under(self, pressure: Pressure, folder: Path, cells: int) -> tuple[str, ...]:
        """Return what is added to a command of `launch_in_use`. `folder`: for slot files; `cells`: tokens of the cache.

        Raises UsageError where this build lacks it.
        """


@dataclass(frozen=True)
class ListedToken:
    """A generated token with the log probability that its answer gives it."""

    token: int
    logprob: float
    likeliest: Mapping[int, float]
    """The log probabilities of the likeliest tokens that the answer lists beside it, by id."""


@runtime_checkable
class ServerInUse(Server, Protocol):
    """A server whose cache and slots a request can choose."""

    @property
    def slots(self) -> int | None:
        """How many answers it decodes at a time at most; `None` where it does not report that."""

    @property
    def slot_context(self) -> int | None:
        """The tokens of the longest prompt and its answer; `None` where it does not report that."""

    def in_use(self, prompt: Rendered, *, cached: bool, slot: int | None = None) -> Rendered:
        """Return a prompt that is answered with the engine's prompt cache or without it, and in a certain slot."""

    def request_of(self, prompt: Rendered, sampling: Sampling, likeliest: int = 0) -> tuple[str, dict[str, Any]]:
        """Return path and JSON of an unstreamed request for the answer that `complete`, or `listed`, returns."""

    def counted(self) -> Mapping[Counted, int]:
        """Return what its counters or its log report since its start, and only that. Raises EngineError."""

    async def listed(self, prompt: Rendered, sampling: Sampling, likeliest: int) -> list[ListedToken] | None:
        """Answer with the log probabilities of each token and of so many likeliest ones; `None` where benchctl cannot
        read them. Raises EngineError."""


@runtime_checkable
class ServerUnderPressure(ServerInUse, Protocol):
    """A server that answers a request several times, and whose slots can be saved. Every method raises EngineError."""

    def for_several(self, prompt: Rendered, count: int) -> Rendered:
        """Return a prompt that is answered so many times, for `request_of`."""

    async def several(self, prompt: Rendered, sampling: Sampling) -> list[tuple[tuple[int, ...], str]]:
        """Return token ids and text of each answer to a prompt of `for_several`."""

    def slot_request(self, action: Literal["save", "restore"], slot: int, name: str) -> tuple[str, dict[str, Any]]:
        """Return path and JSON of the request that saves a slot to a file, or restores it."""

    async def move_slot(self, action: Literal["save", "restore"], slot: int, name: str) -> int:
        """Do that; return how many tokens were saved or restored."""
