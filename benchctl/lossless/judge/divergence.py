"""Explaining a divergence by a replay on the target alone: a near-tie that its noise may have decided, or not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from benchctl.analysis.losslessness import AUDIT_LEVEL, ArmAudit, ControlTest, FirstDivergence, NoiseFloor, ShapeMargin
from benchctl.analysis.results import PromptClass
from benchctl.data.record import Record, sha256_tokens
from benchctl.data.scores import SCORES, Position, Reading, TargetScores, of_part
from benchctl.lossless.judge.noise import SMALL_MARGIN, Noise, noise_of

if TYPE_CHECKING:
    from benchctl.data.store import RunData

UNREPLAYED = "benchctl verify-lossless has not replayed it"

FEWEST = 20
FEWEST_CHANGES = 5
"""Below so many prefixes, of which fewer than so many changed, the noise is not estimated."""
FEWEST_TOKENS = 1_000
"""The floor of a shorter run is that of a run of so many tokens."""


@dataclass(frozen=True)
class Evidence:
    """Readings of the target beside the records."""

    scores: TargetScores | None = None
    reason: str = UNREPLAYED
    """Why a divergence is not among them, as the end of a sentence."""
    by_answer: Mapping[tuple[str, int], str] = field(default_factory=dict)
    """The same for single answers, by task and index."""
    audits: Mapping[str, ArmAudit] = field(default_factory=dict)
    """The audit of every arm that is not token-identical throughout."""
    controls: Mapping[str, ControlTest] = field(default_factory=dict)
    """The test against a control of every arm with answers that no score decides."""
    unscored: str | None = None
    """Why answers could not be scored, as the end of a sentence; `None`: nothing has tried to."""
    tokens: int = 0
    """Of all arms' distinct answers together: so many places at which noise might be taken for a fault."""
    noise: dict[int, NoiseFloor] = field(default_factory=dict, compare=False)
    """By width, as far as it was requested."""

    def noise_at(self, width: int) -> NoiseFloor:
        """The noise at a verify width, worked out once."""
        if width not in self.noise:
            self.noise[width] = find_noise(self.scores, width, tokens=self.tokens)
        return self.noise[width]

    def position(self, baseline: Record, fork: FirstDivergence) -> Position | None:
        """The replay at a divergence from this answer."""
        if self.scores is None or baseline.token_ids is None:
            return None
        agreed = sha256_tokens(baseline.token_ids[: fork.index])
        place = (baseline.task, baseline.prompt_idx, baseline.prompt_sha, fork.index, agreed)
        return self._divergences.get((*place, fork.baseline_token, fork.arm_token, True))

    @cached_property
    def _divergences(self) -> dict[tuple[object, ...], Position]:
        """The replayed divergences by their key: runs may have thousands."""
        return {position.key: position for position in self.scores.positions if position.fork} if self.scores else {}


def find_evidence(run: RunData, baseline: str) -> Evidence:
    """Return what was scored of a run, where it is of the run's own engine and model; divergences of that baseline."""
    scores, tokens = run.scores, count_tokens(run.records, baseline)
    if changed := changed_scores(run):
        return Evidence(reason=changed, tokens=tokens)
    if scores is None or run.manifest is None:
        return Evidence(tokens=tokens)
    if not scores.of(run.manifest):
        return Evidence(reason="what was replayed is of another run, engine or model", tokens=tokens)
    if scores.baseline == baseline:
        return Evidence(scores, tokens=tokens)
    own = {"baseline": baseline, "sampled": [], "decoded": [], "positions": []}
    reason = f"what was replayed is of another baseline, {scores.baseline}"
    return Evidence(scores.model_copy(update=own), reason, tokens=tokens)


def changed_scores(run: RunData) -> str | None:
    """Return which stored scores of the target are not used and why, as the end of a sentence."""
    name = of_part(SCORES, run.part)
    changes = (change.rstrip(".") for change in run.integrity.scores if change.startswith(f"{name} "))
    return next(changes, None) if run.scores is None else None


def count_tokens(records: Iterable[Record], baseline: str) -> int:
    """Count the tokens of every distinct answer of every arm but the baseline."""
    distinct = {
        (record.label, record.task, record.prompt_idx, record.token_sha or record.content_sha): record.n_predicted
        for record in records
        if record.label != baseline and record.phase == "measure"
    }
    return sum(distinct.values())


def judge_divergence(
    fork: FirstDivergence, baseline: Record, width: int | None, evidence: Evidence
) -> tuple[PromptClass, str, FirstDivergence]:
    """Return the class of a divergence, the reason in a sentence, and the divergence with its numbers.

    `width`: tokens that the arm verified in a round; 1 when it drafted nothing, and for a first token that the prompt's
    reading decided; `None` when that is not reported.
    """
    where = f"The answer differs from {fork.unit} {fork.index} on"
    fork = fork.model_copy(update={"width": width})
    position = evidence.position(baseline, fork)
    lack = _lack(fork, width, position, evidence, (baseline.task, baseline.prompt_idx))
    if lack is not None or position is None or width is None:
        return "differs", f"{where}; noise and a fault are both possible: {lack}.", fork
    of_round = round_reading(position, width)
    readings = [reading for reading in position.readings if reading.shape != "verify" or reading is of_round]
    own = next((reading for reading in readings if reading.shape == "decode"), None)
    known = [reading.margin for reading in readings if reading.margin is not None]
    margin = own.margin if own is not None and own.margin is not None else min(known, default=None)
    noise = evidence.noise_at(width)
    verify = round_reading(position, width, by_prefill=noise.by_prefill)
    bounded = own is not None and own.rival is None
    numbers = {
        "margin": margin,
        "margin_is_least": bounded and margin is not None,
        "noise_floor": noise.floor if width > 1 else 0.0,
        "shapes": tuple(
            dict.fromkeys(_shape(reading, position) for reading in readings)
        ),  # a divergence may lie in the sample, too
        "shapes_absent": position.absent,
    }
    fork = fork.model_copy(update=numbers)
    if own is not None and own.likeliest != position.token:
        choice = "the arm's token" if own.likeliest == position.rival else "a third token"
        explanation = (
            f"the target alone, token by token, chooses {choice} there: it does not reproduce the baseline's answer"
        )
        return "undetermined", f"{where}, but {explanation}.", fork
    if margin is None or fork.noise_floor is None:
        lack = f"the noise is not known ({noise.method})" if margin is not None else "the margin could not be measured"
        return "differs", f"{where}; noise and a fault are both possible: {lack}.", fork
    prefers = f"the target alone prefers its own token by {'at least ' if bounded else ''}{_nats(margin)} nats there"
    moves = _moves(noise, width)
    chosen = verify is not None and verify.likeliest == position.rival
    itself = f" Reading {_much(noise, width)} at once, the target alone chooses the arm's token." if chosen else ""
    if margin <= fork.noise_floor or chosen:
        return "near-tie", f"{where}, a near-tie, compatible with the target's noise: {prefers}; {moves}.{itself}", fork
    return "violation", f"{where} and numeric noise does not explain it: {prefers}; {moves}.", fork


def _lack(
    fork: FirstDivergence, width: int | None, position: Position | None, evidence: Evidence, answer: tuple[str, int]
) -> str | None:
    """Return what is missing for an explanation, as the end of a sentence."""
    if fork.unit != "token":
        return "without token ids it cannot be scored"
    if fork.baseline_token is None or fork.arm_token is None:
        return "one answer ends there without an end token, so there is nothing to score"
    if width is None:
        return "the arm's verify width is not reported"
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
        return "no draft had been verified before it, so that nothing was read at once"
    instead = f"reading {_much(noise, width)} at once instead of {'one' if not noise.by_prefill else 'token by token'}"
    if noise.floor == 0:
        return f"{instead} changes nothing ({noise.method})"
    return f"{instead} changes decisions at margins up to {_nats(noise.floor)} ({noise.method})"


def _much(noise: NoiseFloor, width: int) -> str:
    return "everything" if noise.by_prefill else f"{width} tokens"


def _nats(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}" if value >= 0.001 or value == 0 else f"{value:.1g}"


def find_noise(scores: TargetScores | None, width: int, *, tokens: int = 0) -> NoiseFloor:
    """Return how margins change between a token at a time and `width` at once.

    The floor is the margin that the noise of all `tokens` of the run's arms passes at any place with a chance of half
    the audit's level: by the losses at small margins, where tokens flip, and with as many places near a tie as the
    sample has. The prefixes of whole answers are taken where there are more.

    Where the engine cannot read `width` tokens at once, the change is that of reading prompt and answer
    at once: the other extreme of widths, and another order of the same sums.
    """
    by_prefill = scores is not None and _no_width_was_read(scores)
    noise = _sampled(scores, width, by_prefill=by_prefill)
    of_answers = noise_of(scores, (width,))
    if scores is not None and len(of_answers.margins) > len(noise.margins):
        noise, by_prefill = of_answers, scores.shape == "prefill"
    count, changed = len(noise.margins), int((noise.losses != 0).sum())
    floor, method = _floor(noise, changed, max(tokens, FEWEST_TOKENS))
    if by_prefill:
        method += "; of reading everything at once, since this engine cannot read a given width"
    sizes = np.abs(noise.losses)
    return NoiseFloor(
        width=width,
        floor=floor,
        method=method,
        prefixes=count,
        changed=changed,
        median=float(np.median(sizes)) if count else None,
        largest=float(sizes.max()) if count else None,
        largest_at_small=float(np.abs(noise.small.losses).max()) if count else None,
        null_places=count,
        null_divergences=int((noise.losses > noise.margins).sum()),
        by_prefill=by_prefill,
    )


def _sampled(scores: TargetScores | None, width: int, *, by_prefill: bool) -> Noise:
    """Return the losses at the prefixes of the sample, which were chosen whether anything forked there or not."""
    numbers: dict[tuple[str, int], int] = {}
    rows = []
    for position in scores.positions if scores else ():
        pair = None if position.fork else margins(position, width, by_prefill=by_prefill)
        if pair is not None:
            answer = numbers.setdefault((position.task, position.prompt_idx), len(numbers))
            rows.append((pair[0], pair[0] - pair[1], answer))
    return Noise.of(rows)


def _no_width_was_read(scores: TargetScores) -> bool:
    """Whether the engine reported for every divergence that it cannot read on in batches, and did so nowhere."""
    if any(reading.shape == "verify" for position in scores.positions for reading in position.readings):
        return False
    forks = [position for position in scores.positions if position.fork]
    return bool(forks) and all("verify" in fork.absent for fork in forks)


def margins(position: Position, width: int, *, by_prefill: bool = False) -> tuple[float, float] | None:
    """Return the margin token by token, and that at `width`; `None` where either is not known.

    `by_prefill`: that of reading everything at once in place of that at `width`.
    """
    alone = next((reading for reading in position.readings if reading.shape == "decode"), None)
    of_round = round_reading(position, width, by_prefill=by_prefill)
    if alone is None or of_round is None or None in (alone.rival, of_round.rival):
        return None
    known = alone.margin, of_round.margin
    return None if known[0] is None or known[1] is None else (known[0], known[1])


def round_reading(position: Position, width: int, *, by_prefill: bool = False) -> Reading | None:
    """Return the reading that stands for a round of `width` tokens at a place.

    Before the `width`-th token of an answer, that is a batch of all tokens until there: filled up with the prompt's,
    as in earlier versions, it is a batch that no round reads.
    """
    if by_prefill:
        return next((reading for reading in position.readings if reading.shape == "prefill"), None)
    widths = {min(width, position.index)} if position.fork else {width, min(width, position.index)}
    return next(
        (reading for reading in position.readings if reading.shape == "verify" and reading.width in widths), None
    )


def _floor(noise: Noise, changed: int, tokens: int) -> tuple[float | None, str]:
    """Return the floor, and how it was made."""
    count = len(noise.margins)
    if count < FEWEST and changed < FEWEST_CHANGES:
        return None, f"only {count} prefixes were measured; {FEWEST} are needed"
    if not changed:
        return 0.0, f"none of {count} prefixes changed at all"
    floor = noise.floor_of(tokens, AUDIT_LEVEL / 2)
    small = len(noise.small.margins)
    where = f"margins up to {SMALL_MARGIN:g} nat" if small < count else "all margins"
    of_all = f"{small} of {count} prefixes, those at {where}," if small < count else f"{count} prefixes"
    return (
        floor,
        f"exceeded by noise in 1 of {2 / AUDIT_LEVEL:.0f} runs of {tokens:,} tokens; by {of_all} {changed} changed",
    )
