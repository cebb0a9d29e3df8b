"""The target alone, scoring prefixes by its own logits, in batches of any width."""

from __future__ import annotations

import math
from collections.abc import Sequence

from benchctl.engines.base import Rendered, Scores
from benchctl.engines.common.stream import protocol_error
from benchctl.engines.transformers.server import TransformersServer
from benchctl.prompts.suite import Prompt


class TransformersScorer:
    """A server that scores; see `benchctl.engines.base.Scorer`."""

    in_batches = True

    def __init__(
        self, server: TransformersServer, command: Sequence[str], *, timeout_s: float, ignore_eos: bool
    ) -> None:
        """`timeout_s`: how long one request may take; `ignore_eos`: never tell tokens that end an answer."""
        self._server = server
        self._command = tuple(command)
        self._timeout_s = timeout_s
        self._ignore_eos = ignore_eos

    @property
    def command(self) -> tuple[str, ...]:
        """The command line that runs."""
        return self._command

    def render(self, prompt: Prompt) -> Rendered:
        """Apply the chat template and tokenize."""
        return self._server.render(prompt)

    def read_prompt(self, prompt: Sequence[int], top: int) -> Scores:
        """Read a prompt in one pass, as a measured request does."""
        return self._score(prompt, top, kept=False)

    def read_on(self, prefix: Sequence[int], top: int) -> Scores:
        """Read the rest of `prefix` in one pass."""
        return self._score(prefix, top, kept=True)

    def read_whole(self, prefix: Sequence[int], top: int) -> Scores:
        """Read all of `prefix` in one pass."""
        return self._score(prefix, top, kept=False)

    def log_tail(self, lines: int = 20) -> tuple[str, ...]:
        """The engine's last log lines."""
        return self._server.log_tail(lines)

    def stop(self) -> int | None:
        """End the server."""
        return self._server.stop()

    def _score(self, prefix: Sequence[int], top: int, *, kept: bool) -> Scores:
        body = {"prefix": list(prefix), "top": top, "kept": kept, "ignore_eos": self._ignore_eos}
        answer = self._server.http.post("/score", body, timeout_s=self._timeout_s)
        try:
            logprobs = {int(token): float(value) for token, value in answer["logprobs"]}
            evaluated = int(answer["evaluated"])
        except (KeyError, TypeError, ValueError):
            logprobs, evaluated = {}, 0
        if not logprobs or not all(map(math.isfinite, logprobs.values())):
            raise protocol_error("The engine did not tell the probabilities of the next token.")
        return Scores(logprobs, evaluated)
