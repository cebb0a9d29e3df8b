"""Endings that no numeric noise explains: a violation with its rule, and only where the baseline keeps the rule."""

from __future__ import annotations

from typing import Any

import pytest

from benchctl.analysis.output_results import Losslessness
from benchctl.lossless.judge.run import analyse_run
from benchctl.words.warnings import seen
from tests.lossless.replayed import codes

ARMS = {"baseline": None, "spec": {"type": "draft-simple", "max": 4}}
WORDS = ["a", "b", "c", "d", "e", "f"]


@pytest.fixture
def judged(make_record: Any, make_run: Any, make_manifest: Any) -> Any:
    """(arm's fields, baseline's fields, the model's context, the arm's URL, further keys of the recipe) -> the verdict
    on the arm."""

    def judge(
        ours: dict[str, Any],
        theirs: dict[str, Any] | None = None,
        trained: int = 128,
        url: str | None = None,
        **recipe: Any,
    ) -> Losslessness:
        manifest = make_manifest(ARMS, 1, 1)
        manifest.recipe |= {
            "sampling": {"temperature": 0, "top_k": 1, "max_tokens": 4},
            "engine": {"kind": "llama.cpp", "context": 64, "only_speculation_differs": True},
        } | recipe
        manifest.target = manifest.target.model_copy(update={"facts": {"context_length": trained}})
        manifest.arms[1].url = url
        records = [
            make_record("baseline", **answer(4, "length") | (theirs or {})),
            make_record("spec", **answer(4, "length") | ours),
        ]
        return analyse_run(make_run(records, manifest)).losslessness[0]

    return judge


def answer(count: int, finish: str, text: str | None = None) -> dict[str, Any]:
    return {
        "ids": list(range(1, count + 1)),
        "text": "".join(WORDS[:count]) if text is None else text,
        "finish_reason": finish,
        "prompt_tokens": 5,
    }


@pytest.mark.parametrize(
    ("ours", "rule"),
    [
        (answer(5, "length"), "over-limit"),
        (answer(3, "length"), "cut-short"),
        (answer(4, "length", text="abcX"), "other-text"),
    ],
)
def test_an_ending_that_greedy_decoding_never_has_is_a_violation(judged: Any, ours: dict[str, Any], rule: str) -> None:
    result = judged(ours)
    assert result.verdict == "violation" and result.counts == {"violation": 1}
    assert codes(result.comparisons[0]) == [rule, "never-by-noise"]


@pytest.mark.parametrize(
    ("ours", "theirs", "recipe"),
    [
        (answer(5, "length"), answer(6, "length"), {}),  # the engine gives more itself
        (answer(3, "length"), answer(2, "length"), {}),  # it cuts off early itself
        (answer(3, "length"), answer(4, "stop"), {}),  # it never shows what `length` means
        (answer(3, "length"), {}, {"engine": {"kind": "llama.cpp", "context": 8}}),  # the context was full
        (answer(3, "length"), {}, {"engine": {"kind": "llama.cpp", "context": 9}}),  # a round filled it
        (answer(3, "length"), {}, {"trained": 9}),  # the model's own
        (answer(3, "length"), {}, {"url": "http://b/v1"}),  # an endpoint's, which is not known
        (answer(3, "stop"), {}, {}),
        (answer(4, "length", text="abc\ufffd"), answer(4, "length", text="abc"), {}),
    ],
)
def test_what_the_target_does_itself_is_none(
    judged: Any, ours: dict[str, Any], theirs: dict[str, Any], recipe: dict[str, Any]
) -> None:
    assert judged(ours, theirs, **recipe).verdict != "violation"


WITHOUT_IDS = {"token_ids": None, "token_sha": None}


@pytest.mark.parametrize("text", ["abcd", "abcX"])
@pytest.mark.parametrize("count", [0, 3, 5])
def test_a_count_without_ids_is_no_violation(judged: Any, count: int, text: str) -> None:
    result = judged(answer(4, "length", text) | WITHOUT_IDS | {"n_predicted": count}, WITHOUT_IDS)
    assert result.verdict == "undetermined"
    assert result.comparisons[0].outcome == ("undetermined" if text == "abcd" else "differs")


def test_an_equal_ending_is_identical(judged: Any) -> None:
    assert judged({}).verdict == "identical"
    cut = judged(answer(4, "length", text="abc\ufffd"), answer(4, "length", text="abc"))
    assert cut.verdict == "identical", "the same tokens, the last of which are a part of a character"


END = 9
"""The model's end token."""


@pytest.fixture
def judged_by_ends(make_record: Any, make_run: Any, make_manifest: Any) -> Any:
    """(arm's tokens, baseline's, end tokens, how it is constrained, sampling) -> the verdict; all end with `stop`."""

    def judge(
        ours: list[int],
        theirs: list[int],
        ends: list[int] | None = None,
        constrained: str | None = None,
        **sampling: Any,
    ) -> Losslessness:
        manifest = make_manifest(ARMS, 1, 1)
        facts = {"end_tokens": [END] if ends is None else ends}
        manifest.target = manifest.target.model_copy(update={"facts": facts})
        manifest.prompts = [prompt.model_copy(update={"constrained": constrained}) for prompt in manifest.prompts]
        manifest.recipe |= {"sampling": {"temperature": 0, "top_k": 1, "max_tokens": 8} | sampling}
        records = [
            make_record(name, ids=ids, text=" ".join(map(str, ids)), finish_reason="stop", prompt_tokens=5)
            for name, ids in (("baseline", theirs), ("spec", ours))
        ]
        return analyse_run(make_run(records, manifest)).losslessness[0]

    return judge


@pytest.mark.parametrize(
    ("ours", "rule"),
    [([1, 2, END, 4, END], "beyond-end"), ([1, 2, 3], "no-end")],
)
def test_an_end_token_ends_an_answer_and_nothing_else_does(judged_by_ends: Any, ours: list[int], rule: str) -> None:
    result = judged_by_ends(ours, [1, 2, 3, END])
    assert result.verdict == "violation" and codes(result.comparisons[0])[0] == rule


@pytest.mark.parametrize(
    ("ours", "theirs", "settings"),
    [
        ([1, 2, 3], [1, 2, 4], {}),  # the baseline stops without one itself
        ([1, 2, 3], [1, 2, 3, END], {"ends": []}),  # the model's are not known
        ([1, 2, 3], [1, 2, 3, END], {"ignore_eos": True}),
        ([1, 2, 3], [1, 2, 3, END], {"constrained": "response_format"}),  # the grammar's end
        ([1, 2, 7], [1, 2, 3, END], {"ends": [7, END]}),  # another one of the model's
        ([1, 7, 3], [1, 2, 3, END], {}),  # it diverged before, and a stop string of the server's may end it
        ([1, 7, 3, END], [1, 2, 3, END], {"ends": [7, END]}),  # one that no answer of the baseline ends with
        ([1, 2, END, 4, END], [1, END, 3, END], {}),  # the baseline goes on itself
    ],
)
def test_what_the_baseline_does_not_show_is_no_rule(
    judged_by_ends: Any, ours: list[int], theirs: list[int], settings: dict[str, Any]
) -> None:
    assert judged_by_ends(ours, theirs, **settings).verdict != "violation"


@pytest.mark.parametrize(
    ("theirs", "rule"),
    [
        (answer(5, "length"), "more tokens than asked"),
        (answer(3, "length") | {"prompt_tokens": 2}, "below the limit"),
        (answer(4, "stop") | {"ids": [1, 9, 3, 9]}, "after an end token"),
        (answer(4, "length"), None),
    ],
)
def test_a_baseline_that_breaks_a_rule_is_named(
    make_record: Any, make_run: Any, make_manifest: Any, theirs: dict[str, Any], rule: str | None
) -> None:
    manifest = make_manifest(ARMS, 2, 1)
    manifest.recipe |= {"sampling": {"temperature": 0, "max_tokens": 4}}
    manifest.target = manifest.target.model_copy(update={"facts": {"end_tokens": [9]}})
    records = [make_record(arm, 1, **answer(4, "length")) for arm in ARMS]
    records += [make_record(arm, 0, **theirs) for arm in ARMS]
    warned = [seen(row) for row in analyse_run(make_run(records, manifest)).warnings if row.id == "baseline-endings"]
    assert len(warned) == (rule is not None)
    assert rule is None or rule in warned[0].lower()
