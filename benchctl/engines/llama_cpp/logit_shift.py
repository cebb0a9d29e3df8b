"""What a recipe's penalties and biases add to the logits that llama-server returns, which are before its samplers.

Only what is added: `repeat_penalty` multiplies logits, whose common offset log-probabilities do not have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from benchctl.engines.llama_cpp.stream import LAST_TOKENS
from benchctl.errors import EngineError
from benchctl.recipes.schema import Sampling

RISING = 200
"""Tokens that are read in addition where one of the less likely may rise to the top."""


class LogitShift:
    """Shifts the log-probabilities of likely tokens as the recipe's sampling does; equal up to a common offset."""

    def __init__(self, sampling: Sampling) -> None:
        self._bias = sampling.logit_bias
        self._presence, self._frequency = sampling.presence_penalty, sampling.frequency_penalty
        self._penalises = bool(self._presence or self._frequency)
        gains = [0.0, *self._bias.values()]
        most = -min(0.0, self._presence) - LAST_TOKENS * min(0.0, self._frequency)
        self._rise = max(gains) + most
        """How much a token may gain, at most."""

    @property
    def more(self) -> int:
        """How many tokens must be read in addition to know the likeliest: so many may fall, or rise from below."""
        falling = sum(value < 0 for value in self._bias.values()) + LAST_TOKENS * self._penalises
        return falling + RISING * (self._rise > 0)

    def apply(self, logprobs: Mapping[int, float], prefix: Sequence[int]) -> dict[int, float]:
        """Return the shifted values, likeliest first. Raises EngineError where an unread token may be among them."""
        if not self._bias and not self._penalises:
            return dict(logprobs)
        counts = Counter(prefix[-LAST_TOKENS:]) if self._penalises else Counter[int]()
        shifted = {
            token: value + self._bias.get(token, 0.0) - self._presence * (counts[token] > 0)
            - self._frequency * counts[token]
            for token, value in logprobs.items()
        }  # fmt: skip
        ordered = dict(sorted(shifted.items(), key=lambda pair: -pair[1]))
        second = list(ordered.values())[:2][-1]
        if self._rise and second < min(logprobs.values()) + self._rise:
            raise EngineError(
                "A token beyond those that were read may be the likeliest with this logit_bias or penalty.",
                kind="protocol",
                fix="Use smaller biases, or negative ones, which forbid tokens.",
            )
        return ordered
