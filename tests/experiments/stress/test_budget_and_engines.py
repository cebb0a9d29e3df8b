"""Time that is up ends a process of the plan; scenarios that an engine cannot be put into are left out or refused."""

from __future__ import annotations

import asyncio
from importlib import import_module
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pytest

from benchctl.engines.base import Completion, Ledger, Rendered
from benchctl.engines.in_use import EngineInUse, ServerInUse
from benchctl.errors import UsageError
from benchctl.experiments.stress.plan import SCENARIOS, USUAL, Request, Turn, Wave
from benchctl.experiments.stress.preparing import StressSettings, inapplicable
from benchctl.experiments.stress.send import Sender
from benchctl.prompts.suite import Prompt
from benchctl.recipes.schema import GREEDY, Sampling


class ScriptedServer:
    """Answers at once, and takes all the time that there is for the third answer."""

    slots = None

    def __init__(self) -> None:
        self.answered = 0
        self.sender: Sender | None = None

    def render(self, prompt: Prompt) -> Rendered:
        return Rendered(prompt.prompt or "", (1, 2))

    def in_use(self, prompt: Rendered, *, cached: bool, slot: int | None = None) -> Rendered:
        return prompt

    def request_of(self, prompt: Rendered, sampling: Sampling, likeliest: int = 0) -> tuple[str, dict[str, Any]]:
        return "/", {}

    def counted(self) -> dict[str, int]:
        return {"running": 2}

    async def complete(self, prompt: Rendered, sampling: Sampling) -> Completion:
        await asyncio.sleep(0)
        self.answered += 1
        if self.answered == 3 and self.sender is not None:
            self.sender.until = 0.0
        return Completion("a", (1,), 1, "length", 2, 0.1, 0.0, 0.1, None, None, Ledger())


@pytest.mark.parametrize("clients", [1, 2])
def test_nothing_is_sent_once_the_time_is_up(clients: int) -> None:
    requests = tuple(Request(id=f"r{i}", unit="p", turns=(Turn(text="Hello."),), tokens=1) for i in range(8))
    server = ScriptedServer()
    sender = server.sender = Sender(cast("ServerInUse", server), GREEDY, True, {})
    asyncio.run(sender.play([Wave(requests=requests[:6], clients=clients), Wave(requests=requests[6:])]))
    assert 3 <= server.answered == len(sender.answers) <= 2 + clients, "what is in flight is answered"
    assert sender.late == 8 - server.answered


def prepared(engine: object) -> Any:
    recipe = SimpleNamespace(arms=[SimpleNamespace(name="arm")])
    return SimpleNamespace(recipe=recipe, setup_of=lambda name: SimpleNamespace(engine=engine))


class OneAtATime:
    unprovoked: ClassVar = {"crowd": "it answers one request at a time"}

    def launch_in_use(self) -> None: ...


def test_a_scenario_that_the_engine_cannot_be_put_into() -> None:
    engine = prepared(OneAtATime())
    assert isinstance(OneAtATime(), EngineInUse)
    assert inapplicable(engine, StressSettings(USUAL)) == {"crowd": "it answers one request at a time"}
    assert inapplicable(engine, StressSettings(("canary",), frozenset({"canary"}))) == {}
    for settings in (StressSettings(("canary", "crowd"), frozenset({"crowd"})), StressSettings(("crowd",))):
        with pytest.raises(UsageError, match="no crowd with this engine: it answers one request"):
            inapplicable(engine, settings)


@pytest.mark.parametrize("kind", ["llama_cpp", "vllm", "transformers", "sglang", "openai"])
def test_every_engine_says_which_scenarios_it_lacks(kind: str) -> None:
    """Names are those of scenarios, the canary is always possible."""
    module = import_module(f"benchctl.engines.{kind}.engine")
    (engine,) = [value for value in vars(module).values() if hasattr(value, "unprovoked")]
    assert {*engine.unprovoked} < {*SCENARIOS} - {"canary"}
    assert not any(reason.endswith(".") for reason in engine.unprovoked.values())
