"""Scoring on an endpoint by OpenAI's own interface: `echo` with `logprobs` on `/completions`.

Tokens must be named by id: several tokens spell the same, and a text says nothing of the ids that a prompt would need.
Servers return ids where `return_tokens_as_token_ids` asks for them (vLLM's extension). Whether an endpoint does all of
this is tried once, before anything is scored.
https://platform.openai.com/docs/api-reference/completions
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchctl.engines.base import Rendered, Scores
from benchctl.engines.common.completion_stream import first_choice
from benchctl.engines.common.endpoint import EndpointTarget, as_sent
from benchctl.engines.common.score import RequestScorer, usable_scores
from benchctl.engines.common.wire import count_in, id_named, ids_in, logprob_of, protocol_error
from benchctl.errors import EngineError, UsageError
from benchctl.prompts.suite import Prompt

_MARK = "token_id:"
_LOGPROBS = (20, 5)
"""At a position: vLLM's default limit, then OpenAI's own."""
_TRIED_WITH = "The harbour lay quiet, and the boats were"


class EchoTarget(EndpointTarget):
    """An endpoint that returns log-probabilities of prompt tokens."""

    def complete(self, prompt: str | Sequence[int], tokens: int, logprobs: int, *, echo: bool) -> dict[str, Any]:
        """Return the answer to a greedy request. Raises EngineError."""
        body = {
            "model": self.model,
            "prompt": prompt if isinstance(prompt, str) else list(prompt),
            "max_tokens": tokens,
            "temperature": 0,
            "echo": echo,
            "logprobs": logprobs,
            "return_tokens_as_token_ids": True,
            "stream": False,
        }
        return self.http.post(f"{self.api}/completions", body, timeout_s=self.timeout_s)

    def render(self, prompt: Prompt) -> Rendered:
        """Return the tokens of a prompt as the endpoint reads it; the text is what is sent. Raises EngineError."""
        ids: list[int] | None
        if prompt.prompt is not None:
            ids = _prompt_ids(self.complete(prompt.prompt, 1, 1, echo=True))
        else:
            body = {
                "model": self.model,
                **self.chat(prompt),
                "max_tokens": 1,
                "temperature": 0,
                "return_token_ids": True,
                "stream": False,
            }
            answer = self.http.post(f"{self.api}/chat/completions", body, timeout_s=self.timeout_s)
            ids = ids_in(answer.get("prompt_token_ids"))
            if not ids:
                raise protocol_error("The endpoint returned no token ids for the prompt.")
        return Rendered(as_sent(prompt), tuple(ids))


class EchoScorer(RequestScorer):
    """An endpoint that scores; see `benchctl.engines.common.score`."""

    def __init__(self, target: EchoTarget, most_logprobs: int) -> None:
        super().__init__(target, (), context=target.context, most_logprobs=most_logprobs, timeout_s=target.timeout_s)
        self._target = target

    def _prefill(self, tokens: Sequence[int], start: int, top: int) -> list[Scores]:
        places = _places(self._target.complete(tokens, 1, top, echo=True), len(tokens), least=2)
        if [token for token, _ in places[: len(tokens)]] != list(tokens):
            return []
        return [scores for _, scores in places[start : len(tokens)] if scores is not None]

    def _decode(self, prompt: Sequence[int], tokens: int, top: int) -> list[tuple[int, Scores]]:
        answer = self._target.complete(prompt, tokens, top, echo=False)
        found = [(token, scores) for token, scores in _places(answer, len(prompt)) if scores is not None]
        ended = first_choice(answer).get("finish_reason") == "stop"
        return found if len(found) == tokens or (ended and len(found) < tokens) else []


def echo_scorer(target: EndpointTarget, where: str) -> EchoScorer:
    """Return a scorer on an endpoint, once a short prompt was scored, as its text and as its tokens.

    Raises UsageError where the endpoint does not do it, and EngineError where it is gone.
    """
    echoing, refusal = EchoTarget.of(target), ""
    for most in _LOGPROBS:
        scorer = EchoScorer(echoing, most)
        try:
            ids = _prompt_ids(echoing.complete(_TRIED_WITH, 1, most, echo=True))
            scorer.score_answer(ids[:1], ids[1:], most)
            scorer.read_prompt(ids, most)
        except EngineError as error:
            if error.kind not in ("http", "protocol"):
                raise
            refusal = error.what.rstrip(".")
        else:
            return scorer
    raise UsageError(
        f"the baseline's endpoint returns no log-probabilities of prompt tokens, by their ids ({refusal})",
        where=where,
        fix="/completions has to take `echo`, `logprobs`, `return_tokens_as_token_ids` and a prompt of token ids.",
    )


def _prompt_ids(answer: Mapping[str, Any]) -> list[int]:
    """Return the ids of the prompt of an answer to `echo`. Raises EngineError where they are not all there."""
    usage = answer.get("usage")
    count = count_in(usage.get("prompt_tokens"), 2**31) if isinstance(usage, dict) else None
    ids = [token for token, _ in _places(answer, count or 0)][:count]
    if not count or len(ids) < count:
        raise protocol_error("The endpoint returned no token ids for the prompt.")
    return ids


def _places(answer: Mapping[str, Any], evaluated: int, *, least: int = 1) -> list[tuple[int, Scores | None]]:
    """Read (token, scores before it) of every position; empty where anything in it is malformed.

    The scores are `None` before a prompt's first token, of which there are none.
    """
    found: list[tuple[int, Scores | None]] = []
    try:
        logprobs = first_choice(answer)["logprobs"]
        columns = (logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"])
        for name, own, likeliest in zip(*columns, strict=True):
            token = _id_of(name)
            if own is None and not found:
                found.append((token, None))
                continue
            others = {_id_of(other): logprob_of(value) for other, value in likeliest.items()}
            found.append((token, usable_scores(others | {token: logprob_of(own)}, evaluated, least=least)))
    except (KeyError, TypeError, ValueError, AttributeError):
        return []
    return found


def _id_of(name: str) -> int:
    if not name.startswith(_MARK):
        raise ValueError("a token without its id")
    return id_named(name.removeprefix(_MARK))
