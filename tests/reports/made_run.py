"""A made-up run: three arms, two tasks, uneven lengths, a failed request and an answer that differs."""

from __future__ import annotations

import json
import random
from itertools import product
from pathlib import Path
from typing import Any

from benchctl.data.manifest import MANIFEST_FORMAT
from tests.resealed import reseal

BLOCKS, TASKS, PROMPTS = 3, ("code", "ja_chat"), 3
ARMS = {"baseline": None, "spec_d4": 4, "ngram": None}
RUN = "20261121-110500-3fa9"
FAILED = (2, "ngram", "code", 1)
"""(block, arm, task, prompt_idx) of the one request that failed."""


def write_run(folder: Path) -> list[dict[str, Any]]:
    """Write a run folder with uneven lengths, a failed request and a differing answer; return its records."""
    rng = random.Random(7)
    records = [
        _record(rng, block, arm, task, index)
        for block, arm, task, index in product(range(BLOCKS), ARMS, TASKS, range(PROMPTS))
    ]
    identity = {"name": "m.gguf", "size": 4096, "sha256": "ab" * 32}
    model = {"source": "bundled:m", "path": "~/m.gguf", "files": [identity], "facts": {"architecture": "falcon-h1"}}
    speculation = {"spec_d4": {"type": "draft-simple", "max": 4}, "ngram": {"type": "ngram-simple"}, "baseline": None}
    manifest = {
        "schema": MANIFEST_FORMAT.version,
        "run": RUN,
        "benchctl_version": "0.1.0",
        "status": "finished",
        "created_at": "2026-11-21T11:05:00+00:00",
        "recipe_name": "tiny",
        "recipe": {"name": "tiny"},
        "recipe_sha256": "cd" * 32,
        "workload_sha256": "ef" * 32,
        "baseline": "baseline",
        "blocks": BLOCKS,
        "engine": {
            "kind": "llama.cpp",
            "binary": "llama-server",
            "found_in": "PATH",
            "version": "version: 1",
            "build": "1",
            "commit": "0c1e570",
            "speculation_types": ["draft-simple"],
        },
        "target": model,
        "draft": model,
        "arms": [
            {"name": arm, "baseline": arm == "baseline", "speculation": speculation[arm], "argv": ["x"], "env": []}
            for arm in ARMS
        ],
        "prompts": [{"task": task, "prompt_idx": i, "sha256": "00" * 32} for task in TASKS for i in range(PROMPTS)],
        "cells": [
            {
                "block": block,
                "arm": arm,
                "order": order,
                "status": "finished",
                "started_at": "2026-11-21T11:05:00+00:00",
                "wall_s": 12.5,
                "log": f"{block}-{arm}.log",
                "attestation": {"state": "off" if arm == "baseline" else "active", "evidence": ["seen"]},
            }
            for block in range(BLOCKS)
            for order, arm in enumerate(ARMS)
        ],
    }
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (folder / "records.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    reseal(folder)
    return records


def _record(rng: random.Random, block: int, arm: str, task: str, index: int) -> dict[str, Any]:
    text = f"{task} {index}: the answer is forty-two, and so on"
    tokens = list(range(100, 100 + 24 + 3 * (index % 5)))
    if (arm, task, index) == ("spec_d4", "ja_chat", 1):
        text, tokens = text.replace("forty-two", "forty-three"), [*tokens[:9], *range(500, 514)]
    speed = {"baseline": 20.0, "spec_d4": 13.0, "ngram": 24.0}[arm] * rng.uniform(0.95, 1.05)
    record: dict[str, Any] = {
        "schema": 1, "label": arm, "task": task, "prompt_idx": index, "rep": block, "block": block, "run": RUN,
        "n_predicted": len(tokens), "content": text, "token_ids": tokens, "finish_reason": "stop",
        "client_tok_per_sec": speed, "tok_per_sec": 1.01 * speed, "prompt_per_sec": rng.uniform(80, 120),
        "ttft_s": rng.uniform(0.1, 0.4), "e2e_s": len(tokens) / speed + rng.uniform(0.1, 0.4), "prompt_sha": "aa",
        "burst_gaps_s": [rng.uniform(0.05, 0.2) for _ in range(5)],
    }  # fmt: skip
    if (block, arm, task, index) == FAILED:
        return record | {"error": {"kind": "http", "message": "HTTP 500"}, "content": None, "token_ids": None}
    if arm != "baseline":
        by_position = [5, 4, 2, 1] if arm == "spec_d4" else [3, 1]
        record |= {
            "rounds": 6,
            "draft_n": 22,
            "draft_n_accepted": sum(by_position),
            "accepted_by_position": by_position,
        }
        record["n_predicted"] = len(record["token_ids"])
    return record
