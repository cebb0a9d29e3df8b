"""The methods of self-speculation beside each other, and what predicts their throughput.

    python -m benchmarks.self_speculation_methods [--tokens 48] [--models tiny-hybrid,tiny-sequential,tiny-transformer]

Bundled models by name (parallel and sequential hybrid and the plain control), others by their Hugging Face folder;
float32, one prompt at a short and at a long context. For every method: is the answer the target's own,
acceptance, tokens a round, the speed-up by the engine's own clock, and tokens per time as a model of costs
predicts it, E / (v + kc) in plain steps, with c and v from latencies that were measured beforehand. Then the
correlation (Pearson) of acceptance and of that prediction with the speed-up.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchctl.analysis.statistics import pearson
from benchctl.engines.transformers.methods import METHODS
from benchctl.engines.transformers.serving.answering import Answer, Speculation, make_drafter
from benchctl.engines.transformers.serving.decode import Sampler, Step, Task
from benchctl.engines.transformers.serving.decoder import Decoder, State
from benchctl.engines.transformers.serving.drafters.knapspec import Latencies, measure_latencies
from benchctl.engines.transformers.serving.drafters.self_drafter import SelfDrafter
from benchctl.engines.transformers.serving.loading import Loaded, load
from benchctl.engines.transformers.serving.variants import items_of
from benchctl.models.huggingface.folder import huggingface_folder
from benchctl.models.shipped import bundled_models
from benchmarks.keep import keep

PROMPT = "def count_values(items):\n"
DEPTH = 4
OPTIONS: dict[str, dict[str, Any]] = {
    "self-swift": {"window": 16, "interval": 4},
    "self-knapspec": {"interval": 16},
}


def answered(
    loaded: Loaded, decoder: Decoder, prompt: list[int], tokens: int, way: SelfDrafter | None
) -> tuple[Answer, list[int]]:
    """Decode one answer."""
    answer, steps = Answer(decoder, Task(prompt, tokens, Sampler().chooser(loaded.ends)), way), list[Step]()
    answer.run(steps.append)
    return answer, [token for step in steps for token in step.tokens]


def draft_step(decoder: Decoder, latencies: Latencies, way: SelfDrafter, context: int) -> float:
    """Return the predicted seconds of a draft step without what the method leaves out, as it is at the end."""
    left_out = way.left_out
    items = [item for number in range(len(decoder.layers)) for item in items_of(decoder, number)]
    run = [part for number, part in items if not {(number, part), (number, "layer")} & left_out]
    return latencies.overhead + sum(latencies.part(part, context) for part in run)


def measure(name: str, folder: Path, tokens: int) -> list[dict[str, Any]]:
    """Measure every method that drafts with the target itself, at both contexts."""
    loaded = load(folder, device="cpu", dtype="float32")
    decoder = Decoder(loaded.model)
    latencies = measure_latencies(decoder, DEPTH + 1)
    short = loaded.tokenizer(PROMPT)["input_ids"]
    rows = []
    for prompt in (short, (short * 200)[:1024] + short):
        plain, plain_answer = answered(loaded, decoder, prompt, tokens, None)
        step = plain.clock.seconds["plain"] / (tokens - 1)
        with torch.inference_mode():
            state = State(decoder)
            state.advance(prompt)
            latencies.cover(state)
        single = latencies.verify(1, len(prompt))
        for method, settings in METHODS.items():
            listed = settings.options is None or "layers" in settings.options
            if settings.assisted or settings.adapter or listed or decoder.architecture.kind not in settings.kinds:
                continue
            way = make_drafter(decoder, Speculation(method, DEPTH, OPTIONS.get(method, {})), loaded)
            assert isinstance(way, SelfDrafter)
            speculated, answer = answered(loaded, decoder, prompt, tokens, way)
            tally, seconds = speculated.ledger(), speculated.clock.seconds
            total_s = sum(seconds.values()) - seconds["prompt"]
            rounds, drafted = tally["rounds"], tally["drafted"]
            row: dict[str, Any] = {
                "model": name,
                "context": len(prompt),
                "method": method,
                "identical": answer == plain_answer,
            }
            if rounds:
                k, brought = drafted / rounds, 1 + tally["accepted"] / rounds
                cost = k * draft_step(decoder, latencies, way, len(prompt)) + latencies.verify(
                    round(k) + 1, len(prompt)
                )
                row |= {
                    "acceptance": round(tally["accepted"] / drafted, 3),
                    "tokens_a_round": round(brought, 2),
                    "draft_length": round(k, 2),
                    "predicted": round(brought * single / cost, 3),
                }
            row |= {
                "speed_up": round((tokens - 1) * step / total_s, 3),
                "search_share": round(seconds["search"] / total_s, 3),
            }
            rows.append(row)
            print(row, flush=True)
    return rows


def correlations(rows: list[dict[str, Any]]) -> dict[str, dict[str, float | None]]:
    """Return Pearson's r of acceptance and of the prediction with the speed-up, by model and for all."""
    by_predictor = {}
    for name in (*dict.fromkeys(row["model"] for row in rows), "all"):
        predicted_rows = [row for row in rows if name in (row["model"], "all") and "predicted" in row]
        by_predictor[name] = {"rows": len(predicted_rows)} | {
            key: pearson([(row[key], row["speed_up"]) for row in predicted_rows]) for key in ("acceptance", "predicted")
        }
    return by_predictor


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--models", default="tiny-hybrid,tiny-sequential,tiny-transformer", help="or folders")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--keep", default="self_speculation_methods", help="name of the file below benchmarks/results")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    paths = {model.name: model.path for model in bundled_models()}
    rows = []
    with TemporaryDirectory() as folder:
        for name in options.models.split(","):
            model = huggingface_folder(paths[name], Path(folder)) if name in paths else Path(name)
            rows += measure(Path(name).name, model, options.tokens)
    keep(options.keep, {"tokens": options.tokens, "rows": rows, "correlations": correlations(rows)})


if __name__ == "__main__":
    main()
