"""benchctl from Python: `benchctl.open_run(path)`, `benchctl.open_runs(folder)` and `benchctl.measure(recipe)`.

Tables are pandas DataFrames, a row an observation, with the columns of the report's CSV files; docs/python.md has their
units.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pandas import DataFrame

    from benchctl.analysis.results import Analysis
    from benchctl.data.store import RunData


_OF_RUN = ("run", "folder", "recipe", "workload", "created_at", "status", "machine")
_OF_ARM = (
    "engine", "build", "setting", "target", "draft", "types", "speedup", "low", "high", "acceptance",
    "acceptance_doubt", "acceptance_length",
)  # fmt: skip
"""What a row of `open_runs` has of the summaries of its run and of its arm."""


class Run:
    """A run that was measured: its tables, its conclusion, and what the files say.

    `data` is what is stored, `analysis` what follows from it (`analysis.json` is its JSON).
    """

    def __init__(self, data: RunData) -> None:
        self.data = data

    @property
    def path(self) -> Path:
        """The run's folder, or its file of records."""
        return self.data.folder

    @cached_property
    def analysis(self) -> Analysis:
        """Everything that is computed of the run; takes seconds for a large one."""
        from benchctl.lossless.judge.run import analyse_run

        return analyse_run(self.data)

    @property
    def conclusion(self) -> str:
        """Does it pay, and is the output unchanged, in two sentences."""
        from benchctl.words import conclusion

        return f"{conclusion.headline(self.analysis)} {conclusion.fidelity(self.analysis, counted=True)}".strip()

    def arms(self) -> DataFrame:
        """Return a row an arm, the baselines among them: what it is, how fast, and what is concluded of its output.

        Columns: `arm`, `baseline`, `setting`, `type`, `depth`, `target`, `quantization` (of the target's weights),
        `draft`, a column for each axis of the recipe, `tok_per_sec`, `speedup` with `low` and `high`, `end_to_end`,
        `ttft_ratio`, `speed`, `acceptance`, `acceptance_length`, `verdict`, `power` (the chance that a fault of the
        output would have been noticed). What is not known is missing.
        """
        from pandas import DataFrame

        from benchctl.reports.first_screen import screen_rows

        analysis, rows = self.analysis, []
        for row in screen_rows(analysis):
            verdict, speed, accepted = row.verdict, row.speed, analysis.acceptance_of(row.arm)
            rows.append(
                {
                    **self._settings(row.arm),
                    "tok_per_sec": row.rate,
                    "speedup": row.speedup,
                    "low": row.ends.low if row.ends else None,
                    "high": row.ends.high if row.ends else None,
                    "end_to_end": speed.end_to_end if speed else None,
                    "ttft_ratio": speed.ttft_ratio if speed else None,
                    "speed": verdict.speed if verdict else None,
                    "acceptance": verdict.acceptance if verdict else None,
                    "acceptance_length": accepted.acceptance_length if accepted else None,
                    "verdict": verdict.lossless if verdict else None,
                    "power": row.power,
                }
            )
        return DataFrame(rows)

    def _settings(self, arm: str) -> dict[str, Any]:
        """Return what an arm is: type, depth, models, and its label on every axis of the recipe."""
        from benchctl.analysis.cells import axes_of, identity_of, setup_of
        from benchctl.analysis.verdict import describe_speculation
        from benchctl.recipes.speculation import takes_draft
        from benchctl.reports.tables.provenance import weights_of

        manifest, compared = self.data.manifest, self.analysis.compared.get(arm)
        identity = identity_of(manifest, arm)
        setup = setup_of(manifest, identity.setup if identity else None) or manifest
        depth = (identity.speculation or {}).get("max") if identity else None
        return {
            "arm": arm,
            "baseline": compared.baseline if compared else None,
            "setting": describe_speculation(identity.speculation) if identity else None,
            "type": "+".join(identity.types) or "none" if identity else None,
            "depth": depth if isinstance(depth, int) else None,
            "target": setup.target.source if setup else None,
            "quantization": weights_of(setup.target.facts) if setup else None,
            "draft": setup.draft.source if setup and setup.draft and identity and takes_draft(identity.types) else None,
            **axes_of(manifest, arm),
        }

    def records(self, *, prompts: bool = False) -> DataFrame:
        """Return a row a request, as `records.jsonl` has it.

        `prompts`: also its prompt as text, in the column `prompt`, where the suite that the run names still has it
        with the same SHA-256.
        """
        from pandas import DataFrame

        frame = DataFrame([record.to_dict() for record in self.data.records]).rename(columns={"label": "arm"})
        if prompts:
            texts = self._prompts()
            frame["prompt"] = [texts.get((row.task, row.prompt_idx)) for row in self.data.records]
        return frame

    def _prompts(self) -> dict[tuple[str, int], str]:
        """Return the prompts of the run by task and index: the last message of a chat. Raises UsageError."""
        from benchctl.prompts.load import load_suite, prompt_sha256

        manifest = self.data.manifest
        if manifest is None:
            return {}
        folder = Path(manifest.recipe_folder or ".").expanduser()
        asked = manifest.recipe.get("prompts") or {}
        skip_bad = bool(asked.get("skip_bad"))
        suite = load_suite(asked.get("suite") or "default", recipe_folder=folder, skip_bad=skip_bad)
        kept = {(row.task, row.prompt_idx): row.sha256 for row in manifest.prompts}
        return {
            (item.task, item.prompt_idx): prompt.prompt or (prompt.messages[-1].text if prompt.messages else "")
            for item in suite.select(None, None)
            if (prompt := item.prompt) and kept.get((item.task, item.prompt_idx)) == prompt_sha256(prompt)
        }

    def speedups(self) -> DataFrame:
        """Return a row an arm and task; over all tasks together, `task` is `all`. Ratios to the baseline.

        The columns of `speedup.csv`, then `tok_per_sec`, and `type`, `depth`, `target`, `quantization`, `draft` and the
        recipe's axes of each arm. Lists are lists.
        """
        from pandas import DataFrame

        frame = self._table("speedup")
        settings = DataFrame([self._settings(arm) for arm in frame["arm"].unique()])
        if frame.empty:
            return frame
        frame["tok_per_sec"] = frame["decode_rate"]
        merged: DataFrame = frame.merge(settings.drop(columns=["baseline", "setting"]), on="arm", how="left")
        return merged

    def acceptance(self) -> DataFrame:
        """Return a row an arm and task: draft tokens, and what was accepted of them (a share, or tokens a step)."""
        return self._table("acceptance")

    def losslessness(self) -> DataFrame:
        """Return a row an arm and prompt: whether the answer is the baseline's, and if not, why."""
        return self._table("losslessness")

    def _table(self, name: str) -> DataFrame:
        from pandas import read_csv

        from benchctl.reports.write import all_tables

        frame: DataFrame = read_csv(StringIO(all_tables(self.analysis)[f"{name}.csv"]))
        for column in frame.columns:
            texts = frame[column].dropna()
            if len(texts) and all(isinstance(text, str) and text[:1] == "[" and text[-1:] == "]" for text in texts):
                frame[column] = [json.loads(text) if isinstance(text, str) else None for text in frame[column]]
        return frame

    def _repr_html_(self) -> str:
        from markupsafe import Markup

        from benchctl.reports.first_screen import first_screen
        from benchctl.reports.page import html_table

        conclusion = Markup("<p><strong>{}</strong></p>").format(self.conclusion)
        return str(conclusion + html_table(first_screen(self.analysis, None)[0]))

    def __repr__(self) -> str:
        return f"<benchctl run {self.path}: {self.conclusion}>"


def open_run(path: str | Path, results: str | Path = "results") -> Run:
    """Return a run: by its folder, its id, its recipe's name (the latest), or a JSONL file of records.

    Raises UsageError where there is none, StorageError where it cannot be read.
    """
    from benchctl.data import store

    return Run(store.open_run(store.resolve_run(str(path), Path(results))))


def open_runs(results: str | Path = "results") -> DataFrame:
    """Return a row an arm and run of a results folder, the oldest run first: what was measured, on what, the result.

    Columns: `run`, `folder`, `recipe`, `workload` (SHA-256 of prompts, sampling and model files), `created_at`,
    `status`, `machine`, `engine`, `build` and `setting` (digests), `arm`, `is_baseline`, `target`, `draft`, `types`,
    `temperature`, `tok_per_sec`, `speedup` with `low` and `high` (the ends of its interval), `acceptance` (0 to 1),
    `acceptance_doubt`, `acceptance_length`, `verdict`. Runs that cannot be read are left out and named in
    `frame.attrs["unreadable"]`. Summaries are kept in the user's cache.
    """
    from pandas import DataFrame

    from benchctl.analysis.comparison.summary import summaries_or_errors
    from benchctl.data.listing import run_folders
    from benchctl.errors import BenchctlError
    from benchctl.lossless.judge.run import judge

    folders = run_folders(Path(results))
    summaries = summaries_or_errors(folders, judge)
    rows = [
        {
            **{name: getattr(run, name) for name in _OF_RUN},
            "arm": arm.name,
            "is_baseline": arm.compared.is_baseline,
            "temperature": run.sampling.get("temperature"),
            "tok_per_sec": arm.rate(len(run.prompts)),
            **{name: getattr(arm, name) for name in _OF_ARM},
            "verdict": arm.lossless,
        }
        for run in summaries
        if not isinstance(run, BenchctlError)
        for arm in run.arms
    ]
    columns = (*_OF_RUN, "arm", "is_baseline", "temperature", "tok_per_sec", *_OF_ARM, "verdict")
    frame: DataFrame = DataFrame(rows, columns=columns)
    frame = frame.sort_values("created_at", kind="stable", ignore_index=True)
    frame.attrs["unreadable"] = {
        str(folder): str(summary)
        for folder, summary in zip(folders, summaries, strict=True)
        if isinstance(summary, BenchctlError)
    }
    return frame


def measure(
    recipe: str | Path | Mapping[str, Any],
    *,
    out: str | Path = "results",
    models_dir: str | Path | None = None,
    engine_binary: str | Path | None = None,
    trust_recipe: bool = False,
    show: bool = False,
) -> Run:
    """Measure a recipe (a file, the name of a shipped recipe, or its data) as `benchctl run` does, and return the run.

    `show`: print progress to stderr. Cells that failed are in `analysis.failed_cells`. Raises BenchctlError: UsageError
    for a recipe that is wrong or not trusted, EngineError, StorageError.
    """
    from rich.console import Console

    from benchctl.measurement.plan import with_second_baseline
    from benchctl.measurement.progress import RunProgress
    from benchctl.measurement.requested import context_of_data, named_recipe
    from benchctl.measurement.run import signals_interrupt, start_run

    folder = Path(out)
    context = (
        context_of_data(recipe, trust=trust_recipe)
        if isinstance(recipe, Mapping)
        else named_recipe(str(recipe), folder, trust=trust_recipe)
    )
    progress = RunProgress(Console(stderr=True, quiet=not show))
    with signals_interrupt():
        prepared = context.prepare(
            None if engine_binary is None else str(engine_binary),
            None if models_dir is None else Path(models_dir),
            progress.note,
            with_second_baseline(context.recipe),
        )
        progress.end()
        return open_run(start_run(prepared, folder, progress, ["benchctl.measure"]))
