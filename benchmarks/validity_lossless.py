"""Sections c and d: answers that are spoilt in a known way, and acceptance that was set."""

from __future__ import annotations

import argparse
import json
import math
import re
from collections import Counter
from pathlib import Path
from typing import Any

from benchctl.analysis.frame import ALL_TASKS
from benchctl.data.identity import home_relative
from benchctl.lossless.judge.run import analyse_run
from benchctl.recipes.schema import PromptsSpec, Sampling
from benchmarks.bundled_runs import (
    bundled_recipe,
    drafting,
    engine_spec,
    faulty_engine,
    measure,
    numbered_prompts,
    plain,
    verified,
)

_FAULTS = {
    "swap_1_in_1000": ("swap", 0.001),
    "swap_1_in_100": ("swap", 0.01),
    "swap_1_in_10": ("swap", 0.1),
    "late_state_1_in_100": ("late", 0.01),
    "truncated_1_in_100": ("truncate", 0.01),
}
_RATES = ([0.9, 0.8, 0.7, 0.6], [0.8, 0.5, 0.3, 0.1], [0.5, 0.5, 0.5, 0.5], [0.0, 0.0, 0.0, 0.0])
_LENGTHS = (1.5, 3.0, 4.5)
_LONG = 1536
_DEPTH = 4
_PROMPT = "import os\nimport sys\n\nclass Reader:\n"
_ROUND = re.compile(r"accepted +(\d+)/ *\d+ draft tokens( \(restore checkpoint\))?")
_SURE = 4.0
"""Standard errors that a reported rate may be off before it counts as wrong: among 16 of them, once in 1000 tries."""


def spoilt_answers(scratch: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Have a proxy spoil answers of speculating arms, and see whether verify-lossless names these and no others."""
    engine, truth = faulty_engine(scratch, _FAULTS)
    recipe = bundled_recipe(
        [plain("baseline"), drafting("honest"), *(drafting(name, "--alias", name) for name in _FAULTS)],
        engine=engine,
        prompts=PromptsSpec(suite=str(numbered_prompts(scratch, options.prompts))),
        sampling=Sampling(max_tokens=24),
        blocks=1,
        warmup=0,
    )
    run = measure(recipe, scratch)
    spoilt: dict[str, set[int]] = {name: set() for name in _FAULTS}
    for line in truth.read_text(encoding="utf-8").splitlines():
        fault = json.loads(line)
        spoilt[fault["alias"]].add(fault["number"])
    code, document = verified(run.folder)
    results = {arm["arm"]: _against_truth(arm, spoilt.get(arm["arm"], set())) for arm in document["arms"]}
    real = {}
    if options.real_run:
        real_code, real_document = verified(options.real_run, "--offline")
        real = {
            "run": home_relative(options.real_run),
            "exit_code": real_code,
            "classes": {arm["arm"]: arm["counts"] for arm in real_document["arms"]},
        }
    return {"prompts": options.prompts, "exit_code": code, "arms": results, "real_pair": real}


def _against_truth(arm: dict[str, Any], spoilt: set[int]) -> dict[str, Any]:
    """Compare what was found of an arm with what was spoilt; prompts are asked in their order, once."""
    classes = {comparison["prompt_idx"]: comparison["outcome"] for comparison in arm["comparisons"]}
    named = {number for number, word in classes.items() if word != "identical"}
    return {
        "verdict": arm["verdict"],
        "answers": len(classes),
        "spoilt": len(spoilt),
        "found": len(named & spoilt),
        "missed": sorted(spoilt - named),
        "classes_of_the_spoilt": dict(Counter(classes[number] for number in sorted(spoilt))),
        "classes_of_the_others": dict(Counter(word for number, word in classes.items() if number not in spoilt)),
    }


def known_acceptance(scratch: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Set llama-server's synthetic acceptance, and compare what benchctl reports with it and with the engine's trace.

    One long answer an arm: the engine draws the same acceptances again for every answer of the same seed. The prompt is
    plain text, since an end of text that is drafted is never accepted synthetically.
    """
    del options
    rates = {f"rates_{number}": values for number, values in enumerate(_RATES)}
    lengths = {f"length_{value:g}": value for value in _LENGTHS}
    arms = [plain("baseline")]
    arms += [drafting(name, "--spec-synth-rates", ",".join(map(str, values))) for name, values in rates.items()]
    arms += [drafting(name, "--spec-synth-len", str(value)) for name, value in lengths.items()]
    suite = {"schema": 1, "name": "plain", "kind": "raw", "licence": "Apache-2.0", "source": "a line of code"}
    (scratch / "plain.json").write_text(json.dumps({**suite, "tasks": {"code": [{"prompt": _PROMPT}]}}))
    recipe = bundled_recipe(
        arms,
        engine=engine_spec(env={"LLAMA_TRACE": "1"}),
        prompts=PromptsSpec(suite=str(scratch / "plain.json")),
        sampling=Sampling(max_tokens=_LONG, ignore_eos=True),
        blocks=1,
        warmup=0,
    )
    run = measure(recipe, scratch)
    analysis = analyse_run(run)
    results = {}
    for row in analysis.acceptance:
        if row.task != ALL_TASKS or row.arm not in (*rates, *lengths) or not row.rounds:
            continue
        verdict = next(verdict_row for verdict_row in analysis.verdicts if verdict_row.arm == row.arm)
        reported = [round(share * row.rounds) for share in row.position_unconditional or []]
        traced = _traced((run.folder / "logs" / f"block0-{row.arm}.log").read_text(errors="replace"))
        entry: dict[str, Any] = {
            "rounds": row.rounds,
            "acceptance_length": row.acceptance_length,
            "by_position": row.position_unconditional,
            "as_the_engine_traced": traced == (row.rounds, reported),
            "label": verdict.lossy,
            "verdict": verdict.lossless,
        }
        if row.arm in rates:
            entry |= {"set": rates[row.arm], **_off(row.position_unconditional or [], rates[row.arm], row.rounds)}
        else:
            entry |= {"set": lengths[row.arm], "off_by": (row.acceptance_length or 0.0) - lengths[row.arm]}
        results[row.arm] = entry
    return {"tokens": _LONG, "arms": results, "warnings": sorted({warning.id for warning in analysis.warnings})}


def _traced(log: str) -> tuple[int, list[int]]:
    """Return rounds, and how many accepted each position, by llama-server's own trace of every round.

    A recurrent model goes back to its checkpoint after a partial rejection and evaluates the accepted tokens again; the
    line after such a one is that evaluation, not a round.
    """
    accepted: list[int] = []
    is_replayed = False
    for line in log.splitlines():
        match = _ROUND.search(line)
        if match:
            if not is_replayed:
                accepted.append(int(match[1]))
            is_replayed = match[2] is not None
    return len(accepted), [sum(count > position for count in accepted) for position in range(_DEPTH)]


def _off(reported: list[float], rates: list[float], rounds: int) -> dict[str, Any]:
    """Return how far each position is off, in standard errors of a share of `rounds`."""
    errors = [math.sqrt(max(rate * (1 - rate), 1 / rounds) / rounds) for rate in rates]
    off = [(value - rate) / error for value, rate, error in zip(reported, rates, errors, strict=True)]
    return {"standard_errors_off": off, "right": max(map(abs, off)) <= _SURE}
