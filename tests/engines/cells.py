"""What the engine floor's tests build cells from: arms, recipes, models, and the faults of the scripted server."""

from __future__ import annotations

import asyncio
import itertools
import stat
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from benchctl.engines.base import Completion, Progress, Rendered, Server
from benchctl.engines.common.launched_server import LaunchedServer
from benchctl.engines.common.stream import Answer, AnswerReader
from benchctl.engines.llama_cpp.adapter import LlamaCppSpec
from benchctl.errors import EngineError
from benchctl.models.files import ModelFile, ResolvedModel
from benchctl.recipes.engine_spec import EngineSpec
from benchctl.recipes.schema import Arm, ModelPair, ModelSpec, PromptsSpec, Recipe, Sampling
from benchctl.recipes.speculation import Speculation

HERE = Path(__file__).parent


def resolved(path: Path) -> ResolvedModel:
    """A model as it lies there; its hash plays no part in these tests."""
    return ResolvedModel(str(path), (ModelFile(path, path.stat().st_size if path.is_file() else 0, "0" * 64),))


def recipe_of(*arms: Arm, engine: EngineSpec | None = None, draft: bool = True) -> Recipe:
    """A recipe around `arms`."""
    return Recipe(
        name="test",
        engine=engine or LlamaCppSpec(),
        models=ModelPair(target=ModelSpec(source="t"), draft=ModelSpec(source="d") if draft else None),
        prompts=PromptsSpec(suite="s"),
        arms=list(arms),
    )


def arm_of(type_: Any = None, args: Sequence[str] = (), **keys: Any) -> Arm:
    """An arm; without a type the target alone."""
    return Arm(name="arm", speculation=Speculation(type=type_, **keys) if type_ else None, args=list(args))


def fault(name: str, **variables: str) -> Mapping[str, str]:
    """The environment that has the scripted server misbehave."""
    return {"FAKE_FAULT": name, "FAKE_HELP": str(HERE / "data" / "help_current.txt"), **variables}


def outsider(server: LaunchedServer, headers: Mapping[str, str] | None = None) -> httpx.Client:
    """A client that has nothing to do with benchctl, for the server of a cell; without `headers` it has no key."""
    access = server.access
    assert access is not None and access.socket_path is not None
    assert stat.S_IMODE(access.folder.stat().st_mode) == 0o700
    transport = httpx.HTTPTransport(uds=str(access.socket_path))
    return httpx.Client(
        base_url="http://localhost", transport=transport, headers=httpx.Headers(headers, encoding="utf-8")
    )


def complete(server: Server, prompt: Rendered, sampling: Sampling, on_tokens: Progress | None = None) -> Completion:
    """Ask one thing and wait for the answer."""
    return asyncio.run(server.complete(prompt, sampling, on_tokens))


def at_once(server: Server, prompts: Sequence[Rendered], sampling: Sampling, limit: int = 1024) -> list[Completion]:
    """Send all requests, `limit` at a time."""

    async def together() -> list[Completion]:
        semaphore = asyncio.Semaphore(limit)

        async def one(prompt: Rendered) -> Completion:
            async with semaphore:
                return await server.complete(prompt, sampling)

        return await asyncio.gather(*map(one, prompts))

    return asyncio.run(together())


def stopped_in_flight(server: Server, prompt: Rendered, sampling: Sampling, count: int) -> list[str]:
    """Stop a server with so many requests in flight; return the kinds of the errors that they end with."""

    async def together() -> list[str]:
        requests = [asyncio.ensure_future(server.complete(prompt, sampling)) for _ in range(count)]
        await asyncio.sleep(0.5)
        server.stop()
        ended = await asyncio.wait_for(asyncio.gather(*requests, return_exceptions=True), 20)
        return [failure.kind for failure in ended if isinstance(failure, EngineError)]

    return asyncio.run(together())


def read(
    reader: AnswerReader[Answer],
    chunks: Iterable[bytes],
    *,
    times: Iterable[float] | None = None,
    started: float = 0.0,
    **limits: Any,
) -> Answer | None:
    """Have a reader read a stream whose chunks come at `times`, a second apart unless given."""
    moments = iter(itertools.count(1.0) if times is None else times)
    reader.begin(started, **limits)
    for chunk in chunks:
        reader.feed(chunk, next(moments))
        if reader.over:
            break
    return reader.answer()
