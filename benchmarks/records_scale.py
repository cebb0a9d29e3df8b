"""How long reading, verifying and reporting take for 10,000, 30,000 and 100,000 records, and whether that is linear.

    python -m benchmarks.records_scale [--tokens 128] [SIZE …]

Makes a run folder of each size in a temporary folder (seven arms, three blocks, five tasks, some answers forked), runs
`benchctl verify-lossless --json --offline` and `benchctl report --no-figures` on it as a user would, and keeps seconds
of wall time, of CPU time and the largest resident memory of each.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchctl.data.manifest import ArmIdentity, EngineIdentity, Manifest, ModelIdentity, PromptIdentity
from benchctl.data.record import Record, sha256_text, sha256_tokens
from benchctl.data.writer import RunWriter
from benchmarks.keep import keep

TASKS = ("code", "en_chat", "ja_chat", "rag", "translation")
DEPTHS = {"baseline": 0, "spec_d2": 2, "spec_d4": 4, "spec_d8": 8, "spec_d16": 16, "spec_d32": 32, "ngram": 12}
BLOCKS = 3
VOCABULARY = (
    "the",
    "a",
    "of",
    "function",
    "returns",
    "value",
    "list",
    "index",
    "none",
    "sorted",
    "key",
    "answer",
    "while",
)


def write_run(folder: Path, size: int, tokens: int) -> int:
    """Write a run of about `size` records of `tokens` tokens each; return the number written."""
    rng = random.Random(size)
    prompts = size // (BLOCKS * len(DEPTHS))
    keys = [(TASKS[number % len(TASKS)], number // len(TASKS)) for number in range(prompts)]
    answers = {key: [rng.randrange(30000) for _ in range(tokens)] for key in keys}
    forked = {
        (arm, key): answers[key][: tokens // 2] + [rng.randrange(30000) for _ in range(tokens - tokens // 2)]
        for arm in DEPTHS
        for key in keys
        if arm != "baseline" and rng.random() < 0.1
    }
    folder.mkdir(parents=True)
    count = 0
    with (folder / "records.jsonl").open("w", encoding="ascii") as file:
        for block in range(BLOCKS):
            for order, (arm, depth) in enumerate(DEPTHS.items()):
                for key in keys:
                    ids = forked.get((arm, key), answers[key])
                    file.write(record(key, block, order, arm, depth, ids, rng).to_line() + "\n")
                    count += 1
    with RunWriter(folder, manifest(folder.name, keys)):
        pass
    return count


def record(
    key: tuple[str, int], block: int, order: int, arm: str, depth: int, ids: list[int], rng: random.Random
) -> Record:
    """Make one answer as the runner writes it, with plausible times and counters."""
    text = " ".join(VOCABULARY[token % len(VOCABULARY)] for token in ids)
    size = len(ids)
    rounds = size // 3 if depth else 0
    by_position = [rounds // (position + 2) for position in range(depth)] if depth else None
    accepted = sum(by_position) if by_position else None
    decode_s = (size - 1) / (17 if not depth else 12) * rng.uniform(0.97, 1.03)
    return Record.from_dict(
        {
            "label": arm,
            "task": key[0],
            "prompt_idx": key[1],
            "rep": block,
            "tok_per_sec": (size - 1) / decode_s,
            "n_predicted": size,
            "draft_n": max(depth * rounds, accepted or 0) if depth else None,
            "draft_n_accepted": accepted,
            "prompt_per_sec": 90.0,
            "content_sha": sha256_text(text),
            "content": text,
            "schema": 1,
            "run": "scale",
            "block": block,
            "order": order,
            "prompt_sha": sha256_text(str(key)),
            "prompt_tokens": 40,
            "token_ids": ids,
            "token_sha": sha256_tokens(ids),
            "finish_reason": "length",
            "ttft_s": 0.4,
            "decode_s": decode_s,
            "e2e_s": decode_s + 0.41,
            "client_tok_per_sec": (size - 1) / decode_s,
            "engine_prompt_s": 0.4,
            "engine_decode_s": decode_s,
            "rounds": rounds if depth else None,
            "accepted_by_position": by_position,
            "started_at": f"2026-11-21T1{block}:00:00+00:00",
        }
    )


def manifest(run: str, keys: list[tuple[str, int]]) -> Manifest:
    """Make the manifest that belongs to the records."""
    model = ModelIdentity(source="bundled:none", path="none.gguf", files=[])
    arms = [
        ArmIdentity(
            name=name,
            baseline=not depth,
            speculation={"type": "ngram-simple" if name == "ngram" else "draft-simple", "max": depth}
            if depth
            else None,
            argv=["llama-server", "--port", "{port}"],
            env=[],
        )
        for name, depth in DEPTHS.items()
    ]
    engine = EngineIdentity(
        kind="llama.cpp",
        binary="llama-server",
        found_in="PATH",
        version=None,
        build=None,
        commit=None,
        speculation_types=[],
    )
    return Manifest(
        run=run,
        benchctl_version="0",
        status="finished",
        created_at="2026-11-21T10:00:00+00:00",
        recipe_name="scale",
        recipe={},
        recipe_sha256="0" * 64,
        workload_sha256="0" * 64,
        baseline="baseline",
        blocks=BLOCKS,
        engine=engine,
        target=model,
        draft=model,
        arms=arms,
        prompts=[PromptIdentity(task=task, prompt_idx=index, sha256="0" * 64) for task, index in keys],
    )


def measure(arguments: list[str]) -> tuple[float, float, float]:
    """Run benchctl; return wall seconds, CPU seconds and peak memory in MiB."""
    began = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "benchctl", *arguments], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - began
    code = os.waitstatus_to_exitcode(status)
    if code not in {0, 1}:  # 1: the forked answers are found
        raise SystemExit(f"benchctl {' '.join(arguments)} exited with {code}")
    scale = 1024 if sys.platform != "darwin" else 1024**2
    return wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / scale


def main() -> None:
    """Measure every size and keep what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sizes", nargs="*", type=int, default=[10_000, 30_000, 100_000], metavar="SIZE")
    parser.add_argument("--tokens", type=int, default=128)
    options = parser.parse_args()
    rows = []
    for size in options.sizes:
        with tempfile.TemporaryDirectory() as temporary:
            run = Path(temporary) / "results" / "scale" / f"20261121-100000-{size:04x}"
            count = write_run(run, size, options.tokens)
            commands = {
                "verify-lossless": ["verify-lossless", str(run), "--json", "--offline"],
                "report": ["report", str(run), "--no-figures", "--output", str(Path(temporary) / "reports")],
            }
            row: dict[str, float] = {"records": count, "records_mib": (run / "records.jsonl").stat().st_size / 2**20}
            for name, arguments in commands.items():
                wall, cpu, memory = measure(arguments)
                row |= {f"{name} wall_s": wall, f"{name} cpu_s": cpu, f"{name} peak_mib": memory}
            rows.append(row)
    keep("records_scale", {"tokens_a_record": options.tokens, "sizes": rows})


if __name__ == "__main__":
    main()
