"""The reports that the repository keeps: the code of today computes the numbers that they show."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchctl.data.store import open_run
from benchctl.lossless.judge.run import analyse_run
from benchctl.words.document import analysis_document
from tests.kept_runs import IN_THE_TREE, REPOSITORY


def differences(stored: Any, computed: Any, path: str = "") -> Iterator[str]:
    """Every number of `stored` that `computed` lacks or has otherwise, but for the last digits; texts may differ."""
    if isinstance(stored, dict):
        for key, value in stored.items():
            yield from differences(value, computed.get(key) if isinstance(computed, dict) else None, f"{path}.{key}")
    elif isinstance(stored, list):
        if not isinstance(computed, list) or len(computed) != len(stored):
            yield f"{path}: another number of rows"
            return
        for index, value in enumerate(stored):
            yield from differences(value, computed[index], f"{path}[{index}]")
    elif isinstance(stored, int | float):
        alike = isinstance(computed, int | float) and math.isclose(stored, computed, rel_tol=1e-9, abs_tol=1e-12)
        if not alike:
            yield f"{path}: stored {stored}, computed {computed}"


@pytest.mark.parametrize("run", IN_THE_TREE)
def test_a_kept_report_has_the_numbers_of_today(run: str) -> None:
    stored = json.loads((REPOSITORY / "reports" / run / "analysis.json").read_text(encoding="utf-8"))
    analysis = analyse_run(open_run(REPOSITORY / "results" / run))
    computed = json.loads(json.dumps(analysis_document(analysis)))
    changed = list(differences(stored, computed))
    assert not changed, f"`benchctl report results/{run}` renders it again:\n" + "\n".join(changed[:20])
    assert stored["speedups"], run


def test_every_kept_report_is_compared() -> None:
    reports = {str(path.parent.relative_to(REPOSITORY / "reports")) for path in
               Path(REPOSITORY / "reports").glob("*/*/analysis.json")}  # fmt: skip
    assert reports >= set(IN_THE_TREE)


def test_a_changed_number_is_named() -> None:
    stored = {"speedups": [{"pooled": 1.16, "interval": {"low": 1.1}, "arm": "a"}]}
    assert not list(differences(stored, {"speedups": [{"pooled": 1.16, "interval": {"low": 1.1}, "arm": "b"}]}))
    assert list(differences(stored, {"speedups": [{"pooled": 1.17, "interval": None}]})) == [
        ".speedups[0].pooled: stored 1.16, computed 1.17",
        ".speedups[0].interval.low: stored 1.1, computed None",
    ]
