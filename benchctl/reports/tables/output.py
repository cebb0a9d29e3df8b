"""Whether the output is unchanged: verdicts, answers, divergences with their margins, noise, self-consistency."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

from rich.cells import chop_cells

from benchctl.analysis.accuracy import ArmAccuracy
from benchctl.analysis.losslessness import ArmReplay, FirstDivergence, NoiseFloor, Validity
from benchctl.analysis.output_results import Comparison, Losslessness, PromptClass, SelfConsistency
from benchctl.analysis.results import Analysis
from benchctl.lossless.judge.whole_answers import DivergingAnswer, Probability
from benchctl.reports.columns import Cell, Code, Column, Name, Table, Tone, arm_column, for_programs, numeric
from benchctl.text import first, one_line
from benchctl.words import accuracy as accuracy_words
from benchctl.words import numbers
from benchctl.words import validity as validity_words
from benchctl.words.labels import lossy_label

OUTPUT_TONE: dict[str, Tone] = {
    "identical": "good",
    "exact": "good",
    "consistent with the target": "fair",
    "violation": "bad",
    "undetermined": "open",
    "not judged": "quiet",
}
"""The colour of each verdict on an arm's output."""
CLASSES: tuple[PromptClass, ...] = get_args(PromptClass)
FORK_CHARACTERS = 12
"""Characters of an answer after its divergence."""
NAMED_PROMPTS = 8
"""Prompts of an arm that a cell names."""
WHAT_POWER_IS = "Power: the chance that this run would have noticed an engine that changes the output."
DIVERGENCE_CELLS = 40
"""Columns of a terminal that the beginning of an answer after its divergence takes at most."""


def output_column(header: str, source: Callable[[Any], str | None] | str, key: str = "", **fields: Any) -> Column[Any]:  # noqa: ANN401 - further fields of a column
    """The verdict on an arm's output, coloured."""
    column: Column[Any] = Column(header, source, key=key, **fields)
    return replace(column, tone=lambda row: OUTPUT_TONE.get(column.value(row) or "", ""))


def verdict_counts(verdicts: Sequence[Losslessness]) -> Table[Losslessness]:
    """A row an arm: the verdict, and how many prompts are of each class."""

    def count(kind: PromptClass) -> Column[Losslessness]:
        def value(row: Losslessness) -> int | None:
            return row.counts.get(kind, 0) if row.comparisons else None

        return numeric(kind, value)

    used = [kind for kind in CLASSES if kind == "identical" or any(arm.counts.get(kind) for arm in verdicts)]
    labels = {arm.arm: f"{arm.arm}{lossy_label(arm.lossy)}" for arm in verdicts}
    return Table(
        "verdicts",
        "Answers against the baseline’s",
        (
            Column("arm", lambda row: labels[row.arm], Name, heads=True),
            output_column("verdict", "verdict"),
            *map(count, used),
            numeric("rounds replayed", "replayed.rounds", numbers.count, optional=True),
            numeric("power", "stated.chance", numbers.percent, optional=True),
        ),
        verdicts,
        note=f"Prompts by class. {WHAT_POWER_IS if any(arm.stated for arm in verdicts) else ''}".strip(),
    )


def divergences(verdicts: Sequence[Losslessness], baseline: str, limit: int) -> Table[Comparison]:
    """A row for each diverging prompt and arm, at most `most` of an arm: where, how far the target prefers its own."""
    diverging = [
        comparison
        for arm in verdicts
        for comparison in [comparison for comparison in arm.comparisons if comparison.divergence is not None][:limit]
    ]

    def beginning(side: str) -> Callable[[Comparison], Cell]:
        def cell(row: Comparison) -> Cell:
            text, token = (getattr(row.divergence, f"{side}_{part}") for part in ("text", "token"))
            start = Code(chop_cells(one_line(text or "(end)"), DIVERGENCE_CELLS)[0])
            return start if token is None else (start, f"(token {token})")

        return cell

    scored = any(row.divergence is not None and row.divergence.margin is not None for row in diverging)
    return Table(
        "divergences",
        "First divergences, scored on the target alone" if scored else "First divergences",
        (
            Column("arm", "arm", Name, heads=True),
            Column("prompt", _prompt, heads=True),
            Column("class", "outcome"),
            Column(
                "index",
                lambda row: f"{row.divergence.unit} {row.divergence.index}" if row.divergence else "",
                align="right",
            ),
            numeric("margin", "divergence.margin", numbers.nats, optional=True),
            numeric("noise", "divergence.noise_floor", numbers.nats, optional=True),
            Column(baseline, "divergence.baseline_text", cell=beginning("baseline"), least_width=110, wrap=True),
            Column("arm's", "divergence.arm_text", cell=beginning("arm"), least_width=110, wrap=True),
        ),
        diverging,
        note="Margin: how far the target alone prefers its own token, in nats. Noise: up to this rounding may decide."
        if scored
        else "",
    )


def answers(analysis: Analysis) -> Table[Comparison]:
    """A row a prompt and arm, for programs."""
    of_divergence = ("index", "unit", "width", "baseline_token", "arm_token")
    of_deviation = ("index", "token", "likeliest", "gap", "step", "width", "draft")
    return Table(
        "losslessness",
        "Every prompt against the baseline’s",
        (
            *for_programs("arm", baseline=lambda row: analysis.compared[row.arm].baseline),
            *for_programs("task", "prompt_idx", "outcome", "reason"),
            *for_programs("text_equal", "tokens_equal", "blocks_compared", "blocks_differing"),
            *for_programs(**{f"fork_{name}": f"divergence.{name}" for name in of_divergence}),
            *for_programs(margin="divergence.margin", noise_floor="divergence.noise_floor"),
            *for_programs(margin_verify=_margin("verify"), margin_prefill=_margin("prefill")),
            *for_programs(**{f"replay_{name}": f"deviation.{name}" for name in of_deviation}),
        ),
        [comparison for arm in analysis.losslessness for comparison in arm.comparisons],
    )


def scored_divergences(analysis: Analysis) -> Table[Comparison]:
    """A row a divergence that was scored on the target alone, in the order of arms and prompts."""

    def in_shape(header: str, shape: str) -> Column[Comparison]:
        return numeric(header, _margin(shape), cell=lambda row: margin(row.divergence, shape) if row.divergence else "")

    return Table(
        "forks",
        "Every first divergence, scored on the target alone",
        (
            arm_column(analysis),
            Column("Prompt", _prompt),
            numeric("Token", "divergence.index"),
            Column(analysis.baseline, "divergence.baseline_text", divergence_start),
            Column("Arm’s", "divergence.arm_text", divergence_start),
            in_shape("Token by token", "decode"),
            in_shape("As verified", "verify"),
            in_shape("All at once", "prefill"),
            numeric("Noise", "divergence.noise_floor", numbers.nats).means(
                "the margin up to which the target’s own numeric noise may change a token at the arm’s width."
            ),
            Column("Class", "outcome"),
        ),
        [row for row in answers(analysis).rows if row.divergence is not None and row.divergence.margin is not None],
        note="Margin by which the target alone prefers the baseline’s token to the arm’s where they diverge, in nats "
        "(3 nats: 20 times as likely). Token by token: as the baseline decoded; as verified: with as many tokens at "
        "once as the arm verified (in brackets); all at once: prompt and answer in one pass. ←: in that shape the "
        "target alone prefers the arm’s token. A near-tie lies within the noise, or the target alone prefers the "
        "arm’s token at the arm’s width; a violation does neither.",
    )


def probabilities(answer: DivergingAnswer) -> Table[Probability]:
    """What the target alone gave the tokens where two answers diverge, a row a shape."""
    ways = {"decode": "token by token", "prefill": "prompt and answer at once"}
    divergence = answer.comparison.divergence

    def choice(row: Probability) -> str:
        names = {divergence.baseline_token: "the baseline’s", divergence.arm_token: "the arm’s"} if divergence else {}
        return names.get(row.likeliest, f"token {row.likeliest}")

    return Table(
        "probabilities",
        "The target’s probabilities at the divergence",
        (
            Column("Read", lambda row: ways.get(row.shape, f"{row.width} tokens at once"), heads=True),
            numeric("Baseline’s token", "baseline", numbers.percent),
            numeric("Arm’s token", "arm", numbers.percent),
            Column("Likeliest", choice),
        ),
        answer.probabilities,
    )


@dataclass(frozen=True)
class TargetNoise:
    """The noise of a target, with a type of KV cache, at a width."""

    baseline: str
    """The arm that runs this target alone."""
    noise: NoiseFloor


def noise_floors(analysis: Analysis) -> Table[TargetNoise]:
    """A row for each target and width at which a divergence was assessed, narrowest first."""
    rows = dict.fromkeys(
        TargetNoise(analysis.compared[arm.arm].baseline, noise) for arm in analysis.losslessness for noise in arm.noise
    )
    targets = list(dict.fromkeys(row.baseline for row in rows))

    def diverging(row: TargetNoise) -> str:
        return f"{numbers.count(row.noise.null_divergences)} of {numbers.count(row.noise.null_places)}"

    return Table(
        "noise",
        "Numeric noise of the target, without speculation: several tokens at once against one",
        (
            Column("Target", lambda row: row.baseline if len(targets) > 1 else None, Name, optional=True).means(
                "by the name of the baseline that runs it."
            ),
            numeric("Tokens at once", "noise.width"),
            numeric("Noise floor", "noise.floor", numbers.nats),
            Column("Method", "noise.method", wrap=True),
            numeric("Median change", "noise.median", numbers.nats),
            numeric("Largest", "noise.largest", numbers.nats),
            numeric("Null control: diverges from itself", "noise.null_divergences", cell=diverging),
        ),
        sorted(rows, key=lambda row: (targets.index(row.baseline), row.noise.width)),
    )


def replays(analysis: Analysis) -> Table[ArmReplay]:
    """A row for each arm whose steps were to be replayed."""

    def share(part: str, whole: str) -> Callable[[ArmReplay], str]:
        return lambda row: f"{numbers.count(getattr(row, part))} of {numbers.count(getattr(row, whole))}"

    return Table(
        "replays",
        "Answers that the target alone read again, in the batches they were made in",
        (
            arm_column(analysis),
            numeric("Answers", "answers", cell=share("answers", "of")).means("distinct by tokens and steps."),
            *for_programs("of"),
            numeric("Replayed rounds", "rounds", numbers.count).means("steps with a draft."),
            numeric("Replayed tokens", "tokens", numbers.count),
            numeric("Deviating", "deviating", numbers.count).means(
                "tokens that are not the likeliest in the arm’s own batch; a sound engine has none."
            ),
            numeric("Control", "control", cell=share("control", "control_of")).means(
                "the baseline’s own answers, replayed a token at a time."
            ),
            numeric("Not exact", "control_deviating", numbers.count).means(
                "answers of the control that do not replay; with any, replay decides nothing."
            ),
            *for_programs("control_of"),
            Column("Open", "lacking", absent="", wrap=True, optional=True),
            Column("Read by", "evidence", wrap=True),
        ),
        [row.replay for row in analysis.losslessness if row.replay is not None],
    )


def consistency(analysis: Analysis) -> Table[SelfConsistency]:
    """A row an arm: does it repeat itself."""
    return Table(
        "consistency",
        "Does an arm give the same answer in every block?",
        (
            arm_column(analysis),
            numeric("Reproducible prompts", "reproducible", cell=lambda row: f"{row.reproducible} of {row.prompts}"),
            Column("Not reproducible", "differing", wrap=True),
        ),
        analysis.consistency,
    )


def validity(verdicts: Sequence[Losslessness]) -> Table[Validity]:
    """A row an arm: how many answers keep the form that their requests ask for; none where no request asks for any."""
    rows = [verdict.validity for verdict in verdicts if verdict.validity is not None]

    def tone(row: Validity) -> Tone:
        return "bad" if row.violates else ""

    return Table(
        "validity",
        "Answers under constraints",
        (
            Column("Arm", "arm", Name, heads=True),
            numeric("Valid", "counts.valid", numbers.count, key="valid"),
            numeric("Invalid", "counts.invalid", numbers.count, key="invalid", tone=tone),
            numeric("Cut", "counts.cut", numbers.count, key="cut"),
            numeric("Not checked", "counts.unchecked", numbers.count, key="unchecked"),
            numeric("Baseline’s invalid", "baseline.invalid", numbers.count, key="baseline_invalid"),
            Column("Invalid in the arm alone", "arm_alone", _counted, key="arm_alone", wrap=True),
            Column("In the baseline alone", "baseline_alone", _counted, key="baseline_alone", wrap=True),
            numeric("p", "p_adjusted", "{:.2g}".format).means(
                "McNemar’s exact test, one-sided, adjusted for the number of arms by Holm."
            ),
            Column(
                "First invalid",
                lambda row: validity_words.broken(row.broken or row.first) if row.first else None,
                key="first",
                optional=True,
                wrap=True,
            ),
            Column(
                "Log probabilities",
                lambda row: validity_words.logprobs(row.logprobs) or None,
                key="logprobs",
                optional=True,
                wrap=True,
                tone=lambda row: "bad" if row.logprobs is not None and row.logprobs.wrong else "",
            ),
        ),
        rows,
        note=validity_words.note(rows),
    )


def accuracy(analysis: Analysis) -> Table[ArmAccuracy]:
    """A row an arm, the first baseline before them; none where prompts carry no answers."""
    accuracy = analysis.accuracy

    def beside(name: str) -> Callable[[ArmAccuracy], Any]:
        """Of an arm that is compared."""
        return lambda row: getattr(row, name) if row.baseline is not None else None

    return Table(
        "accuracy",
        "Correct answers",
        (
            arm_column(analysis),
            correct_column(analysis),
            *for_programs("correct", "prompts"),
            Column("Against", beside("baseline"), key="baseline").means("another target by the run’s first."),
            numeric("Its correct", beside("baseline_correct"), key="baseline_correct"),
            Column("Lost", beside("lost"), _counted, key="lost", wrap=True),
            Column("Gained", beside("gained"), _counted, key="gained", wrap=True),
            numeric("p", "p_adjusted", "{:.2g}".format).means(
                "McNemar’s exact test, adjusted for the number of comparisons by Holm."
            ),
            *for_programs("p", "detectable"),
            numeric("Cut off", lambda row: row.cut or None, key="cut", optional=True).means(
                "answers that ended at max_tokens; without a mark their last number or letter does not count."
            ),
        ),
        accuracy.arms if accuracy else [],
        note=accuracy_words.sentence(accuracy) if accuracy else "",
    )


def _counted(prompts: list[str]) -> str:
    """How many, and the first of them by name."""
    return f"{len(prompts)}: {first(prompts, NAMED_PROMPTS)}" if prompts else "0"


def correct_column(analysis: Analysis) -> Column[Any]:
    """How many answers of a row's `arm` are right; no row has any where prompts carry no answers."""
    by_arm = {row.arm: row for row in analysis.accuracy.arms} if analysis.accuracy else {}

    def tone(row: Any) -> Tone:  # noqa: ANN401 - of any table with arms
        return "bad" if row.arm in by_arm and by_arm[row.arm].worse else ""

    def write(row: ArmAccuracy) -> str:
        return f"{row.correct} of {row.prompts}"

    return numeric("Correct", lambda row: by_arm.get(row.arm), write, tone=tone, optional=True)


def margin(divergence: FirstDivergence, shape: str) -> str:
    """The margin in a shape (`0.102`, `-0.021 (5) ←`): the width where the arm's counts, an arrow where it flips."""
    read = next((margin_read for margin_read in divergence.shapes if margin_read.shape == shape), None)
    if read is None:
        return numbers.ABSENT
    at_least = "≥ " if shape == "decode" and divergence.margin_is_least else ""
    width = f" ({read.width})" if shape == "verify" else ""
    return f"{at_least}{numbers.nats(read.margin)}{width}{' ←' if read.prefers == 'arm' else ''}"


def divergence_start(text: str) -> Code:
    """The first characters of an answer after its divergence, on a single line."""
    return Code(one_line(text, FORK_CHARACTERS) or "(end)")


def _margin(shape: str) -> Callable[[Comparison], float | None]:
    """The margin in a shape, of a divergence that was scored in it."""

    def value(row: Comparison) -> float | None:
        shapes = row.divergence.shapes if row.divergence else ()
        return next((scored.margin for scored in shapes if scored.shape == shape), None)

    return value


def _prompt(row: Comparison) -> str:
    return f"{row.task}/{row.prompt_idx}"
