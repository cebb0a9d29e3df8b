"""The first sentences of a report: does speculation pay, and is the output unchanged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from benchctl.analysis.advice import (
    ENOUGH_PROMPTS,
    compared_prompts,
    damaged_arms,
    inactive_arms,
    resolution,
    shown_for_others,
    shown_to_draft,
)
from benchctl.analysis.conditions.sweep import axis_rows
from benchctl.analysis.result import MIN_BLOCKS
from benchctl.analysis.verdict import synthetic_arms
from benchctl.text import listed, plural
from benchctl.words import advice, numbers
from benchctl.words import sweep as sweep_words

if TYPE_CHECKING:
    from benchctl.analysis.results import Analysis, PromptClass, Verdict

_MOST_NAMED = 3
"""Arms that the first sentence names."""

_NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


def headline(analysis: Analysis) -> str:
    """Whether speculation pays in this run; damaged output comes first, since no speed makes up for it."""
    synthetic = synthetic_arms(analysis.verdicts)
    damage = {arm: count for arm, count in damaged_arms(analysis).items() if arm not in synthetic}
    sound = [verdict for verdict in analysis.verdicts if verdict.arm not in damage]
    statement = _pays(analysis, sound) if sound or not damage else ""
    if not damage:
        return statement
    prompts = {arm: f" ({count} prompt{'s' if count > 1 else ''})" if count else "" for arm, count in damage.items()}
    arms = ", ".join(f"{arm}{count}" for arm, count in prompts.items())
    return f"Speculation damages the output here: {arms}, beyond what numeric noise explains. {statement}".strip()


def _pays(analysis: Analysis, verdicts: list[Verdict]) -> str:
    """A sentence: does speculation pay in the arms of these verdicts."""
    warned = {warning.id for warning in analysis.warnings}
    if "baseline-speculates" in warned:
        return f"No conclusion about speculation: the baseline, {analysis.baseline}, speculates itself."
    if "searched" in warned:
        return "No conclusion: this run is a search; the setting it chose is confirmed in a separate run."
    if analysis.sweep is not None and (lead := sweep_words.lead(analysis.sweep)):
        return lead
    synthetic, inactive = synthetic_arms(analysis.verdicts), inactive_arms(analysis)
    verdicts = [verdict for verdict in verdicts if verdict.arm not in synthetic]
    drafted = [verdict for verdict in verdicts if verdict.arm not in inactive]
    if synthetic and not verdicts:
        return "No conclusion about a real draft: every arm uses synthetic acceptance."
    if verdicts and not drafted:
        return "No conclusion: nothing was drafted."
    if faster := _by_speed([verdict for verdict in verdicts if verdict.speed == "faster"]):
        return _faster(analysis, faster, verdicts)
    if by_task := _pays_for_tasks(analysis, verdicts):
        return by_task
    if all(verdict.speed == "unknown" for verdict in verdicts):
        return _unknown(analysis, drafted)
    return _does_not_pay(analysis, drafted, verdicts)


def _by_speed(verdicts: Sequence[Verdict]) -> list[Verdict]:
    return sorted(verdicts, key=lambda verdict: -(verdict.speedup or 0.0))


def _faster(analysis: Analysis, faster: Sequence[Verdict], verdicts: Sequence[Verdict]) -> str:
    """A sentence for a run with faster arms, the fastest first."""
    shown = [verdict for verdict in faster if shown_to_draft(verdict)]
    best = (shown or faster)[0]
    speed = numbers.ratio(best.speedup)
    if not shown:
        return (
            f"No conclusion about speculation: {best.arm} ran {speed} as fast as the baseline, "
            "but it is not shown that speculation is the cause."
        )
    share = f"{len(shown)} of {len(verdicts)} arms" if len(verdicts) > 1 else "the one arm"
    name = f"{': ' if len(shown) == 1 else '; the fastest is '}{best.arm}, {speed}"
    prompts, for_how_many = compared_prompts(analysis, best.arm)
    few = f", which drafted for {for_how_many} of {prompts} prompts" if for_how_many < prompts else ""
    if shown_for_others(best.like_these, prompts):
        return f"Speculative decoding pays here with {share}{name}{few}."
    these = "this prompt" if prompts == 1 else f"these {prompts} prompts"
    generality = "for others like them it is open"
    if prompts < ENOUGH_PROMPTS:
        generality = f"at least {ENOUGH_PROMPTS} are needed to say so of others"
    return f"Speculative decoding is faster on {these} with {share}{name}{few}; {generality}."


def _unknown(analysis: Analysis, drafted: Sequence[Verdict]) -> str:
    """A sentence for a run in which no arm has an interval."""
    timed = [row for row in drafted if row.attestation not in ("failed", "off") and row.speedup and not row.interval]
    if not timed:
        return "No conclusion: no arm could be compared with the baseline on equal terms."
    best = _by_speed(timed)[0]
    blocks = "One block is" if analysis.blocks == 1 else f"{analysis.blocks} blocks are"
    few = f"{blocks} too few" if analysis.blocks < MIN_BLOCKS else "Too few blocks are complete"
    speed = f"in this run the fastest arm was {best.arm}, {numbers.ratio(best.speedup)}"
    return f"{few} to conclude whether it pays; {speed}."


def _pays_for_tasks(analysis: Analysis, verdicts: Sequence[Verdict]) -> str:
    """A sentence for a run that advises arms for single tasks only, each task's fastest; empty for every other run."""
    arms = {verdict.arm for verdict in verdicts}
    advised = [row for group in analysis.decision.groups for row in group.tasks] if analysis.decision else []
    best = {row.task: row for row in sorted(advised, key=lambda row: row.speedup or 0.0) if row.arm in arms}
    ordered = [best[task] for task in analysis.tasks if task in best]
    if not ordered:
        return ""
    pays = "pays here for" if all(row.for_others for row in ordered) else "is faster on these prompts of"
    tasks = listed([f"{row.task} ({numbers.ratio(row.speedup)} with {row.arm})" for row in ordered])
    return f"Speculative decoding {pays} {tasks}, but for no arm is a gain shown over all tasks together."


def _does_not_pay(analysis: Analysis, drafted: list[Verdict], verdicts: list[Verdict]) -> str:
    """A sentence for a run without a faster arm: what is known of the arms that drafted."""
    slower = [verdict for verdict in drafted if verdict.speed == "slower"]
    within = [verdict.arm for verdict in drafted if verdict.speed == "within"]
    undecided = [row for row in drafted if row.speed in ("undecided", "unknown") and row.speedup is not None]
    no_rate = [verdict.arm for verdict in drafted if verdict.speedup is None]
    parts = []
    if slower:
        parts.append(f"{_who(slower, verdicts)} {plural(len(slower), 'is', 'are')} slower, {_range(slower)}")
    if within:
        parts.append(f"{listed(within)} within ±5 % of no speculation")
    if len(undecided) > _MOST_NAMED:
        parts.append(f"{_who(undecided, verdicts)} are undecided, {_range(undecided)}")
    elif undecided:
        named = listed(f"{verdict.arm} ({numbers.ratio(verdict.speedup)})" for verdict in undecided)
        parts.append(f"{named} {plural(len(undecided), 'is', 'are')} undecided")
    if no_rate:
        contradicted = {warning.where for warning in analysis.warnings if warning.id == "contradicted-count"}
        possessive = plural(len(no_rate), "its", "their")
        reason = f": {possessive} counts contradict each other" if contradicted.issuperset(no_rate) else ""
        parts.append(f"{listed(no_rate)} {plural(len(no_rate), 'has', 'have')} no rate{reason}")
    clearly = "does not clearly pay" if undecided or no_rate else "does not pay"
    return f"Speculative decoding {clearly} here: {'; '.join(parts)}."


def _who(chosen: list[Verdict], verdicts: list[Verdict]) -> str:
    """`the one arm`, `all 3 arms`, `all four draft-simple arms`, the names of few, or `5 of 12 arms`."""
    if len(chosen) == len(verdicts):
        return f"all {len(verdicts)} arms" if len(verdicts) > 1 else "the one arm"
    kinds = {arm_verdict.setting.partition(",")[0] for arm_verdict in chosen}
    of_kinds = [verdict for verdict in verdicts if verdict.setting.partition(",")[0] in kinds]
    if len(of_kinds) == len(chosen) > 1 and len(kinds) == 1:
        number = _NUMBERS[len(chosen)] if len(chosen) < len(_NUMBERS) else str(len(chosen))
        return f"{'both' if len(chosen) == 2 else f'all {number}'} {kinds.pop()} arms"
    many = len(chosen) > _MOST_NAMED
    return f"{len(chosen)} of {len(verdicts)} arms" if many else listed([arm_verdict.arm for arm_verdict in chosen])


def _range(verdicts: list[Verdict]) -> str:
    """From the slowest to the fastest: `0.20 to 0.52×`."""
    values = sorted(verdict.speedup for verdict in verdicts if verdict.speedup is not None)
    if len(values) < 2:
        return numbers.ratio(values[0] if values else None)
    return f"{values[0]:.2f} to {numbers.ratio(values[-1])}"


def null_control(analysis: Analysis) -> str | None:
    """The resolution of the run by the arms that never drafted; `None` where there is no such arm."""
    inactive = inactive_arms(analysis)
    if not inactive or analysis.sweep is not None:
        return None
    who = f"{listed(inactive)} never drafted"
    smallest = resolution(analysis)
    if smallest is None:
        return f"{who}, so {'it is' if len(inactive) == 1 else 'they are'} inactive and no speed-up is reported."
    control = "a null control" if len(inactive) == 1 else "null controls"
    return f"{who}: {control}; this run cannot resolve differences below ±{100 * smallest:.0f} %."


def fidelity(analysis: Analysis) -> str:
    """The verdicts on the output counted, violations that the headline lacks by name; of a sweep what was judged."""
    synthetic = synthetic_arms(analysis.verdicts)
    verdicts = [verdict for verdict in analysis.verdicts if verdict.arm not in synthetic]
    unjudged = analysis.sweep.unjudged if analysis.sweep else None
    if analysis.sweep is None or unjudged is None:
        uses = f"{len(synthetic)} {'arm uses' if len(synthetic) == 1 else 'arms use'} synthetic acceptance"
        note = f"{uses}: their text is not a model's output." if synthetic else ""
        return f"{_counted(analysis, verdicts)} {note}".strip()
    unscored = {row.arm for row in analysis.sweep.levels if not row.judged}
    condition = "One request at a time" if any(row.overlapping for row in analysis.sweep.levels) else "At temperature 0"
    assessed = _counted(analysis, [verdict for verdict in verdicts if verdict.arm not in unscored])
    unscored_verdicts = {
        word: [verdict.arm for verdict in verdicts if verdict.arm in unscored and verdict.lossless == word]
        for word in ("exact", "consistent with the target", "violation", "undetermined")
    }
    scored = "; ".join(f"{', '.join(arms)}: {word}" for word, arms in unscored_verdicts.items() if arms)
    statement = assessed.replace("Every answer", f"{condition}, every answer")
    return f"{statement} {sweep_words.not_judged(unjudged)}{f' So {scored}.' if assessed and scored else ''}".strip()


def _counted(analysis: Analysis, verdicts: list[Verdict]) -> str:
    kinds: dict[str, list[str]] = {}
    for verdict in verdicts:
        kinds.setdefault(verdict.lossless, []).append(verdict.arm)
    if kinds.keys() == {"identical"}:
        return "Every answer of every arm is identical to the baseline's."
    counts = [f"{word} ({listed(arms)})" if word == "violation" else f"{len(arms)} {word}"
              for word, arms in kinds.items() if not damaged_arms(analysis).keys() >= set(arms)]  # fmt: skip
    return f"Output: {', '.join(counts)}." if counts else ""


def faults(analysis: Analysis) -> list[tuple[str, str]]:
    """Where the answers of a real draft are a violation or degenerate: (arm, class and prompts)."""
    synthetic = synthetic_arms(analysis.verdicts)
    classes: tuple[PromptClass, ...] = ("violation", "degenerate")
    named = [
        (arm.arm, kind, [f"{row.task}/{row.prompt_idx}" for row in arm.comparisons if row.outcome == kind])
        for arm in analysis.losslessness
        for kind in classes
        if arm.arm not in synthetic
    ]
    return [(arm, f"{kind} in {', '.join(prompts)}") for arm, kind, prompts in named if prompts]


def sentences_of_sweep(analysis: Analysis) -> list[str]:
    """Return further sentences for the start of the report; empty where nothing was swept."""
    if analysis.sweep is None:
        return []
    lead = sweep_words.lead(analysis.sweep)
    sentences = [sentence for sentence in sweep_words.crossings(analysis.sweep) if sentence != lead]
    if "rate" in analysis.sweep.dimensions:
        sentences += sweep_words.rates(analysis.sweep.levels)
    if analysis.sweep.over_axes:
        sentences += _groups(analysis)
    return sentences + sweep_words.curves(analysis)


def _groups(analysis: Analysis) -> Iterator[str]:
    """What to run of each group."""
    rows = {row.level.arm: row for row in axis_rows(analysis)}
    for group in analysis.decision.groups if analysis.decision else ():
        best, fastest = "", rows[group.fastest].verdict if group.fastest else None
        if fastest is not None:
            fastest_name = "its arm" if len(group.arms) == 1 else f"the fastest of {len(group.arms)} arms"
            best = f"{fastest_name} is {fastest.arm}, {numbers.ratio(fastest.speedup)}. "
        labels = ", ".join(f"{axis} {label}" for axis, label in rows[group.baseline].labels.items()) or group.baseline
        yield f"{labels}: {best}{advice.action(group)}"
