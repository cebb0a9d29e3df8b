"""Small runs made by hand, so that every expected number can be worked out on paper."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchctl.data.manifest import ArmIdentity, EngineIdentity, Manifest, ModelIdentity, PromptIdentity
from benchctl.data.record import Record, sha256_text, sha256_tokens
from benchctl.data.store import RunData

MakeRecord = Callable[..., Record]
MakeRun = Callable[..., RunData]


def build_record(
    label: str = "baseline",
    prompt_idx: int = 0,
    *,
    task: str = "code",
    block: int = 0,
    rate: float = 10.0,
    text: str = "def add(a, b): return a + b",
    ids: list[int] | None = None,
    **more: Any,
) -> Record:
    ids = list(range(100, 111)) if ids is None else ids
    values: dict[str, Any] = {
        "label": label,
        "task": task,
        "prompt_idx": prompt_idx,
        "rep": block,
        "block": block,
        "schema": 1,
        "tok_per_sec": rate,
        "client_tok_per_sec": rate,
        "n_predicted": len(ids),
        "content": text,
        "content_sha": sha256_text(text),
        "token_ids": ids,
        "token_sha": sha256_tokens(ids),
        "finish_reason": "stop",
        "prompt_sha": sha256_text(f"{task}/{prompt_idx}"),
        "e2e_s": 0.5 + (len(ids) - 1) / rate,
        "ttft_s": 0.5,
        "prompt_per_sec": 80.0,
    }
    return Record.from_dict(values | more)


def build_manifest(arms: dict[str, dict[str, Any] | None], prompts: int, blocks: int, **more: Any) -> Manifest:
    model = ModelIdentity(source="bundled:none", path="none.gguf", files=[])
    values: dict[str, Any] = {
        "run": "20261121-110500-3fa9",
        "benchctl_version": "0",
        "status": "finished",
        "created_at": "2026-11-21T11:05:00+00:00",
        "recipe_name": "by-hand",
        "recipe": {},
        "recipe_sha256": "0" * 64,
        "workload_sha256": "0" * 64,
        "baseline": "baseline",
        "blocks": blocks,
        "engine": EngineIdentity(
            kind="llama.cpp",
            binary="llama-server",
            found_in="PATH",
            version=None,
            build=None,
            commit=None,
            speculation_types=[],
        ),
        "target": model,
        "draft": model,
        "arms": [
            ArmIdentity(name=name, baseline=name == "baseline", speculation=speculation, argv=[], env=[])
            for name, speculation in arms.items()
        ],
        "prompts": [PromptIdentity(task="code", prompt_idx=index, sha256="0" * 64) for index in range(prompts)],
    }
    return Manifest.model_validate(values | more)


@pytest.fixture
def make_record() -> MakeRecord:
    """Make a record of one answer: eleven tokens, ten of them decoded at `rate`."""
    return build_record


@pytest.fixture
def make_manifest() -> Callable[..., Manifest]:
    return build_manifest


@pytest.fixture
def make_run() -> MakeRun:
    """Make a run of records without a manifest, or with the one given."""

    def make(records: list[Record], manifest: Manifest | None = None, damaged: list[str] | None = None) -> RunData:
        return RunData(folder=Path("by-hand"), manifest=manifest, records=records, damaged=damaged or [])

    return make
