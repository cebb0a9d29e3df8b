"""The first sentences of a report: what is the fastest, what speculation does, and is the output unchanged."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
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
from benchctl.analysis.outcome import find_outcome, task_effects
from benchctl.analysis.result import MIN_BLOCKS
from benchctl.analysis.verdict import synthetic_arms
from benchctl.text import first, listed, plural
from benchctl.words import numbers
from benchctl.words import outcome as outcome_words
from benchctl.words import sweep as sweep_words

if TYPE_CHECKING:
    from benchctl.analysis.decision_results import Verdict
    from benchctl.analysis.output_results import PromptClass
    from benchctl.analysis.results import Analysis

_MOST_NAMED = 3
"""Arms that the first sentence names."""

_ONE_SLOWER = "The one setting tried is slower: "
_NOTHING_ELSE = "nothing else was tried"
_OUTPUTS = {
    "identical": "Its output is identical to that of {alone}",
    "exact": "Its output is exact: it differs from that of {alone} by rounding only",
    "consistent with the target": "Its output is consistent with that of {alone}: it differs as rounding would make it",
    "violation": "Its output is not that of {alone}",
    "not judged": "Its output is not judged",
}
_NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


def headline(analysis: Analysis) -> str:
    """The fastest setting of all and what speculation does; damaged output comes first, since no speed makes up for it.

    Of a run with several targets what speculation does for each is in `sentences_of_sweep`.
    """
    synthetic = synthetic_arms(analysis.verdicts)
    damage = {arm: count for arm, count in damaged_arms(analysis).items() if arm not in synthetic}
    statement = _no_conclusion(analysis, damage) or _fastest(analysis, damage)
    if not damage:
        return statement
    arms = listed(f"{arm}{_share(analysis, arm, count)}" for arm, count in damage.items())
    damages = "damages" if len(damage) == 1 else "damage"
    return f"{arms} {damages} the output, beyond what numeric noise explains. {statement}".strip()


def _share(analysis: Analysis, arm: str, count: int) -> str:
    """Return to how many prompts an arm's answers are damaged; empty where it is the arm as a whole."""
    row = analysis.losslessness_of(arm)
    compared = len(row.comparisons) if row else 0
    return f" ({count} of {max(count, compared)} prompts)" if count else ""


def _no_conclusion(analysis: Analysis, damage: Collection[str]) -> str:
    """Return why the run has no conclusion, or how the gain changes with the load; empty where it has one."""
    warned = {warning.id for warning in analysis.warnings}
    if "baseline-speculates" in warned:
        return f"No conclusion about speculation: the baseline, {analysis.baseline}, speculates itself."
    if "searched" in warned:
        return "No conclusion: this run is a search. Another run confirms the setting that it chose."
    if analysis.sweep is not None and (lead := sweep_words.lead(analysis.sweep)):
        return lead
    if not analysis.verdicts:
        return "No conclusion: no arm could be compared with the baseline."
    synthetic, inactive = synthetic_arms(analysis.verdicts), inactive_arms(analysis)
    verdicts = [verdict for verdict in analysis.verdicts if verdict.arm not in {*damage, *synthetic}]
    if synthetic and not verdicts:
        return "No conclusion about a real draft: every arm uses synthetic acceptance."
    if verdicts and not [verdict for verdict in verdicts if verdict.arm not in inactive]:
        return "No conclusion: nothing was drafted."
    return ""


def _fastest(analysis: Analysis, damage: Collection[str]) -> str:
    outcome = find_outcome(analysis)
    sentences = [outcome_words.fastest(outcome, analysis)]
    if len(outcome.targets) == 1 or not (analysis.sweep and analysis.sweep.over_axes):
        stated = len(outcome.targets) == 1 and outcome.fastest is not None and outcome.fastest.speculates
        sound = [row for row in analysis.verdicts if row.arm not in damage]
        sentences.append(_speculation(analysis, sound, stated=stated))
    return " ".join(filter(None, sentences))


def _speculation(analysis: Analysis, verdicts: Sequence[Verdict], *, stated: bool = False, brief: bool = False) -> str:
    """What speculation does, of the arms of these verdicts: which are faster, slower or undecided, and on which tasks.

    An arm that did not draft, or is synthetic, says nothing of speculation. `stated`: how fast the best is was said.
    `brief`: where an arm is faster the others are left to the table.
    """
    synthetic, inactive = synthetic_arms(analysis.verdicts), inactive_arms(analysis)
    verdicts = [verdict for verdict in verdicts if verdict.arm not in synthetic]
    drafted = [verdict for verdict in verdicts if verdict.arm not in inactive]
    if not drafted:
        return "Nothing was drafted." if verdicts else ""
    if all(verdict.speed == "unknown" for verdict in drafted):
        return _unknown(analysis, drafted, stated=stated)
    faster = _by_speed([verdict for verdict in drafted if verdict.speed == "faster"])
    shown = [verdict for verdict in faster if shown_to_draft(verdict)]
    for_tasks = "" if shown else _for_tasks(analysis, drafted)
    sentences = [_faster(analysis, shown, stated=stated) if shown else for_tasks]
    if len(shown) < len(faster):
        unseen = next(verdict for verdict in faster if not shown_to_draft(verdict))
        sentences.append(f"{unseen.arm} ran {numbers.ratio(unseen.speedup)} as fast as without, "
                         "but it is not shown that speculation is the cause.")  # fmt: skip
    if not (shown and brief):
        sentences.append(
            _others(analysis, [row for row in drafted if row not in faster], verdicts, stated=bool(for_tasks))
        )
    return " ".join(filter(None, sentences))


def _by_speed(verdicts: Sequence[Verdict]) -> list[Verdict]:
    return sorted(verdicts, key=lambda verdict: -(verdict.speedup or 0.0))


def _faster(analysis: Analysis, shown: Sequence[Verdict], *, stated: bool) -> str:
    """Of the arms that are shown to be faster: how much, how sure, for whom; `stated`: the first sentence has it."""
    best, *others = shown
    prompts, _ = compared_prompts(analysis, best.arm)
    also = f" Also faster: {_named(others)}." if others else ""
    is_faster = "" if stated else f"{best.arm} is {outcome_words.gain(analysis, best.arm)}. "
    # That all are identical is a sentence of its own.
    output = "" if {row.lossless for row in analysis.verdicts} == {"identical"} else _output(analysis, best)
    text = f"{is_faster}{output}{also}"
    if shown_for_others(best.like_these, prompts):
        return text.strip()
    if prompts < ENOUGH_PROMPTS:
        few = f"at least {ENOUGH_PROMPTS} are needed to say so of others"
        return f"{text} The gain holds for {these(prompts)}; {few}.".strip()
    return f"{text} Whether the gain holds for other prompts like these is open.".strip()


def these(prompts: int) -> str:
    """`this prompt`, or `these 32 prompts`."""
    return "this prompt" if prompts == 1 else f"these {prompts} prompts"


def _output(analysis: Analysis, verdict: Verdict) -> str:
    """How far the output of a faster arm is the target's own, and of which other arms that is undetermined."""
    baseline = analysis.compared[verdict.arm].baseline
    target = next(row for row in find_outcome(analysis).targets if row.baseline == baseline)
    alone = f"{outcome_words.target_name(target) if target.labels else 'the target'} alone"
    if verdict.lossless in _OUTPUTS:
        return f"{_OUTPUTS[verdict.lossless].format(alone=alone)}."
    judged = analysis.losslessness_of(verdict.arm)
    parts: list[str] = []
    if judged is not None and judged.comparisons:
        same = sum(comparison.outcome == "identical" for comparison in judged.comparisons)
        parts.append(f"{same} of {len(judged.comparisons)} prompts get the answer of {alone}")
    if verdict.unviolated is not None:
        times = round(100 * verdict.unviolated)
        noticed = f"notice a fault {times} {plural(times, 'time')} in 100" if times else "miss almost any fault"
        parts.append(f"the check would {noticed}")
    excluded = {verdict.arm, *synthetic_arms(analysis.verdicts)}
    others = [row.arm for row in analysis.verdicts if row.lossless == "undetermined" and row.arm not in excluded]
    also = f" Nor is that of {first(others, _MOST_NAMED)}." if others else ""
    return f"Its output is not proven the same{': ' if parts else ''}{', and '.join(parts)}.{also}"


def _named(verdicts: Sequence[Verdict]) -> str:
    if len(verdicts) > _MOST_NAMED:
        return f"{len(verdicts)} more, {_range(list(verdicts))}"
    return listed([f"{verdict.arm} ({numbers.ratio(verdict.speedup)})" for verdict in verdicts])


def _for_tasks(analysis: Analysis, drafted: Sequence[Verdict]) -> str:
    """The fastest arm of each task on which one is shown to be faster, where none is over all tasks together."""
    best: dict[str, tuple[float, str]] = {}
    for verdict in drafted:
        if verdict.lossy or not shown_to_draft(verdict):
            continue
        for effect in task_effects(analysis, verdict.arm):
            if effect.speed == "faster":
                best[effect.task] = max(best.get(effect.task, (0.0, "")), (effect.speedup, verdict.arm))
    ordered = [(task, *best[task]) for task in analysis.tasks if task in best]
    if not ordered:
        return ""
    single = len({arm for *_, arm in ordered}) == 1
    tasks = [f"{numbers.ratio(speedup)} on {task}{'' if single else f' with {arm}'}" for task, speedup, arm in ordered]
    named = f" with {ordered[0][2]}" if single else ""
    return f"Speculation is faster on some tasks, not on all together: {listed(tasks)}{named}."


def _unknown(analysis: Analysis, drafted: Sequence[Verdict], *, stated: bool) -> str:
    """A sentence for a run in which no arm has an interval; `stated`: how fast the best arm is was said."""
    timed = [row for row in drafted if row.attestation not in ("failed", "off") and row.speedup and not row.interval]
    if not timed:
        return "No conclusion: no arm could be compared with the baseline on equal terms."
    best = _by_speed(timed)[0]
    blocks = "One repetition is" if analysis.blocks == 1 else f"{analysis.blocks} repetitions are"
    few = f"{blocks} too few" if analysis.blocks < MIN_BLOCKS else "Too few blocks are complete"
    speed = "" if stated else f"; the best arm, {best.arm}, ran {numbers.ratio(best.speedup)}"
    return f"{few} to conclude whether speculation pays{speed}."


def _others(analysis: Analysis, rest: list[Verdict], verdicts: list[Verdict], *, stated: bool) -> str:
    """Return which arms are slower, within ±5 % or undecided, and that none is faster unless `stated` or one is."""
    slower = [verdict for verdict in rest if verdict.speed == "slower"]
    within = [verdict for verdict in rest if verdict.speed == "within"]
    undecided = [row for row in rest if row.speed in ("undecided", "unknown") and row.speedup is not None]
    no_rate = [verdict.arm for verdict in rest if verdict.speedup is None]
    kinds = (("Slower", slower), ("No practical difference (within ±5 %)", within), ("Undecided", undecided))
    parts = [f"{word}: {_arms(rows, verdicts)}." for word, rows in kinds if rows]
    if no_rate:
        contradicted = {warning.where for warning in analysis.warnings if warning.id == "contradicted-count"}
        possessive = plural(len(no_rate), "its", "their")
        reason = f": {possessive} counts contradict each other" if contradicted.issuperset(no_rate) else ""
        parts.append(f"{listed(no_rate)} {plural(len(no_rate), 'has', 'have')} no rate{reason}.")
    if stated or any(verdict.speed == "faster" for verdict in verdicts):
        return " ".join(parts)
    if slower and len(parts) == 1:
        return _all_slower(analysis, slower, verdicts)
    none = "is not shown to pay" if undecided or no_rate else "does not pay"
    return " ".join([f"Speculation {none} here.", *parts])


def _all_slower(analysis: Analysis, slower: list[Verdict], verdicts: list[Verdict]) -> str:
    """Return that every setting tried on the targets of these arms is slower; else only that these are."""
    targets = {analysis.compared[row.arm].baseline for row in slower}
    tried = sum(analysis.compared[row.arm].baseline in targets for row in analysis.verdicts)
    if tried > len(slower):
        return f"Speculation is slower: {_arms(slower, verdicts)}."
    best = _named(_by_speed(slower)[:1])
    if tried == 1:
        return f"{_ONE_SLOWER}{best}."
    return f"{'Both' if tried == 2 else f'All {tried}'} settings tried are slower, the best {best}."


def _arms(chosen: list[Verdict], verdicts: list[Verdict]) -> str:
    """Return arms with the speed-up of each; of many, their number with the smallest and the largest."""
    return f"{_who(chosen, verdicts)} ({_range(chosen)})" if len(chosen) > _MOST_NAMED else _named(chosen)


def _who(chosen: list[Verdict], verdicts: list[Verdict]) -> str:
    """`all 3 arms`, `all four draft-simple arms`, the names of few, or `5 of 12 arms`."""
    if len(chosen) == len(verdicts) > 1:
        return f"all {len(verdicts)} arms"
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
    return f"{who}, so any difference is noise: this run cannot show one below ±{100 * smallest:.0f} %."


def fidelity(analysis: Analysis, *, counted: bool = False) -> str:
    """Whether every output is identical, violations that the headline lacks by name; of a sweep what was judged.

    `counted`: also how many arms have which verdict, where no table stands below.
    """
    synthetic = synthetic_arms(analysis.verdicts)
    verdicts = [verdict for verdict in analysis.verdicts if verdict.arm not in synthetic]
    unjudged = analysis.sweep.unjudged if analysis.sweep else None
    if analysis.sweep is None or unjudged is None:
        uses = f"{len(synthetic)} {'arm uses' if len(synthetic) == 1 else 'arms use'} synthetic acceptance"
        note = f"{uses}: their text is not a model's output." if synthetic else ""
        return f"{_outputs(analysis, verdicts, counted=counted)} {note}".strip()
    unscored = {row.arm for row in analysis.sweep.levels if not row.judged}
    condition = "One request at a time" if any(row.overlapping for row in analysis.sweep.levels) else "At temperature 0"
    assessed = _outputs(analysis, [verdict for verdict in verdicts if verdict.arm not in unscored], counted=counted)
    unscored_verdicts = {
        word: [verdict.arm for verdict in verdicts if verdict.arm in unscored and verdict.lossless == word]
        for word in ("exact", "consistent with the target", "violation", "undetermined")
    }
    scored = "; ".join(f"{', '.join(arms)}: {word}" for word, arms in unscored_verdicts.items() if arms)
    statement = assessed.replace("Every answer", f"{condition}, every answer")
    so = f" So {scored}." if unjudged.some_judged and scored else ""
    return f"{statement} {sweep_words.not_judged(unjudged)}{so}".strip()


def _outputs(analysis: Analysis, verdicts: list[Verdict], *, counted: bool) -> str:
    kinds: dict[str, list[str]] = {}
    for verdict in verdicts:
        kinds.setdefault(verdict.lossless, []).append(verdict.arm)
    if kinds.keys() == {"identical"}:
        several = len({analysis.compared[verdict.arm].baseline for verdict in verdicts}) > 1
        return f"Every answer of every arm is identical to {'its own' if several else 'the'} baseline's."
    counts = [f"{word} ({listed(arms)})" if word == "violation" else f"{len(arms)} {word}"
              for word, arms in kinds.items()
              if (counted or word == "violation") and not damaged_arms(analysis).keys() >= set(arms)]  # fmt: skip
    return f"Output of the arms: {', '.join(counts)}." if counts else ""


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
    loads = {row.concurrency for row in analysis.sweep.levels if row.rate is None}
    crossings = sweep_words.crossings(analysis.sweep) if len(loads) > 1 else []
    sentences = [sentence for sentence in crossings if sentence != lead]
    sentences += sweep_words.batches(analysis)
    if "rate" in analysis.sweep.dimensions:
        sentences += sweep_words.rates(analysis.sweep.levels)
    if analysis.sweep.over_axes:
        sentences += _groups(analysis)
    return sentences + sweep_words.curves(analysis)


def _groups(analysis: Analysis) -> Iterator[str]:
    """What speculation does for each target; those with a single arm, and a slower one, share a sentence."""
    damaged, slower = damaged_arms(analysis), dict[str, dict[str, str]]()
    targets = find_outcome(analysis).targets
    for target in targets:
        of_target = [row for row in analysis.verdicts if analysis.compared[row.arm].baseline == target.baseline]
        sound = [row for row in of_target if row.arm not in damaged]
        name = outcome_words.target_name(target)
        sentences = _speculation(analysis, sound, brief=True).replace(" as without speculation", "")
        if not sentences:
            continue  # each of its arms damages the output, which is said before, or is synthetic
        if sentences.startswith(_ONE_SLOWER):
            setting = analysis.compared[of_target[0].arm].of
            slower.setdefault(setting, {})[name] = numbers.ratio(of_target[0].speedup)
            continue
        lowered = sentences.startswith(("Speculation ", "Both ", "All "))
        yield f"{name}: {sentences[:1].lower() if lowered else sentences[:1]}{sentences[1:]}"
    faster = dict.fromkeys(analysis.compared[arm].of for target in targets for arm in target.faster)
    for setting, ratios in slower.items():
        untried = [name for name in faster if name != setting]
        rest = f"{listed(untried)} {plural(len(untried), 'was', 'were')} not tried" if untried else _NOTHING_ELSE
        yield f"{listed(ratios)}: {setting} is slower ({', '.join(ratios.values())}); {rest}."
