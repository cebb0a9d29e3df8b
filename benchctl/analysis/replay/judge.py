"""Judging a fork by what a replay on the target alone showed: a near-tie, which its noise may have tipped, or not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from benchctl.analysis.replay.noise import find_noise, together_at
from benchctl.analysis.results import ArmAudit, Fork, NoiseFloor, PromptClass, ShapeMargin
from benchctl.data.audits import Audit
from benchctl.data.record import Record, sha256_tokens
from benchctl.data.replays import Position, Reading, Replays

UNREPLAYED = "benchctl verify-lossless has not replayed it"


@dataclass(frozen=True)
class Evidence:
    """What is known beside the records."""

    replays: Replays | None = None
    reason: str = UNREPLAYED
    """Why a fork that is not in `replays` is not there; the end of a sentence."""
    by_answer: Mapping[tuple[str, int], str] = field(default_factory=dict)
    """The same for single answers, by task and index."""
    audit: Audit | None = None
    audits: Mapping[str, ArmAudit] = field(default_factory=dict)
    """What the audit found of every arm that is not token-identical throughout."""
    tokens: int = 0
    """Of all arms' distinct answers together: so many places at which noise might be taken for a fault."""
    noise: dict[int, NoiseFloor] = field(default_factory=dict, compare=False)
    """By width, as far as it was asked for."""

    def noise_at(self, width: int) -> NoiseFloor:
        """The noise at a verify width, worked out once."""
        if width not in self.noise:
            self.noise[width] = find_noise(self.replays, width, tokens=self.tokens, audit=self.audit)
        return self.noise[width]

    def position(self, baseline: Record, fork: Fork) -> Position | None:
        """What was replayed at a fork from this very answer."""
        if self.replays is None or baseline.token_ids is None:
            return None
        agreed = sha256_tokens(baseline.token_ids[: fork.index])
        place = (baseline.task, baseline.prompt_idx, baseline.prompt_sha, fork.index, agreed)
        return self._forks.get((*place, fork.baseline_token, fork.arm_token, True))

    @cached_property
    def _forks(self) -> dict[tuple[object, ...], Position]:
        """The replayed forks by their key: runs may have thousands."""
        return {one.key: one for one in self.replays.positions if one.fork} if self.replays else {}


def judge(fork: Fork, baseline: Record, width: int | None, evidence: Evidence) -> tuple[PromptClass, str, Fork]:
    """Return the class of a fork, the reason in a sentence, and the fork with its numbers.

    `width`: tokens that the arm verified in a round; 1 when it drafted nothing, `None` when that is not told.
    """
    where = f"The answer differs from {fork.unit} {fork.index} on"
    fork = fork.model_copy(update={"width": width})
    position = evidence.position(baseline, fork)
    lack = _lack(fork, width, position, evidence, (baseline.task, baseline.prompt_idx))
    if lack is not None or position is None or width is None:
        return "differs", f"{where}, neither excused nor condemned: {lack}.", fork
    together = together_at(position, width)
    readings = [one for one in position.readings if one.shape != "verify" or one is together]
    own = next((one for one in readings if one.shape == "decode"), None)
    known = [one.margin for one in readings if one.margin is not None]
    margin = own.margin if own is not None and own.margin is not None else min(known, default=None)
    noise = evidence.noise_at(width)
    verify = together_at(position, width, by_prefill=noise.by_prefill)
    bounded = own is not None and own.rival is None
    shown = {
        "margin": margin,
        "margin_is_least": bounded and margin is not None,
        "noise_floor": noise.floor if width > 1 else 0.0,
        "shapes": tuple(dict.fromkeys(_shape(one, position) for one in readings)),  # a fork may lie in the sample, too
        "shapes_absent": position.absent,
    }
    fork = fork.model_copy(update=shown)
    if own is not None and own.likeliest != position.token:
        said = "the arm's token" if own.likeliest == position.rival else "a third token"
        told = f"the target alone, token by token, says {said} there: the baseline's answer is not reproduced"
        return "undetermined", f"{where}, but {told}.", fork
    if margin is None or fork.noise_floor is None:
        lack = f"the noise is not known ({noise.method})" if margin is not None else "the margin could not be had"
        return "differs", f"{where}, neither excused nor condemned: {lack}.", fork
    prefers = f"the target alone prefers its own token by {'at least ' if bounded else ''}{_nats(margin)} nats there"
    moves = _moves(noise, width)
    tipped = verify is not None and verify.likeliest == position.rival
    itself = f" Reading {_much(noise, width)} at once, the target alone says the arm's token." if tipped else ""
    if margin <= fork.noise_floor or tipped:
        return "near-tie", f"{where}, a near-tie, compatible with the target's noise: {prefers}; {moves}.{itself}", fork
    return "violation", f"{where} and numeric noise does not explain it: {prefers}; {moves}.", fork


def _lack(
    fork: Fork, width: int | None, position: Position | None, evidence: Evidence, answer: tuple[str, int]
) -> str | None:
    """Say what is missing for a judgement, as the end of a sentence."""
    if fork.unit != "token":
        return "without token ids it cannot be scored"
    if fork.baseline_token is None or fork.arm_token is None:
        return "one answer ends there without a token for its end, so there is nothing to score"
    if width is None:
        return "nothing tells how many tokens the arm verified at once"
    if position is None:
        return evidence.by_answer.get(answer, evidence.reason)
    return None


def _shape(reading: Reading, position: Position) -> ShapeMargin:
    names = {position.token: "baseline", position.rival: "arm"}
    return ShapeMargin.model_validate(
        {
            "shape": reading.shape,
            "width": reading.width,
            "margin": reading.margin,
            "prefers": names.get(reading.likeliest, "another"),
        }
    )


def _moves(noise: NoiseFloor, width: int) -> str:
    if width == 1:
        return "the arm drafted nothing in this answer, so that nothing was read at once"
    instead = f"reading {_much(noise, width)} at once instead of {'one' if not noise.by_prefill else 'token by token'}"
    if noise.floor == 0:
        return f"{instead} changes nothing ({noise.method})"
    return f"{instead} tips margins up to {_nats(noise.floor)} ({noise.method})"


def _much(noise: NoiseFloor, width: int) -> str:
    return "everything" if noise.by_prefill else f"{width} tokens"


def _nats(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}" if value >= 0.001 or value == 0 else f"{value:.1g}"
