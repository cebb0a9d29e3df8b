"""Whether the engines of all arms fit at once, on the bundled models and a machine of any size."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from benchctl.errors import UsageError
from benchctl.measurement import memory
from benchctl.models.files import ResolvedPair
from benchctl.models.sources import ModelSearch
from benchctl.recipes.schema import Arm, ModelPair, ModelSpec, Recipe


@pytest.fixture
def models(tmp_path: Path) -> ResolvedPair:
    pair = ModelPair(
        target=ModelSpec(source="bundled:tiny-hybrid"), draft=ModelSpec(source="bundled:tiny-hybrid-draft")
    )
    return ModelSearch(tmp_path).pair(pair)


def free(monkeypatch: pytest.MonkeyPatch, available: float) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=available))


def test_only_arms_with_a_draft_model_pay_for_it(recipe: Recipe, models: ResolvedPair) -> None:
    assert models.draft is not None
    plain = memory.engine_bytes(Arm(name="baseline"), models, 1024)
    drafting = memory.engine_bytes(recipe.arms[1], models, 1024)
    assert drafting - plain > models.draft.files[0].size
    assert memory.engine_bytes(Arm(name="baseline"), models, 2048) > plain > models.target.files[0].size


def test_every_slot_has_a_context_and_a_state(models: ResolvedPair, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = [memory.engine_bytes(Arm(name="a", concurrency=slots), models, 1024) for slots in (1, 2, 3)]
    assert sizes[2] - sizes[1] == sizes[1] - sizes[0] > 0


def test_slots_that_may_not_fit_are_said(recipe: Recipe, models: ResolvedPair, monkeypatch: pytest.MonkeyPatch) -> None:
    arms = [Arm(name=f"a{slots}", concurrency=slots) for slots in (1, 8, 64)]
    wanted = recipe.model_copy(update={"arms": arms})
    free(monkeypatch, memory.engine_bytes(arms[2], models, recipe.engine.context) / memory.SHARE - 1)
    (sentence,) = memory.tight_slots(wanted, models, [])
    assert sentence.startswith("Concurrency 64: so many slots of 4096 tokens take about")
    free(monkeypatch, memory.engine_bytes(arms[2], models, recipe.engine.context) / memory.SHARE + 1)
    assert memory.tight_slots(wanted, models, []) == []


def test_what_does_not_fit_is_refused_with_what_would(
    recipe: Recipe, models: ResolvedPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    arms = [Arm(name=f"a{number}") for number in range(4)]
    wanted = recipe.model_copy(update={"arms": arms, "schedule": "interleaved"})
    single = memory.engine_bytes(arms[0], models, wanted.engine.context)
    free(monkeypatch, 4 * single / memory.SHARE + 1)
    memory.check_memory(wanted, models, [])
    free(monkeypatch, 2 * single / memory.SHARE + 1)
    with pytest.raises(UsageError, match="all 4 arms up at once") as caught:
        memory.check_memory(wanted, models, [])
    assert "2 would fit" in (caught.value.fix or "")


def test_a_gpu_is_asked_where_the_engine_sees_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchctl.machine.nvidia.answer", lambda *argv: "1000\n500")
    assert memory.free_bytes("auto", ["CUDA0"]) == ("GPU memory", 1500 * 2**20)
    assert memory.free_bytes("cpu", ["CUDA0"])[0] == "memory"
    listed = ["Vulkan0: Intel(R) Graphics (24000 MiB, 23000 MiB free)"]
    assert memory.free_bytes("vulkan", listed) == ("GPU memory", 23000 * 2**20), "nvidia-smi knows of another one"
    monkeypatch.setattr("benchctl.machine.nvidia.answer", lambda *argv: None)
    assert memory.free_bytes("cuda", ["CUDA0"])[1] == float("inf"), "not reported: never a reason to refuse"
