"""From scored answers to a verdict on an arm, and what is missing where there is none."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from scipy.stats import chi2

from benchctl.analysis.cells import identity_of
from benchctl.analysis.losslessness import DetectionPower
from benchctl.analysis.output_results import Losslessness
from benchctl.data.record import sha256_tokens
from benchctl.data.scores import DivergedToken, NullPass, ScoredAnswer, TargetScores
from benchctl.data.store import RunData
from benchctl.lossless.judge.audit import audit_parts
from benchctl.lossless.judge.divergence import Evidence
from benchctl.lossless.judge.run import OutputComparison, analyse_run
from benchctl.lossless.judge.selection import select_answers
from benchctl.lossless.judge.verdicts import _of_differing
from benchctl.lossless.score.session import Verified
from tests.lossless.replayed import codes, divergence_at, reading

pytestmark = pytest.mark.slow

PROMPTS, TOKENS, DIVERGENCE = 12, 40, 30
RNG = np.random.default_rng(7)
MARGINS = [[round(0.25 + float(one), 6) for one in RNG.exponential(2.0, TOKENS)] for _ in range(PROMPTS)]


def ids(prompt: int, *, diverges: bool = False) -> list[int]:
    base = list(range(1000 * prompt, 1000 * prompt + TOKENS))
    return [*base[:DIVERGENCE], 7, *range(500, 500 + TOKENS - DIVERGENCE - 1)] if diverges else base


@pytest.fixture
def run(make_record: Any, make_manifest: Any) -> RunData:
    """One arm of depth 4 that leaves the baseline at one prompt, and one that never does."""
    depths = {"spec": {"type": "draft-simple", "max": 4}, "same": {"type": "draft-simple", "max": 2}}
    manifest = make_manifest({"baseline": None, **depths}, prompts=PROMPTS, blocks=1)
    counters = {"draft_n": 8, "rounds": 2}
    records = [make_record("baseline", index, ids=ids(index)) for index in range(PROMPTS)]
    records += [make_record("same", index, ids=ids(index), **counters) for index in range(PROMPTS)]
    records += [
        make_record(
            "spec",
            index,
            ids=ids(index, diverges=index == 3),
            text=f"{index == 3}" if index == 3 else "def add(a, b): return a + b",
            **counters,
        )
        for index in range(PROMPTS)
    ]
    return RunData(Path("by-hand"), manifest, records, [])


def audit(
    run: RunData, *, gap: float | None = 0.05, prefixes: int = 1_000, diverging: list[DivergedToken] | None = None
) -> TargetScores:
    """Every answer of the arm scored; the one that diverges leaves its likeliest token there by `gap` nats."""
    answers, passes = [], []
    rng = np.random.default_rng(8)
    for prompt in range(PROMPTS):
        diverges = prompt == 3
        margins = list(MARGINS[prompt])
        diverged = list(diverging or []) if prompt == 5 else []
        if diverges and gap is not None:
            margins[DIVERGENCE] = gap
            diverged.append(DivergedToken(index=DIVERGENCE, likeliest=ids(prompt)[DIVERGENCE], gap=gap))
        answer_key: dict[str, Any] = {
            "task": "code",
            "prompt_idx": prompt,
            "prompt_sha": run.records[prompt].prompt_sha,
            "token_sha": sha256_tokens(ids(prompt, diverges=diverges)),
        }
        answers.append(ScoredAnswer(**answer_key, margins=margins, diverged=diverged))
        per_prompt = -(-prefixes // PROMPTS)
        for first in range(0, per_prompt, TOKENS):
            places = list(range(min(TOKENS, per_prompt - first)))
            losses = rng.normal(0, 0.1, len(places)).tolist()
            passes.append(NullPass(**answer_key, width=5, first=first + 1, places=places, losses=losses))
    return TargetScores(
        run="20261121-110500-3fa9",
        benchctl_version="0",
        made_at="",
        baseline="baseline",
        command=[],
        engine_sha256=None,
        model=[],
        answers=answers,
        passes=passes,
    )


def verdicts(run: RunData, scores: TargetScores | None) -> dict[str, Losslessness]:
    return {row.arm: row for row in analyse_run(replace(run, scores=scores)).losslessness}


def test_an_arm_that_diverges_at_a_near_tie_is_judged_by_its_power(run: RunData) -> None:
    scored = audit(run)
    outputs = OutputComparison(run)
    judged = {verdict.arm: verdict for verdict in outputs.verdicts(Evidence(scored))}
    result = judged["spec"].audit
    assert result is not None and result.lacking is None
    assert (result.diverged, result.tokens, result.answers, result.of) == (1, PROMPTS * TOKENS, PROMPTS, PROMPTS)
    assert result.p is not None and result.p > 0.05
    assert not result.violates
    assert result.stated is not None and result.stated.nats == 0.3
    assert result.excess_limit is not None and 0 < result.excess_limit < 20
    assert judged["spec"].verdict == "undetermined"  # its divergence itself was not replayed
    rival = {"token": ids(3)[DIVERGENCE], "rival": 7, "task": "code", "prompt_idx": 3, "index": DIVERGENCE}
    divergence = divergence_at(DIVERGENCE - 30, 7, [("decode", 1, 0.05), ("verify", 5, 0.02)]).model_copy(
        update={
            **rival,
            "prompt_sha": run.records[3].prompt_sha,
            "agreed_sha": sha256_tokens(ids(3)[:DIVERGENCE]),
            "readings": [
                reading("decode", 1, 0.05, ids(3)[DIVERGENCE], 7),
                reading("verify", 5, 0.02, ids(3)[DIVERGENCE], 7),
            ],
        }
    )
    scored.add([divergence])
    judged = {verdict.arm: verdict for verdict in outputs.verdicts(Evidence(scored))}
    assert judged["spec"].counts["near-tie"] == 1
    assert codes(judged["spec"]) == ["differing", "power", "audit"]
    assert judged["spec"].verdict == "undetermined", "twelve short answers show little"
    assert judged["spec"].unviolated == pytest.approx(0.09, abs=0.04)
    verified = Verified(outputs, list(judged.values()), [])
    assert not verified.only("identical", "consistent with the target")
    sharp = result.model_copy(update={"stated": DetectionPower(nats=0.3, chance=0.8, prompts=None)})
    assert _of_differing(judged["spec"].comparisons, sharp)[0] == "consistent with the target"
    assert judged["same"].verdict == "identical"
    assert judged["same"].differing_limit == pytest.approx(1 - 0.05 ** (1 / PROMPTS))


def sparse(run: RunData, drafted: int, accepted: int, prompts: Sequence[int] = range(PROMPTS)) -> RunData:
    """The run with so many draft tokens in the answers to these prompts and none in the others."""
    drafts = {"draft_n": drafted, "draft_n_accepted": accepted, "rounds": None}
    no_drafts = {"draft_n": 0, "draft_n_accepted": 0, "rounds": 0}
    records = [
        msgspec.structs.replace(record, **(drafts if record.prompt_idx in prompts else no_drafts))
        if record.label == "spec"
        else record
        for record in run.records
    ]
    return replace(run, records=records)


def test_noise_explains_nothing_in_an_answer_that_drafted_nothing(run: RunData) -> None:
    """A divergence at a near-tie is compatible with noise where its answer drafted, and a violation where not."""
    drafting = verdicts(sparse(run, 4, 0, [3]), audit(run))["spec"].audit
    assert drafting is not None and not drafting.violates
    diverging = [prompt for prompt in range(PROMPTS) if prompt != 3]
    still = verdicts(sparse(run, 4, 0, diverging), audit(run))["spec"].audit
    assert still is not None and still.violates and still.beyond == 1 and still.p == 0.0


@pytest.fixture
def first_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """The arm leaves the baseline at its first token."""
    monkeypatch.setattr(sys.modules[__name__], "DIVERGENCE", 0)


@pytest.mark.parametrize(
    ("engine", "kind", "violates"),
    [
        ("llama.cpp", "draft-simple", True),
        ("transformers", "self-ssm", True),
        ("transformers", "assisted", False),
        ("not-installed", "assisted", False),
    ],
)
def test_a_rounds_noise_explains_no_first_token_but_where_the_prompt_is_read_with_a_draft(
    first_token: None, run: RunData, engine: str, kind: str, violates: bool
) -> None:
    assert run.manifest is not None
    run.manifest.engine = run.manifest.engine.model_copy(update={"kind": engine})
    identity = identity_of(run.manifest, "spec")
    assert identity is not None
    identity.speculation = {"type": kind, "max": 4}
    judged = verdicts(run, audit(run))["spec"].audit
    assert judged is not None
    assert (judged.violates, judged.beyond) == (violates, int(violates))


def test_the_limit_of_an_arm_that_seldom_drafts_counts_on_no_noise_elsewhere(run: RunData) -> None:
    """One round of four rejected tokens may have been the last: noise explains next to none, so the limit is exact."""
    seldom = verdicts(sparse(run, 4, 0, [3]), audit(run))["spec"].audit
    always = verdicts(sparse(run, 160, 32), audit(run))["spec"].audit
    assert seldom is not None
    assert always is not None
    exact = chi2.ppf(0.95, 2 * (1 + 1)) / 2 / (PROMPTS * TOKENS) * 1000  # of one divergence, per 1,000 tokens
    assert seldom.excess_limit == pytest.approx(exact, rel=0.15)
    assert seldom.excess_limit is not None
    assert always.excess_limit is not None
    assert always.excess_limit < seldom.excess_limit
    assert seldom.expected is not None
    assert always.expected is not None
    assert seldom.expected < always.expected


def test_a_token_that_noise_cannot_reach_is_a_violation(run: RunData) -> None:
    judged = verdicts(run, audit(run, gap=2.5))["spec"]
    assert judged.verdict == "violation"
    assert judged.audit is not None and judged.audit.beyond == 1
    assert codes(judged) == ["differing", "audit"]


def test_many_near_ties_are_a_violation_although_each_is_compatible_with_noise(run: RunData) -> None:
    near = [DivergedToken(index=index, likeliest=1, gap=0.05) for index in range(DIVERGENCE, TOKENS)]
    scored = audit(run, diverging=None)
    for answer in scored.answers:  # the arm's own answers are the baseline's but one, which takes every runner-up
        if answer.prompt_idx == 3:
            answer.margins[DIVERGENCE:] = [0.15] * (TOKENS - DIVERGENCE)
            answer.diverged[:] = [token.model_copy(update={"gap": 0.15}) for token in near]
    judged = verdicts(run, scored)["spec"]
    assert judged.verdict == "violation"
    assert judged.audit is not None and judged.audit.p_adjusted is not None and judged.audit.p_adjusted < 0.005
    often = audit_parts([(scored, select_answers(OutputComparison(run).parts))], times_asked=7)["spec"]
    assert often.p_adjusted is not None and often.p_adjusted < 0.005, "simulated often enough for its level"


@pytest.mark.parametrize(
    ("change", "lacking"),
    [
        ({"prefixes": 600}, "was measured at 600 prefixes; 1,000 are needed"),
        (
            {"diverging": [DivergedToken(index=2, likeliest=1, gap=0.01)]},
            "diverges from the baseline's own answers at 1 of",
        ),
    ],
)
def test_without_enough_noise_or_with_another_reading_it_is_undetermined(
    run: RunData, change: dict[str, Any], lacking: str
) -> None:
    judged = verdicts(run, audit(run, **change))["spec"]
    assert judged.verdict == "undetermined"
    assert judged.audit is not None and lacking in str(judged.audit.lacking)
    assert codes(judged) == ["differing", "audit"]


def test_without_an_audit_an_arm_that_differs_is_undetermined(run: RunData) -> None:
    result = verdicts(run, None)
    assert result["spec"].verdict == "undetermined"
    assert result["spec"].audit is not None and "not scored" in str(result["spec"].audit.lacking)
    assert result["same"].verdict == "identical"


def test_an_audit_of_another_engine_is_not_used(run: RunData) -> None:
    scores_of_another = audit(run).model_copy(update={"engine_sha256": "0" * 64})
    assert verdicts(run, scores_of_another)["spec"].audit is not None
    assert verdicts(run, scores_of_another)["spec"].audit == verdicts(run, None)["spec"].audit


def test_every_arm_that_differs_is_selected_and_an_answer_of_several_arms_once(run: RunData) -> None:
    selection = OutputComparison(run).selection([])
    assert [arm.arm for arm in selection.arms] == ["spec"]
    assert (selection.widths, len(selection.prompts)) == ([5], PROMPTS)
    assert sum(map(len, selection.prompts)) == PROMPTS
    agreed = selection.arms[0].agreed
    assert sorted(set(agreed.values())) == [DIVERGENCE, TOKENS]


def test_the_recipe_names_what_has_to_be_found(run: RunData) -> None:
    """A sharper alternative is found less often; the verdict is held against the one that the recipe names."""
    assert run.manifest is not None
    chances = []
    for nats in (0.05, 0.3, 1.0):
        recipe = run.manifest.recipe | {"lossless": {"detect_nats": nats}}
        changed = replace(run, manifest=run.manifest.model_copy(update={"recipe": recipe}))
        stated = verdicts(changed, audit(run))["spec"].audit
        assert stated is not None and stated.stated is not None and stated.stated.nats == nats
        chances.append(stated.stated.chance)
    assert chances == sorted(chances) and chances[0] < chances[-1]


def test_each_time_that_prompts_are_asked_lowers_the_level(run: RunData) -> None:
    parts = [(audit(run), select_answers(OutputComparison(run).parts))]
    first, third = (audit_parts(parts, times_asked=times)["spec"] for times in (0, 2))
    assert first.p is not None and first.p == third.p
    assert first.p_adjusted is not None and third.p_adjusted == min(1.0, 6 * first.p_adjusted)
    assert first.floor is not None and third.floor is not None and third.floor > first.floor
