"""The user's own llama-server always wins over the one that benchctl built."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchctl.engines.common.programs import FoundBinary
from benchctl.engines.llama_cpp.build import Build, Host, builds_folder
from benchctl.engines.llama_cpp.installation import PERPLEXITY, find_tool, search
from benchctl.engines.registry import Backend
from benchctl.errors import EngineError, UsageError


def program(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\nexit 0\n")
    path.chmod(0o755)
    return path


def bundle(built_at: str, backend: Backend = "cpu", host: Host | None = None) -> Path:
    """Lay down a finished build and return its llama-server."""
    folder = builds_folder() / f"0.0.1-{backend}-{built_at}"
    build = Build(
        folder=folder,
        version="0.0.1",
        backend=backend,
        key=built_at,
        commit=None,
        sdist_sha256="0" * 64,
        flags=(),
        compiler="c++",
        cmake="cmake",
        host=host or Host.here(),
        built_at=built_at,
        build_s=1.0,
        version_output="version: 0.0.1",
    )
    program(build.binary("llama-quantize"))
    server = program(build.binary())
    (folder / "build.json").write_text(json.dumps(build.to_json()))
    return server


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a machine without any llama-server: an empty PATH, an empty cache, no variable."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "work").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("BENCHCTL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("BENCHCTL_LLAMA_SERVER", raising=False)
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path


def test_option_then_recipe_then_environment_then_path_then_bundled(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundled = bundle("2026-01-01")
    assert search().find() == FoundBinary(bundled, "bundled")
    on_path = program(machine / "bin" / "llama-server")
    assert search().find() == FoundBinary(on_path, "PATH")
    from_environment = program(machine / "own" / "server")
    monkeypatch.setenv("BENCHCTL_LLAMA_SERVER", str(from_environment))
    assert search().find() == FoundBinary(from_environment, "environment")
    recipe = program(machine / "recipe" / "server")
    assert search().find(str(recipe)) == FoundBinary(recipe, "recipe")
    option = program(machine / "option" / "server")
    assert search().find(str(recipe), str(option)) == FoundBinary(option, "option")
    assert [binary.found_in for binary in search().unnamed()] == ["environment", "PATH", "bundled"]


def test_relative_path_home_and_name(machine: Path) -> None:
    relative = program(machine / "work" / "build" / "server")
    assert search().find("build/server").path == relative
    assert search().find("./build/server").path == relative
    home = program(machine / "home" / "server")
    assert search().find("~/server").path == home
    named = program(machine / "bin" / "llama-server-cuda")
    assert search().find(None, "llama-server-cuda") == FoundBinary(named, "option")


def test_plain_name_in_the_recipe_goes_on_when_it_is_not_on_path(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundled = bundle("2026-01-01")
    assert search().find("llama-server") == FoundBinary(bundled, "bundled")
    from_environment = program(machine / "own" / "server")
    monkeypatch.setenv("BENCHCTL_LLAMA_SERVER", str(from_environment))
    assert search().find("llama-server") == FoundBinary(from_environment, "environment")
    on_path = program(machine / "bin" / "llama-server")
    assert search().find("llama-server") == FoundBinary(on_path, "recipe")


@pytest.mark.parametrize("value", ["no-such-server", "./no/such/server", "/no/such/server", "~/server"])
def test_named_but_not_there(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle("2026-01-01")
    with pytest.raises(UsageError, match=r"no (such )?program") as caught:
        search().find(value)
    assert caught.value.where == f"engine.binary: {value}"
    with pytest.raises(UsageError) as caught:
        search().find(None, value)
    assert caught.value.where == f"--engine-binary {value}"
    monkeypatch.setenv("BENCHCTL_LLAMA_SERVER", value)
    with pytest.raises(UsageError) as caught:
        search().find()
    assert caught.value.where == f"BENCHCTL_LLAMA_SERVER={value}"


def test_plain_name_as_an_option_is_meant(machine: Path) -> None:
    bundle("2026-01-01")
    with pytest.raises(UsageError, match="no program called 'llama-server' on PATH"):
        search().find(None, "llama-server")
    program(machine / "work" / "llama-server")
    with pytest.raises(UsageError, match=r"write \./llama-server"):
        search().find(None, "llama-server")


def test_folder_and_file_that_is_no_program(machine: Path) -> None:
    with pytest.raises(UsageError, match="this is a folder") as caught:
        search().find(str(machine / "bin"))
    assert str(machine / "bin" / "llama-server") in (caught.value.fix or "")
    (machine / "model.gguf").write_text("GGUF")
    with pytest.raises(UsageError, match="may not be executed"):
        search().find(str(machine / "model.gguf"))


def test_nothing_anywhere() -> None:
    with pytest.raises(EngineError, match=r"no llama-server was found") as caught:
        search().find("llama-server")
    assert caught.value.kind == "launch"
    assert "benchctl engines install llama.cpp" in (caught.value.fix or "")


def test_newest_build_that_this_machine_can_run() -> None:
    bundle("2026-01-01")
    newest = bundle("2026-03-01")
    bundle("2026-02-01")
    bundle("2026-04-01", host=Host.here().model_copy(update={"cpu": "Another [00000000]"}))
    assert search().find().path == newest


def test_device_chooses_among_builds() -> None:
    cpu = bundle("2026-02-01", "cpu")
    cuda = bundle("2026-01-01", "cuda")
    assert search().find().path == cpu
    assert search("cuda").find().path == cuda
    assert search("metal").find().path == cpu


def test_tool_is_the_servers_sibling(machine: Path) -> None:
    server = program(machine / "own" / "llama-server")
    with pytest.raises(EngineError, match="no llama-quantize"):
        find_tool("llama-quantize", server)
    bundled = bundle("2026-01-01")
    assert find_tool("llama-quantize", server) == bundled.parent / "llama-quantize"
    on_path = program(machine / "bin" / "llama-quantize")
    assert find_tool("llama-quantize", server) == on_path
    sibling = program(machine / "own" / "llama-quantize")
    assert find_tool("llama-quantize", server) == sibling
    link = machine / "links" / "llama-server"
    link.parent.mkdir()
    link.symlink_to(server)
    assert find_tool("llama-quantize", link) == sibling


def test_a_tool_that_measures_must_be_of_the_servers_own_build(machine: Path) -> None:
    server = program(machine / "own" / "llama-server")
    program(bundle("2026-01-01").parent / PERPLEXITY)
    program(machine / "bin" / PERPLEXITY)
    with pytest.raises(EngineError, match="no llama-perplexity") as caught:
        find_tool(PERPLEXITY, server)
    assert caught.value.fix is not None
    assert "benchctl engines install llama.cpp" in caught.value.fix
    sibling = program(machine / "own" / PERPLEXITY)
    assert find_tool(PERPLEXITY, server) == sibling
