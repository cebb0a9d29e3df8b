from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchctl.data.digests import canonical_sha256
from benchctl.data.identity import workload_sha256
from benchctl.data.manifest import Manifest
from benchctl.data.store import RunData
from benchctl.errors import StorageError, UsageError
from benchctl.measurement.progress import RunProgress
from benchctl.measurement.resume import recipe_of, resume_run
from benchctl.measurement.run import signals_interrupt
from benchctl.models.files import ResolvedModel, ResolvedPair
from benchctl.recipes.schema import Recipe


@pytest.fixture(autouse=True)
def own_handler() -> Iterator[None]:
    """Put back what handles SIGHUP."""
    before = signal.getsignal(signal.SIGHUP)
    yield
    signal.signal(signal.SIGHUP, before)


def test_a_hang_up_is_an_interrupt() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    with signals_interrupt(), pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL


def test_below_nohup_a_hang_up_is_nothing() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with signals_interrupt():
        os.kill(os.getpid(), signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_another_library_beside_the_binary_is_another_engine(recipe: Recipe, manifest: Manifest) -> None:
    models = ResolvedPair(ResolvedModel("t.gguf", ()), None)
    manifest.workload_sha256 = workload_sha256(recipe, [], models)
    manifest.recipe_sha256 = canonical_sha256(manifest.recipe)
    manifest.engine.details = {"sha256": "a", "siblings": {"libggml.so": "b"}}
    capabilities = SimpleNamespace(details={"sha256": "a", "siblings": {"libggml.so": "c"}})
    prepared: Any = SimpleNamespace(
        recipe=recipe,
        suite=SimpleNamespace(sha256=None),
        setups={None: SimpleNamespace(models=models, capabilities=capabilities)},
    )
    with pytest.raises(UsageError, match="libraries changed"):
        resume_run(prepared, RunData(Path(), manifest, [], []), RunProgress())


def test_a_recipe_that_another_version_wrote_is_one_error_that_names_the_key(manifest: Manifest) -> None:
    manifest.recipe["engine"]["flux"] = 3
    with pytest.raises(StorageError, match=r"Extra inputs") as caught:
        recipe_of(RunData(Path("kept"), manifest, [], []))
    assert caught.value.where == "kept/manifest.json"
