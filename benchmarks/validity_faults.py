"""Section f: engines that are wrong inside. What is said of each, beside sound arms of the same run?

The runs are made beforehand by `python -m benchmarks.lossy_engines.run` and named with `--faulty-run`. The same is
judged of the first 12 or 48 prompts alone, where a run has more, and of runs whose prompts are drawn again from it: of
a sound arm every violation that is found there is a false alarm.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
from collections.abc import Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchctl.analysis.frame import ALL_TASKS
from benchctl.data.manifest import ArmIdentity
from benchctl.data.store import RunData, open_run
from benchctl.lossless.judge.run import analyse_run
from benchmarks.bundled_runs import verified
from benchmarks.resampled_audits import Audited, found_in_draws

_FIRST = (12, 48)
_ACCEPTED = re.compile(r"fault: accepted token \d+ for \d+, ([\d.]+) nats behind")
_ROUND = re.compile(
    r"task (?P<task>\d+) \| accepted +(?P<accepted>\d+)/ *(?P<drafted>\d+) draft tokens"
    r"(?P<again> \(restore checkpoint\))?"
)
_OF_AUDIT = ("answers", "tokens", "diverged", "expected", "p_adjusted", "floor", "beyond", "excess_limit", "prefixes")
_STOPPED = re.compile(r"task (\d+) \| stop processing")


def wrong_inside(scratch: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Judge every run that was named, whole and in part."""
    if not options.faulty_run:
        return {"skipped": "no run: make one with `python -m benchmarks.lossy_engines.run`, name it with --faulty-run"}
    return {"runs": [_judged(folder, scratch, options) for folder in options.faulty_run]}


def _judged(folder: Path, scratch: Path, options: argparse.Namespace) -> dict[str, Any]:
    run = open_run(folder)
    assert run.manifest is not None
    whole = len(run.manifest.prompts)
    verdicts = {whole: _verdicts(folder)}  # first: what is scored is kept, and the parts are judged by it
    for count in _FIRST:
        if count < whole:
            verdicts[count] = _verdicts(_first_prompts(folder, count, scratch / f"{folder.name}-{count}"))
    traces = {arm.name: _trace(run, arm.name) for arm in run.manifest.arms if arm.speculation}
    return {
        "run": folder.name,
        "target": run.manifest.target.source.rpartition("/")[2],
        "quantize": (run.manifest.recipe.get("models") or {}).get("target", {}).get("quantize"),
        "engine_sha256": run.manifest.engine.details.get("sha256"),
        "truth": _truth(run, traces),
        "counters": _counters(run, traces),
        "said": {str(count): verdicts[count] for count in sorted(verdicts)},
        "drawn_again": _drawn_again(folder, run.manifest.arms, options),
    }


def _drawn_again(folder: Path, arms: Iterable[ArmIdentity], options: argparse.Namespace) -> dict[str, Any]:
    audited = Audited.read(folder)
    if audited is None:
        return {}
    results: dict[str, dict[str, Any]] = {}
    with ProcessPoolExecutor() as pool:
        drawn = {
            (arm.name, count): pool.submit(
                found_in_draws,
                audited,
                arm.name,
                prompts=count,
                draws=options.wrong_draws if "--fault" in arm.argv else options.draws,
            )
            for count in options.drawn_prompts
            for arm in arms
            if arm.speculation
        }
        for (arm, count), shares in drawn.items():
            results.setdefault(arm, {})[str(count)] = shares.result()
    return results


def _verdicts(folder: Path) -> dict[str, Any]:
    """Return what `benchctl verify-lossless --json` says of every arm."""
    code, document = verified(folder)
    return {
        "exit_code": code,
        **{arm["arm"]: _summary(arm) for arm in document["arms"]},
    }


def _summary(arm: dict[str, Any]) -> dict[str, Any]:
    audit = arm["audit"] or {}
    return {
        **{key: arm[key] for key in ("verdict", "reason", "counts")},
        "audit": {key: audit[key] for key in _OF_AUDIT if key in audit},
    }


def _first_prompts(folder: Path, count: int, copy: Path) -> Path:
    """Copy a run without the prompts from number `count` on."""
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("logs"))
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    manifest["prompts"] = [prompt for prompt in manifest["prompts"] if prompt["prompt_idx"] < count]
    (copy / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    lines = (folder / "records.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    remaining = [line for line in lines if json.loads(line)["prompt_idx"] < count]
    (copy / "records.jsonl").write_text("".join(remaining), encoding="utf-8")
    return copy


def _truth(run: RunData, traces: Mapping[str, Trace]) -> dict[str, Any]:
    """Return, of every arm, how many answers differ from the baseline's, and what its engine logged of its fault."""
    answers = {
        (record.label, record.prompt_idx): record.token_ids for record in run.records if record.phase == "measure"
    }
    results = {}
    for arm, trace in traces.items():
        prompts = [prompt for label, prompt in answers if label == arm]
        results[arm] = {
            "answers": len(prompts),
            "answers_that_differ": sum(answers[arm, record] != answers.get(("baseline", record)) for record in prompts),
            "runners_up_accepted": len(trace.behind),
            "most_nats_behind": max(trace.behind, default=None),
        }
    return results


def _counters(run: RunData, traces: Mapping[str, Trace]) -> dict[str, Any]:
    """Return, of every arm, the acceptance that benchctl reports beside the one of the engine's trace of each round."""
    analysis = analyse_run(run)
    states = {verdict.arm: verdict.attestation for verdict in analysis.verdicts}
    counters = {}
    for row in analysis.acceptance:
        if row.task == ALL_TASKS and row.arm in traces:
            trace = traces[row.arm]
            counters[row.arm] = {
                "state": states[row.arm],
                "drafted": row.drafted,
                "accepted": row.accepted,
                "drafted_traced": trace.drafted,
                "accepted_traced": trace.accepted,
                "warnings": sorted({warning.id for warning in analysis.warnings if row.arm in warning.where}),
            }
    return counters


@dataclass
class Trace:
    """What an engine logged of its rounds (LLAMA_TRACE) while it was measured."""

    drafted: int = 0
    accepted: int = 0
    behind: list[float] = field(default_factory=list)
    """How many nats behind the likeliest token each accepted runner-up was."""


def _trace(run: RunData, arm: str) -> Trace:
    log = (run.folder / "logs" / f"block0-{arm}.log").read_text(encoding="utf-8", errors="replace")
    return _traced(log, sum(record.label == arm and record.phase == "measure" for record in run.records))


def _traced(log: str, answers: int) -> Trace:
    """Read the first `answers` requests of a log: those after them asked again for token ids that a stream withheld.

    After a partial rejection a recurrent target evaluates the accepted tokens again; that is no round of its own.
    """
    measured = set(_STOPPED.findall(log)[:answers])
    trace = Trace()
    behind: list[float] = []
    is_replayed = False
    for line in log.splitlines():
        if accepted := _ACCEPTED.search(line):
            behind.append(float(accepted[1]))
        elif (found_round := _ROUND.search(line)) and found_round["task"] in measured:
            if not is_replayed:
                trace.drafted += int(found_round["drafted"])
                trace.accepted += int(found_round["accepted"])
                trace.behind += behind
            is_replayed = found_round["again"] is not None
            behind = []
    return trace
