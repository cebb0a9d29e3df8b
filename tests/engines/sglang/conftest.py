"""An SGLang that is not there: recorded facts of the real package, and a scripted server."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchctl.engines.common.launched_server import Probe
from benchctl.engines.sglang.adapter import SglangSpec
from benchctl.engines.sglang.command import Package
from benchctl.engines.sglang.engine import SglangEngine, probe_sglang
from benchctl.engines.sglang.server import SglangServer
from benchctl.models.files import ResolvedModel, ResolvedPair
from benchctl.recipes.schema import Arm
from tests.engines.scripted import write_program

HERE = Path(__file__).parent
FACTS = HERE / "data" / "facts-0.5.23.json"
"""What `ask_package.py` printed with the real package, SGLang 0.5.23."""

Start = Callable[..., SglangServer]


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """A Python in which SGLang seems to be installed."""
    return write_program(tmp_path / "python3", "tests.engines.sglang.fake_sglang")


@pytest.fixture
def pair(tmp_path: Path) -> ResolvedPair:
    """Two model folders of one vocabulary."""
    models = []
    for name in ("target", "draft"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({"vocab_size": 2}))
        (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"a": 0, "b": 1}}}))
        models.append(ResolvedModel(str(folder), (), folder=folder))
    return ResolvedPair(*models)


@pytest.fixture(autouse=True)
def ask_each_package_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remember what a package said by its fault: asking starts a Python each time."""

    def remembered(python: Path, found_in: str, added: Mapping[str, str]) -> Probe[Package]:
        fault = added.get("FAKE_FAULT", "")
        if fault not in _PROBED:
            _PROBED[fault] = probe_sglang(python, found_in, added)
        facts = _PROBED[fault]
        return replace(facts, capabilities=replace(facts.capabilities, binary=python))

    monkeypatch.setattr("benchctl.engines.sglang.engine.probe_sglang", remembered)


_PROBED: dict[str, Probe[Package]] = {}


def spec_of(python: Path, fault: str = "", **keys: Any) -> SglangSpec:
    env = {"FAKE_FAULT": fault, "FAKE_FACTS": str(FACTS), **keys.pop("env", {})}
    return SglangSpec.model_validate({"kind": "sglang", "binary": str(python), "env": env, "context": 512} | keys)


@pytest.fixture
def start(python: Path, pair: ResolvedPair, tmp_path: Path) -> Iterator[Start]:
    """Start the scripted server as the runner would."""
    servers: list[SglangServer] = []

    def begin(arm: Arm, fault: str = "", **keys: Any) -> SglangServer:
        engine = SglangEngine(spec_of(python, fault, **keys))
        servers.append(engine.start(engine.launch(arm, pair), tmp_path / f"{len(servers)}.log"))
        return servers[-1]

    yield begin
    for server in servers:
        server.stop()
