"""A simulated run of a recipe that sweeps concurrency, rate or temperature: what a server with slots would have said.

`gain` is how many times as fast an arm decodes as the baseline; everything that a test expects can be counted again
from the records that `write_sweep` returns.
"""

from __future__ import annotations

import heapq
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from benchctl.data.digests import canonical_sha256
from benchctl.data.manifest import MANIFEST_FORMAT
from benchctl.data.record import sha256_text, sha256_tokens
from tests.resealed import reseal

RUN = "20261121-170500-5eed"
BASE_RATE = 40.0
"""Tokens per second of one request alone."""


@dataclass(frozen=True)
class Server:
    """How fast requests are answered."""

    gain: Callable[[str, int, float], float] = lambda arm, concurrency, temperature: 1.0
    """(recipe's arm, concurrency, temperature) to decode rate over the baseline's; the baseline's own is not asked."""
    accepted: Callable[[str, float], float] = lambda arm, temperature: 0.7
    block_noise: float = 0.01
    slots: int | None = None
    """Of an open loop; `None`: as the condition's concurrency."""


@dataclass(frozen=True)
class Sweep:
    """What the recipe varies."""

    concurrency: Sequence[int] = (1,)
    rate: Sequence[float | None] = (None,)
    temperature: Sequence[float] = (0.0,)
    arms: Mapping[str, Mapping[str, Any] | None] = field(
        default_factory=lambda: {"baseline": None, "spec_d4": {"type": "draft-simple", "max": 4}}
    )
    blocks: int = 3
    prompts: int = 12
    late_s: float = 0.0
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """Further keys of the recipe's."""


def write_sweep(
    folder: Path,
    sweep: Sweep,
    server: Server | None = None,
    edit: Callable[[dict[str, Any]], Any] = lambda record: None,
) -> list[dict[str, Any]]:
    """Write a run folder; return its records. `edit` changes a record in place before it is written."""
    server = server or Server()
    arms = _arms(sweep)
    records = [
        record
        for block in range(sweep.blocks)
        for arm in arms
        for record in _cell(random.Random(f"{block}/{arm['name']}"), sweep, server, arm, block)
    ]
    for record in records:
        edit(record)
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text(json.dumps(_manifest(sweep, arms)))
    (folder / "records.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    reseal(folder)
    return records


def _arms(sweep: Sweep) -> list[dict[str, Any]]:
    arms = []
    for concurrency, rate, temperature in product(sweep.concurrency, sweep.rate, sweep.temperature):
        suffix = f"-c{concurrency}" if len(sweep.concurrency) > 1 else ""
        suffix += f"-r{rate:g}" if len(sweep.rate) > 1 and rate else ""
        suffix += f"-t{temperature:g}" if len(sweep.temperature) > 1 else ""
        arms += [
            {
                "name": name + suffix,
                "baseline": name == "baseline",
                "speculation": speculation,
                "argv": ["llama-server", "-np", str(concurrency)],
                "env": [],
                "of": name if suffix else None,
                "concurrency": concurrency,
                "rate": rate,
                "temperature": temperature if len(sweep.temperature) > 1 else None,
            }
            for name, speculation in sweep.arms.items()
        ]
    return arms


def _cell(rng: random.Random, sweep: Sweep, server: Server, arm: dict[str, Any], block: int) -> list[dict[str, Any]]:
    recipe_arm, concurrency, rate = arm["of"] or arm["name"], arm["concurrency"], arm["rate"]
    temperature = arm["temperature"] if arm["temperature"] is not None else sweep.temperature[0]
    speed = BASE_RATE / (1 + 0.15 * (concurrency - 1)) * rng.uniform(1 - server.block_noise, 1 + server.block_noise)
    if recipe_arm != "baseline":
        speed *= server.gain(recipe_arm, concurrency, temperature)
    slots = [0.0] * (concurrency if rate is None else server.slots or concurrency)
    records = []
    for index in range(sweep.prompts):
        free = heapq.heappop(slots)
        sent = free if rate is None else index / rate
        late = 0.0 if rate is None else sweep.late_s
        begin = max(free, sent + late)
        record = _answer(rng, arm, recipe_arm, block, index, speed, temperature, server)
        end = begin + 0.1 + (record["n_predicted"] - 1) / record["client_tok_per_sec"]
        heapq.heappush(slots, end)
        record |= {"sent_s": sent, "late_s": late, "ttft_s": begin + 0.1 - sent, "e2e_s": end - sent}
        records.append(record)
    return records


def _answer(
    rng: random.Random,
    arm: dict[str, Any],
    recipe_arm: str,
    block: int,
    index: int,
    speed: float,
    temperature: float,
    server: Server,
) -> dict[str, Any]:
    tokens = [100 + index, *range(200, 230 + 7 * (index % 4))]
    if arm["concurrency"] > 1 and rng.random() < 0.2:  # concurrent outputs do not repeat
        tokens[20:] = [900 + block + number for number in range(len(tokens) - 20)]
    if temperature:
        tokens[5:] = [rng.randrange(1000, 2000) for _ in tokens[5:]]
    text = " ".join(map(str, tokens))
    rate = speed * rng.uniform(0.99, 1.01)
    record: dict[str, Any] = {
        "schema": 1, "label": arm["name"], "task": "code", "prompt_idx": index, "rep": block, "block": block,
        "run": RUN, "n_predicted": len(tokens), "content": text, "content_sha": sha256_text(text), "token_ids": tokens,
        "token_sha": sha256_tokens(tokens), "finish_reason": "stop", "prompt_sha": sha256_text(str(index)),
        "client_tok_per_sec": rate, "tok_per_sec": rate, "prompt_per_sec": 200.0,
    }  # fmt: skip
    if recipe_arm != "baseline":
        rounds = len(tokens) // 4
        drafted = 4 * rounds
        record |= {
            "rounds": rounds,
            "draft_n": drafted,
            "draft_n_accepted": min(
                len(tokens) - rounds - 1, round(server.accepted(recipe_arm, temperature) * drafted)
            ),
        }
    return record


def _manifest(sweep: Sweep, arms: list[dict[str, Any]]) -> dict[str, Any]:
    identity = {"name": "m.gguf", "size": 4096, "sha256": "ab" * 32}
    model = {"source": "bundled:m", "path": "~/m.gguf", "files": [identity], "facts": {"architecture": "falcon-h1"}}
    sampling = {"temperature": sweep.temperature[0], "top_k": 0, "max_tokens": 128, **sweep.sampling}
    recipe = {"name": "sweep", "sampling": sampling}
    return {
        "schema": MANIFEST_FORMAT.version,
        "run": RUN,
        "benchctl_version": "0.1.0",
        "status": "finished",
        "created_at": "2026-11-21T17:05:00+00:00",
        "recipe_name": "sweep",
        "recipe": recipe,
        "recipe_sha256": canonical_sha256(recipe),
        "workload_sha256": "ef" * 32,
        "baseline": next(arm["name"] for arm in arms if arm["baseline"]),
        "blocks": sweep.blocks,
        "engine": {
            "kind": "llama.cpp", "binary": "llama-server", "found_in": "PATH", "version": "version: 1", "build": "1",
            "commit": "0c1e570", "speculation_types": ["draft-simple"],
        },
        "target": model,
        "draft": model,
        "arms": arms,
        "prompts": [{"task": "code", "prompt_idx": index, "sha256": "00" * 32} for index in range(sweep.prompts)],
        "cells": [
            {
                "block": block, "arm": arm["name"], "order": order, "status": "finished",
                "started_at": "2026-11-21T17:05:00+00:00", "wall_s": 12.5, "log": f"{block}-{arm['name']}.log",
                "attestation": {"state": "active" if arm["speculation"] else "off", "evidence": ["seen"]},
            }
            for block in range(sweep.blocks)
            for order, arm in enumerate(arms)
        ],
    }  # fmt: skip
