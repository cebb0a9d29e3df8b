"""Fixtures of the engine floor: servers that stop by themselves, a scripted server, a draft of another vocabulary."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import pytest

from benchctl.engines.base import Server
from benchctl.engines.llama_cpp.adapter import LlamaCppSpec
from benchctl.engines.llama_cpp.engine import LlamaCppEngine
from benchctl.models.files import ResolvedPair
from benchctl.recipes.schema import Arm
from tests.engines.cells import resolved
from tests.engines.scripted import write_program


class StartServer(Protocol):
    """Starts a server that is stopped at the end of the test."""

    def __call__(
        self,
        arm: Arm,
        models: ResolvedPair,
        *,
        binary: Path | None = None,
        argv: Callable[[tuple[str, ...]], tuple[str, ...]] | None = None,
        **engine: Any,
    ) -> Server: ...


@pytest.fixture
def start_server(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[StartServer]:
    """Start a cell the way the runner does; `argv` rewrites the command line, other words go to LlamaCppSpec."""
    servers: list[Server] = []

    def start(
        arm: Arm,
        models: ResolvedPair,
        *,
        binary: Path | None = None,
        argv: Callable[[tuple[str, ...]], tuple[str, ...]] | None = None,
        **engine: Any,
    ) -> Server:
        settings = {"device": "cpu", "context": 1024, "threads": 1, "health_timeout_s": 240.0} | engine
        chosen = binary or request.getfixturevalue("llama_server")
        adapter = LlamaCppEngine(LlamaCppSpec.model_validate({"binary": str(chosen)} | settings))
        launch = adapter.launch(arm, models)
        if argv is not None:
            launch = replace(launch, argv=argv(launch.argv))
        servers.append(adapter.start(launch, tmp_path / f"server-{len(servers)}.log"))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


@pytest.fixture(scope="session")
def tiny_pair(tiny_target: Path, tiny_draft: Path) -> ResolvedPair:
    """The bundled pair, resolved."""
    return ResolvedPair(resolved(tiny_target), resolved(tiny_draft))


@pytest.fixture(scope="session")
def foreign_pair(tiny_pair: ResolvedPair, tmp_path_factory: pytest.TempPathFactory) -> ResolvedPair:
    """The bundled target with a draft in which tokens of equal length have changed places: another vocabulary."""
    from gguf import GGUFReader

    path = tmp_path_factory.mktemp("models") / "foreign-draft.gguf"
    assert tiny_pair.draft is not None
    shutil.copyfile(tiny_pair.draft.path, path)
    reader = GGUFReader(path, "r+")
    tokens = reader.fields["tokenizer.ggml.tokens"]
    of_length: dict[int, list[int]] = {}
    for index in tokens.data[300:400]:
        of_length.setdefault(len(tokens.parts[index]), []).append(index)
    for places in of_length.values():
        for first, second in zip(places[::2], places[1::2], strict=False):
            texts = bytes(tokens.parts[first]), bytes(tokens.parts[second])
            tokens.parts[second][:], tokens.parts[first][:] = map(list, texts)
    reader.data.flush()
    return ResolvedPair(tiny_pair.target, resolved(path))


@pytest.fixture
def fake_binary(tmp_path: Path) -> Path:
    """The scripted server as an executable file."""
    return write_program(tmp_path / "llama-server", "tests.engines.fake_llama_server")


@pytest.fixture
def any_pair(tmp_path: Path) -> ResolvedPair:
    """A pair of files that only the scripted server would take for models."""
    for name in ("target.gguf", "draft.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    return ResolvedPair(resolved(tmp_path / "target.gguf"), resolved(tmp_path / "draft.gguf"))
