"""A made-up run, and everything a report says of it counted again from its records, sharing no code with benchctl."""

from __future__ import annotations

import json
import math
import random
import statistics
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


class Recount:
    """The numbers of a run from its raw JSON lines."""

    def __init__(self, records: list[dict[str, Any]]) -> None:
        self.records = [record for record in records if not record.get("error")]
        self.at = {(r["label"], r["task"], r["prompt_idx"], r["block"]): r for r in self.records}

    def pairs(self, arm: str, task: str, block: int | None = None) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        return [
            (record, self.at["baseline", *key[1:]])
            for key, record in self.at.items()
            if key[0] == arm and task in ("all", key[1]) and block in (None, key[3])
        ]

    @staticmethod
    def pooled(pairs: list[tuple[dict[str, Any], dict[str, Any]]]) -> float:
        def rate(side: int) -> float:
            tokens = [pair[side]["n_predicted"] - 1 for pair in pairs]
            times = [n / pair[side]["client_tok_per_sec"] for n, pair in zip(tokens, pairs, strict=True)]
            return float(sum(tokens) / sum(times))

        return float(rate(0) / rate(1))

    @staticmethod
    def pooled_at_common_length(pairs: list[tuple[dict[str, Any], dict[str, Any]]]) -> float:
        seconds = [0.0, 0.0]
        for pair in pairs:
            common = min(side["n_predicted"] for side in pair) - 1
            for number, side in enumerate(pair):
                seconds[number] += common / side["client_tok_per_sec"]
        return float(seconds[1] / seconds[0])

    def speedup(self, arm: str, task: str) -> dict[str, Any]:
        pairs = self.pairs(arm, task)
        prompts = PROMPTS * (len(TASKS) if task == "all" else 1)
        equal = [pair for pair in pairs if pair[0]["n_predicted"] == pair[1]["n_predicted"]]
        walls = [[sum(p[i]["n_predicted"] for p in pairs), sum(p[i]["e2e_s"] for p in pairs)] for i in (0, 1)]
        return {
            "pooled": self.pooled(pairs),
            "median": statistics.median(a["client_tok_per_sec"] / b["client_tok_per_sec"] for a, b in pairs),
            "end_to_end": walls[0][0] / walls[0][1] / (walls[1][0] / walls[1][1]),
            "ttft_ratio": sum(ours["ttft_s"] for ours, _ in pairs) / sum(base["ttft_s"] for _, base in pairs),
            "length_matched": self.pooled_at_common_length(pairs),
            "by_block": [self.pooled(self.pairs(arm, task, block)) for block in range(BLOCKS)],
            "pairs": len(pairs),
            "pairs_unequal": len(pairs) - len(equal),
            "pairs_missing": prompts * BLOCKS - len(pairs),
        }

    def interval(self, arm: str, task: str) -> tuple[float, float]:
        """Student's t over the logarithms of the three blocks; the variance is half that of the only other arm, unless
        it is plainly larger than that (F of two and two degrees of freedom: 4 at 20 %)."""
        own, other = (
            statistics.variance([math.log(self.pooled(self.pairs(name, task, block))) for block in range(BLOCKS)])
            for name in (arm, *(name for name in ARMS if name not in ("baseline", arm)))
        )
        quantile, variance = (4.303, own) if own > 4 * other else (2.776, (own + other) / 2)
        half = quantile * math.sqrt(variance / BLOCKS)
        middle = self.pooled(self.pairs(arm, task))
        return middle / math.exp(half), middle * math.exp(half)

    def acceptance(self, arm: str, task: str) -> dict[str, Any]:
        rows = [r for r in self.records if r["label"] == arm and task in ("all", r["task"])]
        drafted, accepted = sum(r["draft_n"] for r in rows), sum(r["draft_n_accepted"] for r in rows)
        rounds = sum(r["rounds"] for r in rows)
        places = [sum(place) for place in zip(*(r["accepted_by_position"] for r in rows), strict=True)]
        return {
            "drafted": drafted,
            "accepted": accepted,
            "rate": accepted / drafted,
            "rounds": rounds,
            "acceptance_length": 1 + accepted / rounds,
            "tokens_per_round": sum(r["n_predicted"] - 1 for r in rows) / rounds,
            "tokens_per_step": sum(r["n_predicted"] - 1 for r in rows)
            / sum(r["n_predicted"] - 1 - r["draft_n_accepted"] for r in rows),
            "rate_by_request": statistics.mean(r["draft_n_accepted"] / r["draft_n"] for r in rows if r["draft_n"]),
            "rate_by_task": self._rate_by_task(arm) if task == "all" else None,
            "position_unconditional": [place / rounds for place in places],
            "position_conditional": [a / b for a, b in zip(places, [rounds, *places], strict=False)],
        }

    def _rate_by_task(self, arm: str) -> float:
        tasks = {r["task"] for r in self.records}
        return float(statistics.mean(self.acceptance(arm, task)["rate"] for task in tasks))

    def throughput(self, arm: str, task: str) -> dict[str, Any]:
        rows = [r for r in self.records if r["label"] == arm and task in ("all", r["task"])]
        rates = [r["client_tok_per_sec"] for r in rows]
        by_prompt: dict[tuple[str, int], list[tuple[int, float]]] = {}
        for r in rows:
            tokens = r["n_predicted"] - 1
            by_prompt.setdefault((r["task"], r["prompt_idx"]), []).append((tokens, tokens / r["client_tok_per_sec"]))
        sums = [[sum(column) for column in zip(*timed, strict=True)] for timed in by_prompt.values()]
        return {
            "tok_per_sec": [] if task == "all" else rates,
            "records": len(rows),
            "pooled_rate": sum(tokens for tokens, _ in sums) / sum(seconds for _, seconds in sums),
            "mean_rate": statistics.mean(tokens / seconds for tokens, seconds in sums),
            "median": statistics.median(rates),
            "ttft_median_s": statistics.median(r["ttft_s"] for r in rows),
            **self.bursts(rows),
            "prompt_tok_per_sec_median": statistics.median(r["prompt_per_sec"] for r in rows),
        }

    def bursts(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        gaps = [gap for r in rows for gap in r["burst_gaps_s"]]
        return {
            "burst_gap_median_s": statistics.median(gaps),
            "burst_gap_p95_s": statistics.quantiles(gaps, n=20, method="inclusive")[-1] if len(gaps) >= 40 else None,
            "tokens_per_burst": sum(r["n_predicted"] for r in rows) / sum(len(r["burst_gaps_s"]) + 1 for r in rows),
        }

    def cost(self, arm: str, depth: int | None) -> dict[str, Any]:
        pairs = self.pairs(arm, "all")
        steps = [(r["n_predicted"] - 1, b["n_predicted"] - 1, r, b) for r, b in pairs]
        step_s = sum(m / b["client_tok_per_sec"] for _, m, _, b in steps) / sum(m for _, m, _, _ in steps)
        rounds, accepted = sum(r["rounds"] for r, _ in pairs), sum(r["draft_n_accepted"] for r, _ in pairs)
        plain = max(0, sum(n for n, _, _, _ in steps) - rounds - accepted)
        if rounds / (rounds + plain) < 1 / 3:  # too few steps had a draft to tell what a round costs
            unknown = dict.fromkeys(("alpha", "draft_cost", "overhead", "predicted", "break_even_alpha"))
            return {"depth": depth, **unknown, "measured": self.pooled(pairs)}
        cost = (sum(n / r["client_tok_per_sec"] for n, _, r, _ in steps) / step_s - plain) / rounds
        alpha = None if depth is None else solve(1 + accepted / rounds, depth)
        return {
            "depth": depth,
            "alpha": alpha,
            "draft_cost": None,
            "overhead": cost - 1,
            "predicted": None if alpha is None or depth is None else tokens_a_round(alpha, depth) / cost,
            "measured": self.pooled(pairs),
            "break_even_alpha": None if depth is None or cost > depth + 1 else solve(cost, depth),
        }


def tokens_a_round(alpha: float, depth: int) -> float:
    return (1 - alpha ** (depth + 1)) / (1 - alpha)


def solve(tokens: float, depth: int) -> float:
    """α by Newton's method, from the closed form."""
    alpha = 0.5
    for _ in range(100):
        slope = (tokens_a_round(alpha + 1e-6, depth) - tokens_a_round(alpha - 1e-6, depth)) / 2e-6
        alpha = min(0.999, max(0.001, alpha - (tokens_a_round(alpha, depth) - tokens) / slope))
    return alpha
