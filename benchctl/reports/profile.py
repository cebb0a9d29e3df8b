"""A run's draft as `speculation_profile.json`: experimental, since the form is still a proposal upstream.

Fields and meaning by NVIDIA Model-Optimizer, pull request 2247 (`examples/specdec_bench/specdec_bench/
speculation_profile.py`, schema 1.0): acceptance lengths count the target's own token, so that position i (from 0) of a
draft is length i + 2.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from benchctl.analysis.results import ALL_TASKS, Acceptance
from benchctl.analysis.verdict import synthetic_arms
from benchctl.errors import UsageError
from benchctl.recipes.speculation import drafts_by_model

if TYPE_CHECKING:
    from benchctl.analysis.results import Analysis
    from benchctl.data.store import RunData
    from benchctl.recipes.groups import ModelName

_METHODS = {"draft-simple": "draft_model"}
_CHAINS = frozenset({"draft_model", "eagle", "eagle3"})
"""Methods whose draft of k tokens begins that of k + 1."""
_TOLERANCE = 0.02


def profile(run: RunData, analysis: Analysis) -> str:
    """Return the profile of a run's draft, at its greatest depth, as JSON. Raises UsageError."""
    rows = _measured(run, analysis)
    drafts = {(analysis.compared[row.arm].setup, method) for _, method, row in rows}
    if len(drafts) != 1:
        raise UsageError(
            f"A profile is of a single draft, and this run has {len(drafts)} whose acceptance by position is reported.",
            where=str(run.folder),
            fix="Measure a single draft model or head, with an engine that reports it (llama-server, vLLM).",
        )
    return json.dumps(_profile(run, analysis, rows), indent=2, ensure_ascii=False)


def _measured(run: RunData, analysis: Analysis) -> list[tuple[int, str, Acceptance]]:
    """Return depth, method and acceptance of every real draft of fixed depth that reports it by position, by depth."""
    synthetic, found = synthetic_arms(analysis.verdicts), []
    for arm in run.manifest.arms if run.manifest else []:
        settings = arm.speculation or {}
        depth, kind = settings.get("max"), settings.get("type")
        row = next((row for row in analysis.acceptance if (row.arm, row.task) == (arm.name, ALL_TASKS)), None)
        fixed = not settings.get("p_min") and arm.name not in synthetic
        if isinstance(depth, int) and fixed and drafts_by_model(kind) and row is not None and row.accepted_in_round:
            found.append((depth, _METHODS.get(kind, kind.removeprefix("draft-")), row))
    return sorted(found, key=lambda measured: measured[0])


def _profile(run: RunData, analysis: Analysis, rows: Sequence[tuple[int, str, Acceptance]]) -> dict[str, Any]:
    depth, method, row = rows[-1]
    arm = analysis.compared[row.arm]
    counts = (row.accepted_in_round or [])[: depth + 1] + [0] * (depth + 1 - len(row.accepted_in_round or []))
    reached = [sum(counts[place:]) for place in range(depth + 1)]
    marginal = [reach / reached[0] for reach in reached[1:]]
    conditional = [here / before if before else 0.0 for before, here in pairwise(reached)]
    mean, reported = 1 + sum(marginal), row.acceptance_length or 1.0
    tasks = [other for other in analysis.acceptance if other.arm == row.arm and other.task != ALL_TASKS]
    recipe = run.manifest.recipe if run.manifest else {}
    return {
        "schema_version": "1.0",
        "measured": True,
        "producer": "benchctl",
        "method": method,
        "draft_checkpoint": _checkpoint(arm.draft),
        "target_model": _checkpoint(arm.target),
        "num_speculative_tokens": depth,
        "block_size": None,
        "max_supported_k": depth,
        "verification_method": "longest_prefix",
        "conditional_accept_rates": [round(rate, 6) for rate in conditional],
        "marginal_accept_rates": [round(rate, 6) for rate in marginal],
        "mean_accept_length": round(mean, 6),
        "mean_accept_length_per_request": _by_request(run, row.arm),
        "accept_length_model": "chain_analytic" if method in _CHAINS else "measured_per_k",
        "accept_length_by_k": {str(k): round(of_k.acceptance_length or 1.0, 6) for k, _, of_k in rows},
        "acceptance_length_histogram": {str(length): count for length, count in enumerate(counts, 1)},
        "per_category": {task.task: {"mean_accept_length": task.acceptance_length} for task in tasks},
        "measurement_conditions": {
            "run": analysis.run,
            "arm": row.arm,
            "engine": arm.engine,
            **{key: recipe.get(key) for key in ("prompts", "sampling")},
        },
        "validation": {
            "mean_consistency": {
                "implied_mean_accept_length": round(mean, 6),
                "reported_mean_accept_length": round(reported, 6),
                "abs_delta": round(abs(mean - reported), 6),
                "tolerance": _TOLERANCE,
                "passed": abs(mean - reported) <= _TOLERANCE,
            },
            "marginal_monotonicity": {"passed": marginal == sorted(marginal, reverse=True), "violations": []},
        },
    }


def _checkpoint(model: ModelName | None) -> dict[str, Any] | None:
    """Return a model without the folders of this machine."""
    if model is None:
        return None
    return {"id": "/".join(PurePath(model.source).parts[-2:]), "sha256": list(model.identity)}


def _by_request(run: RunData, arm: str) -> float | None:
    """Return the mean over the answers of each answer's own acceptance length."""
    lengths = [
        1 + record.draft_n_accepted / record.rounds
        for record in run.records
        if record.label == arm and record.phase == "measure" and record.rounds and record.draft_n_accepted is not None
    ]
    return round(sum(lengths) / len(lengths), 6) if lengths else None
