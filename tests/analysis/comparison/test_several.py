"""Any number of runs: what is the same work is compared with the first, what is not is named and only shown."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from benchctl.analysis.comparison import compare
from benchctl.analysis.comparison.several import ArmRow, NotCompared, SeveralRuns, compare_several
from benchctl.analysis.comparison.summary import summarise
from benchctl.data.manifest import FileIdentity, ModelIdentity, PromptIdentity
from benchctl.data.store import RunData
from benchctl.data.summary import RunSummary
from benchctl.errors import UsageError
from benchctl.lossless.judge.run import judge
from benchctl.reports.comparison import several_arms
from benchctl.words.comparison import not_compared
from tests.analysis.comparison.test_compare import Runs

compare_runs = partial(compare.compare_runs, judge=judge)

MODEL = ModelIdentity(source="one", path="one", files=[FileIdentity(name="one", size=1, sha256="1" * 64)])
OTHER = ModelIdentity(source="two", path="two", files=[FileIdentity(name="two", size=1, sha256="2" * 64)])


@pytest.fixture
def runs(make_record: Any, make_manifest: Any) -> Runs:
    return Runs(make_record, make_manifest)


def compared(*runs: RunData) -> SeveralRuns:
    return compare_several([summarise(run, judge) for run in runs])


def with_prompts(run: RunData, prompts: list[PromptIdentity]) -> RunData:
    assert run.manifest is not None
    return replace(run, manifest=run.manifest.model_copy(update={"prompts": prompts}))


def row(several: SeveralRuns, run: int, arm: str) -> ArmRow:
    return next(row for row in several.rows if (row.run, row.arm) == (run, arm))


def test_ratios_and_intervals_are_those_of_two_runs(runs: Runs) -> None:
    a, b = runs("a"), runs("b", factor=0.9, only="spec")
    pair = {arm.arm: arm for arm in compare_runs(a, b).arms}
    result = compared(a, b)
    for name in ("baseline", "spec"):
        mine = row(result, 1, name)
        assert mine.rate_ratio is not None
        assert mine.rate_ratio.ratio == pytest.approx(pair[name].rate.ratio, rel=1e-6)
        theirs = pair[name].rate.interval
        assert mine.rate_ratio.interval is not None and theirs is not None
        assert mine.rate_ratio.interval.low == pytest.approx(theirs.low, rel=1e-4)
        assert mine.change == pair[name].change
        assert (mine.answers_same, mine.answers_differing, mine.answers_unsteady) == (4, 0, 0)
    spec = row(result, 1, "spec")
    assert spec.speedup_ratio is not None
    assert spec.speedup_ratio.ratio == pytest.approx(pair["spec"].speedup.ratio)
    assert row(result, 0, "spec").rate_ratio is None
    assert result.differing == []


def test_another_draft_is_compared_and_named(runs: Runs) -> None:
    result = compared(
        runs("a", target=MODEL, draft=MODEL), runs("b", target=MODEL, draft=OTHER), runs("c", target=MODEL)
    )
    assert [comparison.what for comparison in result.differing] == ["draft"]
    assert row(result, 1, "spec").not_compared == {}
    assert row(result, 1, "spec").answers_same == 4
    assert len(result.runs) == 3


def test_of_another_target_only_speed_ups_are_compared(runs: Runs) -> None:
    result = compared(runs("a", target=MODEL), runs("b", target=OTHER))
    spec = row(result, 1, "spec")
    assert spec.rate_ratio is None and spec.answers_same is None
    assert spec.speedup_ratio is not None and spec.speedup_ratio.ratio == pytest.approx(1.0)
    assert set(spec.not_compared) == {"rate", "answers"}
    assert spec.not_compared["rate"] == NotCompared(code="target", values=["one", "two"])
    sentence = "Decode rates, answers not compared with run 1: its target differs (one and two)"
    assert any(text.startswith(sentence) for text in not_compared(result))


def test_other_machines_and_engines_are_compared_and_named(runs: Runs) -> None:
    result = compared(runs("a", machine={"cpu": "A"}), runs("b", machine={"cpu": "B"}))
    assert [(comparison.what, comparison.values) for comparison in result.differing] == [("machine", ["A", "B"])]
    assert row(result, 1, "baseline").rate_ratio is not None


def test_prompts_that_only_some_runs_have_are_left_out_and_no_speed_up_is_compared(runs: Runs) -> None:
    fewer = [PromptIdentity(task="code", prompt_idx=n, sha256=("0" if n < 2 else "9") * 64) for n in range(4)]
    result = compared(runs("a"), with_prompts(runs("b"), fewer))
    spec = row(result, 1, "spec")
    assert spec.not_compared == {"speedup": NotCompared(code="prompts", values=["2"])}
    assert spec.answers_same == 2
    unlike = [prompt.model_copy(update={"sha256": "9" * 64}) for prompt in fewer]
    none = row(compared(runs("a"), with_prompts(runs("b"), unlike)), 1, "spec")
    assert set(none.not_compared) == {"rate", "speedup", "answers"}


def test_sampling_that_differs_leaves_speed_ups_alone(runs: Runs) -> None:
    result = compared(runs("a"), runs("b", recipe={"sampling": {"max_tokens": 9}}))
    assert row(result, 1, "spec").not_compared["answers"] == NotCompared(code="sampling", values=["max_tokens"])
    assert row(result, 1, "spec").speedup_ratio is not None


def test_other_answers_and_unsteady_ones_are_counted(runs: Runs) -> None:
    def another(record: Any) -> Any:
        if record.prompt_idx == 1:
            return record.changed(token_ids=[1] * 11, token_sha="f" * 64, content="x", content_sha="e" * 64)
        return record.changed(token_sha=str(record.block) * 64) if record.prompt_idx == 2 else record

    mine = row(compared(runs("a"), runs("b", change=another)), 1, "spec")
    assert (mine.answers_same, mine.answers_differing, mine.answers_unsteady) == (2, 0, 2)  # whose hash is not its own


def test_arms_of_later_runs_stand_alone_and_unknown_ones_are_refused(runs: Runs) -> None:
    first = runs("a", arms={"baseline": None})
    result = compared(first, runs("b"))
    assert result.alone == {"spec": [1]}
    assert "spec is not in run 1, so not compared: run 2." in not_compared(result)
    assert len(several_arms(result).rows) == 3
    with pytest.raises(UsageError, match="No run has an arm 'spek'"):
        compare_several([summarise(first, judge)], ["spek"])


def test_a_summary_survives_being_kept(runs: Runs) -> None:
    summary = summarise(runs("a"), judge)
    decoded = msgspec.msgpack.decode(msgspec.msgpack.encode(summary), type=RunSummary)
    assert compare_several([decoded]) == compare_several([summary])
    assert (decoded.blocks, len(decoded.arms), decoded.folder) == (3, 2, str(Path("a")))
