"""What KnapSpec's study tells of a run and its report does not: tokens per time, what is skipped, what predicts speed.

    python -m benchmarks.self_speculation_study [RUN …] [--diagnosis FOLDER] [--figures FOLDER] [--keep NAME]

RUN is a run of the recipe `self-speculation-knapspec`, or of any whose engine has `trace: true`. A row is an arm at a
context: acceptance, tau (tokens a round), the measured throughput and speed-up, the share of attention and MLP layers
that did not draft, and TPT, the tokens per second that a model of costs predicts for the rounds as they were:

    TPT = tokens / sum over rounds of (k·c(set, context) + v(k + 1, context))

with c and v from latencies that are timed here, apart from the run, so that it is no identity. Then Pearson's r of TPT
and of acceptance with throughput, over the arms that speculate, by context and for all. Of a diagnosis of the recipe
`self-speculation-ablation`: accepted / k and perplexity ratio of every draft. Figures: TPT against throughput, and how
often each part of each layer was skipped.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch

import benchctl
from benchctl.analysis.results import ALL_TASKS
from benchctl.api import Run
from benchctl.engines.transformers.serving.decoder import Decoder, State
from benchctl.engines.transformers.serving.drafters.knapspec import Latencies, measure_latencies
from benchctl.engines.transformers.serving.loading import choose_device, load
from benchctl.engines.transformers.serving.variants import items_of
from benchctl.experiments.diagnose.judge import judge_diagnosis
from benchctl.experiments.diagnose.stored import read_diagnosis
from benchctl.measure.requested import recipe_of
from benchmarks.keep import keep

Step = Mapping[str, Any]
"""A line of a trace; docs/self-speculation.md has its keys."""


def steps_of(run: Run, warmup: int) -> dict[str, list[Step]]:
    """Return the steps of every arm after the reading of a prompt, warm-ups left out."""
    manifest = run.data.manifest
    assert manifest is not None, "a study's files have no traces"
    found = defaultdict[str, list[Step]](list)
    for cell in manifest.cells:
        trace = (run.path / (cell.log or "")).with_suffix(".rounds.jsonl")
        lines = map(json.loads, trace.read_text("utf-8").splitlines())
        found[cell.arm] += [line for line in lines if line["step"] and line["answer"] >= warmup]
    return dict(found)


def _lost(step: Step, number: int, part: str) -> bool:
    """Whether a step drafted without a part of a layer."""
    return not {f"{number}.{part}", f"{number}.layer"}.isdisjoint(step["left_out"] or ())


class Costs:
    """What a round costs in seconds, by latencies of the model's parts."""

    def __init__(self, decoder: Decoder, contexts: Sequence[int], deepest: int) -> None:
        self.every = [item for number in range(len(decoder.layers)) for item in items_of(decoder, number)]
        self.latencies: Latencies = measure_latencies(decoder, deepest + 1)
        with torch.inference_mode():
            for context in sorted(set(contexts)):
                state = State(decoder)
                state.advance([1] * context)
                self.latencies.cover(state)

    def skipped(self, step: Step, part: str) -> float:
        """Return the share of the layers with a part that draft without it."""
        having = [number for number, name in self.every if name == part]
        return sum(_lost(step, number, part) for number in having) / len(having)

    def seconds(self, step: Step) -> float:
        """Return what a round, or a step without a draft, costs."""
        context = step["context"]
        run = [part for number, part in self.every if not _lost(step, number, part)]
        draft = self.latencies.rest + sum(self.latencies.part(part, context) for part in run)
        return float(step["drafted"] * draft + self.latencies.verify(step["drafted"] + 1, context))


def rows_of(run: Run) -> Iterator[dict[str, Any]]:
    """Yield a row for every arm."""
    manifest, analysis = run.data.manifest, run.analysis
    assert manifest is not None
    recipe = recipe_of(run.data)
    engine: Any = recipe.engine
    torch.set_num_threads(engine.threads or torch.get_num_threads())
    folder = Path(manifest.target.path or "").expanduser()
    decoder = Decoder(load(folder, device=choose_device(engine.device), dtype=engine.dtype).model)
    steps = steps_of(run, recipe.warmup)
    deepest = max(step["drafted"] for each in steps.values() for step in each)
    costs = Costs(decoder, [int(np.median([step["context"] for step in each])) for each in steps.values()], deepest)
    output = {verdict.arm: verdict.lossless for verdict in analysis.verdicts}
    for arm in recipe.arms:
        decoded = [record for record in run.data.records if record.label == arm.name and not record.error]
        rounds = [step for step in steps[arm.name] if step["drafted"]]
        drafted, accepted = (sum(step[name] for step in rounds) for name in ("drafted", "accepted"))
        tokens = sum(len(step["tokens"]) for step in steps[arm.name])
        speed = next((row for row in analysis.speedups if (row.arm, row.task) == (arm.name, ALL_TASKS)), None)
        row: dict[str, Any] = {
            "model": Path(recipe.models.target.source).name,
            "arm": arm.of or arm.name,
            "context": arm.context_length,
            "tokens": tokens,
            "throughput": round(
                sum(record.n_predicted - 1 for record in decoded) / sum(record.decode_s or 0.0 for record in decoded), 3
            ),
            "tpt": round(tokens / sum(map(costs.seconds, steps[arm.name])), 3),
        }
        if rounds:
            row |= {
                "output": output.get(arm.name),
                "speed_up": speed and speed.pooled and round(speed.pooled, 3),
                "acceptance": round(accepted / drafted, 3),
                "tau": round(1 + accepted / len(rounds), 2),
                "draft_length": round(drafted / len(rounds), 2),
                **{
                    f"{part}_skipped": round(float(np.mean([costs.skipped(step, part) for step in rounds])), 3)
                    for part in ("attention", "mlp")
                },
                "skipped": {
                    f"{number}.{part}": round(float(np.mean([_lost(step, number, part) for step in rounds])), 3)
                    for number, part in costs.every
                },
            }
        yield row


def correlations(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float | int]]:
    """Return Pearson's r of TPT and acceptance with throughput, by model and context, and for all rows."""
    groups = defaultdict[str, list[Mapping[str, Any]]](list)
    for row in rows:
        if "acceptance" in row:
            groups["all"].append(row)
            groups[f"{row['model']}, {row['context'] or 'as it is'}"].append(row)
    return {
        name: {
            "rows": len(group),
            **{
                key: round(
                    float(np.corrcoef([row[key] for row in group], [row["throughput"] for row in group])[0, 1]), 3
                )
                for key in ("tpt", "acceptance")
            },
        }
        for name, group in groups.items()
        if len(group) > 2
    }


def drafts_of(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield a row for every draft of a diagnosis and temperature."""
    for draft in judge_diagnosis(read_diagnosis(folder)):
        for row in draft.acceptance:
            if row.task == ALL_TASKS:
                yield {
                    "draft": draft.draft,
                    "temperature": row.temperature,
                    "per_token": round(row.per_token.value, 3),
                    "accepted_of_k": {depth: round(share.value, 3) for depth, share in row.accepted_share.items()},
                    "c": draft.cost and round(draft.cost, 3),
                    "perplexity_ratio": draft.perplexity_ratio and round(draft.perplexity_ratio, 3),
                }


def draw(rows: Sequence[Mapping[str, Any]], folder: Path) -> None:
    """Write both figures as PNG files."""
    drafting = [row for row in rows if "skipped" in row]
    figure, axes = plt.subplots(layout="constrained")
    for arm in dict.fromkeys(row["arm"] for row in drafting):
        own = [row for row in drafting if row["arm"] == arm]
        axes.scatter([row["tpt"] for row in own], [row["throughput"] for row in own], label=arm)
    axes.set(xlabel="TPT, tokens per second (predicted)", ylabel="throughput, tokens per second (measured)")
    axes.legend()
    figure.savefig(folder / "tpt.png")
    figure, panels = plt.subplots(len(drafting), squeeze=False, sharex=False, layout="constrained",
                                  figsize=(8, 1 + 0.9 * len(drafting)))  # fmt: skip
    for axes, row in zip(panels[:, 0], drafting, strict=True):
        parts = list(dict.fromkeys(name.partition(".")[2] for name in row["skipped"]))
        numbers = list(dict.fromkeys(name.partition(".")[0] for name in row["skipped"]))
        shares = [[row["skipped"].get(f"{number}.{part}", np.nan) for number in numbers] for part in parts]
        axes.imshow(shares, vmin=0, vmax=1, cmap="Blues", aspect="auto")
        axes.set_yticks(range(len(parts)), parts)
        axes.set_xticks(range(len(numbers)), numbers)
        axes.set_title(f"{row['model']}, {row['arm']}, {row['context'] or 'short'}", loc="left", fontsize="small")
    figure.savefig(folder / "skipped.png")


def main() -> None:
    """Read the runs, print a table, keep it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="*")
    parser.add_argument("--diagnosis", type=Path, help="folder of a diagnosis, kept beside")
    parser.add_argument("--figures", type=Path, help="folder for figures")
    parser.add_argument("--keep", help="name of the file below benchmarks/results")
    options = parser.parse_args()
    rows = [row for path in options.runs for row in rows_of(benchctl.open_run(path))]
    found: dict[str, Any] = {"rows": rows, "correlations": correlations(rows)} if rows else {}
    keys = [key for key in dict.fromkeys(key for row in rows for key in row) if key != "skipped"]
    for line in (keys, *([row.get(key, "") for key in keys] for row in rows)):
        print(
            "  ".join(f"{'' if value is None else value!s:>{len(key)}}" for key, value in zip(keys, line, strict=True))
        )
    if options.figures:
        options.figures.mkdir(parents=True, exist_ok=True)
        draw(rows, options.figures)
    if options.diagnosis:
        found["drafts"] = list(drafts_of(options.diagnosis))
    if options.keep:
        keep(options.keep, found)
    else:
        print(json.dumps({key: value for key, value in found.items() if key != "rows"}, indent=1))


if __name__ == "__main__":
    main()
