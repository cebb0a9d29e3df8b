"""What a stress test shows, in sentences: codes and values come from `benchctl.experiments.stress`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchctl.text import listed, percent, plural

STATES = {
    "canary": "asked again after other requests",
    "cache": "with a cached beginning",
    "crowd": "in a crowd",
    "sessions": "in a conversation",
    "constraint": "by a schema, up to a stop string, with log probabilities where benchctl can read them",
    "cancel": "beside and after cancelled requests",
    "long": "behind a prompt that nearly fills the context",
    "completions": "with two answers to a request",
    "slot files": "from a slot that was saved and restored",
    "context shift": "before and after answers that outgrow the context",
    "small cache": "in a cache that is too small for all slots",
    "preemption": "preempted by other requests in a small cache",
}
"""What each scenario does to a request."""
_LACKING = {
    "cached": "nothing came from the prompt cache, or the engine does not report it",
    "crowd": "no two answers were decoded at a time",
    "drafted": "nothing was drafted, or the engine does not report it",
    "rejected": "fewer than 30 % of the drafted tokens were rejected",
    "constrained": "nothing was drafted under a schema",
    "cancelled": "no answer was cancelled while it came",
    "repeated": "no request was answered twice",
    "long": "no prompt filled 80 % of the context, or the engine does not report its context",
    "several": "no request was answered twice at a time",
    "restored": "no slot was restored from a file",
    "shifted": "no answer outgrew the context",
    "evicted": "no slot was cleared for another, or the engine does not report it",
    "preempted": "no request was preempted, or the engine does not report it",
}
_INVALID = {
    "schema": "broke the schema",
    "stop string passed": "went on past the stop string",
    "ended before its stop string": "ended before the stop string",
    "log probabilities": "lacked log probabilities of tokens",
}

EXPECTED = "With greedy sampling a request gets the same answer, whatever else the server has done or does beside it."
_NOISE = {"again": "asked again", "cached": "from the cache", "crowd": "in a crowd"}
"""The states in which the noise is measured."""
LEGEND = (
    "Errors, changed (prompts with other answers when asked again): arm / target alone. Rejected: of all draft tokens. "
    "Cached: prompt tokens. Alone: acceptance rate of first answers that none overlapped; accepted: of the others."
)
"""What the columns of the table of scenarios mean."""
START = "Start the server:"
SEND = "Send these requests, each when the one before is answered; lines that end in & together:"
_TITLES = {"fails": "requests fail", "violation": "wrong answers", "known fault": "invalid answers"}


def title(setting: str, verdict: str, scenario: str) -> str:
    """Return the end of a bug report's title."""
    return f"speculative decoding ({setting}): {_TITLES[verdict]} {STATES[scenario]}"


def answered(against: str | None) -> str:
    """Return the heading of an answer: of the arm's first, of the target alone, or (`None`) of the wrong one."""
    headings = {None: "The wrong answer:", "first": "The first answer to the same request:"}
    return headings.get(against, "The answer without speculation:")


def shows(shown: int, attempts: int, seen: str) -> str:
    """Return how often the shortest plan shows the fault, and what it looks like. `seen` is untrusted."""
    times = f"in {shown} of {attempts} attempts" if attempts else "in the one attempt that there was time for"
    return f"It shows {times}: {seen[:200]}"


def conclusion(verdict: str, scenario: str, values: Mapping[str, Any]) -> str:
    """Return why a scenario has its verdict. `values`: those of `benchctl.experiments.stress.judge.ScenarioResult`."""
    parts = {
        "violation": _violation,
        "fails": _failures,
        "known fault": _known_fault,
        "undetermined": _undetermined,
        "stable": _stable,
        "not exercised": _not_exercised,
        "control unstable": _unstable,
    }
    sentences = parts[verdict](values)
    if verdict in ("violation", "fails", "undetermined") and values["exercised"]["lacking"]:
        sentences.append(f"Not exercised: {_lacking(values)}.")
    return f"{scenario}, {STATES[scenario]}: {' '.join(sentences)}"


def _lacking(values: Mapping[str, Any]) -> str:
    return "; ".join(_LACKING[code] for code in values["exercised"]["lacking"])


def _failures(values: Mapping[str, Any]) -> list[str]:
    count, aborts = len(values["failures"]), values["aborts"]
    if not count:
        return []
    ended = f" The engine ended {aborts} {plural(aborts, 'time')}." if aborts else ""
    return [f"{count} {plural(count, 'request')} failed that the target alone answers.{ended}"]


def _invalid(values: Mapping[str, Any]) -> list[str]:
    codes = [item["code"] for item in values["invalid"]]
    counts = {code: codes.count(code) for code in codes}
    return [
        f"{count} {plural(count, 'answer')} of the arm {_INVALID[code]}, and the target's own did not."
        for code, count in counts.items()
    ]


def _known_fault(values: Mapping[str, Any]) -> list[str]:
    rest = {"undetermined": _undetermined, "stable": _stable, "not exercised": _not_exercised}[values["apart"]]
    explained = ["On the list of the engine's faults:", *values["faults"], "Apart from it:"]
    return [*_invalid(values), *explained, *rest(values)]


def _violation(values: Mapping[str, Any]) -> list[str]:
    sentences = [*_failures(values), *_invalid(values)]
    shown = values["shown"]
    if shown and shown["gap"] is not None and values["limit"] is not None and shown["gap"] > values["limit"]:
        sentences.append(
            f"An answer changed where the target prefers its likeliest token by {shown['gap']:.3g} nats; rounding "
            f"accounts for at most {values['limit']:.3g}."
        )
    if values["arm_alone"] >= values["needed"] or not sentences:  # by Holm the last of several rejections need fewer
        sentences.append(_counts(values))
    return sentences


def _counts(values: Mapping[str, Any]) -> str:
    return (
        f"Of {values['units']} repeated prompts {values['arm_alone']} got different answers only from the arm and "
        f"{values['control_alone']} only from the target (p {values['p']:.2g}, {values['adjusted']:.2g} adjusted)."
    )


def _undetermined(values: Mapping[str, Any]) -> list[str]:
    return [
        _counts(values),
        f"{_needed(values)} A larger --budget asks more prompts.",
        *_unscored(values),
    ]


def _needed(values: Mapping[str, Any]) -> str:
    """Return how many prompts would be a violation; of fewer the paired test of prompts shows nothing."""
    least = f"It would be a violation from {values['needed']} prompts on with different answers only from the arm"
    return f"{least}{'; fewer were repeated' if values['units'] < values['needed'] else ''}."


def _unscored(values: Mapping[str, Any]) -> list[str]:
    count = values["unscored"]
    return [f"{count} {plural(count, 'divergence')} from the target alone could not be scored."] if count else []


def _stable(values: Mapping[str, Any]) -> list[str]:
    exercised, largest = values["exercised"], values["largest"]
    cached = f", {exercised['cached']:,} tokens from the cache" if exercised["cached"] else ""
    crowd = f", up to {exercised['most_at_once']} at a time" if exercised["most_at_once"] > 1 else ""
    longest = f", up to {exercised['longest']:,} tokens of prompt and answer" if exercised["longest"] else ""
    rejected = exercised["drafted"] - exercised["accepted"]
    near = f" It diverges at margins of at most {largest:.2g} nats." if largest is not None else ""
    noise = (
        "No more differences than in the target alone" if values["limit"] is None else "No difference beyond the noise"
    )
    return [
        f"{noise} in {exercised['requests']:,} requests and {values['units']} repeated prompts"
        f"{cached}{crowd}{longest}, {rejected:,} rejected draft tokens.{near} {_needed(values)}",
        *_unscored(values),
    ]


def _not_exercised(values: Mapping[str, Any]) -> list[str]:
    return [f"{_lacking(values)}."]


def _unstable(values: Mapping[str, Any]) -> list[str]:
    errors = values["control"]["errors"]
    failed = f"{errors} of its requests failed" if errors else "its answers changed by more than its noise"
    return [f"The target alone is unstable ({failed}), so nothing is concluded of the arm."]


def likeliest_listed(counts: Sequence[int]) -> str:
    """Return how much of an answer has log probabilities. `counts`: likeliest tokens that are listed beside each."""
    return f"likeliest tokens beside {sum(map(bool, counts))} of {len(counts)} tokens"


def slower_in_use(arm: str, scenario: str, alone: float, here: float) -> str:
    """Return that drafts are accepted less often in a scenario than alone."""
    return f"The acceptance rate of {arm} is {percent(here)} {STATES[scenario]}, and {percent(alone)} alone."


def scope(scenarios: Iterable[str], noise: Mapping[str, float], limit: float | None, tokens: int) -> str:
    """Return what the verdicts are about, and what rounding is."""
    states = listed(f"{_NOISE.get(name, name)} {nats:.2g}" for name, nats in noise.items())
    measured = (
        f"Rounding moves a margin of the target alone by at most (nats, over {tokens:,} tokens each): {states}. A "
        f"divergence at a margin above {limit:.2g} is a violation."
        if noise and limit is not None
        else "The noise of the target alone is not known, so single divergences are no evidence."
    )
    return f"Nothing is said of scenarios other than {listed(scenarios)}. {measured}"
