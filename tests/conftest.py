"""Fixtures that every floor's tests share: the real engine and the bundled models."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

import benchctl.models
from benchctl.engines.llama_cpp.installation import search

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # two busy-waiting servers on two cores slow each other 17-fold

# A shell that starts something in the background has it ignore Ctrl-C, and so would every benchctl started from here.
signal.signal(signal.SIGINT, signal.default_int_handler)


_INTEGRATION = (
    "analysis/test_second_baseline_identities.py",
    "cli/",
    "conversion/",
    "data/test_fuzz.py",
    "engines/common/test_process.py",
    "engines/llama_cpp/test_package_index.py",
    "engines/openai/",
    "engines/sglang/",
    "engines/test_fuzz.py",
    "engines/test_registry.py",
    "engines/toy/",
    "experiments/diagnose/test_judge.py",
    "experiments/explain/test_predict.py",
    "experiments/tune/test_halving.py",
    "measurement/test_overlapping.py",
    "models/huggingface/",
    "models/test_bundled_files.py",
    "models/test_fuzz.py",
    "models/test_hub.py",
    "oracle/",
    "prompts/test_fuzz.py",
    "recipes/test_fuzz.py",
    "reports/test_hostile.py",
    "reports/test_page.py",
    "reports/test_sweep.py",
    "reports/test_touch.py",
    "reports/test_write.py",
    "security/",
    "test_audit.py",
    "training/test_heldout.py",
)
"""Tests that start programs, read whole runs or models, or try thousands of inputs, by path in this folder."""


_LONG = ("slow", "torch", "vllm", "ray")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that `make test-unit` leaves out, though each needs no engine; put files with long tests first.

    A worker of pytest-xdist takes whole files (`--dist loadfile`): a long one that begins last has the others wait.
    """
    folder = Path(__file__).parent
    for test in items:
        if test.path.relative_to(folder).as_posix().startswith(_INTEGRATION):
            test.add_marker(pytest.mark.integration)
    long = {test.path for test in items if any(map(test.get_closest_marker, _LONG))}
    items.sort(key=lambda test: test.path not in long)


@pytest.fixture(scope="session", autouse=True)
def _own_permissions(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Let no test read or write what the person who runs the tests has allowed."""
    os.environ["XDG_CONFIG_HOME"] = str(tmp_path_factory.mktemp("config"))


@pytest.fixture(scope="session")
def llama_server() -> Path:
    """The real binary: a missing one is an error of the set-up (`make test` builds it), never a reason to skip."""
    return search().find().path


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
