"""Endings that greedy decoding never has, and some that it may have: what is said of a real engine made to end so?

    python -m benchmarks.endings

One patched llama-server (`benchmarks.lossy_engines.build`) on the bundled pair, whose rounding changes few answers, so
that an arm differs by its fault. `rules`: arms of one run, each of which ends its answers wrongly in one way, beside a
sound one. The others: runs in which an arm's answers differ, and their endings are nothing that greedy decoding never
has. `by_rule` counts the prompts that are a violation by their ending.
"""

from __future__ import annotations

import argparse
import json
import string
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from benchctl.data.record import Record
from benchctl.data.store import RunData
from benchctl.recipes.schema import Arm, ModelPair, ModelSpec, PromptsSpec, QuantizeSpec, Sampling
from benchmarks.bundled_runs import bundled_recipe, drafting, engine_spec, measure, numbered_prompts, plain, verified
from benchmarks.keep import RESULTS, command, keep
from benchmarks.lossy_engines.build import build

WRONG = ("over", "past", "early", "unended", "text")
_BY_RULE = "No noise of the target does that"
_CONTEXT = 256
_STOP_LENGTH = 4
"""Characters of the stop string."""
_DIVERGING = "accept_within_1"
_RARE = "😀🎉🚀龘鬱薔薇𠮷☃♞Ω"
"""Characters of several tokens each, which the model is led to repeat."""


def main() -> None:
    """Measure and judge every case, or those that are named; what was kept of the others stays."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", action="append", choices=CASES)
    parser.add_argument("--prompts", type=int, default=60, help="of the arms that end wrongly")
    parser.add_argument("--more-prompts", type=int, default=200, help="of the runs whose answers seldom differ")
    options = parser.parse_args()
    file = RESULTS / "endings.json"
    results = json.loads(file.read_text(encoding="utf-8"))["found"] if options.case and file.exists() else {}
    for name in options.case or CASES:
        with tempfile.TemporaryDirectory(prefix="endings-") as folder:
            results[name] = CASES[name](Path(folder), options) | {"command": command()}
    keep("endings", results)


def sound() -> Arm:
    """Return an arm of the same engine without a fault."""
    return drafting("sound")


def ending(fault: str) -> Arm:
    """Return an arm whose answers end wrongly."""
    return drafting(fault, "--fault", f"ending={fault}")


def _run(
    arms: Sequence[Arm],
    scratch: Path,
    prompts: int | Path,
    tokens: int,
    *,
    sampling: dict[str, Any] | None = None,
    engine: dict[str, Any] | None = None,
    **options: object,
) -> RunData:
    suite = numbered_prompts(scratch, prompts) if isinstance(prompts, int) else prompts
    recipe = bundled_recipe(
        [plain("baseline"), *arms],
        name="endings",
        engine=engine_spec(build()).model_copy(update=engine or {}),
        prompts=PromptsSpec(suite=str(suite)),
        sampling=Sampling(max_tokens=tokens, **(sampling or {})),
        blocks=1,
        warmup=0,
        **options,
    )
    return measure(recipe, scratch)


def _judged(run: RunData) -> dict[str, Any]:
    """Return what verify-lossless says of every arm, beside how many of its answers really differ."""
    code, document = verified(run.folder)
    return {"exit_code": code, "arms": {arm["arm"]: _said(run, arm) for arm in document["arms"]}}


def _said(run: RunData, arm: dict[str, Any]) -> dict[str, Any]:
    theirs, ours = _answers(run.records, "baseline"), _answers(run.records, arm["arm"])
    by_rule = [prompt["reason"] for prompt in arm["comparisons"] if _BY_RULE in prompt["reason"]]
    return {
        "prompts": len(arm["comparisons"]),
        "failed": sum(record.error is not None for record in run.records if record.label == arm["arm"]),
        "differ": sum(answer != theirs.get(prompt) for prompt, answer in ours.items()),
        "verdict": arm["verdict"],
        "counts": arm["counts"],
        "by_rule": len(by_rule),
        "rule": by_rule[0].partition(". ")[0] if by_rule else None,
        "reason": arm["reason"],
    }


def _answers(records: Iterable[Record], label: str) -> dict[int, tuple[object, ...]]:
    return {
        record.prompt_idx: (record.token_ids, record.content, record.finish_reason)
        for record in records
        if record.label == label and record.error is None
    }


def _rules(scratch: Path, options: argparse.Namespace) -> dict[str, Any]:
    return _judged(_run([sound(), *map(ending, WRONG)], scratch, options.prompts, 48))


def _ignore_eos(scratch: Path, options: argparse.Namespace) -> dict[str, Any]:
    return _judged(_run([sound(), ending("unended")], scratch, options.prompts, 48, sampling={"ignore_eos": True}))


def _stop_string(scratch: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Judge an arm whose answers diverge and then come to a stop string of the server's, which no other answer has."""
    prompts, arms = options.more_prompts, [sound(), drafting(_DIVERGING, "--fault", "accept-within=1")]
    quantize = QuantizeSpec(type="q4_0", allow_requantize=True)
    names = ("bundled:tiny-hybrid", "bundled:tiny-hybrid-draft")
    target, draft = (ModelSpec(source=name, quantize=quantize) for name in names)
    pair: dict[str, Any] = {"models": ModelPair(target=target, draft=draft)}
    free = _run(arms, scratch, prompts, 64, **pair)
    theirs = "\n".join(record.content or "" for record in free.records if record.label == "baseline")
    texts = [record.content or "" for record in free.records if record.label == _DIVERGING]
    words = {
        text[start : start + _STOP_LENGTH]
        for text in texts
        for start in range(len(text) - _STOP_LENGTH)
        if text[start : start + _STOP_LENGTH] not in theirs
    }
    word = max((word for word in sorted(words) if word.isalnum()), key=lambda word: sum(word in text for text in texts))
    run = _run(arms, scratch, prompts, 64, engine={"args": ["-r", word]}, **pair)
    last = {label: _last_tokens(run.records, label) for label in ("baseline", _DIVERGING)}
    stopped = sum(token not in last["baseline"] for token in last[_DIVERGING])
    return {"stop_string": word, "answers_that_it_ended": stopped, **_judged(run)}


def _last_tokens(records: Iterable[Record], label: str) -> list[int]:
    """Return the last token of every answer that stopped."""
    stopped = (record for record in records if record.label == label and record.finish_reason == "stop")
    return [record.token_ids[-1] for record in stopped if record.token_ids]


def _incomplete_character(scratch: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Judge an arm that sends U+FFFD for what the limit leaves of a character of several tokens."""
    del options
    suite = _raw_suite(scratch, [f"{' '.join([sign] * 12)} " for sign in _RARE])
    run = _run([sound(), ending("flushed")], scratch, suite, 6, sampling={"ignore_eos": True})
    flushed = sum(record.label == "flushed" and "\ufffd" in (record.content or "") for record in run.records)
    return {"answers_with_it": flushed, **_judged(run)}


def _raw_suite(scratch: Path, prompts: Sequence[str]) -> Path:
    suite = scratch / "plain.json"
    head = {"schema": 1, "name": "plain", "kind": "raw", "licence": "Apache-2.0", "source": "lines made here"}
    tasks = {"code": [{"prompt": prompt} for prompt in prompts]}
    suite.write_text(json.dumps({**head, "tasks": tasks}), encoding="utf-8")
    return suite


def _context_full(scratch: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Judge an arm whose last round fills the context where the target alone has just as much room as it needs."""
    del options
    line = "def of_%s(x):\n    return x + %s\n"
    prompts = [(line % (letter, letter)) * 10 + "class Reader:\n" for letter in string.ascii_lowercase]
    suite = _raw_suite(scratch, prompts)
    lengths = [record.prompt_tokens or 0 for record in _run([sound()], scratch, suite, 8).records]
    tokens = _CONTEXT - max(lengths)
    run = _run([sound()], scratch, suite, tokens, sampling={"ignore_eos": True}, engine={"context": _CONTEXT})
    return {"prompt_tokens": sorted(set(lengths)), "max_tokens": tokens, **_judged(run)}


CASES: dict[str, Callable[[Path, argparse.Namespace], dict[str, Any]]] = {
    "rules": _rules,
    "ignore_eos": _ignore_eos,
    "stop string": _stop_string,
    "context full": _context_full,
    "incomplete character": _incomplete_character,
}


if __name__ == "__main__":
    main()
