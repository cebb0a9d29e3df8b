"""Fixtures that every floor's tests share: the real engine and the bundled models."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

import benchctl.models
from benchctl.engines.llama_cpp.find import find_server

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # two busy-waiting servers on two cores slow each other 17-fold

# A shell that starts something in the background has it ignore Ctrl-C, and so would every benchctl started from here.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _own_permissions(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Let no test read or write what the person who runs the tests has allowed."""
    os.environ["XDG_CONFIG_HOME"] = str(tmp_path_factory.mktemp("config"))


@pytest.fixture(scope="session")
def llama_server() -> Path:
    """The real binary: a missing one is an error of the set-up (`make test` builds it), never a reason to skip."""
    return find_server(None, None).path


@pytest.fixture(scope="session")
def tiny_target() -> Path:
    """The bundled hybrid target."""
    return _bundled("tiny-hybrid")


@pytest.fixture(scope="session")
def tiny_draft() -> Path:
    """The bundled draft of the same vocabulary."""
    return _bundled("tiny-hybrid-draft")


def _bundled(name: str) -> Path:
    return Path(benchctl.models.__file__).parent / "bundled" / f"{name}.gguf"
