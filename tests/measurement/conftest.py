"""A recipe of two arms, two prompts and two blocks, and a run folder to write it into."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchctl.data.manifest import EngineIdentity, Manifest, ModelIdentity
from benchctl.data.writer import RunWriter
from benchctl.engines.llama_cpp.installation import VARIABLE, search
from benchctl.prompts.suite import Prompt, PromptItem
from benchctl.recipes.schema import Recipe


@pytest.fixture
def recipe() -> Recipe:
    return Recipe.model_validate(
        {
            "name": "toy",
            "models": {"target": {"source": "t.gguf"}, "draft": {"source": "d.gguf"}},
            "prompts": {"suite": "s.json"},
            "blocks": 2,
            "warmup": 1,
            "arms": [{"name": "baseline"}, {"name": "spec", "speculation": {"type": "draft-simple", "max": 4}}],
        }
    )


@pytest.fixture
def prompts() -> list[PromptItem]:
    return [PromptItem(task="code", prompt_idx=index, prompt=Prompt(prompt=f"p{index}")) for index in range(2)]


@pytest.fixture
def manifest(recipe: Recipe) -> Manifest:
    return Manifest(
        run="20260101-000000-abcd",
        benchctl_version="0",
        status="started",
        created_at="2026-01-01T00:00:00+00:00",
        recipe_name=recipe.name,
        recipe=recipe.model_dump(mode="json"),
        recipe_sha256="0",
        workload_sha256="0",
        baseline="baseline",
        blocks=2,
        engine=EngineIdentity(
            kind="toy", binary="toy", found_in="recipe", version=None, build=None, commit=None, speculation_types=[]
        ),
        target=ModelIdentity(source="t.gguf", path="t.gguf", files=[]),
        draft=None,
        arms=[],
        prompts=[],
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "toy" / "20260101-000000-abcd"


@pytest.fixture
def writer(folder: Path, manifest: Manifest) -> Iterator[RunWriter]:
    with RunWriter(folder, manifest) as opened:
        yield opened


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep quantized models out of the user's folder; engines that were built are still found."""
    server = os.environ.get(VARIABLE) or str(search().find().path)
    monkeypatch.setenv(VARIABLE, server)
    folder = tmp_path / "cache"
    monkeypatch.setenv("BENCHCTL_CACHE", str(folder))
    return folder
