"""What is said of losslessness: the reasons of verdicts on prompts and on arms, and why something was not scored."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from benchctl.analysis.losslessness import TIMES_BEHIND
from benchctl.text import first, plural
from benchctl.words import validity
from benchctl.words.sweep import OVERLAPPING, SAMPLED

if TYPE_CHECKING:
    from benchctl.analysis.losslessness import ArmAudit, ArmReplay, ControlTest, NoiseFloor, Reason
    from benchctl.analysis.output_results import Losslessness, SelfConsistency

FLAWS_NAMED = 2
"""Records that the reason of a prompt names."""
PROMPTS_NAMED = 6
"""Prompts that a sentence on an arm's own answers names."""

PROMPTS = {
    "prompts-differ": "The rendered prompt is not the same in every arm and block.",
    "repeated-otherwise": "Asked again at the end of its process, {arm} answers otherwise (requests between: "
    "{requests}).",
    "sampled": "The answers are sampled, not greedy: a different answer may also be the target's own, and "
    "`benchctl verify-sampling` compares their distributions.",
    "over-limit": "The answer has {count} tokens, and {limit} were asked for.",
    "cut-short": "The answer was cut off as too long after {count} tokens, and {limit} were asked for.",
    "beyond-end": "The answer goes on for {count} tokens after an end token ({token}).",
    "no-end": "The answer stopped after token {token}, which ends none of this model's.",
    "other-text": "The tokens are the target's own, and the text is another.",
    "never-by-noise": "No noise of the target does that: its own answers never do.",
    "constrained": "The answers differ, and `{constraint}` constrains them: what the target scores without that "
    "constraint does not show which of them is its own.",
    "invalid-alone": "The answer does not keep the form that its request asks for, and the target's own does.",
    "replayed": "The answers differ, and every token of the arm's is the target's likeliest in the arm's own batches.",
    "degenerate-target": "The target's own answer is degenerate: it {fault}; the arm's differs.",
    "degenerate-alike": "The target's own answer is degenerate: it {fault}.",
    "degenerate": "The arm's answer {fault}; the target's own is sound.",
    "degenerate-arm": "The answer {fault}.",
    "other-ending": "The answer differs in length or finish reason, with no token to score.",
    "one-sided-ids": "The texts are equal, but only one side has token ids.",
    "counts-differ": "The texts are equal, and the server's counts of their tokens are not: {baseline} for the "
    "baseline, {arm} for the arm. No token ids show which is right.",
    "equal-but-gap": "The texts and the numbers of tokens are equal in every block; {gap}.",
    "equal-texts": "The texts are equal in every block; token ids are absent on both sides.",
    "equal": "Text and tokens are equal in every block.",
}
"""The reasons of a prompt's class that are a sentence of their values."""

UNSCORED = {
    "not-verified": "its answers were not scored on the target alone (`benchctl verify-lossless` does)",
    "not-scored": "its answers were not scored",
    "offline": "its answers were not scored before, and --offline starts no engine",
    "divergence-not-verified": "benchctl verify-lossless has not replayed it",
    "divergence-offline": "it was not replayed before, and --offline starts no engine",
    "divergence-not-replayed": "it was not replayed",
    "divergence-failed": "it could not be replayed: {message}",
    "failed": "its answers could not be scored: {message}",
    "several-machines": "its answers come from several kinds of machines, and this machine's target may compute other "
    "values",
    "scores-changed": "{message}",
    "scores-of-another": "what was replayed is of another run, engine or model",
    "other-baseline": "what was replayed is of another baseline, {baseline}",
    "no-manifest": "the run has no manifest, so what it ran with is not known",
    "no-ids": "without token ids its answers cannot be scored",
    "no-width": "its verify width is not reported",
    "no-slots": "how many requests shared a batch is not reported",
    "not-reproduced": "scored token by token, the target alone diverges from the baseline's own answers at "
    "{diverged:,} of {places:,} places, so it did not compute what the run did",
    "no-shared-noise": "the noise that several requests in one batch add cannot be measured on this engine",
    "divergence-no-ids": "without token ids it cannot be scored",
    "divergence-at-end": "one answer ends there without an end token, so there is nothing to score",
    "divergence-no-width": "the arm's verify width is not reported",
    "no-margin": "the margin could not be measured",
    "replay-shared": "several requests shared a batch",
    "replay-sampled": "answers are sampled",
    "replay-baseline-speculates": "the baseline speculates itself",
    "replay-cached": "the prompt cache was on, and from where a request read its prompt is not recorded",
    "replay-unknown-steps": "they are not recorded",
    "replay-no-steps": "the steps of the others are not recorded",
    "replay-unfinished": "the time was over (`benchctl verify-lossless` continues)",
    "replay-partial": "{replayed} of {of} answers were replayed: {reason}",
    "replay-control": "the control is not exact, since {deviating} of {of} answers of the baseline do not replay",
    "replay-control-partial": "{replayed} of {of} answers of the baseline, the control, were replayed: {reason}",
}
"""Why answers, or a divergence, were not scored; each the end of a sentence."""

ARMS = {
    "baseline-speculates": "The baseline speculates itself, so it is not the target alone; {identical} of "
    "{of_prompts} got the same answer from both.",
    "nothing-judged": "{not_compared}, and nothing was measured one request at a time.",
    "not-compared": "{not_compared}, so that answers are not compared here.",
    "judged-elsewhere": "{not_compared}; whether the arm is lossless is judged where {judged_where}.",
    "unfit-answers": "{answers_are} missing, failed or damaged ({first}).",
    "degenerate-answers": "{answers_are} degenerate where the baseline's is sound ({first}).",
    "servers-differ": "It differs, and does not speculate: the servers differ in something else{reports}.",
    "replayed-differing": "Every answer that differs was replayed, and every token of it is the target's likeliest in "
    "the arm's own batches.",
    "not-audited": "Its whole answers were not scored, so there is no verdict on them.",
    "vouched": "That speculation alone differs between the servers is taken from engine.{key}.",
    "control-is-target": "Without speculation its server gives the target's answers ({control}).",
    "further": "Evidence: {of_prompts} of the run and {further} asked afterwards.",
    "damaged-evidence": "{message}",
    "batch-invariant": "{setting} promises the same numbers in any batch: no numeric noise can make a difference.",
}
"""The reasons of an arm's verdict that are a sentence of their values."""

NOISE_METHODS = {
    "few": "only {count} prefixes were measured; {needed} are needed",
    "unchanged": "none of {count} prefixes changed at all",
    "quantile": "exceeded by noise in 1 of {runs} runs of {tokens:,} tokens; by ",
}


def worded(judged: Losslessness) -> Losslessness:
    """Return a verdict with its reasons, and those of its prompts, in words."""
    comparisons = [
        comparison.model_copy(update={"reason": " ".join(map(prompt_sentence, comparison.reasons))})
        for comparison in judged.comparisons
    ]
    judged = judged.model_copy(update={"comparisons": comparisons})
    return judged.model_copy(update={"reason": " ".join(arm_sentence(reason, judged) for reason in judged.reasons)})


def prompt_sentence(reason: Reason) -> str:
    """Return a reason of a prompt's class as a sentence."""
    values: dict[str, Any] = reason.values
    if reason.code == "flawed":
        shown = str(values["flaws"]).split("\n")
        return " ".join(shown[:FLAWS_NAMED]) + _and_more(len(shown) - FLAWS_NAMED)
    if reason.code == "unstable":
        differ = plural(values["differing"], "differs", "differ")
        later = f"{values['differing']} of its {values['later']} later answers {differ} from the first"
        return f"The baseline does not reproduce its own answer from block to block: {later}."
    if reason.code == "replay-deviates":
        return f"{_deviation(values)}."
    if reason.code in _DIVERGENCES:
        return f"The answer differs from {values['unit']} {values['index']} on{_DIVERGENCES[reason.code](values)}."
    return PROMPTS[reason.code].format(**values)


def unscored(reason: Reason) -> str:
    """Return why something was not scored, as the end of a sentence."""
    values: dict[str, Any] = reason.values
    if reason.code == "few-prefixes":
        several = " or ".join(str(values["widths"]).split())
        shape = "in another shape" if values["by_prefill"] else f"{several} tokens at a time"
        shape += f" of each of {values['slots']} requests in one batch" if values["slots"] > 1 else ""
        return (
            f"the noise of reading {shape} was measured at {values['measured']:,} prefixes; {values['needed']:,} "
            "are needed"
        )
    if reason.code == "no-noise":
        return f"the noise is not known ({values['method']})"
    return UNSCORED[reason.code].format(**values)


def _not_explained(values: dict[str, Any]) -> str:
    return f"; noise and a fault are both possible: {values['lacking']}"


def _not_the_baselines(values: dict[str, Any]) -> str:
    choice = "the arm's token" if values["likeliest"] == "arm" else "a third token"
    return (
        f", but the target alone, token by token, chooses {choice} there: it does not reproduce the baseline's answer"
    )


def _tie(_: dict[str, Any]) -> str:
    return (
        ", an exact tie: the target alone gives both tokens the same probability, and greedy decoding may choose either"
    )


def _near_tie(values: dict[str, Any]) -> str:
    noise = f", a near-tie, compatible with the target's noise: {_margin_and_noise(values)}"
    if not values["chosen"]:
        return noise
    return f"{noise}. Reading {_tokens_at_once(values)} at once, the target alone chooses the arm's token"


def _not_noise(values: dict[str, Any]) -> str:
    return f" and numeric noise does not explain it: {_margin_and_noise(values)}"


_DIVERGENCES: dict[str, Callable[[dict[str, Any]], str]] = {
    "not-explained": _not_explained,
    "not-the-baselines": _not_the_baselines,
    "tie": _tie,
    "near-tie": _near_tie,
    "not-noise": _not_noise,
}
"""The reasons of a divergence, each the rest of a sentence that begins with its place."""


def _margin_and_noise(values: dict[str, Any]) -> str:
    limit = "at least " if values["margin_is_least"] else ""
    prefers = f"the target alone prefers its own token by {limit}{_nats(values['margin'])} nats there"
    if values["invariant"] is not None:
        return f"{prefers}; {values['invariant']} promises the same numbers in any batch"
    if values["width"] == 1:
        return f"{prefers}; no draft had been verified before it, so that nothing was read at once"
    instead = "token by token" if values["by_prefill"] else "one"
    reading = f"reading {_tokens_at_once(values)} at once instead of {instead}"
    if values["floor"] == 0:
        return f"{prefers}; {reading} changes nothing ({values['method']})"
    return f"{prefers}; {reading} changes decisions at margins up to {_nats(values['floor'])} ({values['method']})"


def _tokens_at_once(values: dict[str, Any]) -> str:
    return "everything" if values["by_prefill"] else f"{values['width']} tokens"


def _nats(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}" if value >= 0.001 or value == 0 else f"{value:.1g}"


def noise_method(method: Reason, *, by_prefill: bool) -> str:
    """Return how a noise floor was made, with its quantile and its sample."""
    values: dict[str, Any] = method.values
    text = NOISE_METHODS[method.code].format(**values)
    if method.code == "quantile":
        sample = f"{values['count']} prefixes"
        if values["margin"] is not None:
            sample = f"{values['small']} of {sample}, those at margins up to {values['margin']:g} nat,"
        text += f"{sample} {values['changed']} changed"
    return f"{text}; of reading everything at once, since this engine cannot read a given width" if by_prefill else text


def noise_sentence(noise: NoiseFloor) -> str:
    """Return the numeric noise at a width, with its control."""
    floor = "unknown" if noise.floor is None else f"{noise.floor:.3g} nats"
    control = f"it diverges from itself at {noise.null_divergences} of {noise.null_places:,} prefixes"
    return f"Numeric noise of the target at width {noise.width}: {floor}; without speculation {control}."


def consistency_sentence(row: SelfConsistency) -> str:
    """Return whether an arm repeats its own answers from block to block."""
    if not row.prompts:
        return f"Whether {row.arm} repeats itself was not tested: no prompt was run in two blocks."
    if not row.differing:
        return f"{row.arm} repeats itself: {_count(row.prompts, 'prompt')}, identical in every block."
    varying = f"{len(row.differing)} of {_count(row.prompts, 'prompt')} vary from block to block"
    return f"{row.arm} does not repeat itself: {varying} ({first(row.differing, PROMPTS_NAMED)})."


def arm_sentence(reason: Reason, judged: Losslessness) -> str:
    """Return a reason of an arm's verdict in a sentence or several."""
    if reason.code in ARMS:
        return ARMS[reason.code].format(**reason.values, **_derived(reason.values))
    if reason.code in ("audit", "power") and judged.audit is not None:
        return audit_sentence(judged.audit) if reason.code == "audit" else power_sentence(judged.audit)
    if reason.code == "replay" and judged.replay is not None:
        return replayed_sentence(judged.replay)
    if reason.code == "control" and judged.control is not None:
        return control_sentence(judged.control)
    return _ARMS[reason.code](reason.values, judged)


def _derived(values: dict[str, Any]) -> dict[str, str]:
    """Return the parts of sentences that values decide."""
    derived = {}
    if "overlapping" in values:
        derived["not_compared"] = OVERLAPPING if values["overlapping"] else SAMPLED
        derived["judged_where"] = "one request at a time was measured" if values["overlapping"] else "they are greedy"
    if "prompts" in values:
        derived["of_prompts"] = _prompts(values["prompts"])
    if "count" in values:
        derived["answers_are"] = "1 answer is" if values["count"] == 1 else f"{values['count']} answers are"
    if "reported" in values:
        derived["reports"] = _reports(values)
    return derived


def _differing(values: dict[str, Any], _: Losslessness) -> str:
    differing, near, damage = values["differing"], values["near_ties"], values["violations"]
    weight = ""
    if near == differing:
        weight = ", each first at a near-tie that the target's own noise may have decided"
    elif damage:
        weight = f"; the target's numeric noise does not explain {damage} of them"
        weight += f", and {near} are near-ties" if near else ""
    elif near:
        weight = f", {near} of them near-ties"
    open_prompts = f"; {values['undetermined']} could not be determined" if values["undetermined"] else ""
    part = "answer" if values["diverging"] else "ending"
    start = f"{differing} of {_prompts(values['prompts'])} got another {part} than from the target alone"
    return f"{start}{weight}{open_prompts}."


def _identical(values: dict[str, Any], _: Losslessness) -> str:
    prompts, by_text, blocks, degenerate = (values[name] for name in ("prompts", "without_ids", "blocks", "degenerate"))
    equal = "text and tokens" if not by_text else f"text (token ids are absent on both sides for {by_text})"
    times = f"in each of {blocks} blocks" if blocks > 1 else "in the one block measured"
    times += " (those asked afterwards once)" if values.get("further") else ""
    return (
        f"{prompts} of {_prompts(prompts)} got the target's own answer, by {equal}, {times}; of prompts like these "
        f"at most {100 * values['limit']:.2g} % get a different one (95 % limit)."
        + (f" For {_prompts(degenerate)} the target's own answer is degenerate." if degenerate else "")
    )


def _undetermined(values: dict[str, Any], judged: Losslessness) -> str:
    parts = []
    unknown = [comparison for comparison in judged.comparisons if comparison.outcome == "undetermined"]
    if unknown:
        example = f"{unknown[0].task}/{unknown[0].prompt_idx}: {unknown[0].reason.partition('. ')[0].rstrip('.')}"
        parts.append(f"{len(unknown)} of {_prompts(values['prompts'])} could not be determined ({example})")
    if lost := values["lost_lines"]:
        parts.append(f"{lost} damaged {plural(lost, 'line')} may have been of this arm")
    return f"{'; '.join(parts) or 'There is nothing to compare'}."


def _two_causes(values: dict[str, Any], _: Losslessness) -> str:
    advice = (
        f"To tell them apart measure a server that is started as the arm's without speculation, as arm "
        f"{values['control']}, or vouch that speculation alone differs: engine.{values['key']}: true."
    )
    if values["measured"]:
        advice = (
            f"Its server differs without speculation, too ({values['control']}); start the baseline's as the arm's."
        )
    start = "It differs: speculation, or another difference between the servers"
    return f"{start}{_reports(values)}. {advice}"


def _reports(values: dict[str, Any]) -> str:
    if values["reported"] is None:
        return ""
    return f" (it reports {values['reported']}; the baseline's {values['baseline_reported']})"


def _widths(values: dict[str, Any], _: Losslessness) -> str:
    same = f"The same answers: {values['same']}. " if values["same"] else ""
    first_difference = f"The first difference is at token {values['index']} of {values['prompt']}."
    return f"{same}Other answers: {values['other']}. {first_difference}"


def _lossy(values: dict[str, Any], _: Losslessness) -> str:
    equal = " Equal answers are coincidence." if values["equal"] else ""
    output = "its text is not a model's output" if values["synthetic"] else "its output is not the target's own"
    return f"Lossy by design: {values['settings']}; {output}.{equal}"


def _invalid(_: dict[str, Any], judged: Losslessness) -> str:
    return "" if judged.validity is None else validity.violation(judged.validity)


_ARMS: dict[str, Callable[[dict[str, Any], Losslessness], str]] = {
    "differing": _differing,
    "invalid": _invalid,
    "identical": _identical,
    "undetermined": _undetermined,
    "widths": _widths,
    "speculation-or-servers": _two_causes,
    "lossy-by-design": _lossy,
}
"""The other reasons of an arm's verdict."""


def audit_sentence(audit: ArmAudit) -> str:
    """Return what scoring whole answers showed, or what is missing, in a sentence or two."""
    if audit.lacking is not None:
        return f"There is no verdict on its whole answers: {audit.lacking}."
    answers = f"{audit.tokens:,} tokens of {_count(audit.answers, 'answer')}"
    if audit.answers < audit.of:
        answers += f", sampled from {audit.of},"
    reading = "read at once" if audit.by_prefill else "token by token"
    width = "the arm's verify width" + (f", {audit.slots} requests in a batch," if audit.slots > 1 else "")
    noise = "the change between prefill and decode" if audit.by_prefill else f"its own noise at {width}"
    if audit.continued:
        noise += (
            f" ({audit.prefixes:,} prefixes, {audit.continued:,} of them in what it says to prompts of the suite many)"
        )
    times = "once" if audit.diverged == 1 else f"{audit.diverged:,} times"
    scored = (
        f"Scored on the target alone, {reading}, {answers} diverge from its likeliest token {times}; "
        f"{noise} explains {audit.expected or 0:.1f}"
    )
    if audit.violates:
        return f"{scored}, but not {_unexplained(audit)}."
    limit = f"at most {audit.excess_limit or 0:.2g} per 1,000 tokens beyond it, at 95 %"
    return f"{scored} (p = {_p_value(audit.p)}; {limit})."


def _unexplained(audit: ArmAudit) -> str:
    parts = []
    if audit.beyond:
        parts.append(f"{_count(audit.beyond, 'divergence')} at margins above {audit.floor or 0:.3g} nats")
    if audit.p_adjusted is not None and (audit.p_adjusted <= 0.005 or not parts):
        parts.append(f"where and how often they are (p = {_p_value(audit.p)})")
    return ", nor ".join(parts)


def power_sentence(audit: ArmAudit) -> str:
    """Return how likely a wrong engine would have been detected where no violation was, in a sentence."""
    stated = audit.stated
    power = f"No violation found, power {100 * (0.0 if stated is None else stated.chance):.0f} %"
    if audit.shows or stated is None:
        return f"{power}."
    if stated.prompts is None:
        return f"{power}: too little, and how many prompts would be enough on this target is not known."
    return f"{power}: too little, about {stated.prompts:,} prompts like these are needed."


def control_sentence(test: ControlTest) -> str:
    """Return what the test against a control showed, or what it lacks, in a sentence or two."""
    differ = f"{test.outside} of {test.prompts} prompts got an answer that the baseline never gave"
    if test.repeated > 1:
        differ += f"; the baseline's own {test.repeated} answers vary at {test.varying}"
    if test.p is None:
        return (
            f"{differ}. A violation cannot be told from rounding at the verify width: nothing in the run has that width"
            " and is a control. Measure another arm of the same depth."
        )
    control = {
        "arm": f"against {test.control}, an arm of the same verify width",
        "noise": "against the baseline repeated, on a target without noise at this verify width",
        "scores": f"for a token over {TIMES_BEHIND:g} times as far behind the likeliest as in any of the "
        "baseline's answers",
    }[test.against or "arm"]
    p = f"exact test by prompt {control}: {test.differing} of {test.tested} prompts, p = {test.p:.2g}"
    if test.violates:
        return f"{differ}, and noise does not explain it ({p})."
    chance = f"power {100 * test.power:.0f} % if it changed one answer in four" if test.power is not None else ""
    return f"{differ}. No violation found, {chance} ({p})."


def replayed_sentence(replay: ArmReplay) -> str:
    """Return what replaying an arm's steps showed, or why it decides nothing, in a sentence or two."""
    if replay.first is not None:
        further = replay.deviating - 1
        deviate = plural(further, "deviates", "deviate")
        others = f"; {further:,} further {plural(further, 'token')} {deviate}, too" if further else ""
        place = f"{replay.first.task}/{replay.first.prompt_idx}"
        return (
            f"Replayed in its own batches, {place} is not the target's own. {_deviation(vars(replay.first))}{others}."
        )
    if replay.lacking is not None:
        return f"The steps of {replay.arm} were not {'all ' if replay.answers else ''}replayed: {replay.lacking}."
    return (
        f"Replayed in its own batches on the target alone, all {_count(replay.tokens, 'token')} of "
        f"{_count(replay.answers, 'answer')} ({_count(replay.rounds, 'round')}) are the likeliest: what differs is "
        f"rounding, which depends on the width of a batch. The baseline's own {_count(replay.control, 'answer')}, the "
        "control, replay exactly, too."
    )


def _deviation(values: dict[str, Any]) -> str:
    """Return a token that the target does not choose in the arm's batch, with its place."""
    where = f"step {values['step']}, a batch of {_count(values['width'], 'token')}"
    if not values["step"]:
        where = "the reading of the prompt"
    if values["draft"] is not None:
        where += f": it accepted draft token {values['draft']}"
    else:
        where += ": it took the target's own after the draft" if values["width"] > 1 else ""
    chooses = f"chooses {values['likeliest']} there, since the request forbids the other"
    if values["gap"] is not None:
        chooses = f"prefers {values['likeliest']} by {_nats(values['gap'])} nats there"
    return f"Token {values['index']} is {values['token']}, and the target alone {chooses} ({where})"


def _p_value(p: float | None) -> str:
    return "–" if p is None else f"{p:.2g}" if p > 0 else "0: this target has no noise"


def _count(number: int, word: str) -> str:
    return f"{number:,} {plural(number, word)}"


def _prompts(count: int) -> str:
    return f"{count} {plural(count, 'prompt')}"


def _and_more(count: int) -> str:
    return f" And {count} more." if count > 0 else ""
