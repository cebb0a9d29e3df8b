"""Files of other programs: what they tell is read as told, what they lack is named, everything else is refused.

The logs in `claims/` are lines of engine logs beside results/qwen2.5-coder/20261122-191218-f263 (llama-server of
llama-cpp-python 0.3.36). The documents below have the keys that the sources named in `claims.py` write, by hand.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchctl.data.store import open_run
from benchctl.errors import UsageError
from benchctl.experiments.history.claims import conclude, read_claim, write_records
from tests.benchctl_process import benchctl

LOGS = {name: Path(__file__).with_name("claims") / f"llama-server-{name}.log" for name in ("baseline", "spec_d4")}


def speed_bench(draft: int = 40, tokens: int = 101, **more: Any) -> dict[str, Any]:
    """`save_output` of tools/server/bench/speed-bench/speed_bench.py: config, counts, summary, `RequestResult`s."""
    row = {
        "id": "q1",
        "category": "coding",
        "ok": True,
        "turns": 1,
        "latency_s": 3.0,
        "prompt_tokens": 20,
        "completion_tokens": tokens,
        "total_tokens": 20 + tokens,
        "finish_reason": "length",
        "draft_n": draft,
        "draft_n_accepted": draft // 2,
        "prompt_ms": 500.0,
        "predicted_ms": 2000.0 if draft else 2500.0,
        "prompt_per_second": 40.0,
        "predicted_per_second": 50.5,
        "error": None,
    }
    config = {"url": "http://localhost/v1", "model": None, "bench": "qualitative", "concurrency": 1}
    counts = {"selected_samples": 2, "completed_samples": 1, "failed_samples": 1, "summary": []}
    failed = row | {"id": "q2", "ok": False, "error": "HTTP 500: <b>", "finish_reason": None, "completion_tokens": 0}
    return {"config": config, **counts, "results": [row | more, failed]}


def serving(chunks: int = 9, **more: Any) -> dict[str, Any]:
    """What `vllm bench serve --save-result --save-detailed` writes (`result_json`, vllm/benchmarks/serve.py)."""
    return {
        "backend": "openai",
        "model_id": "m",
        "num_prompts": 1,
        "max_concurrency": 1,
        "total_token_throughput": 1.0,
        "input_lens": [5],
        "output_lens": [19],
        "ttfts": [0.5],
        "itls": [[0.1] * chunks],
        "generated_texts": ["hello"],
        "errors": [""],
        "spec_decode_draft_tokens": 30,
        "spec_decode_accepted_tokens": 9,
        "spec_decode_num_drafts": 9,
        **more,
    }


def aiperf(start: int, seconds: float = 2.0, phase: str = "profiling") -> dict[str, Any]:
    """A line of profile_export.jsonl (`MetricRecordInfo`, aiperf/common/models/record_models.py)."""
    spec = {"num_draft_tokens": 20, "num_accepted_draft_tokens": 10, "num_spec_steps": 5}
    return {
        "metadata": {
            "session_num": start,
            "request_start_ns": start * 10**9,
            "request_end_ns": int((start + seconds) * 10**9),
            "benchmark_phase": phase,
        },
        "metrics": {
            "output_sequence_length": {"value": 16, "unit": "tokens"},
            "input_sequence_length": {"value": 4, "unit": "tokens"},
            "time_to_first_token": {"value": 500.0, "unit": "ms"},
            "request_latency": {"value": 1000 * seconds, "unit": "ms"},
        },
        "spec_decode_acceptance": spec,
        "error": None,
    }


def guidellm(benchmarks: int = 1) -> dict[str, Any]:
    """benchmarks.json (`GenerativeBenchmarksReport`, guidellm/benchmark/schemas/report.py)."""
    timings = {
        "request_start": 100.0,
        "first_token_iteration": 100.5,
        "last_token_iteration": 102.0,
        "request_end": 102.1,
        "token_iterations": 16,
    }
    row = {
        "request_id": "x",
        "request_args": "{}",
        "output": "text",
        "info": {"timings": timings},
        "output_tokens": 16,
        "prompt_tokens": 4,
    }
    requests = {"successful": [row], "incomplete": [], "errored": []}
    return {"metadata": {"version": 2}, "config": {}, "benchmarks": [{"requests": requests}] * benchmarks}


def written(folder: Path, *documents: object, name: str = "file.json") -> Path:
    file = folder / name
    file.write_text("\n".join(json.dumps(document) for document in documents))
    return file


def test_a_log_of_llama_server_is_read_to_the_token() -> None:
    claim = read_claim(LOGS["spec_d4"])
    _, first = claim.requests[1]
    assert (first.n_predicted, first.prompt_tokens) == (128, 46)
    assert first.engine_decode_s == pytest.approx(11.48113) and first.tok_per_sec == pytest.approx(127 / 11.48113)
    assert (first.draft_n, first.draft_n_accepted, first.rounds) == (139, 92, 35)
    assert claim.overlapping is False
    assert read_claim(LOGS["baseline"]).requests[0][1].draft_n is None


def test_two_logs_show_a_speed_up_without_interval_and_verdict(tmp_path: Path) -> None:
    words = ("runs", "import", LOGS["spec_d4"], f"baseline={LOGS['baseline']}", "-o", tmp_path / "out")
    done = benchctl(*words, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    arm = found["arms"][0]
    assert arm["arm"] == "llama-server-spec_d4" and arm["acceptance_length"] > 2
    assert arm["speedup"]["low"] == arm["speedup"]["high"] == pytest.approx(0.6, abs=0.15)
    lacking = " ".join(found["lacking"])
    assert "One process" in lacking and "No answers" in lacking and "No baseline" not in lacking
    assert "Cannot be concluded" in benchctl(*words[:3], "-o", tmp_path / "other").stdout
    run = open_run(tmp_path / "out")
    assert {record.label for record in run.records} == {"baseline", "llama-server-spec_d4"}
    assert all(record.tok_per_sec for record in run.records)
    assert benchctl(*words).returncode == 2, "what is there is not overwritten"


def test_speed_bench_counts_by_the_engine_and_keeps_failures(tmp_path: Path) -> None:
    claims = {
        "spec": read_claim(written(tmp_path, speed_bench(), name="on.json")),
        "baseline": read_claim(written(tmp_path, speed_bench(draft=0), name="off.json")),
    }
    assert claims["baseline"].requests[0][1].draft_n is None, "0 is what it writes where nothing was told"
    spec = conclude(claims).arms[0]
    assert (spec.requests, spec.failed, spec.pairs, spec.acceptance) == (2, 1, 1, 0.5)
    assert spec.rate is not None and spec.rate.low == spec.rate.high == 50.0
    assert spec.speedup is not None and spec.speedup.high == pytest.approx(1.25)
    assert spec.whole == pytest.approx(1.0)
    assert [record.error for record in open_run(write_records(claims, tmp_path / "out")[0].parent).records].count(
        None
    ) == 2


def test_chunks_are_not_taken_for_tokens(tmp_path: Path) -> None:
    claim = read_claim(written(tmp_path, serving()))
    found = conclude({"spec": claim})
    rate = found.arms[0].rate
    assert rate is not None and rate.low == pytest.approx(10.0) and rate.high == pytest.approx(20.0)
    assert found.arms[0].acceptance_length == 2.0
    assert "Chunks" in " ".join(found.lacking) and "No baseline" in " ".join(found.lacking)
    run = open_run(write_records({"spec": claim}, tmp_path / "out")[0])
    assert run.records[0].client_tok_per_sec is None, "what is not known is no rate"
    exact = conclude({"spec": read_claim(written(tmp_path, serving(chunks=18)))})
    assert exact.arms[0].rate is not None and exact.arms[0].rate.low == exact.arms[0].rate.high
    assert "Chunks" not in " ".join(exact.lacking)


def test_totals_alone_give_no_records(tmp_path: Path) -> None:
    bare = {key: value for key, value in serving().items() if key not in ("itls", "ttfts", "output_lens")}
    claim = read_claim(written(tmp_path, bare))
    found = conclude({"spec": claim})
    assert found.arms[0].rate is None and found.arms[0].acceptance == 0.3
    assert "totals only" in " ".join(found.notes)
    assert write_records({"spec": claim}, tmp_path / "out") == []


def test_sglang_tells_the_servers_own_acceptance(tmp_path: Path) -> None:
    """A line of `sglang.bench_serving --output-details` (sglang/benchmark/serving.py)."""
    line = serving(total_output_tokens_retokenized=19, accept_length=2.5, max_concurrency=None)
    del line["model_id"]
    claim = read_claim(written(tmp_path, line))
    assert claim.program.startswith("SGLang") and claim.overlapping and "2.50" in claim.notes[0]
    with pytest.raises(UsageError, match="2 benchmarks"):
        read_claim(written(tmp_path, line, line))


def test_aiperf_is_read_without_its_warm_up(tmp_path: Path) -> None:
    claim = read_claim(written(tmp_path, aiperf(0, phase="warmup"), aiperf(1), aiperf(4)))
    assert len(claim.requests) == 2 and claim.overlapping is False
    _, first = claim.requests[0]
    assert (first.n_predicted, first.rounds, first.client_tok_per_sec) == (16, 5, None)
    assert first.decode_s == pytest.approx(1.5)
    found = conclude({"spec": claim})
    assert found.arms[0].rate is not None and found.arms[0].rate.low is None
    assert read_claim(written(tmp_path, aiperf(1), aiperf(2))).overlapping


def test_guidellm_is_read_of_one_benchmark(tmp_path: Path) -> None:
    _, first = read_claim(written(tmp_path, guidellm())).requests[0]
    assert (first.n_predicted, first.decode_s, first.client_tok_per_sec, first.content) == (16, 1.5, 10.0, "text")
    with pytest.raises(UsageError, match="2 benchmarks"):
        read_claim(written(tmp_path, guidellm(2)))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "nothing",
        '{"a": 1}',
        "[" * 100_000,
        json.dumps(speed_bench() | {"results": [{}]}),
        json.dumps(speed_bench() | {"results": 3}),
        json.dumps(serving(itls=[["x"]])),
        json.dumps(serving(ttfts=[0.5, 0.5])),
        json.dumps(aiperf(1) | {"metadata": None}),
        json.dumps(guidellm() | {"benchmarks": [{}]}),
    ],
)
def test_everything_else_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "file.json"
    file.write_text(text)
    with pytest.raises(UsageError):
        read_claim(file)


def test_numbers_that_are_none_are_left_out(tmp_path: Path) -> None:
    odd = speed_bench(predicted_ms=float("nan"), completion_tokens=-3, prompt_tokens=1.5)
    _, request = read_claim(written(tmp_path, odd)).requests[0]
    assert (request.n_predicted, request.engine_decode_s, request.prompt_tokens) == (0, None, None)
    assert conclude({"spec": read_claim(written(tmp_path, odd))}).arms[0].rate is None


@pytest.mark.parametrize("words", [("../up=LOG",), ("a=LOG", "a=LOG"), ("nowhere.json",)])
def test_names_of_arms_are_checked(tmp_path: Path, words: tuple[str, ...]) -> None:
    given = [word.replace("LOG", str(LOGS["baseline"])) for word in words]
    done = benchctl("runs", "import", *given, cwd=tmp_path)
    assert done.returncode in (2, 4) and "Traceback" not in done.stderr
    assert not (tmp_path / "imported").exists()
