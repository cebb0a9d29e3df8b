"""Replays made by hand: margins as a test wants them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from benchctl.analysis.output_results import Comparison, Losslessness
from benchctl.data.record import sha256_text, sha256_tokens
from benchctl.data.scores import Position, Reading, TargetScores

ANSWER = list(range(100, 111))
"""The answer of `tests.analysis.conftest.build_record`."""


def reading(shape: str, width: int, margin: float, token: int, rival: int) -> Reading:
    """One shape in which the target prefers `token` to `rival` by `margin`."""
    likeliest = token if margin >= 0 else rival
    return Reading.model_validate(
        {"shape": shape, "width": width, "likeliest": likeliest, "token": -0.5, "rival": -0.5 - margin}
    )


def sample(changes: Sequence[float], *, width: int = 5, margin: float = 3.0, start: int = 0) -> list[Position]:
    """Prefixes without a divergence, whose margin changes from `margin` by so much at `width`."""
    return [
        Position(
            task="code",
            prompt_idx=1,
            prompt_sha=None,
            index=start + number,
            agreed_sha=str(start + number),
            token=1,
            rival=2,
            fork=False,
            readings=[reading("decode", 1, margin, 1, 2), reading("verify", width, margin + change, 1, 2)],
        )
        for number, change in enumerate(changes)
    ]


def divergence_at(index: int, rival: int, readings: Iterable[tuple[str, int, float]], task: str = "code") -> Position:
    """A divergence from `ANSWER`, with (shape, width, margin) of every reading."""
    return Position(
        task=task,
        prompt_idx=0,
        prompt_sha=sha256_text(f"{task}/0"),
        index=index,
        agreed_sha=sha256_tokens(ANSWER[:index]),
        token=ANSWER[index],
        rival=rival,
        fork=True,
        readings=[reading(shape, width, margin, ANSWER[index], rival) for shape, width, margin in readings],
    )


def codes(judged: Losslessness | Comparison) -> list[str]:
    """The codes of the reasons of a verdict."""
    return [reason.code for reason in judged.reasons]


def scores(positions: Iterable[Position], run: str = "20261121-110500-3fa9") -> TargetScores:
    """Scores of the run of `tests.analysis.conftest.build_manifest`."""
    return TargetScores(
        run=run,
        benchctl_version="0",
        made_at="2026-11-21T12:00:00+00:00",
        baseline="baseline",
        command=["llama-server"],
        engine_sha256=None,
        model=[],
        positions=list(positions),
    )
