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

from benchctl.analysis.results import ALL_TASKS
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
    found: dict[str, dict[str, Any]] = {}
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
        for (arm, count), one in drawn.items():
            found.setdefault(arm, {})[str(count)] = one.result()
    return found


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
    manifest["prompts"] = [one for one in manifest["prompts"] if one["prompt_idx"] < count]
    (copy / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    lines = (folder / "records.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    kept = [line for line in lines if json.loads(line)["prompt_idx"] < count]
    (copy / "records.jsonl").write_text("".join(kept), encoding="utf-8")
    return copy


def _truth(run: RunData, traces: Mapping[str, Trace]) -> dict[str, Any]:
    """Return, of every arm, how many answers differ from the baseline's, and what its engine logged of its fault."""
    answers = {(one.label, one.prompt_idx): one.token_ids for one in run.records if one.phase == "measure"}
    found = {}
    for arm, trace in traces.items():
        prompts = [prompt for label, prompt in answers if label == arm]
        found[arm] = {
            "answers": len(prompts),
            "answers_that_differ": sum(answers[arm, one] != answers.get(("baseline", one)) for one in prompts),
            "runners_up_accepted": len(trace.behind),
            "most_nats_behind": max(trace.behind, default=None),
        }
    return found


def _counters(run: RunData, traces: Mapping[str, Trace]) -> dict[str, Any]:
    """Return, of every arm, the acceptance that benchctl reports beside the one of the engine's trace of each round."""
    analysis = analyse_run(run)
    states = {verdict.arm: verdict.attestation for verdict in analysis.verdicts}
    found = {}
    for row in analysis.acceptance:
        if row.task == ALL_TASKS and row.arm in traces:
            trace = traces[row.arm]
            found[row.arm] = {
                "state": states[row.arm],
                "drafted": row.drafted,
                "accepted": row.accepted,
                "drafted_traced": trace.drafted,
                "accepted_traced": trace.accepted,
                "warnings": sorted({one.id for one in analysis.warnings if row.arm in one.where}),
            }
    return found


@dataclass
class Trace:
    """What an engine logged of its rounds (LLAMA_TRACE) while it was measured."""

    drafted: int = 0
    accepted: int = 0
    behind: list[float] = field(default_factory=list)
    """How many nats behind the likeliest token each accepted runner-up was."""


def _trace(run: RunData, arm: str) -> Trace:
    log = (run.folder / "logs" / f"block0-{arm}.log").read_text(encoding="utf-8", errors="replace")
    return _traced(log, sum(one.label == arm and one.phase == "measure" for one in run.records))


def _traced(log: str, answers: int) -> Trace:
    """Read the first `answers` requests of a log: those after them asked again for token ids that a stream withheld.

    After a partial rejection a recurrent target evaluates the accepted tokens again; that is no round of its own.
    """
    measured = set(_STOPPED.findall(log)[:answers])
    found = Trace()
    behind: list[float] = []
    again = False
    for line in log.splitlines():
        if accepted := _ACCEPTED.search(line):
            behind.append(float(accepted[1]))
        elif (found_round := _ROUND.search(line)) and found_round["task"] in measured:
            if not again:
                found.drafted += int(found_round["drafted"])
                found.accepted += int(found_round["accepted"])
                found.behind += behind
            again = found_round["again"] is not None
            behind = []
    return found
