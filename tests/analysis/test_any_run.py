"""Whatever a run holds, analysing it raises nothing, invents nothing, and can be written as JSON."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from benchctl.analysis.results import Analysis
from benchctl.lossless.judge.run import analyse_run
from benchctl.words.verdict import conclusion, explanation

ARMS = {
    "baseline": None,
    "spec_d4": {"type": "draft-simple", "max": 4},
    "ngram": {"type": ["ngram-simple", "ngram-mod"]},
}


def any_record(rng: random.Random, make_record: Any, arm: str, block: int, index: int) -> Any:
    def maybe(value: Any) -> Any:
        return rng.choice([None, value])

    ids = rng.choice([[], [2], list(range(11)), [5] * 60, [rng.randrange(9) for _ in range(30)]])
    text = rng.choice(["", " ", "text", "\ud800", "\x00" * 9, "<unused1>" * 9, "la" * 90])
    odd: dict[str, Any] = {
        "tok_per_sec": rng.choice([None, 0.0, 12.5, 1e-9, 1e9]),
        "client_tok_per_sec": rng.choice([None, 0.0, 11.0]),
        "e2e_s": rng.choice([None, 0.0, 3.0]),
        "ttft_s": maybe(0.1),
        "draft_n": maybe(rng.randrange(20)),
        "draft_n_accepted": maybe(rng.randrange(20)),
        "rounds": maybe(rng.randrange(5)),
        "accepted_by_position": maybe([rng.randrange(4) for _ in range(rng.randrange(6))]),
        "finish_reason": rng.choice([None, "stop", "length"]),
        "error": rng.choice([None, None, None, {"kind": "http", "message": "500"}]),
        "token_ids": maybe(ids),
        "content": maybe(text),
    }
    chosen = {key: value for key, value in odd.items() if rng.random() < 0.3}
    return make_record(arm, index, task=f"task{index % 2}", block=block, rate=rng.uniform(5, 20), **chosen)


def any_cell(rng: random.Random, arm: str, block: int) -> dict[str, Any]:
    state = rng.choice(["off", "active", "idle", "failed"])
    return {
        "block": block,
        "arm": arm,
        "order": 0,
        "status": rng.choice(["finished", "failed", "interrupted"]),
        "started_at": "2026-11-21T11:00:00+00:00",
        "wall_s": 1.0,
        "log": "logs/x.log",
        "load_before": rng.choice([None, 0.1, 9.0]),
        "attestation": rng.choice([None, {"state": state, "evidence": []}]),
    }


@pytest.mark.parametrize("seed", range(40))
def test_any_run_is_analysed(make_record: Any, make_run: Any, make_manifest: Any, seed: int) -> None:
    rng = random.Random(seed)
    blocks, prompts = rng.randrange(1, 5), rng.randrange(0, 6)
    slots = [(arm, block, index) for arm in ARMS for block in range(blocks) for index in range(prompts)]
    records = [any_record(rng, make_record, *slot) for slot in slots if rng.random() < 0.85]
    cells = [any_cell(rng, arm, block) for arm in ARMS for block in range(blocks)]
    manifest = make_manifest(ARMS, prompts, blocks, cells=cells, machine={"cores": 2})
    analysis = analyse_run(make_run(records, manifest))
    assert (
        Analysis.model_validate(json.loads(json.dumps(analysis.model_dump(by_alias=True), allow_nan=False))) == analysis
    )
    for verdict, lossless in zip(analysis.verdicts, analysis.losslessness, strict=True):
        assert conclusion(analysis, verdict) and explanation(analysis, verdict)
        assert sum(lossless.counts.values()) == len(lossless.comparisons)
        if lossless.verdict == "identical":
            assert lossless.counts == {"identical": len(lossless.comparisons)}
    for acceptance in analysis.acceptance:
        assert acceptance.rate is None or 0 <= acceptance.rate <= 1
    assert analyse_run(make_run(rng.sample(records, len(records)), manifest)) == analysis
