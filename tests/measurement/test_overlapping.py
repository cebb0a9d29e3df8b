"""Cells with several requests in flight, on an engine that does what the test scripts."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from benchctl.data.record import Record
from benchctl.data.store import open_run
from benchctl.data.writer import RunWriter
from benchctl.engines.base import Completion, Launch, Progress, Rendered
from benchctl.errors import EngineError, StorageError
from benchctl.measurement.plan import make_plan
from benchctl.measurement.progress import RunProgress
from benchctl.measurement.runner import Runner
from benchctl.prompts.suite import Prompt, PromptItem
from benchctl.recipes.schema import Recipe, Sampling
from tests.measurement.toy_engine import ToyEngine, ToyServer, answer


def under(recipe: Recipe, **condition: object) -> Recipe:
    """The recipe with one block of its baseline alone, under a condition."""
    arm = recipe.arms[0].model_copy(update=condition)
    return recipe.model_copy(update={"arms": [arm], "blocks": 1, "warmup": 0})


def asked(count: int) -> list[PromptItem]:
    return [PromptItem(task="code", prompt_idx=index, prompt=Prompt(prompt=f"p{index}")) for index in range(count)]


def execute(engine: ToyEngine, recipe: Recipe, prompts: list[PromptItem], writer: RunWriter) -> list[Record]:
    """Run the plan and return what was measured; no request may be left, whatever happens."""
    launches = {arm.name: Launch(argv=("toy", arm.name), env={}) for arm in recipe.arms}
    try:
        Runner(recipe, engine, launches, writer).run(make_plan(recipe, prompts), RunProgress())
    finally:
        assert not any(server.answering for server in engine.servers)
    return measured(writer.folder)


def measured(folder: Path) -> list[Record]:
    return [record for record in open_run(folder).records if record.phase == "measure"]


class OneSlot(ToyEngine):
    """Answers one request after the other, each in 5 ms, and stalls once for a second."""

    STALL_S = 1.0

    def start(self, launch: Launch, log_path: Path) -> ToyServer:
        self.slot, self.served = asyncio.Lock(), count(1)
        return self.starts(_OneSlotServer(self, launch.argv[1], log_path))


class _OneSlotServer(ToyServer):
    async def complete(self, prompt: Rendered, sampling: Sampling, on_tokens: Progress | None = None) -> Completion:
        assert isinstance(self.engine, OneSlot)
        began = time.perf_counter()
        with self.request():
            async with self.engine.slot:
                await asyncio.sleep(self.engine.STALL_S if next(self.engine.served) == 5 else 0.005)
        passed = time.perf_counter() - began
        return replace(answer(), ttft_s=passed, e2e_s=passed)


def test_a_stall_hides_in_a_closed_loop_and_shows_in_an_open_one(
    recipe: Recipe, writer: RunWriter, tmp_path: Path
) -> None:
    prompts = asked(40)
    closed = execute(OneSlot(), under(recipe), prompts, writer)
    with RunWriter(tmp_path / "open", writer.manifest.model_copy(deep=True)) as second:
        opened = execute(OneSlot(), under(recipe, rate=50.0), prompts, second)
    slow = OneSlot.STALL_S / 2
    # One, and what the machine itself held up: the others were not asked while the server stalled.
    assert 1 <= sum((r.e2e_s or 0) > slow for r in closed) <= 3
    assert sum((r.e2e_s or 0) > slow for r in opened) > 5, "whoever was due during the stall waited for its end"
    assert all(r.late_s == 0 for r in closed)
    assert {len(closed), len(opened)} == {40}


def test_times_of_an_open_loop_count_from_when_a_request_was_due(
    recipe: Recipe, writer: RunWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchctl.measurement.requests.MOST_IN_FLIGHT", 1)  # the second has to wait for the first
    prompts = asked(2)

    async def answers(arm: str, number: int) -> Completion:
        await asyncio.sleep(0.2)
        return answer()

    first, second = execute(ToyEngine(answers=answers), under(recipe, rate=100_000.0), prompts, writer)
    assert second.late_s is not None
    assert second.late_s >= 0.1
    assert second.ttft_s == pytest.approx(0.1 + second.late_s), "the toy's own answer takes 0.1 s to its first token"
    assert second.e2e_s == pytest.approx(0.8 + second.late_s)
    assert second.decode_s == first.decode_s == 0.7
    assert second.sent_s == pytest.approx(first.sent_s, abs=0.01), "both were due at once"
    assert any("sent late" in warning for warning in writer.manifest.warnings)


def test_every_answer_is_a_whole_line_and_none_is_lost(recipe: Recipe, writer: RunWriter) -> None:
    engine = ToyEngine(answers=lambda arm, number: answer("ä" * 5000, drafted=2))
    records = execute(engine, under(recipe, concurrency=8), asked(64), writer)
    assert sorted(record.prompt_idx for record in records) == list(range(64))
    lines = (writer.folder / "records.jsonl").read_bytes().splitlines()
    assert len([Record.from_line(line) for line in lines]) == 64
    assert engine.steps[-2:] == ["baseline: attest(128)", "baseline: stop"], "all 64 answers were counted"
    assert {record.late_s for record in records} == {0.0}


def test_a_refused_request_costs_that_request(recipe: Recipe, writer: RunWriter, folder: Path) -> None:
    def answers(arm: str, number: int) -> Completion:
        if number == 3:
            raise EngineError("Too long.", kind="http")
        return answer()

    records = execute(ToyEngine(answers=answers), under(recipe, concurrency=4), asked(12), writer)
    assert sorted(r.error is None for r in records) == [False, *[True] * 11]
    assert [cell.status for cell in writer.manifest.cells] == ["finished"]


class Held(ToyEngine):
    """Holds every answer until it is stopped, then breaks its connection; one request raises `breaks` before."""

    def __init__(self, breaks: BaseException | None = None) -> None:
        super().__init__()
        self.stopped, self.all_in = asyncio.Event(), asyncio.Barrier(4)
        self.breaks = breaks

    def start(self, launch: Launch, log_path: Path) -> ToyServer:
        return self.starts(_HeldServer(self, launch.argv[1], log_path))


class _HeldServer(ToyServer):
    async def complete(self, prompt: Rendered, sampling: Sampling, on_tokens: Progress | None = None) -> Completion:
        engine = self.engine
        assert isinstance(engine, Held)
        with self.request():
            await asyncio.wait_for(engine.all_in.wait(), 30)
            if prompt.text == "p1" and engine.breaks is not None:
                self.running = not isinstance(engine.breaks, EngineError)
                raise engine.breaks
            await asyncio.wait_for(engine.stopped.wait(), 30)
            raise EngineError("The connection broke.", kind="protocol")

    def stop(self) -> int | None:
        assert isinstance(self.engine, Held)
        self.engine.stopped.set()
        return super().stop()


def test_an_interrupt_ends_the_cell_at_once_and_blames_no_request(
    recipe: Recipe, writer: RunWriter, folder: Path
) -> None:
    with pytest.raises(KeyboardInterrupt):
        execute(Held(KeyboardInterrupt()), under(recipe, concurrency=4), asked(12), writer)
    assert measured(folder) == [], "what was broken off was not measured, and is asked again"
    assert [cell.status for cell in writer.manifest.cells] == ["interrupted"]


def test_a_dead_engine_ends_the_cell_with_the_requests_that_it_had(
    recipe: Recipe, writer: RunWriter, folder: Path
) -> None:
    dead = EngineError("It died.", kind="crash")
    records = execute(Held(dead), under(recipe, concurrency=4), asked(12), writer)
    assert {record.prompt_idx for record in records} == {0, 1, 2, 3}, "and no other was begun"
    assert all(record.error for record in records)
    (cell,) = writer.manifest.cells
    assert cell.status == "failed"
    assert cell.error is not None
    assert cell.error.message == "It died."


def test_a_full_disk_ends_the_run_and_can_be_resumed(
    recipe: Recipe, writer: RunWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(record: Record) -> None:
        raise StorageError("The disk is full.")

    monkeypatch.setattr(writer, "append", full)
    with pytest.raises(StorageError):
        execute(ToyEngine(), under(recipe, concurrency=4), asked(12), writer)
    assert [cell.status for cell in writer.manifest.cells] == ["interrupted"]


def test_each_arm_is_asked_at_its_own_temperature(recipe: Recipe, writer: RunWriter) -> None:
    temperatures: list[float] = []

    class Listening(ToyEngine):
        def start(self, launch: Launch, log_path: Path) -> ToyServer:
            server = super().start(launch, log_path)
            complete = server.complete

            async def heard(prompt: Rendered, sampling: Sampling, on_tokens: Progress | None = None) -> Completion:
                temperatures.append(sampling.temperature)
                return await complete(prompt, sampling, on_tokens)

            server.complete = heard  # type: ignore[method-assign]
            return server

    hot = under(recipe, temperature=0.8).model_copy(update={"warmup": 1})
    execute(Listening(), hot, asked(2), writer)
    assert temperatures == [0.8] * 3, "the warm-up too"
