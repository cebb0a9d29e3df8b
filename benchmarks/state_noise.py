"""Does a wide step change later tokens, too? Margins at steps of one token, before and after a wider one.

    python -m benchmarks.state_noise RUN [RUN …] [--width 5] [--answers 12] [--models-dir DIR] [--keep NAME]

The target of each run, launched again, reads the baseline's answers to the run's prompts: token by token, twice; in
steps of `--width` tokens; and eight tokens one at a time, `--width` at once, the rest one at a time. Kept are the
changes of the margin between the two likeliest tokens against the first reading, at margins up to 1 nat.

The kept runs: `benchctl run -t TARGET --type ngram-simple --depth 4 --blocks 1`, of the bundled transformer and hybrid
with `--limit 6 --set sampling.max_tokens=256 --set sampling.ignore_eos=true`, of Qwen2.5-Coder 1.5B Q4_K_M with
`--limit 4 --set sampling.max_tokens=96`.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from benchctl.data.store import RunData, open_run
from benchctl.engines.scoring import Scorer
from benchctl.lossless.judge.noise import SMALL_MARGIN
from benchctl.lossless.judge.run import OutputComparison
from benchctl.lossless.judge.selection import Answer
from benchctl.lossless.score.reading import TOP, read_steps, score
from benchctl.lossless.score.relaunch import Target
from benchmarks.keep import keep

BEFORE = 8
"""Tokens that are read one at a time before the wide step."""
Changes = dict[str, list[float]]


def main() -> None:
    """Read every run's answers, and keep what changed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--width", type=int, default=5)
    parser.add_argument("--answers", type=int, default=12)
    parser.add_argument("--models-dir", type=Path)
    parser.add_argument("--keep", default="state_noise", metavar="NAME", help="of the file in results/")
    options = parser.parse_args()
    rows = [_row(open_run(folder), options.width, options.answers, options.models_dir) for folder in options.runs]
    keep(options.keep, {"width": options.width, "rows": rows})


def _row(run: RunData, width: int, max_prefixes: int, models_dir: Path | None) -> dict[str, Any]:
    """Return the changes of one run's target, by the kind of step."""
    baseline = OutputComparison(run).baseline
    changes: Changes = defaultdict(list)
    with Target(run, baseline, models_dir=models_dir) as target, target.scorer() as scorer:
        second = target.again()
        for answer in _answers(run, baseline)[:max_prefixes]:
            prompt = second.render(scorer, second.prompts[answer.task, answer.prompt_idx]).token_ids
            _read(scorer, prompt, answer, width, changes)
    assert run.manifest is not None
    return {
        "target": run.manifest.recipe["models"]["target"]["source"],
        "steps": {
            kind: {
                "margins": len(losses),
                "changed": float(np.mean(np.array(losses) != 0)),
                "deviation_nats": float(np.std(losses)),
                "largest_nats": float(np.abs(losses).max()),
            }
            for kind, losses in changes.items()
        },
    }


def _answers(run: RunData, baseline: str) -> list[Answer]:
    """Return the baseline's answer to every prompt."""
    answers = {
        (record.task, record.prompt_idx): Answer(
            record.task,
            record.prompt_idx,
            record.prompt_sha,
            record.prompt_tokens,
            tuple(record.token_ids),
            record.token_sha or "",
        )
        for record in run.records
        if record.label == baseline and record.phase == "measure" and record.token_ids
    }
    return list(answers.values())


def _read(scorer: Scorer, prompt: tuple[int, ...], answer: Answer, width: int, changes: Changes) -> None:
    """Read an answer in every way, and add how its margins change."""
    first, size = score(scorer, prompt, answer), len(answer.token_ids)
    wide_step = BEFORE + width
    ways = {
        "one token, read again": range(1, size),
        f"{width} tokens": range(width, size, width),
        "one token": [*range(1, BEFORE + 1), wide_step, *range(wide_step + 1, size)],
    }
    for kind, ends in ways.items():
        scorer.read_prompt(prompt, 1)
        for end, _, scores in read_steps(scorer, prompt, answer.token_ids, ends, lambda _: TOP):
            margin = first.scored.margins[end]
            if margin > SMALL_MARGIN or (kind == "one token" and end == wide_step):
                continue
            where = "" if kind != "one token" else " before a wide step" if end < wide_step else " after a wide step"
            changes[kind + where].append(first.loss(end, scores))


if __name__ == "__main__":
    main()
