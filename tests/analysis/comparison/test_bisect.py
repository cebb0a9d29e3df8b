"""The first of several builds that is slower, diverges or violates."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from benchctl.analysis.comparison.several import by_build, compare_several, first_changes
from benchctl.analysis.comparison.summary import summarise
from benchctl.data.record import sha256_text, sha256_tokens
from benchctl.data.store import RunData
from benchctl.data.summary import RunSummary
from benchctl.errors import UsageError
from benchctl.lossless.judge.run import judge
from benchctl.words.comparison import first_changes as sentences
from tests.analysis.comparison.test_compare import Runs


@pytest.fixture
def runs(make_record: Any, make_manifest: Any) -> Runs:
    return Runs(make_record, make_manifest)


def other_answer(record: Any) -> Any:
    return record.changed(
        token_ids=[1] * 11, token_sha=sha256_tokens([1] * 11), content="x", content_sha=sha256_text("x")
    )


def changes(*runs: RunData) -> dict[str, Any]:
    result = compare_several([summarise(run, judge) for run in runs])
    return {change.arm: change for change in first_changes(result)}


def test_the_first_slower_build_and_the_first_with_other_answers_are_named(runs: Runs) -> None:
    builds = (
        runs("b1"),
        runs("b2"),
        runs("b3", factor=0.6, only="spec"),
        runs("b4", factor=0.6, only="spec", change=other_answer),
    )
    result = changes(*builds)
    assert (result["spec"].slower, result["spec"].diverges, result["spec"].unknown) == (2, 3, [])
    assert result["spec"].interval.high < 1
    assert (result["baseline"].slower, result["baseline"].diverges) == (None, 3)
    assert result["baseline"].possible < 1
    several = compare_several([summarise(run, judge) for run in builds])
    text = "\n".join(sentences(several, list(result.values())))
    assert "b3 is the first" in text


def test_too_few_blocks_decide_nothing(runs: Runs) -> None:
    result = changes(runs("b1", blocks=1), runs("b2", blocks=1, factor=0.5))
    assert (result["baseline"].slower, result["baseline"].unknown, result["baseline"].possible) == (None, [1], None)


def with_builds(run: RunSummary, **builds: RunSummary) -> RunSummary:
    arms = [
        msgspec.structs.replace(arm, name=f"{arm.name}-{build}", labels={"engine.binary": build})
        for build, summary in builds.items()
        for arm in summary.arms
    ]
    return msgspec.structs.replace(run, arms=arms)


def test_builds_of_one_run_are_compared_as_runs(runs: Runs) -> None:
    old, new = (summarise(runs(name, factor=factor), judge) for name, factor in (("old", 1.0), ("new", 0.5)))
    parts = by_build(with_builds(old, old=old, new=new))
    assert [(part.run, [arm.name for arm in part.arms]) for part in parts] == [
        ("old", ["baseline", "spec"]),
        ("new", ["baseline", "spec"]),
    ]
    by_arm = {change.arm: change for change in first_changes(compare_several(parts))}
    assert (by_arm["baseline"].slower, by_arm["spec"].slower) == (1, None)


def test_a_run_without_builds_is_refused(runs: Runs) -> None:
    with pytest.raises(UsageError) as refused:
        by_build(summarise(runs("a"), judge))
    assert "engine.binary" in refused.value.what
