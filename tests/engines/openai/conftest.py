"""Endpoints of the tests: scripted ones, and arms that ask them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import pytest

from benchctl.engines.openai.adapter import OpenAiSpec
from benchctl.engines.openai.engine import OpenAiEngine
from benchctl.engines.openai.server import EndpointServer
from benchctl.models.files import ResolvedModel, ResolvedPair
from benchctl.recipes.schema import Arm
from benchctl.recipes.speculation import Speculation
from tests.engines.openai.fake_endpoint import Script, serving

SPECULATION = Speculation(type="draft-simple", max=4)


def served(name: str = "") -> ResolvedPair:
    """What a recipe's `served:NAME` resolves to."""
    return ResolvedPair(ResolvedModel(f"served:{name}", ()), None)


class Ask(Protocol):
    def __call__(self, script: Script, *, speculation: Speculation | None = None, **engine: Any) -> EndpointServer: ...


@pytest.fixture
def endpoint() -> Iterator[Callable[..., Script]]:
    """Start scripted endpoints, which end with the test."""
    with ExitStack() as stack:
        yield lambda **script: stack.enter_context(serving(Script(**script)))


@pytest.fixture
def ask(tmp_path: Path) -> Iterator[Ask]:
    """Start the cell of an arm at an endpoint."""
    servers: list[EndpointServer] = []

    def start(script: Script, *, speculation: Speculation | None = None, **engine: Any) -> EndpointServer:
        overlapping = engine.pop("concurrency", 1)
        adapter = OpenAiEngine(OpenAiSpec.model_validate({"kind": "openai", "url": script.url} | engine))
        arm = Arm(name="arm", speculation=speculation, concurrency=overlapping)
        servers.append(adapter.start(adapter.launch(arm, served()), tmp_path / f"{len(servers)}.log"))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()
