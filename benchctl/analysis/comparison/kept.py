"""A baseline that a repository keeps: what gates need of a run, small enough to be reviewed, in place of the run.

`against_kept` compares a run with it as `compare_runs` does with the run itself: the same quantities, variances,
intervals and gates. Answers are not kept, so whether they are the same is not said.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from math import inf
from pathlib import Path

import numpy as np
from pydantic import Field, model_validator

from benchctl.analysis.analyse import Judge
from benchctl.analysis.comparison.changes import Doubt, InAllRuns, in_all_runs, watch
from benchctl.analysis.comparison.compare import (
    ArmInRuns,
    ArmResults,
    RunComparison,
    RunFacts,
    Side,
    chosen_arms,
    comparison,
    distrust_of,
    run_facts,
    side_of,
    timed_prompts,
)
from benchctl.analysis.comparison.workload import Change, Outputs, is_repeat, rendered_settings
from benchctl.analysis.conditions.results import DIMENSIONS
from benchctl.analysis.frame import PromptKey
from benchctl.analysis.result import MIN_BLOCKS
from benchctl.analysis.speed_table import Measured, SpeedTable, or_none
from benchctl.analysis.statistics import level_for
from benchctl.data.manifest import Manifest
from benchctl.data.store import RunData
from benchctl.data.versions import Part, StoredFormat
from benchctl.errors import UsageError
from benchctl.writing import write_whole

BY_PROMPT = ("rate", "speedup")
"""The quantities that are kept by prompt."""
FORMAT = StoredFormat("kept baseline", version=1, fix="Write it again: benchctl baseline write FILE RUN.")


class KeptArm(Part):
    """The results of an arm."""

    baseline: str
    """The arm that it is compared with; its own name for a baseline."""
    condition: dict[str, float | None]
    own: ArmResults
    lengths: list[float | None]
    """Tokens of every prompt's answer, and .25 where it stopped, .5 where it was cut; `None`: blocks differ."""
    measures: dict[str, list[Measured]]
    """A list by run. `rate` (tok/s), `speedup` (over its baseline), and what is watched (`changes.watch`), which is not
    kept by prompt."""


class KeptRun(Part):
    """The identity of a run."""

    run: str
    recipe: str
    created_at: str | None
    baseline: str
    blocks: int

    def facts(self, file: str) -> RunFacts:
        """Return the facts of the run."""
        fields = self.model_dump()
        return RunFacts(folder=file, status=None, failed_cells=[], damage=[], warnings=[], **fields)


class Kept(Part):
    """The file."""

    schema_version: int = Field(default=FORMAT.version, alias="schema")
    workload_sha256: str
    level: float
    runs: list[KeptRun] = Field(min_length=1)
    """One, or several of the same setting."""
    setting: dict[str, str]
    """Engine, machine and arms, which may differ in a run that is compared with it."""
    prompts: list[str]
    """`task/prompt_idx`, the order of every list by prompt."""
    arms: dict[str, KeptArm]

    @model_validator(mode="after")
    def _fits_together(self) -> Kept:
        for name, arm in self.arms.items():
            by_prompt = [run.by_prompt for quantity in BY_PROMPT for run in arm.measures.get(quantity, [])]
            values = [value for runs in arm.measures.values() for run in runs for value in (run.value, *run.blocks)]
            if not all(value is not None and 0 < value < inf for value in values):
                raise ValueError(f"a value of {name} is no positive number")
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
        reason = run.integrity.reason
        if manifest.blocks < MIN_BLOCKS:
            reason = f"It has fewer than {MIN_BLOCKS} blocks, which show no noise, so that no gate could be decided."
        elif not is_repeat(manifests[0], manifest):
            reason = f"It is no repetition of {runs[0].name}: another workload, setting or machine."
        if reason is not None:
            raise UsageError(reason, where=str(run.folder), fix="Keep one run, or several with nothing changed.")
    sides = [side_of(run, judge, None) for run in runs]
    first = sides[0]
    prompts = first.frame.prompts
    rates = {
        name: [side.rate_over(name, prompts) for side in sides]
        for name in first.arms
        if all(name in side.frame.arms for side in sides)
    }
    timed = {name: keys for name, tables in rates.items() if (keys := timed_prompts(tables))}
    watched = [watch(side.frame, timed) for side in sides]
    arms = {}
    for name in timed:
        measures = {"rate": in_all_runs(rates[name], len(sides)).runs}
        if first.is_compared(name):
            speedups = in_all_runs([side.speedup_over(name, prompts) for side in sides], len(sides))
            measures |= {"speedup": speedups.runs} if speedups.prompts else {}
        for quantity in set[str].intersection(*(set(run[name]) for run in watched)):
            measures[quantity] = [run[name][quantity] for run in watched]
        arm = next(arm for arm in manifests[0].arms if arm.name == name)
        lengths = np.concatenate([table.lengths for table in rates[name]])
        arms[name] = KeptArm(
            baseline=first.analysis.compared[name].baseline,
            condition={dimension: getattr(arm, dimension) for dimension in DIMENSIONS},
            own=first.results_of(name),
            lengths=or_none(np.where((lengths == lengths[:1]).all(axis=0), lengths[0], np.nan)),
            measures=dict(sorted(measures.items())),
        )
    return Kept(
        workload_sha256=manifests[0].workload_sha256,
        level=level_for(*manifests),
        runs=[KeptRun.model_validate(run_facts(side, side.data.name).model_dump()) for side in sides],
        setting=rendered_settings(manifests[0]),
        prompts=[f"{task}/{index}" for task, index in prompts],
        arms=arms,
    )


def write_kept(baseline: Kept, file: Path) -> None:
    """Write a kept baseline, in place of an earlier baseline: sorted, a list a line. Raises StorageError."""
    write_whole(file, f"{_text(baseline.model_dump(mode='json', by_alias=True), 0)}\n")


def read_kept(file: Path) -> Kept:
    """Read a kept baseline. Raises UsageError where there is none, StorageError where it cannot be read."""
    try:
        return FORMAT.read(file, Kept)
    except FileNotFoundError:
        fix = "Write it from a run that you trust, and keep it: benchctl baseline write FILE RUN."
        raise UsageError("There is no such baseline.", where=str(file), fix=fix) from None


def against_kept(
    baseline: Kept, runs: Sequence[RunData], *, judge: Judge, arms: Collection[str] | None = None, where: str
) -> RunComparison:
    """Compare a run, or repetitions of it, with a kept baseline. Raises UsageError where they did other work."""
    manifests = [_manifest(run) for run in runs]
    for run, manifest in zip(runs, manifests, strict=True):
        _require_same(baseline, manifest, f"{run.folder} and {where}")
    if not all(is_repeat(manifests[0], manifest) for manifest in manifests):
        raise UsageError(
            "The runs are of several settings.", where="RUN", fix="Compare each with the baseline by itself."
        )
    sides = [side_of(run, judge, None) for run in runs]
    level = max(baseline.level, level_for(*manifests))
    setting = rendered_settings(manifests[0])
    values = {
        key: (baseline.setting.get(key, "none"), setting.get(key, "none")) for key in {**baseline.setting, **setting}
    }
    return comparison(
        [run.facts(where) for run in baseline.runs],
        sides,
        arms=chosen_arms([*baseline.arms, *sides[0].arms], arms),
        arms_of_a=baseline.arms,
        measure=lambda common: _measure(baseline, sides, common),
        on_trust=[],
        changed=[Change(what=key, a=a, b=b) for key, (a, b) in values.items() if a != b],
        level=level,
    )


def _measure(baseline: Kept, sides: Sequence[Side], names: Sequence[str]) -> dict[str, ArmInRuns]:
    """Return what was measured of the arms in the kept runs and in new ones, over the prompts of the kept ones."""
    tables: dict[str, dict[str, list[SpeedTable]]] = {}
    for name in names:
        measures = baseline.arms[name].measures
        tables[name] = {"rate": [side.rate_over(name, _prompts_of(baseline, name, "rate")) for side in sides]}
        if "speedup" in measures and all(side.is_compared(name) for side in sides):
            keys = _prompts_of(baseline, name, "speedup")
            tables[name]["speedup"] = [side.speedup_over(name, keys) for side in sides]
    prompts = {name: list(tables[name].get("speedup", tables[name]["rate"])[0].prompts) for name in names}
    watched = [watch(side.frame, prompts) for side in sides]
    arms = {}
    for name in names:
        arm = baseline.arms[name]
        measured = {
            quantity: _in_all_runs(baseline, name, quantity, of_new) for quantity, of_new in tables[name].items()
        }
        counts = [(len(of_new[0].prompts), len(timed_prompts(of_new))) for of_new in tables[name].values()]
        lacking = [(of_kept - of_both, of_kept) for of_kept, of_both in counts if of_both < of_kept]
        watched_by_kept = [
            {quantity: runs[number] for quantity, runs in arm.measures.items() if quantity not in BY_PROMPT}
            for number in range(len(baseline.runs))
        ]
        arms[name] = ArmInRuns(
            baseline=arm.baseline,
            is_baseline=name in sides[0].analysis.baselines,
            facts=(arm.own, sides[0].results_of(name)),
            outputs=Outputs(same=0, differing=[], undetermined=[], kept=False),
            prompts=len(prompts[name]),
            doubt=distrust_of(sides) or (Doubt(code="prompts missing", counts=lacking[-1]) if lacking else None),
            rate=measured["rate"],
            speedup=measured.get("speedup"),
            watched=[*watched_by_kept, *(run[name] for run in watched)],
        )
    return arms


def _prompts_of(baseline: Kept, name: str, quantity: str) -> list[PromptKey]:
    """Return the prompts that every block of the kept runs timed."""
    values = baseline.arms[name].measures[quantity][0].by_prompt
    keys = (text.rpartition("/") for text, value in zip(baseline.prompts, values, strict=True) if value is not None)
    return [(task, int(index)) for task, _, index in keys]


def _in_all_runs(baseline: Kept, name: str, quantity: str, tables: Sequence[SpeedTable]) -> InAllRuns:
    """Return a quantity in the kept runs and in new ones; `tables` are over the prompts of the kept ones alone."""
    arm = baseline.arms[name]
    runs = arm.measures[quantity]
    columns = [number for number, value in enumerate(runs[0].by_prompt) if value is not None]
    of_new = in_all_runs(tables, 0)
    lengths = [arm.lengths, baseline.arms[arm.baseline].lengths][: len(tables[0].work)]
    before = np.array(lengths, dtype=np.float64)[:, columns]  # numpy reads None as NaN, which equals nothing
    equal = np.logical_and.reduce([(before == table.lengths).all(axis=0) for table in tables])
    by_prompt = [
        *(np.array(run.by_prompt, dtype=np.float64)[columns] for run in runs),
        *(np.array(run.by_prompt or [None] * len(columns), dtype=np.float64) for run in of_new.runs),
    ]
    return InAllRuns(
        runs=[*runs, *of_new.runs],
        of_a=len(runs),
        matched=[float(np.exp(np.log(values[equal]).mean())) if equal.any() else None for values in by_prompt],
        unequal=not equal.all(),
        prompts=len(columns),
    )


def _manifest(run: RunData) -> Manifest:
    if run.manifest is None:
        raise UsageError("Records without a manifest do not say of which work they are.", where=str(run.folder))
    return run.manifest


def _require_same(baseline: Kept, manifest: Manifest, where: str) -> None:
    parts = []
    prompts = [f"{prompt.task}/{prompt.prompt_idx}" for prompt in manifest.prompts]
    if manifest.workload_sha256 != baseline.workload_sha256 or sorted(prompts) != sorted(baseline.prompts):
        parts.append("prompts, sampling or models (the workload hash)")
    for arm in manifest.arms:
        kept_arm = baseline.arms.get(arm.name)
        if kept_arm and any(getattr(arm, name) != kept_arm.condition.get(name) for name in DIMENSIONS):
            parts.append(f"the condition of arm {arm.name}")
    if parts:
        raise UsageError(
            f"The run did other work than the baseline, so they cannot be compared: {'; '.join(parts)}.",
            where=where,
            fix="Run the recipe that the baseline is of, or write it anew: benchctl baseline write FILE RUN.",
        )


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
