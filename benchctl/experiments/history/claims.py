"""Files that other programs wrote of what they measured, a row a request, and what can be concluded from them.

Each reader names the source that its shape was read from. A number that is not finite and plausible is left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchctl.analysis.comparison.replication import BASELINE, Claim, ImportedArm, imported_arm
from benchctl.analysis.result import Result
from benchctl.data.record import Record, RecordError, sha256_text
from benchctl.data.writer import cannot_write, write_whole
from benchctl.errors import StorageError, UsageError
from benchctl.text import plural

Fields = Mapping[str, Any]
MOST_BYTES = 1 << 30


def read_claim(path: Path) -> Claim:
    """Read a file. Raises UsageError where its shape is not known, StorageError where it cannot be read."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise UsageError("This file is larger than 1 GiB.", where=str(path), fix="Import a part of it.")
        text = path.read_text("utf-8", "replace")
    except OSError as error:
        raise StorageError(f"It cannot be read: {error.strerror}.", where=str(path)) from None
    documents = _documents(text)
    try:
        for program, keys, read in _READERS:
            if documents and all(keys <= document.keys() for document in documents):
                return read(program, documents)
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
    """Return the JSON objects of a file, which holds a single object or a line an object; nothing for other files."""
    try:
        found = [json.loads(text)]
    except (ValueError, RecursionError):
        try:
            found = [json.loads(line) for line in text.splitlines() if line.strip()]
        except (ValueError, RecursionError):
            return []
    return found if all(isinstance(document, dict) for document in found) else []


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
    """Return a request. `seconds` for the tokens after the first: by the engine, else from first to last chunk.

    `chunks`: those after the first; each holds a token at least. A rate is known where the engine timed it, or where
    every chunk held a single token.
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


def _seconds(metric: Fields | None) -> float | None:
    units = {"s": 1.0, "sec": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
    value = _number(metric["value"]) if metric else None
    return None if value is None or metric is None or metric["unit"] not in units else value * units[metric["unit"]]


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
            rounds = _rounds(int(accepted), float(length))
            fields |= {"draft_n_accepted": int(accepted), "draft_n": int(drafted), "rounds": rounds}
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


def _speed_bench(program: str, documents: Sequence[Fields]) -> Claim:
    """llama.cpp, `tools/server/bench/speed-bench/speed_bench.py`, `save_output`: in the same sdist."""
    (document,) = documents
    requests = []
    for row in document["results"]:
        ms = _number(row["predicted_ms"])
        drafted = _count(row["draft_n"]) or None  # 0 also where the server told nothing
        request = _request(
            _count(row["completion_tokens"]),
            None if ms is None else ms / 1000,
            engine=True,
            task=str(row["category"]),
            e2e_s=_number(row["latency_s"]),
            draft_n=drafted,
            draft_n_accepted=_count(row["draft_n_accepted"]) if drafted else None,
            prompt_tokens=_count(row["prompt_tokens"]),
            finish_reason=row["finish_reason"] if row["finish_reason"] in ("stop", "length") else None,
            error=None if row["ok"] else str(row["error"]),
        )
        requests.append((str(row["id"]), request))
    turns = any((_count(row["turns"]) or 1) > 1 for row in document["results"])
    notes = ["Several turns are summed: an answer that differs changes the work after it."] if turns else []
    return Claim(program, requests, _count(document["config"]["concurrency"]) != 1, notes=notes)


def _serving(program: str, documents: Sequence[Fields]) -> Claim:
    """vLLM 0.32.0, `vllm/benchmarks/serve.py`; SGLang 0.5.23, `sglang/benchmark/serving.py`: lists of equal length."""
    if len(documents) > 1:
        what = f"This file has {len(documents)} benchmarks, a line each."
        raise UsageError(what, fix="Import a single line as a file.")
    (document,) = documents
    lists = ("input_lens", "output_lens", "ttfts", "itls", "generated_texts", "errors")
    columns = [document[name] for name in lists] if all(document.get(name) for name in lists) else []
    requests = []
    for number, (prompt, tokens, ttft, gaps, text, error) in enumerate(zip(*columns, strict=True)):
        first, seconds = _number(ttft), _number(sum(gaps))
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
    notes = [] if requests else ["The file has totals only: let the program write every request (see --help)."]
    if length := _number(document.get("accept_length")):
        notes.append(f"Acceptance length by the server's own average since it started: {length:.2f}.")
    return Claim(program, requests, document["max_concurrency"] != 1, drafted, accepted, rounds, notes)


def _aiperf(program: str, documents: Sequence[Fields]) -> Claim:
    """aiperf 0.13.0, `aiperf/common/models/record_models.py`, `MetricRecordInfo`."""
    requests, times = [], []
    for document in documents:
        about, metrics = document["metadata"], document["metrics"]
        if about["benchmark_phase"] != "profiling":
            continue
        spec = document.get("spec_decode_acceptance") or {}
        ttft, e2e = (_seconds(metrics.get(name)) for name in ("time_to_first_token", "request_latency"))
        prompt, answer = (
            _count(metrics.get(f"{which}_sequence_length", {}).get("value")) for which in ("input", "output")
        )
        times.append((_number(about["request_start_ns"], 1e20), _number(about["request_end_ns"], 1e20)))
        request = _request(
            answer,
            None if ttft is None or e2e is None else max(0.0, e2e - ttft),
            ttft_s=ttft,
            e2e_s=e2e,
            draft_n=_count(spec.get("num_draft_tokens")),
            draft_n_accepted=_count(spec.get("num_accepted_draft_tokens")),
            rounds=_count(spec.get("num_spec_steps")),
            prompt_tokens=prompt,
            error=str(document["error"].get("message")) if document.get("error") else None,
        )
        requests.append((f"{about['session_num']}/{about.get('turn_index') or 0}", request))
    return Claim(program, requests, _overlap(times))


def _guidellm(program: str, documents: Sequence[Fields]) -> Claim:
    """guidellm 0.8.1, `guidellm/benchmark/schemas/report.py` and `guidellm/schemas/base/request_stats.py`."""
    (document,) = documents
    benchmarks = document["benchmarks"]
    if len(benchmarks) != 1:
        what = f"This report has {len(benchmarks)} benchmarks, each under another load."
        raise UsageError(what, fix="Measure with a single profile: --profile synchronous.")
    requests: list[tuple[str, Record]] = []
    times = []
    for state in ("successful", "errored"):
        for row in benchmarks[0]["requests"][state] or ():
            moments = row["info"]["timings"]
            names = ("request_start", "first_token_iteration", "last_token_iteration", "request_end")
            start, first, last, end = (_number(moments[name], 1e12) for name in names)
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
            times.append((start, end))
            requests.append((str(row["request_args"] or len(requests)), request))
    return Claim(program, requests, _overlap(times))


_READERS: tuple[tuple[str, set[str], Callable[[str, Sequence[Fields]], Claim]], ...] = (
    ("llama.cpp speed-bench", {"config", "selected_samples", "results"}, _speed_bench),
    ("vLLM bench serve", {"model_id", "num_prompts", "total_token_throughput"}, _serving),
    ("SGLang bench_serving", {"backend", "total_output_tokens_retokenized"}, _serving),
    ("aiperf", {"metadata", "metrics"}, _aiperf),
    ("guidellm", {"metadata", "benchmarks"}, _guidellm),
)
"""Programs, by the keys that every document of a file has."""


class Imported(Result):
    """What is concluded."""

    arms: list[ImportedArm]
    known: list[str]
    lacking: list[str]
    notes: list[str]
    files: list[str]


def conclude(claims: Mapping[str, Claim]) -> Imported:
    """Conclude from files, a file an arm. Raises UsageError where two programs' files cannot be compared."""
    programs = {claim.program for claim in claims.values()}
    if len(programs) > 1:
        what = f"Files of {len(programs)} programs ({', '.join(sorted(programs))}) do not time alike."
        raise UsageError(what, where="runs import", fix="Import those of each program alone.")
    base = claims.get(BASELINE)
    arms = [imported_arm(name, claim, None if name == BASELINE else base) for name, claim in claims.items()]
    compared = any(arm.pairs for arm in arms)
    every = [request for claim in claims.values() for _, request in claim.requests if request.error is None]
    unequal = sum(arm.pairs_unequal for arm in arms)
    answers = any(request.content is not None for request in every)
    known = {
        "How fast a process decoded these requests.": any(arm.rate for arm in arms),
        "How much of the drafts was accepted, by the engine's own count.": any(
            arm.acceptance is not None for arm in arms
        ),
        "A speed-up of a single process over another, over the requests of equal length.": compared,
    }
    lacking = {
        f"No baseline: a speed-up needs the same requests without speculation, {BASELINE}=FILE.": base is None,
        "No speed-up: no request was answered with as many tokens by baseline and arm.": (
            base is not None and not compared and len(arms) > 1
        ),
        "One process an arm: what differs from process to process is not known, so no interval is given.": True,
        "Chunks were timed, not tokens: of decode rates only limits are known.": any(
            request.n_predicted > 1 and not (request.tok_per_sec or request.client_tok_per_sec) for request in every
        ),
        "Requests overlapped, or it is not told whether: rates are of requests that shared the engine.": any(
            claim.overlapping is not False for claim in claims.values()
        ),
        f"Unequal work: {unequal} {plural(unequal, 'request')} of unequal length, left out of speed-ups.": unequal > 0,
        "No answers: whether the output is the target's own cannot be said.": not answers,
        "No token ids and no scores of the target: a difference in the output cannot be judged.": answers,
        "No drafts are counted: whether speculation was on is not shown.": all(
            arm.acceptance is None for arm in arms if arm.arm != BASELINE
        ),
        "No engine build, command line, machine or model files: it cannot be repeated from the file alone.": True,
    }
    notes = list(dict.fromkeys(note for claim in claims.values() for note in claim.notes))
    true = [[sentence for sentence, holds in sentences.items() if holds] for sentences in (known, lacking)]
    return Imported(arms=arms, known=true[0], lacking=true[1], notes=notes, files=[])


def write_records(claims: Mapping[str, Claim], out: Path) -> list[Path]:
    """Write a JSONL file of records an arm. Raises StorageError, UsageError where there is something already."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError("There is something here already.", where=str(out), fix="Name another folder with -o.")
    keys = {(request.task, key) for claim in claims.values() for key, request in claim.requests}
    tasks: dict[str, list[str]] = {}
    for task, key in sorted(keys, key=lambda pair: (len(pair[1]), pair)):
        tasks.setdefault(task, []).append(key)
    place = {(task, key): number for task, of_it in tasks.items() for number, key in enumerate(of_it)}
    files = []
    for arm, claim in claims.items():
        lines = [
            request.changed(label=arm, prompt_idx=place[request.task, key]).to_line() for key, request in claim.requests
        ]
        if lines:
            try:
                out.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise cannot_write(error, out) from None
            files.append(out / f"{arm}.jsonl")
            write_whole(files[-1], "\n".join(lines))
    return files
