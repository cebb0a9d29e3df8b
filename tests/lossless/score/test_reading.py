"""One answer read in every planned way, on a target that exists only in the test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from benchctl.engines.base import Rendered
from benchctl.engines.scoring import Scores
from benchctl.lossless.score.plan import AnswerToScore, DivergenceToScore, plan_prefixes
from benchctl.lossless.score.reading import TOP, TOP_AT_DIVERGENCE, read_answer
from benchctl.prompts.suite import Prompt

PROMPT = tuple(range(1000, 1020))
ANSWER = tuple(range(100, 140))
RIVAL = 7


@dataclass
class ToyScorer:
    """Prefers the answer's next token to `RIVAL` by 1 nat, less 0.1 for every further token in the last batch."""

    keeps: bool = True
    in_batches: bool = True
    batches: list[int] = field(default_factory=list)
    tops: dict[int, int] = field(default_factory=dict)
    evaluated_until: int = 0

    @property
    def command(self) -> tuple[str, ...]:
        return ("toy",)

    def render(self, prompt: Prompt) -> Rendered:
        return Rendered("", PROMPT)

    def read_prompt(self, prompt: Sequence[int], top: int) -> Scores:
        self.evaluated_until = 0
        return self._read(prompt, top)

    def read_on(self, prefix: Sequence[int], top: int) -> Scores:
        return self._read(prefix, top)

    def read_whole(self, prefix: Sequence[int], top: int) -> Scores:
        self.evaluated_until = 0
        return self._read(prefix, top)

    def log_tail(self, lines: int = 20) -> tuple[str, ...]:
        return ()

    def stop(self) -> int | None:
        return 0

    def _read(self, prefix: Sequence[int], top: int) -> Scores:
        evaluated = len(prefix) - self.evaluated_until if self.keeps else len(prefix)
        self.evaluated_until = len(prefix)
        self.batches.append(evaluated)
        index = len(prefix) - len(PROMPT)
        self.tops[index] = top
        token = ANSWER[index] if 0 <= index < len(ANSWER) else 0
        margin = 1.0 - 0.1 * (evaluated - 1) if index else 1.0
        logprobs = {token: -0.5, RIVAL: -0.5 - margin}
        return Scores(dict(sorted(logprobs.items(), key=lambda position: -position[1])), evaluated)


def plan_of(*divergences: DivergenceToScore) -> AnswerToScore:
    return AnswerToScore("code", 0, "sha", len(PROMPT), ANSWER, "", divergences)


def test_a_divergence_is_read_in_every_shape() -> None:
    scorer = ToyScorer()
    (plan,) = plan_prefixes([plan_of(DivergenceToScore(12, RIVAL, 5))])
    positions = read_answer(scorer, PROMPT, plan)
    (divergence,) = (position for position in positions if position.fork)
    margins = {(reading.shape, reading.width): round(reading.margin or 0, 6) for reading in divergence.readings}
    assert margins[("decode", 1)] == 1.0
    assert margins[("verify", 5)] == 0.6
    assert margins[("prefill", 32)] == round(1.0 - 3.1, 6)
    assert (divergence.index, divergence.token, divergence.rival, divergence.prompt_sha) == (12, 112, RIVAL, "sha")
    assert divergence.readings[-1].likeliest == RIVAL
    assert (scorer.tops[12], scorer.tops[11]) == (TOP_AT_DIVERGENCE, TOP)


def test_the_sample_has_the_targets_own_second_choice_and_both_widths() -> None:
    (plan,) = plan_prefixes([plan_of(DivergenceToScore(12, RIVAL, 5))])
    positions = read_answer(ToyScorer(), PROMPT, plan)
    sample = [position for position in positions if not position.fork]
    assert len(sample) > 20
    assert {one.rival for one in sample} == {RIVAL}
    changes = {
        round((one.readings[1].margin or 0) - (one.readings[0].margin or 0), 6)
        for one in sample
        if (one.readings[1].shape, one.readings[1].width) == ("verify", 5)
    }
    assert changes == {-0.4}


def test_a_divergence_near_the_beginning_is_read_in_one_narrower_batch_and_the_prompt_is_never_split() -> None:
    scorer = ToyScorer()
    (plan,) = plan_prefixes([plan_of(DivergenceToScore(3, RIVAL, 9))], sampled=[9])
    positions = read_answer(scorer, PROMPT, plan)
    assert [(reading.shape, reading.width) for reading in positions[0].readings] == [
        ("decode", 1),
        ("verify", 3),
        ("prefill", 23),
    ]
    assert len(PROMPT) - 6 not in scorer.batches


def test_a_round_longer_than_everything_before_it_reads_what_there_is() -> None:
    (plan,) = plan_prefixes([plan_of(DivergenceToScore(3, RIVAL, 65))], sampled=[65])
    positions = read_answer(ToyScorer(), PROMPT, plan)
    assert ("verify", 3) in {(reading.shape, reading.width) for reading in positions[0].readings}
    assert "verify" not in positions[0].absent


def test_an_engine_that_keeps_nothing_gives_one_shape_and_says_why() -> None:
    (plan,) = plan_prefixes([plan_of(DivergenceToScore(12, RIVAL, 5))])
    positions = read_answer(ToyScorer(keeps=False), PROMPT, plan)
    (divergence,) = (position for position in positions if position.fork)
    assert {reading.shape for reading in divergence.readings} == {"prefill"}
    assert set(divergence.absent) == {"decode", "verify"}
    assert "does not keep the cache" in divergence.absent["verify"]


def test_several_divergences_of_one_answer_are_each_read_once() -> None:
    divergences = (DivergenceToScore(12, RIVAL, 5), DivergenceToScore(12, 8, 5), DivergenceToScore(30, RIVAL, 9))
    (plan,) = plan_prefixes([plan_of(*divergences)], sampled=[5, 9])
    positions = read_answer(ToyScorer(), PROMPT, plan)
    assert [(position.index, position.rival) for position in positions] == [(12, RIVAL), (12, 8), (30, RIVAL)]
    unknown = positions[1].readings[0]
    assert (unknown.rival, unknown.rival_at_most) == (None, -1.5)  # not among those told: at least so far off
    assert unknown.margin == 1.0


def test_an_engine_that_cannot_read_in_batches_is_read_at_once_instead() -> None:
    scorer = ToyScorer(in_batches=False)
    divergence = DivergenceToScore(index=9, rival=RIVAL, width=5)
    (plan,) = plan_prefixes([AnswerToScore("code", 0, None, None, ANSWER, "", (divergence,))])
    positions = read_answer(scorer, PROMPT, plan)
    (diverging,) = [position for position in positions if position.fork]
    assert {reading.shape for reading in diverging.readings} == {"decode", "prefill"}
    assert "one token at a time" in diverging.absent["verify"]
    sampled = [position for position in positions if not position.fork]
    assert len(sampled) >= 30
    assert all({reading.shape for reading in position.readings} == {"decode", "prefill"} for position in sampled)
