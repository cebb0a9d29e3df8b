"""How many of the faults of deliberately wrong engines does replay find, and in how many prompts?

    python -m benchmarks.lossy_engines.replayed RUN ...        # runs of `python -m benchmarks.lossy_engines.run`

`benchctl verify-lossless` judges every run by replaying it. Of every arm this counts the tokens at which its fault
happened (its engine's log) and those at which replay found that the target prefers another (the run's scores). The rows
are kept in `results/replayed_faults.json`, in place of earlier ones of the same setting and arm.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchctl.data.manifest import ArmIdentity
from benchctl.data.record import Record
from benchctl.data.scores import read_scores, sha256_steps
from benchctl.data.store import RunData, open_run
from benchctl.engines.llama_cpp.rounds import read_rounds
from benchctl.recipes.schema import Sampling
from benchmarks.bundled_runs import verified
from benchmarks.keep import keep_more

NAME = "replayed_faults"
_TASK = re.compile(r"\| task (\d+) \|")
_FAULT = re.compile(r"\| fault: \S+ at token (\d+)")
AT_ITS_TOKEN = ("accept-within", "bonus", "penalties")
"""Faults that change the token at which they happen; others change what follows."""
USUAL_TOKENS = 48
"""At most, of an answer; a setting names another number."""
Tokens = dict[int, set[int]]
"""By prompt, indices of tokens within its answer."""


def rows_of(folder: Path) -> dict[str, dict[str, Any]]:
    """Return what is said of every arm of a run that speculates, by target and arm."""
    code, document = verified(folder, "--accept", "exact")
    run = open_run(folder)
    assert run.manifest is not None
    judged = {arm["arm"]: arm for arm in document["arms"]}
    setting = _setting(run)
    return {
        f"{setting}: {arm.name}": {
            "setting": setting,
            "arm": arm.name,
            "verdict": judged[arm.name]["verdict"],
            "reason": judged[arm.name]["reason"],
            "exit_code": code,
            **_counts(run, arm),
        }
        for arm in run.manifest.arms
        if arm.speculation
    }


def _setting(run: RunData) -> str:
    """Return the target, its quantization, what constrains answers, and their number and length."""
    assert run.manifest is not None
    recipe = run.manifest.recipe
    target = recipe["models"]["target"]
    words = [
        Path(target["source"]).name.removeprefix("bundled:"),
        (target.get("quantize") or {}).get("type", "as it is"),
    ]
    words += recipe["engine"].get("args") or []
    sampling = Sampling.model_validate(recipe["sampling"])
    for key, value in sampling.constraints.items():
        words.append(f"{key} {value:g}" if isinstance(value, float) else key)
    words += sorted({prompt.constrained for prompt in run.manifest.prompts if prompt.constrained})
    length = "" if sampling.max_tokens == USUAL_TOKENS else f" of {sampling.max_tokens} tokens"
    return f"{' '.join(words)}, {len(run.manifest.prompts)} prompts{length}"


def _counts(run: RunData, arm: ArmIdentity) -> dict[str, Any]:
    answers = {r.prompt_idx: r for r in run.records if r.label == arm.name and r.phase == "measure"}
    baseline = {r.prompt_idx: r.token_ids for r in run.records if r.label == "baseline" and r.phase == "measure"}
    fault = arm.argv[arm.argv.index("--fault") + 1] if "--fault" in arm.argv else None
    fired, replayed = _fired(run, arm.name, answers), _replayed(run, arm.name)
    found = {prompt: tokens for prompt, tokens in replayed.items() if tokens}
    exactly = fault is not None and fault.startswith(AT_ITS_TOKEN)
    others = {
        prompt: tokens - fired.get(prompt, set()) if exactly else _before(tokens, fired.get(prompt), answers[prompt])
        for prompt, tokens in found.items()
    }
    return {
        "fault": fault,
        "answers_sha": hashlib.sha256(
            json.dumps([[record.token_ids, record.target_steps] for record in answers.values()]).encode()
        ).hexdigest()[:16],
        "prompts": len(answers),
        "tokens": sum(len(record.token_ids or ()) for record in answers.values()),
        "replayed": len(replayed),
        "differ": sum(record.token_ids != baseline.get(prompt) for prompt, record in answers.items()),
        "fired_prompts": len(fired),
        "fired_tokens": _count(fired),
        "found_prompts": len(found),
        "found_tokens": _count(found),
        "first_fired": _first(fired),
        "first_found": _first(found),
        "missed_tokens": _count({p: fired[p] - replayed[p] for p in fired.keys() & replayed}) if exactly else None,
        "not_planted": _count(others),
    }


def _before(tokens: set[int], fired: set[int] | None, record: Record) -> set[int]:
    """Return the tokens before the step at whose end a fault first happened, which may be read again then."""
    end, starts = 1, [0]
    for step in record.target_steps or ():
        starts.append(end)
        end += step[-1] + 1
    first = max((start for start in starts if fired and start < min(fired)), default=end)
    return {index for index in tokens if index < first}


def _first(tokens: Tokens) -> list[int] | None:
    """Return the first prompt of all, and the first token within its answer."""
    return [min(tokens), min(tokens[min(tokens)])] if tokens else None


def _count(tokens: Tokens) -> int:
    return sum(map(len, tokens.values()))


def _fired(run: RunData, arm: str, answers: dict[int, Record]) -> Tokens:
    """Return where the engine logged its fault, by prompt.

    Requests that asked again for ids that a stream lacked are logged, too. Rounds show which request is an answer's.
    """
    logs = [*run.folder.glob(f"logs/block0-{arm}.log"), *run.folder.glob(f"logs/block0-{arm}.[0-9].log")]
    lines: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for log in sorted(logs, key=lambda file: file.stat().st_mtime):  # a resumed run has several
        for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
            if task := _TASK.search(line):
                lines[log.name, task[1]].append(line)
    fired: Tokens = {}
    remaining = [(prompt, record) for prompt, record in answers.items() if record.target_steps]
    for of_task in lines.values():
        rounds = read_rounds("\n".join(of_task))
        if remaining and rounds == [tuple(step) for step in remaining[0][1].target_steps or () if step[0]]:
            prompt, _ = remaining.pop(0)
            if tokens := {int(index) for line in of_task for index in _FAULT.findall(line)}:
                fired[prompt] = tokens
    if remaining:
        raise ValueError(f"{arm}: the log lacks the rounds of prompt {remaining[0][0]}")
    return fired


def _replayed(run: RunData, arm: str) -> Tokens:
    """Return of every replayed answer the tokens to which the target prefers another."""
    scores = read_scores(run.folder)
    targets = scores.replays.targets if scores and scores.replays else []
    readings = {reading.key: reading for target in targets if arm in target.arms for reading in target.answers}
    tokens: Tokens = {}
    for record in run.records:
        if record.label == arm and record.phase == "measure" and record.target_steps and record.token_sha:
            answer = (record.task, record.prompt_idx, record.prompt_sha, record.token_sha)
            reading = readings.get((answer, sha256_steps(record.target_steps)))
            if reading is not None:
                tokens[record.prompt_idx] = {token.index for token in reading.deviations}
    return tokens


def main() -> None:
    """Judge the runs and keep the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    options = parser.parse_args()
    for folder in options.runs:
        keep_more(NAME, rows_of(folder))


if __name__ == "__main__":
    main()
