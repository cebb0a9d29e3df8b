"""Files that other programs wrote of what they measured, one request a row; what a file does not tell is `None`.

Each reader names the source that its shape was read from. A number that is no finite, plausible one is left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchctl.analysis.imported import Claim
from benchctl.data.record import Record, RecordError, sha256_text
from benchctl.errors import StorageError, UsageError

Fields = Mapping[str, Any]
MOST_BYTES = 1 << 30


def read_claim(path: Path) -> Claim:
    """Read a file. Raises UsageError for one of no known shape, StorageError where it cannot be read."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise UsageError("This file is larger than 1 GiB.", where=str(path), fix="Import a part of it.")
        text = path.read_text("utf-8", "replace")
    except OSError as error:
        raise StorageError(f"It cannot be read: {error.strerror}.", where=str(path)) from None
    documents = _documents(text)
    try:
        for fits, read in _READERS:
            if documents and all(map(fits, documents)):
                return read(documents)
        if not documents and (claim := _llama_server(text)) is not None:
            return claim
    except UsageError as error:
        raise UsageError(error.what, where=str(path), fix=error.fix) from None
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        what = f"It looks like a known format, but is not: {type(error).__name__} {error}."
        raise UsageError(what, where=str(path), fix="Import the file as the program wrote it.") from None
    raise UsageError(
        "This file is of no format that can be imported.",
        where=str(path),
        fix="Known are: a log of llama-server (-lv 3 or more), speed_bench.py --output, vllm bench serve --save-result "
        "--save-detailed, sglang.bench_serving --output-details, aiperf's profile_export.jsonl, and guidellm's "
        "benchmarks.json.",
    )


def _documents(text: str) -> list[Fields]:
    """Return the JSON objects of a file of one, or of one a line; nothing for every other file."""
    try:
        found = [json.loads(text)]
    except (ValueError, RecursionError):
        try:
            found = [json.loads(line) for line in text.splitlines() if line.strip()]
        except (ValueError, RecursionError):
            return []
    return found if all(isinstance(one, dict) for one in found) else []


def _request(
    tokens: int | None,
    seconds: float | None,
    *,
    chunks: int | None = None,
    task: str = "all",
    text: str | None = None,
    error: str | None = None,
    engine: bool = False,
    **more: Any,  # noqa: ANN401 - fields of a record
) -> Record:
    """Return one request. `seconds` for the tokens after the first: by the engine, else from first to last chunk.

    `chunks`: those after the first; each holds a token at least. A rate is known where the engine timed it, or where
    every chunk held one token.
    """
    most = max(0, (tokens or 0) - 1)
    known = bool(most and seconds and (engine or chunks == most))
    rate = most / seconds if known and seconds else None
    return Record(
        label="",
        task=task,
        prompt_idx=0,
        rep=0,
        schema_version=1,
        n_predicted=tokens or 0,
        tok_per_sec=rate if engine else None,
        client_tok_per_sec=None if engine else rate,
        client_tok_per_sec_least=min(chunks, most) / seconds if chunks and seconds and not engine else None,
        engine_decode_s=seconds if engine else None,
        decode_s=None if engine else seconds,
        content=text or None,
        content_sha=sha256_text(text) if text else None,
        error=None if error is None else RecordError(kind="http", message=error[:500]),
        **more,
    )


def _number(value: object, most: float = 1e9) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if 0 <= value <= most else None  # NaN is in no range


def _count(value: object) -> int | None:
    number = _number(value)
    return int(number) if number is not None and number == int(number) else None


def _overlap(times: Iterable[tuple[float | None, float | None]]) -> bool | None:
    known = sorted((start, end) for start, end in times if start is not None and end is not None)
    return any(later[0] < earlier[1] for earlier, later in pairwise(known)) if known else None


_LINE = re.compile(
    r"print_timing: id +(\d+) \| task +(\d+) \| +(?:(prompt eval|eval) time = +([\d.]+) ms / +(\d+) tokens"
    r"|draft acceptance = [\d.]+ \( *(\d+) accepted / +(\d+) generated\), mean len = +([\d.]+))"
)


def _llama_server(text: str) -> Claim | None:
    """llama.cpp, `tools/server/server-context.cpp`, `print_timings`: as in the sdist of llama-cpp-python 0.3.36."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for slot, task, phase, ms, count, accepted, drafted, length in _LINE.findall(text):
        fields = found.setdefault((slot, task), {})
        if phase == "prompt eval":
            fields |= {"prompt_tokens": int(count)}
        elif phase:
            fields |= {"tokens": int(count), "seconds": float(ms) / 1000}
        else:
            fields |= {"draft_n_accepted": int(accepted), "draft_n": int(drafted)}
            fields["rounds"] = _rounds(int(accepted), float(length))
    requests = [
        (str(number), _request(**fields, engine=True))
        for number, fields in enumerate(found.values())
        if "tokens" in fields
    ]
    overlapping = len({slot for slot, _ in found}) > 1
    notes = ["Requests have no names in a log: the n-th counts as the n-th prompt, warm-up requests among them."]
    return Claim("llama-server log", requests, overlapping, notes=notes) if requests else None


def _rounds(accepted: int, length: float) -> int | None:
    """Return the rounds of which this is the acceptance length, to two digits; `None` where several have it."""
    if length <= 1.005:
        return None
    ends = {round(accepted / (length + error - 1)) for error in (-0.005, 0.005)}
    return ends.pop() if len(ends) == 1 else None


def _speed_bench(documents: Sequence[Fields]) -> Claim:
    """llama.cpp, `tools/server/bench/speed-bench/speed_bench.py`, `save_output`: in the same sdist."""
    (document,) = documents
    requests = []
    for row in document["results"]:
        ms = _number(row["predicted_ms"])
        drafted = _count(row["draft_n"]) or None  # 0 also where the server told nothing
        ending = row["finish_reason"]
        request = _request(
            _count(row["completion_tokens"]),
            None if ms is None else ms / 1000,
            engine=True,
            task=str(row["category"]),
            e2e_s=_number(row["latency_s"]),
            draft_n=drafted,
            draft_n_accepted=_count(row["draft_n_accepted"]) if drafted else None,
            prompt_tokens=_count(row["prompt_tokens"]),
            finish_reason=ending if ending in ("stop", "length") else None,
            error=None if row["ok"] else str(row["error"]),
        )
        requests.append((str(row["id"]), request))
    turns = any((_count(row["turns"]) or 1) > 1 for row in document["results"])
    notes = ["Several turns are summed: an answer that differs changes the work after it."] if turns else []
    return Claim("llama.cpp speed-bench", requests, _count(document["config"]["concurrency"]) != 1, notes=notes)


def _serving(program: str) -> Callable[[Sequence[Fields]], Claim]:
    """vLLM 0.32.0, `vllm/benchmarks/serve.py`; SGLang 0.5.23, `sglang/benchmark/serving.py`: lists of equal length."""

    def read(documents: Sequence[Fields]) -> Claim:
        if len(documents) > 1:
            raise UsageError(
                f"This file has {len(documents)} benchmarks, a line each.", fix="Import one of the lines as a file."
            )
        (document,) = documents
        requests = []
        lists = ("input_lens", "output_lens", "ttfts", "itls", "generated_texts", "errors")
        columns = [document[name] for name in lists] if all(document.get(name) for name in lists) else []
        for number, (prompt, tokens, ttft, gaps, text, error) in enumerate(zip(*columns, strict=True)):
            seconds = _number(sum(gaps))
            first = _number(ttft)
            request = _request(
                _count(tokens),
                seconds,
                chunks=len(gaps),
                ttft_s=first,
                e2e_s=None if first is None or seconds is None else first + seconds,
                prompt_tokens=_count(prompt),
                text=str(text),
                error=str(error) if error else None,
            )
            requests.append((str(number), request))
        drafted, accepted, rounds = (
            _count(document.get(f"spec_decode_{name}")) for name in ("draft_tokens", "accepted_tokens", "num_drafts")
        )
        length = _number(document.get("accept_length"))
        notes = [] if requests else ["The file has totals only: let the program write every request (see --help)."]
        if length:
            notes.append(f"Acceptance length by the server's own average since it started: {length:.2f}.")
        return Claim(program, requests, document["max_concurrency"] != 1, drafted, accepted, rounds, notes)

    return read


def _aiperf(documents: Sequence[Fields]) -> Claim:
    """aiperf 0.13.0, `aiperf/common/models/record_models.py`, `MetricRecordInfo`."""
    requests, times = [], []
    for document in documents:
        about, metrics = document["metadata"], document["metrics"]
        if about["benchmark_phase"] != "profiling":
            continue
        spec = document.get("spec_decode_acceptance") or {}
        ttft, e2e = (_seconds(metrics.get(name)) for name in ("time_to_first_token", "request_latency"))
        times.append((_number(about["request_start_ns"], 1e20), _number(about["request_end_ns"], 1e20)))
        request = _request(
            _count(metrics.get("output_sequence_length", {}).get("value")),
            None if ttft is None or e2e is None else max(0.0, e2e - ttft),
            ttft_s=ttft,
            e2e_s=e2e,
            draft_n=_count(spec.get("num_draft_tokens")),
            draft_n_accepted=_count(spec.get("num_accepted_draft_tokens")),
            rounds=_count(spec.get("num_spec_steps")),
            prompt_tokens=_count(metrics.get("input_sequence_length", {}).get("value")),
            error=str(document["error"].get("message")) if document.get("error") else None,
        )
        requests.append((f"{about['session_num']}/{about.get('turn_index') or 0}", request))
    return Claim("aiperf", requests, _overlap(times))


def _seconds(metric: Fields | None) -> float | None:
    units = {"s": 1.0, "sec": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
    value = _number(metric["value"]) if metric else None
    return None if value is None or metric is None or metric["unit"] not in units else value * units[metric["unit"]]


def _guidellm(documents: Sequence[Fields]) -> Claim:
    """guidellm 0.8.1, `guidellm/benchmark/schemas/report.py` and `guidellm/schemas/base/request_stats.py`."""
    (document,) = documents
    benchmarks = document["benchmarks"]
    if len(benchmarks) != 1:
        what = f"This report has {len(benchmarks)} benchmarks, each under another load."
        raise UsageError(what, fix="Measure with one profile: --profile synchronous.")
    requests: list[tuple[str, Record]] = []
    times = []
    for state in ("successful", "errored"):
        for row in benchmarks[0]["requests"][state] or ():
            moments = row["info"]["timings"]
            start, first, last, end = (
                _number(moments[name], 1e12)
                for name in ("request_start", "first_token_iteration", "last_token_iteration", "request_end")
            )
            times.append((start, end))
            args = row["request_args"]
            chunks = _count(moments["token_iterations"])
            request = _request(
                _count(row["output_tokens"]),
                None if first is None or last is None else last - first,
                chunks=chunks - 1 if chunks else None,
                ttft_s=None if start is None or first is None else first - start,
                e2e_s=None if start is None or end is None else end - start,
                prompt_tokens=_count(row["prompt_tokens"]),
                text=row["output"],
                error="errored" if state == "errored" else None,
            )
            requests.append((str(args or len(requests)), request))
    return Claim("guidellm", requests, _overlap(times))


_READERS: tuple[tuple[Callable[[Fields], bool], Callable[[Sequence[Fields]], Claim]], ...] = (
    (lambda one: {"config", "selected_samples", "results"} <= one.keys(), _speed_bench),
    (lambda one: {"model_id", "num_prompts", "total_token_throughput"} <= one.keys(), _serving("vLLM bench serve")),
    (lambda one: {"backend", "total_output_tokens_retokenized"} <= one.keys(), _serving("SGLang bench_serving")),
    (lambda one: {"metadata", "metrics"} <= one.keys(), _aiperf),
    (lambda one: {"metadata", "benchmarks"} <= one.keys(), _guidellm),
)
