"""The health probes: short prompts that show a broken model, answered greedily by the target alone.

A model's text alone shows little: small sound models loop, and word salad is not empty. So the probabilities are read
with it, and where the model was quantized for this run, its source is scored at the same places.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchctl.analysis.answers import degeneration
from benchctl.data.manifest import PreflightProbe, PreflightRecord
from benchctl.data.record import Record
from benchctl.engines.scoring import Scorer, Scores
from benchctl.models.gguf_header import read_header
from benchctl.models.vocabulary import end_tokens, token_bytes
from benchctl.paths import shipped_folder
from benchctl.prompts.load import load_suite
from benchctl.prompts.suite import PromptItem

SUITE = "health.json"
TOKENS = 24
"""Longest answer to a probe."""
TOP = 64
"""So many of the likeliest tokens are compared."""
ENOUGH = 64
"""Fewer tokens than this are too few to assess probabilities."""
MIN_PROBES = 4
"""Fewer probes than this, the first of each kind, are too few to assess the share that is answered badly."""
_FIRST = ("newlines", "indentation", "empty_lines", "mixed_scripts")
BUDGET_S = 2.0
"""Seconds for each step (answering, reading, comparing) once there are enough tokens."""
PATIENCE_S = 20.0
"""Seconds for each step at most, on a slow engine."""
LINE_BREAKS = ("newlines/", "empty_lines/")
FLAWED_SHARE = 2 / 3
"""Sound models of half a billion parameters loop on two probes in five: only well beyond that it is evidence."""
UNSURE = -2.0
"""Mean log-probability, in nats, of the model's own best token. Measured on the probes: the bundled models, of 1 M and
4 M parameters, reach -1.1 and -1.5, a model of half a billion -0.5; the bundled target with all tensors at tq2_0, whose
output is word salad, -2.6; from 64 tokens on these figures hardly move."""
EXPECTED = 0.45
"""Share of the probes' own tokens among the 64 likeliest of the model: the bundled models reach 0.60, small
as they are; the target with a tensor family scaled, shuffled or zeroed 0.19 to 0.37."""
DAMAGED = 0.25
"""Kullback-Leibler divergence in nats from the unquantized model. Measured on the bundled target: q8_0 0.00, q4_k_m
0.01, q2_k 0.08; a tensor family at tq2_0 0.35 to 0.64; all at tq2_0 1.85."""


def check_answers(answers: Sequence[ProbeAnswer], record: PreflightRecord) -> None:
    """Record whether the answers are those of a sound model."""
    flaws: dict[str, str] = {}
    for answer in answers:
        name, text, tokens = answer.name, answer.text, answer.tokens
        answered = Record(label="preflight", task="health", prompt_idx=0, rep=0, content=text, token_ids=tokens)
        if flaw := degeneration(answered):
            flaws[name] = flaw
        record.probes.append(PreflightProbe(name=name, text=text, tokens=len(tokens), flaw=flaw))
    at_breaks = [answer for answer in answers if answer.name.startswith(LINE_BREAKS)]
    named = "; ".join(f"{name} {flaw}" for name, flaw in list(flaws.items())[:4])
    if len(at_breaks) > 1 and not any(answer.text.strip() for answer in at_breaks):
        evidence = f"Its answers to all {len(at_breaks)} prompts that end in line breaks are blank: {named}."
        record.find("degenerate-target", "models.target", evidence)
    elif any("reserved or byte tokens" in flaw or "broken UTF-8" in flaw for flaw in flaws.values()) or (
        len(answers) >= MIN_PROBES and len(flaws) > FLAWED_SHARE * len(answers)
    ):
        evidence = f"{len(flaws)} of {len(answers)} health probes are answered degenerately: {named}."
        record.find("degenerate-target", "models.target", evidence)
    else:
        record.checked.append(f"The target answered {len(answers)} health probes, {len(flaws)} of them degenerately.")
    mean, places = confidence(answers)
    evidence = (
        f"On average it gives its own best next token a probability of {math.exp(mean):.0%}, over {places} tokens"
    )
    verdict = "; a sound model gives far higher ones." if places >= ENOUGH and mean < UNSURE else None
    record.judge("unsure-target", "models.target", evidence, verdict=verdict)


def check_reading(hits: int, places: int, record: PreflightRecord) -> None:
    """Record whether the model expects what it reads."""
    if places < ENOUGH:
        record.checked.append(f"Whether it expects what it reads was not tested: {places} tokens are too few.")
        return
    evidence = f"Of {places} tokens of the probes it expects {hits / places:.0%} among its {TOP} likeliest"
    verdict = "; small sound models reach 60%." if hits < EXPECTED * places else None
    record.judge("unsure-target", "models.target", evidence, verdict=verdict)


def check_agreement(compared: Agreement | None, record: PreflightRecord) -> None:
    """Record whether the quantized target still agrees with its source."""
    places = compared.places if compared else 0
    if compared is None or places < ENOUGH:
        record.checked.append(f"The unquantized target was scored at {places} places, too few to compare.")
        return
    evidence = (
        f"The quantized target and its source expect the same next token at {compared.same} of {places} "
        f"places of the health probes; they diverge by {compared.divergence:.2f} nats"
    )
    verdict = f", more than {DAMAGED:g}." if compared.divergence > DAMAGED else None
    record.judge("quantization-damage", "models.target", evidence, verdict=verdict)


@dataclass
class ProbeAnswer:
    """The target's answer to a probe; `text` is untrusted."""

    name: str
    """`task/prompt_idx`."""
    prompt: tuple[int, ...]
    tokens: list[int] = field(default_factory=list)
    """Greedy, without an end-of-text token."""
    scores: list[Scores] = field(default_factory=list)
    """The scores of every token, and of the end of the answer."""
    text: str = ""


@dataclass(frozen=True)
class Agreement:
    """Two models, scored at the same places."""

    places: int
    same: int
    """How often both expect the same token first."""
    divergence: float
    """Mean Kullback-Leibler divergence in nats from the reference, over its likeliest tokens: at least so much."""


def probe_items() -> list[PromptItem]:
    """Return the probes, a first of each task before a second of any: where time is short, all kinds are tried."""
    suite = shipped_folder("prompts") / SUITE
    items = load_suite(str(suite), recipe_folder=suite.parent).select(None, None)
    return sorted(items, key=lambda item: (item.prompt_idx, item.task not in _FIRST))


def answers(scorer: Scorer, model: Path, items: Sequence[PromptItem]) -> Iterator[ProbeAnswer]:
    """Yield the greedy answers of the model in `model` as long as the budget lasts. Raises EngineError."""
    began, places = time.monotonic(), 0
    vocabulary = token_bytes(model)
    ends = end_tokens(read_header(model))
    for count, item in enumerate(items, start=1):
        prompt = scorer.render(item.prompt).token_ids
        answer = ProbeAnswer(f"{item.task}/{item.prompt_idx}", prompt, scores=[scorer.read_prompt(prompt, TOP)])
        while answer.scores[-1].likeliest not in ends:
            answer.tokens.append(answer.scores[-1].likeliest)
            if len(answer.tokens) == TOKENS or _time_is_up(began, places + len(answer.scores), count):
                break
            answer.scores.append(scorer.read_on([*prompt, *answer.tokens], TOP))
        spelt = vocabulary.spelling(answer.tokens) if vocabulary else b""
        answer.text = spelt.decode("utf-8", "replace")
        yield answer
        places += len(answer.scores)
        if _time_is_up(began, places, count):
            return


def confidence(answers: Sequence[ProbeAnswer]) -> tuple[float, int]:
    """Return the mean logarithm of the probability that the model gives its own best next token, and of how many."""
    best = [max(scores.logprobs.values()) for answer in answers for scores in answer.scores]
    return (math.fsum(best) / len(best), len(best)) if best else (0.0, 0)


def expected(scorer: Scorer, answers: Sequence[ProbeAnswer]) -> tuple[int, int]:
    """Return how many of the probes' own tokens are among the likeliest that the model expects there, and of how many.

    Raises EngineError.
    """
    places = [(answer.prompt, index) for answer in answers for index in range(1, min(len(answer.prompt), TOKENS))]
    read = _read_in_time(scorer, [(prompt[:index], index == 1) for prompt, index in places])
    hits = [prompt[index] in scores.logprobs for (prompt, index), scores in zip(places, read, strict=False)]
    return sum(hits), len(hits)


def agreement(reference: Scorer, answers: Sequence[ProbeAnswer]) -> Agreement | None:
    """Score another model at the places of `answers` as long as the budget lasts; None when there was no time.

    Raises EngineError.
    """
    places = [(answer, index, scores) for answer in answers for index, scores in enumerate(answer.scores)]
    prefixes = [([*answer.prompt, *answer.tokens[:index]], not index) for answer, index, _ in places]
    pairs = [
        (scores, theirs) for (_, _, scores), theirs in zip(places, _read_in_time(reference, prefixes), strict=False)
    ]
    if not pairs:
        return None
    same = sum(theirs.likeliest == scores.likeliest for scores, theirs in pairs)
    return Agreement(len(pairs), same, sum(_divergence(theirs, scores) for scores, theirs in pairs) / len(pairs))


def _read_in_time(scorer: Scorer, prefixes: Sequence[tuple[Sequence[int], bool]]) -> Iterator[Scores]:
    """Score prefixes as long as the budget lasts, each with whether it begins another text. Raises EngineError."""
    began = time.monotonic()
    for places, (prefix, begins) in enumerate(prefixes):
        if _time_is_up(began, places):
            return
        yield scorer.read_prompt(prefix, TOP) if begins else scorer.read_on(prefix, TOP)


def _time_is_up(began: float, places: int, probes: int = MIN_PROBES) -> bool:
    enough = places >= ENOUGH and probes >= MIN_PROBES
    return time.monotonic() - began > (BUDGET_S if enough else PATIENCE_S)


def _divergence(reference: Scores, compared: Scores) -> float:
    """Kullback-Leibler divergence in nats over the reference's tokens; what the other lacks counts as its last."""
    floor = min(compared.logprobs.values())
    return sum(
        math.exp(expected) * (expected - compared.logprobs.get(token, floor))
        for token, expected in reference.logprobs.items()
    )
