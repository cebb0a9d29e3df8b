"""A baseline that a repository keeps: what gates need of a run, small enough to be reviewed, in place of the run.

`against_kept` compares a run with it as `compare_runs` does with the run itself: the same quantities, variances,
intervals and gates. Answers are not kept, so whether they are the same is not said.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
from pydantic import Field, model_validator

from benchctl.analysis.analyse import Judge
from benchctl.analysis.comparison.changes import InAllRuns, Measured, Times, in_all_runs, rate_times, watch
from benchctl.analysis.comparison.compare import (
    ArmComparison,
    ArmFacts,
    OwnFacts,
    RunComparison,
    RunFacts,
    Side,
    chosen_arms,
    compare_arms,
    own_verdicts,
    run_facts,
    side_of,
    timed_prompts,
)
from benchctl.analysis.comparison.workload import Change, Outputs, is_repeat, rendered_settings
from benchctl.analysis.conditions.results import DIMENSIONS
from benchctl.analysis.statistics import MIN_BLOCKS, level_for
from benchctl.data.manifest import Manifest
from benchctl.data.store import RunData
from benchctl.data.versions import Part, StoredFormat
from benchctl.errors import UsageError
from benchctl.writing import write_whole

if TYPE_CHECKING:
    from benchctl.analysis.frame import Floats

Positive = Annotated[float, Field(gt=0)]
FORMAT = StoredFormat("kept baseline", version=1, fix="Write it again: benchctl baseline write FILE RUN.")


class KeptMeasure(Part):
    """A quantity of an arm in a run."""

    value: Positive
    blocks: list[Positive]
    """Its values by block, of which the interval is made."""
    by_prompt: list[float | None] = Field(default_factory=list)
    """Of `rate` and `speedup`, pooled over blocks; `None` where some block did not time the prompt."""

    @property
    def measured(self) -> Measured:
        """As it was measured."""
        return Measured(self.value, self.blocks)


class KeptArm(Part):
    """What an arm came to."""

    baseline: str
    """The arm that it is compared with; its own name for a baseline."""
    condition: dict[str, float | None]
    own: OwnFacts
    lengths: list[float | None]
    """Tokens of every prompt's answer, and .25 where it stopped, .5 where it was cut; `None`: blocks differ."""
    measures: dict[str, list[KeptMeasure]]
    """A list by run. `rate` (tok/s), `speedup` (over its baseline), and what is watched: `changes.py`."""


class KeptRun(Part):
    """Which run it was."""

    run: str
    recipe: str
    created_at: str | None
    baseline: str
    blocks: int

    def facts(self, file: str) -> RunFacts:
        """Return what is said of it."""
        own = self.model_dump()
        return RunFacts(folder=file, status=None, failed_cells=[], damage=[], warnings=[], **own)


class Kept(Part):
    """The file."""

    schema_version: int = Field(default=FORMAT.version, alias="schema")
    workload_sha256: str
    level: float
    runs: list[KeptRun] = Field(min_length=1)
    """One, or several of the same setting."""
    setting: dict[str, str]
    """What may differ in a run that is compared with it: engine, machine, arms."""
    prompts: list[str]
    """`task/prompt_idx`, the order of every list by prompt."""
    arms: dict[str, KeptArm]

    @model_validator(mode="after")
    def _fits_together(self) -> Kept:
        for name, arm in self.arms.items():
            by_prompt = [run.by_prompt for what in ("rate", "speedup") for run in arm.measures.get(what, [])]
            if any(len(values) != len(self.prompts) for values in (arm.lengths, *by_prompt)):
                raise ValueError(f"a list of {name} is not of its {len(self.prompts)} prompts")
            if "rate" not in arm.measures or any(len(of_runs) != len(self.runs) for of_runs in arm.measures.values()):
                raise ValueError(f"{name} has not what {len(self.runs)} runs measured")
            if arm.baseline not in self.arms:
                raise ValueError(f"the baseline of {name} is missing")
        return self


def keep(runs: Sequence[RunData], judge: Judge) -> Kept:
    """Return what is kept of a run, or of several of the same setting. Raises UsageError where that is no baseline."""
    manifests = [_manifest(run) for run in runs]
    for run, manifest in zip(runs, manifests, strict=True):
        why = run.integrity.reason
        if manifest.blocks < MIN_BLOCKS:
            why = f"It has fewer than {MIN_BLOCKS} blocks, which show no noise, so that no gate could be decided."
        elif not is_repeat(manifests[0], manifest):
            why = f"It is no repetition of {runs[0].name}: another workload, setting or machine."
        if why is not None:
            raise UsageError(why, where=str(run.folder), fix="Keep one run, or several with nothing changed.")
    sides = [side_of(run, judge, None) for run in runs]
    first = sides[0]
    prompts = first.frame.prompts
    rates = {
        name: [rate_times(side.frame, name, prompts) for side in sides]
        for name in first.arms
        if all(name in side.frame.arms for side in sides)
    }
    timed = {name: keys for name, times in rates.items() if (keys := timed_prompts(prompts, times))}
    watched = [watch(side.frame, timed) for side in sides]
    arms = {}
    for name in timed:
        measures = {"rate": _measures(rates[name])}
        if first.is_compared(name):
            measures["speedup"] = _measures([side.speedup_times(name, prompts) for side in sides])
        for quantity in set[str].intersection(*(set(run[name]) for run in watched)):
            runs_of = [run[name][quantity] for run in watched]
            measures[quantity] = [KeptMeasure(value=run.value or 0.0, blocks=run.by_block) for run in runs_of]
        arm = next(arm for arm in manifests[0].arms if arm.name == name)
        lengths = np.concatenate([times.lengths() for times in rates[name]])
        arms[name] = KeptArm(
            baseline=first.analysis.compared[name].baseline,
            condition={what: getattr(arm, what) for what in DIMENSIONS},
            own=first.own(name),
            lengths=_or_none(np.where((lengths == lengths[:1]).all(axis=0), lengths[0], np.nan)),
            measures={quantity: found for quantity, found in sorted(measures.items()) if found},
        )
    return Kept(
        workload_sha256=manifests[0].workload_sha256,
        level=level_for(*manifests),
        runs=[KeptRun.model_validate(run_facts(side, side.data.name).model_dump()) for side in sides],
        setting=rendered_settings(manifests[0]),
        prompts=[f"{task}/{index}" for task, index in prompts],
        arms=arms,
    )


def write_kept(kept: Kept, file: Path) -> None:
    """Write a kept baseline, in place of an earlier baseline: sorted, a list a line. Raises StorageError."""
    write_whole(file, f"{_text(kept.model_dump(mode='json', by_alias=True), 0)}\n")


def read_kept(file: Path) -> Kept:
    """Read a kept baseline. Raises UsageError where there is none, StorageError where it cannot be read."""
    try:
        return FORMAT.read(file, Kept)
    except FileNotFoundError:
        fix = "Write it from a run that you trust, and keep it: benchctl baseline write FILE RUN."
        raise UsageError("There is no such baseline.", where=str(file), fix=fix) from None


def against_kept(
    kept: Kept, runs: Sequence[RunData], *, judge: Judge, arms: Collection[str] | None = None, where: str
) -> RunComparison:
    """Compare a run, or repetitions of it, with a kept baseline. Raises UsageError where they did other work."""
    manifests = [_manifest(run) for run in runs]
    for run, manifest in zip(runs, manifests, strict=True):
        _require_same(kept, manifest, f"{run.folder} and {where}")
    if not all(is_repeat(manifests[0], manifest) for manifest in manifests):
        raise UsageError(
            "The runs are of several settings.", where="RUN", fix="Compare each with the baseline by itself."
        )
    sides = [side_of(run, judge, None) for run in runs]
    first = sides[0]
    chosen = chosen_arms([*kept.arms, *first.arms], arms)
    both = [name for name in chosen if name in kept.arms and all(name in side.frame.arms for side in sides)]
    level = max(kept.level, level_for(*manifests))
    own = rendered_settings(manifests[0])
    what = dict.fromkeys([*kept.setting, *own])
    both_settings = {key: (kept.setting.get(key, "none"), own.get(key, "none")) for key in what}
    return RunComparison(
        a=kept.runs[0].facts(where),
        b=run_facts(first, first.data.name),
        more_a=[run.facts(where) for run in kept.runs[1:]],
        more_b=[run_facts(side, side.data.name) for side in sides[1:]],
        claims=max(1, len(both)),
        level=level,
        on_trust=[],
        changed=[Change(what=key, a=a, b=b) for key, (a, b) in both_settings.items() if a != b],
        arms=_arms(kept, sides, both, 1 - (1 - level) / max(1, len(both))),
        only_in_a=[name for name in chosen if name in kept.arms and name not in both],
        only_in_b=[name for name in chosen if name not in kept.arms],
        lossless_b=own_verdicts(sides, chosen),
    )


def _arms(kept: Kept, sides: Sequence[Side], names: Sequence[str], level: float) -> list[ArmComparison]:
    of_a = len(kept.runs)
    lacking: dict[str, str] = {}
    measured: dict[str, dict[str, InAllRuns]] = {"rate": {}, "speedup": {}}
    timed = {}
    for name in names:
        arm = kept.arms[name]
        for quantity, of_arm in measured.items():
            runs = arm.measures.get(quantity)
            if not runs or (quantity == "speedup" and not all(side.is_compared(name) for side in sides)):
                continue
            keys = [_key(key) for key, value in zip(kept.prompts, runs[0].by_prompt, strict=True) if value is not None]
            times = [
                side.speedup_times(name, keys) if quantity == "speedup" else rate_times(side.frame, name, keys)
                for side in sides
            ]
            missing = len(keys) - len(timed_prompts(keys, times))
            if missing:
                lacking[name] = f"B did not time {missing} of the {len(keys)} prompts that the baseline has."
            timed[name] = keys
            of_arm[name] = _in_all_runs(kept, name, runs, times)
    by_run = [watch(side.frame, timed) for side in sides]
    watched = {
        name: [
            *(
                {what: run[number].measured for what, run in kept.arms[name].measures.items() if what not in measured}
                for number in range(of_a)
            ),
            *(run[name] for run in by_run),
        ]
        for name in names
    }
    distrust = next((reason for side in sides if (reason := side.data.integrity.reason)), None)
    facts = {
        name: ArmFacts(
            is_baseline=name in sides[0].analysis.baselines,
            own=(kept.arms[name].own, sides[0].own(name)),
            outputs=Outputs(same=0, differing=[], undetermined=[], kept=False),
            prompts=len(timed[name]),
            doubt=distrust or lacking.get(name),
        )
        for name in names
    }
    groups = {name: kept.arms[name].baseline for name in names}
    return compare_arms(facts, measured["rate"], measured["speedup"], watched, of_a=of_a, groups=groups, level=level)


def _in_all_runs(kept: Kept, name: str, runs: Sequence[KeptMeasure], times: Sequence[Times]) -> InAllRuns:
    """Return a quantity in the kept runs and in new ones; `times` are over the prompts of the kept ones alone."""
    of_new = in_all_runs(times)
    at = [place for place, value in enumerate(runs[0].by_prompt) if value is not None]
    arm = kept.arms[name]
    lengths = [arm.lengths, kept.arms[arm.baseline].lengths][: len(times[0].work)]
    before = np.array(lengths, dtype=np.float64)[:, at]  # numpy reads None as NaN, which equals nothing
    equal = np.logical_and.reduce([(before == run.lengths()).all(axis=0) for run in times])
    matched = [np.array(run.by_prompt, dtype=np.float64)[at] for run in runs] + [run.by_prompt() for run in times]
    return InAllRuns(
        runs=[*(run.measured for run in runs), *of_new.runs],
        matched=[float(np.exp(np.log(run[equal]).mean())) if equal.any() else None for run in matched],
        unequal=not equal.all(),
        prompts=len(at),
    )


def _measures(times: Sequence[Times]) -> list[KeptMeasure]:
    """Return what is kept of every run; nothing where no prompt was timed in all of them."""
    timed = np.logical_and.reduce([run.timed for run in times])
    return [
        KeptMeasure(value=run.value, blocks=run.by_block, by_prompt=_or_none(np.where(timed, own.by_prompt(), np.nan)))
        for run, own in zip(in_all_runs(times).runs, times, strict=True)
        if run.value is not None
    ]


def _manifest(run: RunData) -> Manifest:
    if run.manifest is None:
        raise UsageError("Records without a manifest do not say of which work they are.", where=str(run.folder))
    return run.manifest


def _require_same(kept: Kept, manifest: Manifest, where: str) -> None:
    parts = []
    prompts = [f"{prompt.task}/{prompt.prompt_idx}" for prompt in manifest.prompts]
    if manifest.workload_sha256 != kept.workload_sha256 or sorted(prompts) != sorted(kept.prompts):
        parts.append("prompts, sampling or models (the workload hash)")
    for arm in manifest.arms:
        if arm.name in kept.arms and {what: getattr(arm, what) for what in DIMENSIONS} != kept.arms[arm.name].condition:
            parts.append(f"the condition of arm {arm.name}")
    if parts:
        raise UsageError(
            f"The run did other work than the baseline, so they cannot be compared: {'; '.join(parts)}.",
            where=where,
            fix="Run the recipe that the baseline is of, or write it anew: benchctl baseline write FILE RUN.",
        )


def _key(text: str) -> tuple[str, int]:
    task, _, index = text.rpartition("/")
    return task, int(index)


def _or_none(values: Floats) -> list[float | None]:
    return [float(value) if np.isfinite(value) else None for value in values]


def _text(value: object, depth: int) -> str:
    """Return JSON with sorted keys, a mapping over several lines and anything else on a line, numbers of six digits."""
    if isinstance(value, Mapping) and value:
        inner = (f"{' ' * (depth + 1)}{json.dumps(key)}: {_text(value[key], depth + 1)}" for key in sorted(value))
        return "{\n" + ",\n".join(inner) + f"\n{' ' * depth}}}"
    return json.dumps(_rounded(value))


def _rounded(value: object) -> object:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, list):
        return [_rounded(inner) for inner in value]
    return {key: _rounded(inner) for key, inner in value.items()} if isinstance(value, Mapping) else value
