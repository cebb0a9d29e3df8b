"""The target alone, scoring prefixes: vLLM returns logprobs.

vLLM keeps no prefix from one request to the next, so nothing can be read on in a batch of chosen width. What it can do
is decode an answer again token by token, which shows the target's own logprobs at each place of it, and read a whole
prefix at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from benchctl.engines.base import Rendered, Scores
from benchctl.engines.common.http import HttpClient
from benchctl.engines.common.stream import protocol_error
from benchctl.engines.vllm.command import MODEL_NAME
from benchctl.engines.vllm.server import scoring_body
from benchctl.prompts.suite import Prompt

_FIRST_STRETCH = 64
"""Tokens that are decoded ahead, the first time."""
_FEW = 100
"""More logprobs than these are requested at single positions, where decoding ahead would only cost."""
_MARK = "token_id:"


class Target(Protocol):
    """A vLLM that was started to be scored, or an endpoint that runs already."""

    @property
    def http(self) -> HttpClient: ...  # noqa: D102

    def render(self, prompt: Prompt) -> Rendered: ...  # noqa: D102

    def log_tail(self, lines: int = 20) -> tuple[str, ...]: ...  # noqa: D102

    def stop(self) -> int | None: ...  # noqa: D102


class VllmScorer:
    """A vLLM that scores; see `benchctl.engines.base.Scorer`."""

    in_batches = False

    def __init__(
        self,
        server: Target,
        command: Sequence[str],
        *,
        context: int,
        vocabulary: int,
        timeout_s: float,
        model: str = MODEL_NAME,
    ) -> None:
        """`context`, `vocabulary`: of the target, in tokens; `timeout_s`: of a request; `model`: its served name."""
        self._model = model
        self._server = server
        self._command = tuple(command)
        self._context = context
        self._vocabulary = vocabulary
        self._timeout_s = timeout_s
        self._prompt: tuple[int, ...] = ()
        self._decoded: dict[int, list[tuple[int, Scores]]] = {}

    @property
    def command(self) -> tuple[str, ...]:
        """The command line that runs."""
        return self._command

    def render(self, prompt: Prompt) -> Rendered:
        """Apply the chat template and tokenize."""
        return self._server.render(prompt)

    def score_answer(self, prompt: Sequence[int], answer: Sequence[int], top: int) -> list[Scores]:
        """Read prompt and answer at once: vLLM returns the logprobs of prompt tokens, and the answer is sent as part of
        the prompt."""
        body = self._body([*prompt, *answer], tokens=1, top=1) | {"prompt_logprobs": min(top, self._vocabulary)}
        reply = self._server.http.post("/v1/completions", body, timeout_s=self._timeout_s)
        found = _prompt_scores(reply, len(prompt) + len(answer))[len(prompt) :]
        if len(found) != len(answer):
            raise protocol_error("The engine returned no probabilities of prompt tokens.")
        return found

    def read_prompt(self, prompt: Sequence[int], top: int) -> Scores:
        """Read a prompt; the positions of its answer are then read from there."""
        self._prompt, self._decoded = tuple(prompt), {}
        return self._place(0, top)[1]

    def read_on(self, prefix: Sequence[int], top: int) -> Scores:
        """Read the last token of `prefix` alone, where greedy decoding of the target gives it; else all of it at
        once."""
        start = len(self._prompt)
        answer = tuple(prefix[start:])
        if tuple(prefix[:start]) == self._prompt and len(prefix) < self._context:
            scores = self._place(len(answer), top)[1]
            if tuple(token for token, _ in self._decoded[top][: len(answer)]) == answer:
                return scores
        return self.read_whole(prefix, top)

    def read_whole(self, prefix: Sequence[int], top: int) -> Scores:
        """Read all of `prefix` at once."""
        ((_, scores),) = self._decode(prefix, 1, top)
        return scores

    def log_tail(self, lines: int = 20) -> tuple[str, ...]:
        """The engine's last log lines."""
        return self._server.log_tail(lines)

    def stop(self) -> int | None:
        """End the server."""
        return self._server.stop()

    def _place(self, place: int, top: int) -> tuple[int, Scores]:
        """Return the target's own token at a position of its answer, and its distribution there."""
        known = self._decoded.get(top, [])
        if place >= len(known):
            ahead = max(_FIRST_STRETCH, 2 * place) if top <= _FEW else place + 1
            tokens = min(ahead, self._context - len(self._prompt))
            self._decoded[top] = known = [
                (token, Scores(scores.logprobs, evaluated=1 if number else len(self._prompt)))
                for number, (token, scores) in enumerate(self._decode(self._prompt, tokens, top))
            ]
        return known[place]

    def _body(self, prompt: Sequence[int], *, tokens: int, top: int) -> dict[str, Any]:
        return scoring_body(prompt, tokens=tokens, top=top) | {"model": self._model}

    def _decode(self, prompt: Sequence[int], tokens: int, top: int) -> list[tuple[int, Scores]]:
        body = self._body(prompt, tokens=tokens, top=min(top, self._vocabulary))
        answer = self._server.http.post("/v1/completions", body, timeout_s=self._timeout_s)
        found = _scores(answer, len(prompt))
        if len(found) != tokens:
            raise protocol_error("The engine returned no probabilities of the next token.")
        return found


def _scores(answer: Mapping[str, Any], evaluated: int) -> list[tuple[int, Scores]]:
    """Read (token, likeliest tokens) of every position; empty where anything in it is malformed."""
    found = []
    try:
        (choice,) = answer["choices"]
        for token, place in zip(choice["token_ids"], choice["logprobs"]["top_logprobs"], strict=True):
            pairs = ((int(name.removeprefix(_MARK)), float(value)) for name, value in place.items())
            likeliest = dict(sorted(pairs, key=lambda pair: -pair[1]))
            if not likeliest or not all(map(math.isfinite, likeliest.values())):
                return []
            found.append((int(token), Scores(likeliest, evaluated)))
    except (KeyError, TypeError, ValueError):
        return []
    return found


def _prompt_scores(answer: Mapping[str, Any], evaluated: int) -> list[Scores]:
    """Read the likeliest tokens at every position of a prompt but the first; empty where anything in it is
    malformed."""
    found = [Scores({}, evaluated)]
    try:
        (choice,) = answer["choices"]
        for place in choice["prompt_logprobs"][1:]:
            pairs = ((int(token), float(one["logprob"])) for token, one in place.items())
            likeliest = dict(sorted(pairs, key=lambda pair: -pair[1]))
            if len(likeliest) < 2 or not all(map(math.isfinite, likeliest.values())):
                return []
            found.append(Scores(likeliest, evaluated))
    except (KeyError, TypeError, ValueError, AttributeError):
        return []
    return found
