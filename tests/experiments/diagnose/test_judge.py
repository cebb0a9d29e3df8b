"""A diagnosis is held against chains whose every probability is known, and against rounds that are played out."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchctl.analysis.cost import expected_tokens
from benchctl.data.traces import DiagnosisSettings, Expectations
from benchctl.experiments.diagnose import judge
from benchctl.experiments.diagnose.expectations import at_temperature, distances, expectations
from benchctl.experiments.diagnose.judge import (
    judge_diagnosis,
    read_to,
    verdict_of,
    windows,
)
from benchctl.experiments.diagnose.stored import (
    DiagnosedDraft,
    Diagnosis,
    DraftCosts,
    ForcedAnswer,
)

RNG = np.random.default_rng(3)
VOCABULARY = 6
TARGET = RNG.dirichlet(np.full(VOCABULARY, 0.6), VOCABULARY)
"""Two Markov chains: row: the token before, column: the next one."""
DRAFT = RNG.dirichlet(np.full(VOCABULARY, 0.6), VOCABULARY)
SETTINGS = DiagnosisSettings(tokens=64, temperature=0.6, depth=8, stride=4, top=100)


def logs(row: np.ndarray, top: int = VOCABULARY) -> dict[int, float]:
    return {int(token): math.log(row[token]) for token in np.argsort(-row)[:top]}


def sharpened(table: np.ndarray, temperature: float) -> np.ndarray:
    powers = np.power(table, 1 / temperature)
    shares: np.ndarray = powers / powers.sum(axis=1, keepdims=True)
    return shares


def sampled_answer(size: int, temperature: float, rng: np.random.Generator) -> list[int]:
    p, answer = sharpened(TARGET, temperature), [0]
    while len(answer) < size:
        answer.append(int(rng.choice(VOCABULARY, p=p[answer[-1]])))
    return answer


def read(answer: list[int], temperature: float, top: int = VOCABULARY) -> Expectations:
    """What an engine that tells the `top` likeliest tokens has read of an answer."""
    before = [0, *answer[:-1]]
    tables = [[logs(table[token], top) for token in before] for table in (TARGET, DRAFT)]
    return expectations(answer, tables[0], tables[1], temperature, 100)


def forced(expectations: Expectations, prompt: int = 0, temperature: float = 0.0, task: str = "code") -> ForcedAnswer:
    return ForcedAnswer(**expectations.model_dump(), task=task, prompt_idx=prompt, temperature=temperature, tokens=64)


def judged(*answers: ForcedAnswer, costs: DraftCosts | None = None) -> judge.DraftDiagnosis:
    draft = DiagnosedDraft(name="d", arms=["a"], kind="part", exact=True, answers=list(answers))
    draft.costs = costs or DraftCosts()
    result = Diagnosis.model_construct(settings=SETTINGS, drafts=[draft], not_reached={})
    (diagnosis,) = judge_diagnosis(result)
    return diagnosis


@pytest.mark.parametrize("temperature", [0.6, 1.0])
def test_all_token_acceptance_of_samples_is_the_sum_over_all_drafts(temperature: float) -> None:
    rng = np.random.default_rng(5)
    by_depth = windows(read(sampled_answer(20_000, temperature, rng), temperature))
    p, q = sharpened(TARGET, temperature), sharpened(DRAFT, temperature)
    overlap = np.minimum(p, q)
    share = np.linalg.matrix_power(p, 200)[0]
    for depth in (1, 2, 4):
        exact = float((share @ np.linalg.matrix_power(overlap, depth)).sum())
        assert read_to(depth, by_depth)[:, -1].mean() == pytest.approx(exact, rel=0.06)


def test_accepted_share_of_samples_is_the_sum_over_all_drafts() -> None:
    p, q = sharpened(TARGET, 0.6), sharpened(DRAFT, 0.6)
    overlap, start = np.minimum(p, q), np.linalg.matrix_power(p, 200)[0]
    exact = [float((start @ np.linalg.matrix_power(overlap, depth)).sum()) for depth in (1, 2, 3, 4)]
    shares = read_to(4, windows(read(sampled_answer(20_000, 0.6, np.random.default_rng(11)), 0.6))).mean(axis=1)
    assert shares.mean() == pytest.approx(np.mean(exact), rel=0.05)


def test_rounds_that_are_played_out_accept_as_often() -> None:
    """Rejection sampling, token by token, from the places of an answer: no formula is used."""
    rng = np.random.default_rng(6)
    p, q = sharpened(TARGET, 0.6), sharpened(DRAFT, 0.6)
    answer = sampled_answer(6_000, 0.6, rng)
    alive = {1: 0, 2: 0, 4: 0}
    for start in answer:
        token, depth = start, 0
        while depth < 4:
            drafted = int(rng.choice(VOCABULARY, p=q[token]))
            if rng.random() * q[token, drafted] >= p[token, drafted]:
                break
            token, depth = drafted, depth + 1
            if depth in alive:
                alive[depth] += 1
    by_depth = windows(read(answer, 0.6))
    for depth, count in alive.items():
        assert read_to(depth, by_depth)[:, -1].mean() == pytest.approx(count / len(answer), abs=0.02)


def test_the_accepted_share_ends_with_the_first_rejection() -> None:
    rows = [[1.0, 1.0, 0.0, 1.0], [0.0, 1.0, 1.0, 1.0], [1.0, 1.0]]
    result = Expectations(starts=[1, 2, 3], overlap=rows, accept=rows)
    assert read_to(4, windows(result)).mean(axis=1).tolist() == [0.5, 0.0]
    assert read_to(2, windows(result)).mean(axis=1).tolist() == [1.0, 0.0, 1.0]


def test_greedy_windows_are_matches_in_a_row() -> None:
    matches = [1, 1, 0, 1, 1, 1, 1]
    rows = [[float(match)] for match in matches]
    by_depth = windows(Expectations(starts=list(range(1, 8)), overlap=rows, accept=rows))
    assert read_to(2, by_depth)[:, -1].tolist() == [1, 0, 0, 1, 1, 1]
    assert read_to(4, by_depth)[:, -1].tolist() == [0, 0, 0, 1]
    assert not len(read_to(8, by_depth))


def test_a_part_of_the_target_is_read_row_by_row() -> None:
    row = Expectations(starts=[1, 5], overlap=[[1.0, 1.0, 0.5], [0.5]], accept=[[1.0, 0.5, 1.0], [1.0]])
    by_depth = windows(row)
    assert read_to(1, by_depth)[:, -1].tolist() == [1.0, 0.5]
    assert read_to(2, by_depth)[:, -1].tolist() == [1.0]
    assert read_to(3, by_depth)[:, -1].tolist() == [1.0 * 0.5 * 0.5]


def test_a_partly_reported_distance_lies_within_its_bounds() -> None:
    rng = np.random.default_rng(8)
    for _ in range(200):
        p, q = rng.dirichlet(np.full(40, 0.3), 2)
        p, q = np.maximum(p, 1e-9), np.maximum(q, 1e-9)
        likeliest = np.argsort(-p)[:10]
        exact = (np.abs(p - q)[likeliest].sum() + abs(p[likeliest].sum() - q[likeliest].sum())) / 2
        lower, upper = distances(logs(p, 10), logs(q, 10), 10)
        assert lower - 1e-9 <= exact <= upper + 1e-9
        assert distances(logs(p, 10), logs(q, 40), 10) == pytest.approx((exact, exact), abs=1e-6)


def test_what_lies_beyond_the_reported_tokens_is_bounded() -> None:
    rng = np.random.default_rng(9)
    for _ in range(100):
        p = np.maximum(rng.dirichlet(np.full(60, 0.2)), 1e-12)
        p /= p.sum()
        reported, beyond = at_temperature(logs(p, 12), 0.6)
        exact = p ** (1 / 0.6) / (p ** (1 / 0.6)).sum()
        missing = 1 - sum(exact[token] for token in reported)
        assert missing <= beyond + 1e-12
        assert all(reported[token] >= exact[token] - 1e-12 for token in reported)


def test_engines_that_tell_fewer_tokens_never_make_a_draft_look_better() -> None:
    answer = sampled_answer(400, 0.6, np.random.default_rng(10))
    all_tokens, cut = read(answer, 0.6), read(answer, 0.6, top=3)
    assert np.mean(cut.overlap) <= np.mean(all_tokens.overlap) + cut.truncated
    assert 0 < cut.truncated < 0.2
    assert all_tokens.truncated == pytest.approx(0, abs=1e-9)


def test_the_prediction_takes_the_acceptance_per_token() -> None:
    rows = [[1.0], [1.0], [1.0], [0.0]] * 10
    answer = forced(Expectations(starts=list(range(1, 41)), overlap=rows, accept=rows))
    costs = DraftCosts(target_step_s=0.1, draft_step_s=0.02, target_flops=10.0, draft_flops=1.0)
    result = judged(answer, costs=costs)
    assert result.acceptance[0].per_token.value == 0.75
    assert result.acceptance[0].all_tokens[4].value == 0.0
    by_depth = {row.depth: row for row in result.payoff}
    assert by_depth[4].tokens == pytest.approx(expected_tokens(0.75, 4))
    assert by_depth[4].speedup_measured == pytest.approx(expected_tokens(0.75, 4) / 1.8)
    assert by_depth[4].speedup_flops == pytest.approx(expected_tokens(0.75, 4) / 1.4)
    assert result.best is not None
    assert result.best.speedup_measured == max(row.speedup_measured or 0 for row in result.payoff)


def test_intervals_are_over_prompts() -> None:
    """Places of one prompt hang together: twenty prompts that are all or nothing are twenty observations."""
    prompts = []
    for prompt in range(20):
        row = [[float(prompt % 2)]] * 50
        prompts.append(forced(Expectations(starts=list(range(1, 51)), overlap=row, accept=row), prompt))
    per_token = judged(*prompts).acceptance[0].per_token
    assert per_token.interval is not None
    assert per_token.value == 0.5
    assert per_token.interval.high - per_token.interval.low == pytest.approx(2 * 1.96 * 0.5 / math.sqrt(20), rel=0.1)
    assert judged(prompts[0]).acceptance[0].per_token.interval is None


def test_tasks_stand_apart() -> None:
    rows = [[1.0]] * 10
    none = [[0.0]] * 10
    starts = list(range(1, 11))
    result = judged(
        forced(Expectations(starts=starts, overlap=rows, accept=rows), task="code"),
        forced(Expectations(starts=starts, overlap=none, accept=none), task="chat"),
    )
    assert {row.task: row.per_token.value for row in result.acceptance} == {"all": 0.5, "code": 1.0, "chat": 0.0}


@pytest.mark.parametrize(
    ("ratio", "verdict"),
    [(1.2, "viable"), (4.99, "viable"), (5.0, "between"), (20.0, "between"), (20.1, "not viable"), (None, None)],
)
def test_the_limits_of_the_ablation_study(ratio: float | None, verdict: str | None) -> None:
    assert verdict_of(ratio) == verdict


def test_perplexity_is_of_all_tokens_together() -> None:
    answers = []
    for prompt, (target_loss, draft_loss, scored) in enumerate([(10.0, 30.0, 10), (5.0, 45.0, 20)]):
        answer = forced(Expectations(starts=[1], overlap=[[1.0]], accept=[[1.0]]), prompt)
        losses = {"loss_target": target_loss, "loss_draft": draft_loss, "scored": scored}
        answers.append(answer.model_copy(update=losses))
    result = judged(*answers)
    assert result.perplexity == pytest.approx(math.exp(15 / 30))
    assert result.perplexity_ratio == pytest.approx(math.exp(60 / 30))
    assert result.perplexity_verdict is None


def test_the_label_is_by_a_corpus_alone() -> None:
    without_corpus, with_corpus = (
        forced(Expectations(starts=starts, overlap=rows, accept=rows)).model_copy(
            update={"loss_target": 10.0, "loss_draft": removed, "scored": 10}
        )
        for starts, rows, removed in (([1], [[1.0]], 11.0), ([], [], 30.0))
    )
    result = judged(without_corpus, with_corpus)
    assert result.perplexity_ratio == pytest.approx(math.exp(2))
    assert result.perplexity_verdict == "between"
    assert [row.starts for row in result.acceptance] == [1, 1]


def test_a_check_costs_what_was_timed_and_beyond_that_what_a_line_says() -> None:
    costs = DraftCosts(target_step_s=2.0, draft_step_s=1.0, checks_s={2: 2.2, 3: 2.1, 5: 3.0, 9: 5.0})
    answers = forced(Expectations(starts=[1], overlap=[[0.0]], accept=[[0.0]]))
    payoff = {row.depth: row for row in judged(answers, costs=costs).payoff}
    assert [payoff[depth].check for depth in (1, 2, 4, 6, 8, 16)] == pytest.approx([1.1, 1.1, 1.5, 2.0, 2.5, 4.5])
    assert payoff[4].speedup_measured == pytest.approx(1 / (1.5 + 4 * 0.5))
    untimed = costs.model_copy(update={"checks_s": {}})
    assert judged(answers, costs=untimed).payoff[3].speedup_measured == pytest.approx(1 / (1 + 4 * 0.5))


def test_nothing_read_is_nothing_concluded() -> None:
    result = judged()
    assert (result.acceptance, result.payoff, result.best, result.cost, result.perplexity_ratio) == (
        [],
        [],
        None,
        None,
        None,
    )
