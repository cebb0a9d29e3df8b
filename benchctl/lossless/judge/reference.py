"""A run against references: the same prompts on another engine or in another precision, and what changed the answers.

Three answers are compared on every prompt: the arm's, that of its own baseline, and that of the
reference's baseline (the target alone, mostly in float32). Where the two baselines differ, it was the engine or the
precision, without any speculation; where an arm differs from its own baseline, it was speculation. Whether engine or
precision changed a baseline is known where two runs differ in either alone: that needs a run of the same
engine in the reference's precision beside the two, so that any number of references may be named.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

from benchctl.analysis.answers import find_answers, find_divergence, same_answer
from benchctl.analysis.comparison.workload import require_same_questions, same_prompt, sound_answers
from benchctl.analysis.conditions.split import is_greedy
from benchctl.analysis.frame import PromptKey
from benchctl.analysis.result import Result
from benchctl.data.manifest import Manifest
from benchctl.data.record import Record, sha256_tokens
from benchctl.data.store import RunData
from benchctl.errors import UsageError
from benchctl.lossless.judge.run import OutputComparison, scores_of

Cause = Literal["none", "baseline", "speculation", "both", "undone", "undetermined"]
"""Why an arm's answer differs from the reference's. none: it is equal; baseline: its own baseline equals the arm, and
differs from the reference; speculation: its baseline equals the reference, the arm does not; both: all three differ;
undone: the arm equals the reference, its baseline does not."""
CAUSES: tuple[Cause, ...] = ("none", "baseline", "speculation", "both", "undone", "undetermined")
_NAMES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}
LEAST_SHARE = 0.01
"""Share of a model's bytes from which on a type is listed."""


class Difference(Result):
    """A prompt on which two answers diverge."""

    task: str
    prompt_idx: int
    index: int
    unit: Literal["token", "character"]
    margins: list[float | None]
    """By how many nats each of the two targets preferred its own next token there, where it was ever scored."""
    cause: Cause | None = None


class BaselinePair(Result):
    """The baselines of two runs: no speculation in either."""

    runs: tuple[str, str]
    differs_in: list[Literal["engine", "precision"]]
    """Empty: the same engine in the same precision."""
    prompts: int
    same: int
    differing: list[Difference]
    undetermined: list[str]


class ArmCauses(Result):
    """An arm against its own baseline and a reference's."""

    run: str
    arm: str
    reference: str
    counts: dict[Cause, int]
    differing: list[Difference]
    """From the reference's baseline, each with its cause."""
    undetermined: list[str]

    @property
    def same(self) -> bool:
        """Whether it equals the reference on every prompt."""
        return {cause for cause, count in self.counts.items() if count} == {"none"}


class ReferenceRun(Result):
    """A run, with what could have changed its answers."""

    run: str
    folder: str
    engine: str
    precision: str
    """Of the weights; the types that hold at least a hundredth of them, most bytes first."""


class ReferenceComparison(Result):
    """A run against others."""

    runs: list[ReferenceRun]
    """The run itself first, then the references in the order given."""
    on_trust: list[str]
    baselines: list[BaselinePair]
    arms: list[ArmCauses]

    @property
    def identical(self) -> bool:
        """Whether the run and all its arms equal every reference on every prompt."""
        pairs = [pair for pair in self.baselines if pair.runs[0] == self.runs[0].run]
        arms = [arm for arm in self.arms if arm.run == self.runs[0].run]
        return all(not pair.differing and not pair.undetermined and pair.prompts for pair in pairs) and all(
            arm.same for arm in arms
        )


@dataclass(frozen=True)
class _Side:
    """The sound answers of a run, by arm and prompt; each stands for equal ones in all blocks."""

    data: RunData
    name: str
    baseline: str
    answers: dict[str, dict[PromptKey, Record]]
    prompts: tuple[PromptKey, ...]


def compare_with_references(
    run: RunData, references: Sequence[RunData], *, arms: Sequence[str] | None = None
) -> ReferenceComparison:
    """Compare a run's answers with those of every reference. Raises UsageError for runs of other prompts."""
    everything = [run, *references]
    for first, second in combinations(everything, 2):
        if first.folder.resolve() == second.folder.resolve():
            raise UsageError("A run cannot be its own reference.", where=str(first.folder), fix="Name another run.")
    on_trust = dict.fromkeys(text for second in references for text in require_same_questions(run, second))
    sides = [_side(compared_run) for compared_run in everything]
    valid = [arm for arm in sides[0].answers if arm != sides[0].baseline]
    for name in arms or ():
        if name not in valid:
            raise UsageError(
                f"There is no arm {name!r} to compare.", where="--arm", fix=f"The arms are: {', '.join(valid)}."
            )
    return ReferenceComparison(
        runs=[_facts(side) for side in sides],
        on_trust=list(on_trust),
        baselines=[_baselines(first, second) for first, second in combinations(sides, 2)],
        arms=[
            _arm(side, arm, reference)
            for index, side in enumerate(sides[:-1])
            for arm in side.answers
            if arm != side.baseline and (index or not arms or arm in arms)
            for reference in sides[index + 1 :]
        ],
    )


def _side(data: RunData) -> _Side:
    if data.manifest is not None and not is_greedy(data.manifest):
        raise UsageError(
            "Sampled answers differ by chance alone.",
            where=str(data.folder),
            fix="Compare greedy runs (sampling.temperature 0).",
        )
    frame = OutputComparison(data).frame
    checked = find_answers(frame)
    return _Side(
        data=data,
        name=data.name,
        baseline=frame.arms[frame.baseline],
        answers={arm: sound_answers(frame, checked, arm) for arm in frame.arms},
        prompts=frame.prompts,
    )


def _facts(side: _Side) -> ReferenceRun:
    manifest, engine = side.data.manifest, "not recorded"
    if manifest is not None:
        kind, version = manifest.engine.kind, manifest.engine.version or ""
        engine = version if version.startswith(kind) else f"{kind} {version}".strip()
    precision = "not recorded" if manifest is None else precision_of(manifest)
    return ReferenceRun(run=side.name, folder=str(side.data.folder), engine=engine, precision=precision)


def precision_of(manifest: Manifest) -> str:
    """Return the precision of the target's weights as the engine ran them."""
    dtype = (manifest.recipe.get("engine") or {}).get("dtype")
    if isinstance(dtype, str) and dtype != "auto":
        return _NAMES.get(dtype, dtype)
    facts = manifest.target.facts
    sizes: dict[str, float] = {}
    for kind, group in (facts.get("tensor_types") or {}).items():
        sizes[str(kind)] = float(group.get("bytes") or 0)
    for kind, count in (facts.get("parameters_by_dtype") or {}).items():
        sizes[str(kind)] = float(count)
    total = sum(sizes.values())
    named = [kind for kind in sorted(sizes, key=lambda size_of: -sizes[size_of]) if sizes[kind] >= LEAST_SHARE * total]
    return " + ".join(_NAMES.get(kind.lower(), kind.lower()) for kind in named) or "not recorded"


def _differs(first: _Side, second: _Side) -> Iterator[Literal["engine", "precision"]]:
    ours, theirs = first.data.manifest, second.data.manifest
    engines = [
        manifest and (manifest.engine.kind, manifest.engine.details.get("sha256")) for manifest in (ours, theirs)
    ]
    if ours is None or theirs is None or engines[0] != engines[1]:
        yield "engine"
    if ours is None or theirs is None or precision_of(ours) != precision_of(theirs):
        yield "precision"


def _answers(*arms: tuple[_Side, str]) -> Iterator[tuple[PromptKey, list[Record]]]:
    """Yield every prompt of these runs with the arms' answers; none where any lacks, or is to another prompt."""
    for key in dict.fromkeys(key for side, _ in (arms[0], arms[-1]) for key in side.prompts):
        records = [answer for side, arm in arms if (answer := side.answers[arm].get(key)) is not None]
        alike = len(records) == len(arms) and all(same_prompt(records[0], record) for record in records[1:])
        yield key, records if alike else []


def _baselines(first: _Side, second: _Side) -> BaselinePair:
    same, differing, undetermined = 0, [], []
    for (task, index), answers in _answers((first, first.baseline), (second, second.baseline)):
        if not answers:
            undetermined.append(f"{task}/{index}")
        elif same_answer(*answers):
            same += 1
        else:
            differing.append(_difference(first, answers[0], second, answers[1]))
    return BaselinePair(
        runs=(first.name, second.name),
        differs_in=list(_differs(first, second)),
        prompts=same + len(differing) + len(undetermined),
        same=same,
        differing=differing,
        undetermined=undetermined,
    )


def _arm(side: _Side, arm: str, reference: _Side) -> ArmCauses:
    counts: dict[Cause, int] = dict.fromkeys(CAUSES, 0)
    differing, undetermined = [], []
    for (task, index), answers in _answers((side, arm), (side, side.baseline), (reference, reference.baseline)):
        cause: Cause = _cause(*answers) if answers else "undetermined"
        counts[cause] += 1
        if not answers:
            undetermined.append(f"{task}/{index}")
        elif cause not in ("none", "undone"):
            differing.append(_difference(side, answers[0], reference, answers[2], cause))
    return ArmCauses(
        run=side.name, arm=arm, reference=reference.name, counts=counts, differing=differing, undetermined=undetermined
    )


def _cause(answer: Record, baseline: Record, reference: Record) -> Cause:
    if same_answer(answer, reference):
        return "none" if same_answer(baseline, reference) else "undone"
    if same_answer(answer, baseline):
        return "baseline"
    return "speculation" if same_answer(baseline, reference) else "both"


def _difference(first: _Side, ours: Record, second: _Side, theirs: Record, cause: Cause | None = None) -> Difference:
    divergence = find_divergence(theirs, ours)
    # Equal texts and tokens, and other endings: they diverge where the answers end.
    index, unit = (divergence.index, divergence.unit) if divergence is not None else (ours.n_predicted, "token")
    sides = ((first, ours), (second, theirs))
    return Difference(
        task=ours.task,
        prompt_idx=ours.prompt_idx,
        index=index,
        unit="token" if unit == "token" else "character",
        margins=[_margin(side, record, index) if unit == "token" else None for side, record in sides],
        cause=cause,
    )


def _margin(side: _Side, record: Record, index: int) -> float | None:
    """Return the margin of a run's own target at a place, where that was scored."""
    ids, scores = record.token_ids, scores_of(side.data)
    if ids is None or scores is None:
        return None
    key = (record.task, record.prompt_idx, record.prompt_sha, sha256_tokens(ids))
    margins = next((scored.margins for scored in scores.answers if scored.answer == key), None)
    if margins is not None:
        return margins[index] if index < len(margins) else None
    prefix = (record.task, record.prompt_idx, index, sha256_tokens(ids[:index]))
    read = (
        position
        for position in scores.positions
        if (position.task, position.prompt_idx, position.index, position.agreed_sha) == prefix
    )
    return next(
        (reading.margin for position in read for reading in position.readings if reading.shape == "decode"), None
    )
