"""Judging a divergence by a replay on the target alone: a near-tie that its noise may have decided, or not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from benchctl.analysis.losslessness import (
    AUDIT_LEVEL,
    ArmAudit,
    ControlTest,
    FirstDivergence,
    NoiseFloor,
    Reason,
    ShapeMargin,
    because,
)
from benchctl.analysis.output_results import PromptClass
from benchctl.data.record import Record, sha256_tokens
from benchctl.data.scores import SCORES, Position, Reading, TargetScores, of_part
from benchctl.lossless.judge.noise import SMALL_MARGIN, Noise, noise_of
from benchctl.words.unscored import noise_method, unscored

if TYPE_CHECKING:
    from benchctl.data.store import RunData
    from benchctl.lossless.judge.replay import JudgedReplay

FEWEST = 20
FEWEST_CHANGES = 5
"""Below so many prefixes, of which fewer than so many changed, the noise is not estimated."""
FEWEST_TOKENS = 1_000
"""The floor of a shorter run is that of a run of so many tokens."""


NOT_REPLAYED = because("divergence-not-verified")


@dataclass(frozen=True)
class Evidence:
    """Readings of the target beside the records."""

    scores: TargetScores | None = None
    reason: Reason = NOT_REPLAYED
    """Why a divergence is not among them."""
    by_answer: Mapping[tuple[str, int], Reason] = field(default_factory=dict)
    """The same for single answers, by task and index."""
    audits: Mapping[str, ArmAudit] = field(default_factory=dict)
    """The audit of every arm that is not token-identical throughout."""
    replays: Mapping[str, JudgedReplay] = field(default_factory=dict)
    """What the replay of an arm's steps shows, of every arm that it was tried for."""
    controls: Mapping[str, ControlTest] = field(default_factory=dict)
    """The test against a control of every arm with answers that no score decides."""
    unscored: Reason | None = None
    """Why answers could not be scored; `None`: nothing has tried to."""
    tokens: int = 0
    """Of all arms' distinct answers together: so many places at which noise might be taken for a fault."""
    noise: dict[int, NoiseFloor] = field(default_factory=dict, compare=False)
    """By width, as far as it was requested."""

    def noise_at(self, width: int) -> NoiseFloor:
        """The noise at a verify width, worked out once."""
        if width not in self.noise:
            self.noise[width] = find_noise(self.scores, width, tokens=self.tokens)
        return self.noise[width]

    def position(self, baseline: Record, divergence: FirstDivergence) -> Position | None:
        """The replay at a divergence from this answer."""
        if self.scores is None or baseline.token_ids is None:
            return None
        agreed = sha256_tokens(baseline.token_ids[: divergence.index])
        prefix = (baseline.task, baseline.prompt_idx, baseline.prompt_sha, divergence.index, agreed)
        return self._divergences.get((*prefix, divergence.baseline_token, divergence.arm_token, True))

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
        return Evidence(reason=because("scores-of-another"), tokens=tokens)
    if scores.baseline == baseline:
        return Evidence(scores, tokens=tokens)
    of_this_baseline = {"baseline": baseline, "sampled": [], "positions": []}
    reason = because("other-baseline", baseline=scores.baseline)
    return Evidence(scores.model_copy(update=of_this_baseline), reason, tokens=tokens)


def changed_scores(run: RunData) -> Reason | None:
    """Return which stored scores of the target are not used because their file changed."""
    name = of_part(SCORES, run.part)
    changes = (change.rstrip(".") for change in run.integrity.scores if change.startswith(f"{name} "))
    message = next(changes, None) if run.scores is None else None
    return None if message is None else because("scores-changed", message=message)


def count_tokens(records: Iterable[Record], baseline: str) -> int:
    """Count the tokens of every distinct answer of every arm but the baseline."""
    distinct = {
        (record.label, record.task, record.prompt_idx, record.token_sha or record.content_sha): record.n_predicted
        for record in records
        if record.label != baseline and record.phase == "measure"
    }
    return sum(distinct.values())


def judge_divergence(
    divergence: FirstDivergence,
    baseline: Record,
    width: int | None,
    evidence: Evidence,
    *,
    invariant: str | None = None,
) -> tuple[PromptClass, Reason, FirstDivergence]:
    """Return the class of a divergence, the reason, and the divergence with its numbers.

    `width`: tokens that the arm verified in a round; 1 when it drafted nothing, and for a first token that the prompt's
    reading decided; `None` when that is not reported. `invariant`: the setting by which the engine promises the same
    numbers in any batch, so that there is no noise.
    """
    divergence = divergence.model_copy(update={"width": width})
    position = evidence.position(baseline, divergence)
    lacking = _lacking(divergence, width, position, evidence, (baseline.task, baseline.prompt_idx))
    if lacking is not None or position is None or width is None:
        return (
            "differs",
            _because("not-explained", divergence, lacking=unscored(lacking or evidence.reason)),
            divergence,
        )
    of_round = round_reading(position, width)
    readings = [reading for reading in position.readings if reading.shape != "verify" or reading is of_round]
    decoded = next((reading for reading in readings if reading.shape == "decode"), None)
    margins_read = [reading.margin for reading in readings if reading.margin is not None]
    margin = decoded.margin if decoded is not None and decoded.margin is not None else min(margins_read, default=None)
    noise = evidence.noise_at(width)
    verify = round_reading(position, width, by_prefill=noise.by_prefill)
    numbers = {
        "margin": margin,
        "margin_is_least": decoded is not None and decoded.rival is None and margin is not None,
        "noise_floor": noise.floor if width > 1 and invariant is None else 0.0,
        # A divergence may lie in the sample, too.
        "shapes": tuple(dict.fromkeys(_shape(reading, position) for reading in readings)),
        "shapes_absent": position.absent,
    }
    divergence = divergence.model_copy(update=numbers)
    if decoded is not None and is_tie(decoded, position):
        return "near-tie", _because("tie", divergence), divergence
    if decoded is not None and decoded.likeliest != position.token:
        likeliest = "arm" if decoded.likeliest == position.rival else "another"
        return "undetermined", _because("not-the-baselines", divergence, likeliest=likeliest), divergence
    if margin is None or divergence.noise_floor is None:
        lacking = because("no-margin") if margin is None else because("no-noise", method=noise.method)
        return "differs", _because("not-explained", divergence, lacking=unscored(lacking)), divergence
    chosen = invariant is None and verify is not None and verify.likeliest == position.rival
    near_tie = margin <= divergence.noise_floor or chosen
    because_of_noise = _because(
        "near-tie" if near_tie else "not-noise",
        divergence,
        margin=margin,
        margin_is_least=divergence.margin_is_least,
        width=width,
        by_prefill=noise.by_prefill,
        floor=noise.floor,
        method=noise.method,
        chosen=chosen,
        invariant=invariant,
    )
    return "near-tie" if near_tie else "violation", because_of_noise, divergence


def is_tie(reading: Reading, position: Position) -> bool:
    """Whether both tokens are the likeliest, to the last bit: greedy decoding may choose either."""
    either = reading.likeliest in (position.token, position.rival)
    return either and reading.token is not None and reading.token == reading.rival


def _because(code: str, divergence: FirstDivergence, **values: float | str | None) -> Reason:
    return because(code, unit=divergence.unit, index=divergence.index, **values)


def _lacking(
    divergence: FirstDivergence,
    width: int | None,
    position: Position | None,
    evidence: Evidence,
    answer: tuple[str, int],
) -> Reason | None:
    """Return what is missing to judge a divergence from an answer."""
    if divergence.unit != "token":
        return because("divergence-no-ids")
    if divergence.baseline_token is None or divergence.arm_token is None:
        return because("divergence-at-end")
    if width is None:
        return because("divergence-no-width")
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
    sizes = np.abs(noise.losses)
    return NoiseFloor(
        width=width,
        floor=floor,
        method=noise_method(method, by_prefill=by_prefill),
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
    """Return the losses at the prefixes of the sample, which were chosen whether anything diverged there or not."""
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
    divergences = [position for position in scores.positions if position.fork]
    return bool(divergences) and all("verify" in position.absent for position in divergences)


def margins(position: Position, width: int, *, by_prefill: bool = False) -> tuple[float, float] | None:
    """Return the margin token by token, and that at `width`; `None` where either is not known.

    `by_prefill`: that of reading everything at once in place of that at `width`.
    """
    decoded = next((reading for reading in position.readings if reading.shape == "decode"), None)
    of_round = round_reading(position, width, by_prefill=by_prefill)
    if decoded is None or of_round is None or None in (decoded.rival, of_round.rival):
        return None
    margin, margin_of_round = decoded.margin, of_round.margin
    return None if margin is None or margin_of_round is None else (margin, margin_of_round)


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


def _floor(noise: Noise, changed: int, tokens: int) -> tuple[float | None, Reason]:
    """Return the floor, and how it was made."""
    count = len(noise.margins)
    if count < FEWEST and changed < FEWEST_CHANGES:
        return None, because("few", count=count, needed=FEWEST)
    if not changed:
        return 0.0, because("unchanged", count=count)
    small = len(noise.small.margins)
    margin = SMALL_MARGIN if small < count else None
    runs = round(2 / AUDIT_LEVEL)
    method = because("quantile", runs=runs, tokens=tokens, small=small, margin=margin, count=count, changed=changed)
    return noise.floor_of(tokens, AUDIT_LEVEL / 2), method
