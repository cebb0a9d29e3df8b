"""What the harness itself costs, and whether its clock tells the engine's truth, on one real llama-server.

    pip install requests    # for llama.cpp's client only
    python -m benchmarks.overhead TARGET.gguf --speed-bench LLAMA_CPP/tools/server/bench/speed-bench/speed_bench.py

Three clients ask the same server the same prompts in turn, in rotated order, so that the machine's noise falls on all
of them alike:

- `benchctl`: the adapter's streamed answers, ledger and hashes, and every record appended to a store, as in a cell;
- `bare`: httpx posts the same body without streaming and throws the answer away;
- `speed-bench`: the client that llama.cpp ships, its own code loaded from its file (chat endpoint, new connection a
  request).

Overhead is wall time minus the engine's own time (prompt_ms + predicted_ms). Fidelity compares the decode rate that
benchctl's client timed with the engine's own, request by request.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import statistics
import sys
import tempfile
import time
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx

from benchctl.data.record import Record, sha256_text, sha256_tokens
from benchctl.engines.base import Completion, Rendered
from benchctl.engines.common.process import EngineProcess, free_port
from benchctl.engines.llama_cpp.adapter import LlamaCppSpec
from benchctl.engines.llama_cpp.probe import Flags
from benchctl.engines.llama_cpp.requests import completion_body
from benchctl.engines.llama_cpp.server import LlamaServer
from benchctl.engines.registry import make_engine
from benchctl.models.sources import ModelSearch
from benchctl.prompts.load import load_suite
from benchctl.prompts.suite import PromptItem
from benchctl.recipes.schema import Arm, ModelPair, ModelSpec, Sampling
from benchmarks.keep import keep

Client = Callable[[], tuple[float, float, int]]
"""One pass over the prompts: (wall seconds, the engine's own seconds, tokens)."""


def main() -> None:
    """Measure the three clients on one server."""
    options = _options()
    spec = LlamaCppSpec(device="cpu", context=4096)
    engine = make_engine(spec, binary=options.server)
    pair = ModelSearch(Path.cwd()).pair(ModelPair(target=ModelSpec(source=str(options.target))))
    sampling = Sampling(max_tokens=options.max_tokens, ignore_eos=True)
    with tempfile.TemporaryDirectory() as scratch:
        launch, log, port = engine.launch(Arm(name="baseline"), pair), Path(scratch) / "engine.log", free_port()
        # On a port and without a key, where all three can reach it.
        argv = launch.command(port)
        process, url = EngineProcess(argv, launch.env, log), f"http://127.0.0.1:{port}"
        server = LlamaServer(process, url, spec, argv, Flags(()))
        try:
            server.wait_until_healthy(server.start_up(0.03))
            results = _measure(server, url, sampling, Path(scratch) / "records.jsonl", options)
        finally:
            server.stop()
    keep("overhead", {"target": options.target.name, **results})


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("--server", help="a llama-server; else the one that benchctl finds")
    parser.add_argument("--speed-bench", type=Path, help="speed_bench.py of llama.cpp's source tree")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=128)
    return parser.parse_args()


def _measure(
    server: LlamaServer, url: str, sampling: Sampling, records: Path, options: argparse.Namespace
) -> dict[str, Any]:
    items = load_suite("plamo2-study", recipe_folder=Path.cwd()).select(["code"], None)
    prompts = [server.render(item.prompt) for item in items]
    completions: list[Completion] = []
    clients: dict[str, Client] = {
        "benchctl": lambda: _benchctl(server, prompts, sampling, records, completions),
        "bare": lambda: _bare(url, prompts, sampling),
    }
    if options.speed_bench:
        clients["speed-bench"] = _speed_bench(options.speed_bench, url, items, sampling)
    for client in clients.values():
        client()  # warm
    completions.clear()
    passes: dict[str, list[tuple[float, float, int]]] = {name: [] for name in clients}
    order = list(clients)
    for _ in range(options.rounds):
        for name in order:
            passes[name].append(clients[name]())
        order.append(order.pop(0))
    found: dict[str, Any] = {
        "rounds": options.rounds,
        "requests_a_round": len(prompts),
        "clients": {name: _summary(results, len(prompts)) for name, results in passes.items()},
    }
    bare_wall = statistics.median(wall for wall, _, _ in passes["bare"])
    extra = statistics.median(
        (mine[0] - mine[1]) - (bare[0] - bare[1]) for mine, bare in zip(passes["benchctl"], passes["bare"], strict=True)
    )
    found["benchctl_over_bare_percent"] = 100 * extra / bare_wall
    errors = [abs(_client_rate(done) / _engine_rate(done) - 1) for done in completions]
    found["fidelity"] = {
        "requests": len(errors),
        "median_error_percent": 100 * statistics.median(errors),
        "p95_error_percent": 100 * sorted(errors)[int(0.95 * (len(errors) - 1))],
        "max_error_percent": 100 * max(errors),
    }
    return found


def _summary(results: Sequence[tuple[float, float, int]], requests: int) -> dict[str, float]:
    overhead = [wall - engine for wall, engine, _ in results]
    return {
        "wall_s_median": statistics.median(wall for wall, _, _ in results),
        "engine_s_median": statistics.median(engine for _, engine, _ in results),
        "tokens_a_round": results[0][2],
        "overhead_ms_a_request_median": 1000 * statistics.median(overhead) / requests,
        "overhead_percent_median": statistics.median(100 * (wall - engine) / engine for wall, engine, _ in results),
    }


def _client_rate(done: Completion) -> float:
    return (done.n_predicted - 1) / done.decode_s


def _engine_rate(done: Completion) -> float:
    assert done.engine_decode_s is not None
    return (done.n_predicted - 1) / done.engine_decode_s


def _benchctl(
    server: LlamaServer, prompts: Sequence[Rendered], sampling: Sampling, records: Path, completions: list[Completion]
) -> tuple[float, float, int]:
    engine_s, tokens = 0.0, 0
    began = time.perf_counter()
    with records.open("ab", buffering=0) as stream:
        for index, prompt in enumerate(prompts):
            done = asyncio.run(server.complete(prompt, sampling))
            record = Record(
                label="baseline",
                task="code",
                prompt_idx=index,
                rep=0,
                n_predicted=done.n_predicted,
                content=done.text,
                content_sha=sha256_text(done.text),
                token_ids=list(done.token_ids or ()),
                token_sha=sha256_tokens(done.token_ids or ()),
                prompt_sha=sha256_text(prompt.text),
            )
            stream.write(record.to_line().encode("ascii") + b"\n")
            engine_s += (done.engine_prompt_s or 0) + (done.engine_decode_s or 0)
            tokens += done.n_predicted
            completions.append(done)
    return time.perf_counter() - began, engine_s, tokens


def _bare(url: str, prompts: Sequence[Rendered], sampling: Sampling) -> tuple[float, float, int]:
    engine_s, tokens = 0.0, 0
    with httpx.Client(base_url=url, timeout=600) as client:
        began = time.perf_counter()
        for prompt in prompts:
            answer = client.post("/completion", json=completion_body(prompt.token_ids, sampling, stream=False)).json()
            engine_s += (answer["timings"]["prompt_ms"] + answer["timings"]["predicted_ms"]) / 1000
            tokens += answer["timings"]["predicted_n"]
        wall = time.perf_counter() - began
    return wall, engine_s, tokens


def _speed_bench(file: Path, url: str, items: Sequence[PromptItem], sampling: Sampling) -> Client:
    """Load llama.cpp's client from its file; its data set library is not needed, since the prompts are given."""
    for name, attributes in (("datasets", ("get_dataset_config_names", "load_dataset")), ("tqdm", ("tqdm",))):
        stand_in = types.ModuleType(name)
        for attribute in attributes:
            setattr(stand_in, attribute, None)
        sys.modules.setdefault(name, stand_in)
    spec = importlib.util.spec_from_file_location("speed_bench", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["speed_bench"] = module
    spec.loader.exec_module(module)
    samples = [
        module.Sample(id=str(item.prompt_idx), category=item.task, turns=[item.prompt.messages[0].content])
        for item in items
        if item.prompt.messages
    ]
    extra = {"temperature": 0, "top_k": 1, "cache_prompt": False, "ignore_eos": True}

    def once() -> tuple[float, float, int]:
        engine_s, tokens = 0.0, 0
        began = time.perf_counter()
        for sample in samples:
            done = module.run_one(sample, f"{url}/v1/chat/completions", None, sampling.max_tokens, extra, 600)
            if not done.ok:
                raise RuntimeError(done.error)
            engine_s += (done.prompt_ms + done.predicted_ms) / 1000
            tokens += done.completion_tokens
        return time.perf_counter() - began, engine_s, tokens

    return once


if __name__ == "__main__":
    main()
