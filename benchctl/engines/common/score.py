"""Scoring on a server that keeps no prefix from a request to the next, by the log-probabilities that it returns.

Such a server cannot read on in a batch of chosen width. Two readings are possible: to decode an answer again token by
token, which gives the target's own log-probabilities at each position, and to read a whole sequence at once (prefill).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar

from benchctl.engines.base import Rendered, Renders
from benchctl.engines.common.http import HttpClient
from benchctl.engines.common.wire import protocol_error
from benchctl.engines.scoring import Scores
from benchctl.prompts.suite import Prompt

_FIRST_STRETCH = 64
"""How many tokens are decoded ahead the first time."""
_FEW = 100
"""Where more logprobs than these are requested, nothing is decoded ahead: single positions are requested."""


class Target(Renders, Protocol):
    """A server that was launched for scoring, or an endpoint that runs already."""

    http: HttpClient
    model: str
    """The name that it is served by."""
    context: int
    """The longest sequence, in tokens."""
    timeout_s: float

    def log_tail(self, lines: int = 20) -> tuple[str, ...]: ...  # noqa: D102

    def stop(self) -> int | None: ...  # noqa: D102


AnyServer = TypeVar("AnyServer", bound=Target)


class ServerScorer(Generic[AnyServer]):
    """The base of all scorers of a server; see `benchctl.engines.scoring.Scorer`."""

    def __init__(self, server: AnyServer, command: Sequence[str]) -> None:
        self._server = server
        self._command = tuple(command)

    @property
    def command(self) -> tuple[str, ...]:
        """The command line that runs."""
        return self._command

    def render(self, prompt: Prompt) -> Rendered:
        """Apply the chat template and tokenize."""
        return self._server.render(prompt)

    def log_tail(self, lines: int = 20) -> tuple[str, ...]:
        """The engine's last log lines."""
        return self._server.log_tail(lines)

    def stop(self) -> int | None:
        """End the server."""
        return self._server.stop()


class RequestScorer(ServerScorer[Target], ABC):
    """Scores by whole requests; see `benchctl.engines.scoring.Scorer` and `PrefillScorer`."""

    in_batches = False

    def __init__(self, server: Target, command: Sequence[str], most_logprobs: int) -> None:
        """`most_logprobs`: how many the server returns at a position."""
        super().__init__(server, command)
        self._most_logprobs = most_logprobs
        self._prompt: tuple[int, ...] = ()
        self._decoded: dict[int, list[tuple[int, Scores]]] = {}
        self._ended: set[int] = set()
        """The values of `top` for which the server ended its answer before the requested length."""

    def score_answer(self, prompt: Sequence[int], answer: Sequence[int], top: int) -> list[Scores]:
        """Read prompt and answer at once: the answer is sent as part of the prompt."""
        with _readable("prompt tokens"):
            scores = self._prefill([*prompt, *answer], len(prompt), min(top, self._most_logprobs))
            if len(scores) != len(answer):
                raise ValueError("a position is missing")
        return scores

    def read_prompt(self, prompt: Sequence[int], top: int) -> Scores:
        """Read a prompt; the positions of its answer are then read from there."""
        self._prompt, self._decoded, self._ended = tuple(prompt), {}, set()
        return self._places(1, top)[0][1]

    def read_on(self, prefix: Sequence[int], top: int) -> Scores:
        """Read the last token of `prefix` alone, where greedy decoding gives the others; else all of it at once."""
        start = len(self._prompt)
        answer = tuple(prefix[start:])
        if tuple(prefix[:start]) == self._prompt and len(prefix) < self._server.context:
            places = self._places(len(answer) + 1, top)
            if len(places) > len(answer) and tuple(token for token, _ in places[: len(answer)]) == answer:
                return places[len(answer)][1]
        return self.read_whole(prefix, top)

    def read_whole(self, prefix: Sequence[int], top: int) -> Scores:
        """Read all of `prefix` at once."""
        return self._generate(prefix, 1, top)[0][1]

    def _places(self, count: int, top: int) -> list[tuple[int, Scores]]:
        """Return the target's own tokens after the prompt, with its distribution at each; `count` unless it ends."""
        decoded = self._decoded.get(top, [])
        if count > len(decoded) and top not in self._ended:
            ahead = max(_FIRST_STRETCH, 2 * (count - 1)) if top <= _FEW else count
            tokens = min(ahead, self._server.context - len(self._prompt))
            self._decoded[top] = decoded = [
                (token, Scores(scores.logprobs, evaluated=1 if number else len(self._prompt)))
                for number, (token, scores) in enumerate(self._generate(self._prompt, tokens, top))
            ]
            if len(decoded) < tokens:
                self._ended.add(top)
        return decoded

    def _generate(self, prompt: Sequence[int], tokens: int, top: int) -> list[tuple[int, Scores]]:
        with _readable("the next token"):
            decoded = self._decode(prompt, tokens, min(top, self._most_logprobs))
            if not decoded:
                raise ValueError("a position is missing")
        return decoded

    @abstractmethod
    def _prefill(self, tokens: Sequence[int], start: int, top: int) -> list[Scores]:
        """Return the scores before each token from `start` on, by a single request; what is malformed may raise."""

    @abstractmethod
    def _decode(self, prompt: Sequence[int], tokens: int, top: int) -> list[tuple[int, Scores]]:
        """Return (token, scores) of a greedy answer of `tokens` tokens; fewer only where the server ended it."""


@contextmanager
def _readable(subject: str) -> Iterator[None]:
    """Raise EngineError for an answer that is not as its protocol says."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise protocol_error(f"The engine returned no probabilities of {subject}.") from error


def usable_scores(logprobs: Mapping[int, float], evaluated: int, *, min_tokens: int = 1) -> Scores:
    """Return the scores, likeliest first. Raises ValueError for fewer than `least` tokens."""
    likeliest = dict(sorted(logprobs.items(), key=lambda pair: -pair[1]))
    if len(likeliest) < min_tokens:
        raise ValueError("log-probabilities that cannot be used")
    return Scores(likeliest, evaluated)
