"""Does this model keep its state? Tried on every model when it is loaded, before it answers anything.

Verification reads several tokens in one pass where plain decoding reads them one by one. Some architectures in
transformers forget their recurrent state in such a pass, or count positions wrongly, and then answer differently
without an error. Such a model is refused for speculation.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch

from benchctl.engines.transformers.serving.decoder import Decoder
from benchctl.engines.transformers.serving.lanes import Lanes, items_of
from benchctl.engines.transformers.serving.state import State

TOLERANCE = 1e-3
"""In float32: the largest difference of a log-probability between one pass and single steps. Measured: below 1e-4."""
HALF_TOLERANCE = 0.05
"""In bfloat16 and float16: the mean difference that passes however little the recurrent state matters."""
_PREFIX, _WIDTH, _KEPT = 24, 6, 2


@dataclass(frozen=True)
class SelfTest:
    """What was found. Differences are of natural logarithms of probabilities."""

    difference: float
    """Between one pass over several tokens and single steps, and after a rollback: the largest."""
    mean_difference: float
    lost_difference: float | None
    """The mean difference where the recurrent state is forgotten on purpose; `None` without such a state."""
    lanes_in_batches: bool
    """Whether recurrent modules read two lanes of one token in a batch; where not, searches read lane by lane."""
    restored: bool
    """Whether a snapshot came back bit for bit."""
    passed: bool

    def to_json(self) -> dict[str, object]:
        """Return the fields as plain data."""
        return asdict(self)

    def problem(self) -> str | None:
        """Return why the model must not speculate."""
        if not self.restored:
            return "its state does not come back bit for bit after a draft"
        if self.passed:
            return None
        return (
            "several tokens read in one pass do not give what single steps give (log-probabilities differ by up to "
            f"{self.difference:.2g}): this architecture loses its state there in the installed transformers"
        )


def run_self_test(decoder: Decoder) -> SelfTest:
    """Read the same tokens one by one, at once, and after a rejected draft."""
    generator = torch.Generator().manual_seed(0)
    length = _PREFIX + _WIDTH + 1
    tokens = torch.randint(0, decoder.vocabulary, (length + _WIDTH,), generator=generator).tolist()
    wrong, tokens = tokens[length:], tokens[:length]
    prefix, following = tokens[:_PREFIX], tokens[_PREFIX:]
    with torch.inference_mode():
        expected = _one_by_one(_read(decoder, prefix), following)
        at_once = _read(decoder, prefix)
        before, known = at_once.snapshot(), [tensor.clone() for _, tensor in at_once.tensors()]
        at_once.verify([*following[:_KEPT], *wrong])
        at_once.restore(before)
        back = [tensor for _, tensor in at_once.tensors()]
        restored = len(back) == len(known) and all(map(torch.equal, back, known))
        passes = _logprobs(at_once.verify(following[:-1]))
        after = _one_by_one(at_once, following[-1:])
        at_once.restore(before)
        at_once.verify([*following[:_KEPT], *wrong])
        at_once.keep(before, _KEPT)
        kept = _one_by_one(at_once, following[_KEPT:])
        found = torch.cat([passes - expected[:-1], after - expected[-1:], kept - expected[_KEPT:]]).abs()
        lost = _lost(decoder, prefix, following, expected) if decoder.recurrent else None
        decoder.lanes_in_batches = _reads_batches(decoder, prefix, following[0])
    largest, mean = float(found.max()), float(found.mean())
    if decoder.model.dtype == torch.float32:
        passed = largest <= TOLERANCE
    else:
        passed = mean <= max(HALF_TOLERANCE, 0.5 * (lost or 0.0))
    return SelfTest(largest, mean, lost, decoder.lanes_in_batches, restored, passed and restored)


def _read(decoder: Decoder, prefix: list[int]) -> State:
    state = State(decoder)
    state.advance(prefix)
    return state


def _one_by_one(state: State, tokens: list[int]) -> torch.Tensor:
    return torch.cat([_logprobs(state.advance([token])) for token in tokens])


def _logprobs(logits: torch.Tensor) -> torch.Tensor:
    return logits.float().log_softmax(-1)


def _reads_batches(decoder: Decoder, prefix: list[int], token: int) -> bool:
    """Return whether a recurrent module reads two lanes of one token as it reads each alone."""
    layers = range(len(decoder.layers))
    item = next((item for number in layers for item in items_of(decoder, number) if item[1] == "recurrent"), None)
    if item is None:
        return True
    state = _read(decoder, prefix)
    lanes = Lanes(decoder, state, state.snapshot(), [token])
    pair = torch.cat([lanes.first, -lanes.first])
    alone = torch.cat([lanes.apply(item, lane, lane) for lane in pair.split(1)])
    try:
        batch = lanes.apply(item, pair, pair)
    except RuntimeError:  # the lanes were mixed up, and what came back has another shape
        return False
    return float((batch - alone).abs().mean()) <= HALF_TOLERANCE * float(alone.abs().mean())


def _lost(decoder: Decoder, prefix: list[int], following: list[int], expected: torch.Tensor) -> float:
    state = _read(decoder, prefix)
    for layer in state.cache.layers:
        for kept in (getattr(layer, "conv_states", {}), getattr(layer, "recurrent_states", {})):
            for tensor in kept.values():
                if tensor is not None:
                    tensor.zero_()
    return float((_one_by_one(state, following) - expected).abs().mean())
