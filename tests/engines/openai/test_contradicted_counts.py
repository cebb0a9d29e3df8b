"""Runs at endpoints whose counts of tokens, or whose streams, are not what they should be."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchctl.analysis.results import Analysis
from benchctl.data.store import open_run
from benchctl.lossless.judge.run import analyse_run
from tests.engines.openai.fake_endpoint import Script
from tests.engines.openai.test_real_endpoint import benchctl

Endpoint = Callable[..., Script]
TIMINGS = {"timings": {"draft_n": 8, "draft_n_accepted": 6}}
SIXTEEN = [f" w{number}" for number in range(16)]
IN_FOURS = ["".join(SIXTEEN[start : start + 4]) for start in range(0, 16, 4)]


def run(folder: Path, arms: dict[str, Script], finish: str = "length", blocks: int = 1) -> tuple[str, Analysis]:
    """Run arms at their endpoints; return what was printed, and the analysis."""
    for script in arms.values():
        script.finish, script.pace_s = finish, 0.004
    speculation = {"type": "draft-simple", "max": 4}
    rows = [
        {"name": name, "url": f"{script.url}/v1"} | ({} if name == "baseline" else {"speculation": speculation})
        for name, script in arms.items()
    ]
    recipe: dict[str, Any] = {
        "name": "counts",
        "engine": {"kind": "openai", "url": f"{arms['baseline'].url}/v1", "only_speculation_differs": True},
        "models": {"target": {"source": "served:m"}},
        "prompts": {"suite": "p.jsonl"},
        "sampling": {"temperature": 0, "max_tokens": 16 if finish == "length" else 64},
        "blocks": blocks,
        "preflight": "off",
        "warmup": 0,
        "arms": rows,
    }
    (folder / "p.jsonl").write_text('{"prompt": "Hello"}\n{"prompt": "World"}\n')
    (folder / "counts.yaml").write_text(json.dumps(recipe))
    done = benchctl(folder, "run", "counts.yaml")
    (run_folder,) = (folder / "results" / "counts").iterdir()
    return " ".join((done.stdout + done.stderr).split()), analyse_run(open_run(run_folder))


def test_a_count_that_the_stream_contradicts_is_refused(endpoint: Endpoint, tmp_path: Path) -> None:
    output, analysis = run(
        tmp_path,
        {
            "baseline": endpoint(words=SIXTEEN),
            "half": endpoint(words=SIXTEEN, counted=8, extra=TIMINGS),
            "none": endpoint(words=SIXTEEN, counted=0, extra=TIMINGS),
            "good": endpoint(words=SIXTEEN, extra=TIMINGS),
        },
    )
    verdicts = {verdict.arm: verdict for verdict in analysis.verdicts}
    assert {arm: verdict.lossless for arm, verdict in verdicts.items()} == {
        "half": "undetermined",
        "none": "undetermined",
        "good": "identical",
    }
    assert "damages" not in output and "another answer" not in output
    for arm in ("half", "none"):
        assert (verdicts[arm].speedup, verdicts[arm].acceptance) == (None, None)
        assert f"Arm {arm}: an answer has no decode rate, because its stream has more pieces of text" in output
    assert {row.where for row in analysis.warnings if row.id == "contradicted-count"} == {"half", "none"}
    assert (verdicts["good"].speedup or 0) > 0 and verdicts["good"].acceptance == 0.75
    assert "75.0 % (unchecked)" in output and "nothing confirms how many tokens the engine accepted" in output


def test_chunks_that_are_counted_as_tokens_give_no_rate(endpoint: Endpoint, tmp_path: Path) -> None:
    output, analysis = run(
        tmp_path,
        {
            "baseline": endpoint(words=SIXTEEN),
            "chunks": endpoint(words=IN_FOURS, counted=4),
            "good": endpoint(words=SIXTEEN),
        },
        finish="stop",
        blocks=3,
    )
    verdicts = {verdict.arm: verdict for verdict in analysis.verdicts}
    assert (verdicts["chunks"].speedup, verdicts["chunks"].interval) == (None, None)
    assert (verdicts["good"].speedup or 0) > 0 and verdicts["good"].interval is not None
    assert verdicts["chunks"].lossless == "undetermined"
    assert "Another answer of the same text has more token ids or pieces of text" in output
    assert {row.arm for row in analysis.throughput if row.pooled_rate} == {"baseline", "good"}


def test_odd_streams(endpoint: Endpoint, tmp_path: Path) -> None:
    output, analysis = run(
        tmp_path,
        {
            "baseline": endpoint(words=SIXTEEN),
            "refuses": endpoint(fault="error-in-200"),
            "marked": endpoint(words=SIXTEEN, fault="byte-order-mark"),
        },
    )
    verdicts = {verdict.arm: verdict for verdict in analysis.verdicts}
    assert "HTTP 200: model overloaded" in output and "ended in its middle" not in output
    assert verdicts["marked"].lossless == "identical" and verdicts["refuses"].lossless == "undetermined"
