"""Scoring prefixes on a vLLM, launched or running already, which is recognised by its metrics.

vLLM returns logprobs of generated tokens, and of prompt tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchctl.engines.base import Ledger, Scores
from benchctl.engines.common.drafts import step_ledger
from benchctl.engines.common.endpoint import (
    EndpointTarget,
    MetricsReading,
    Pages,
    Recognised,
    ServerFamily,
    TokenizingTarget,
    short_line,
)
from benchctl.engines.common.metrics import Counters, since
from benchctl.engines.common.score import RequestScorer, Target, usable_scores
from benchctl.engines.common.values import id_named, id_of, logprob_of
from benchctl.engines.vllm.command import MODEL_NAME
from benchctl.engines.vllm.server import scoring_body

_MARK = "token_id:"


class VllmScorer(RequestScorer):
    """A vLLM that scores; see `benchctl.engines.common.score`."""

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
        super().__init__(server, command, context=context, most_logprobs=vocabulary, timeout_s=timeout_s)
        self._model = model

    def _prefill(self, tokens: Sequence[int], start: int, top: int) -> list[Scores]:
        reply = self._post(tokens, 1, 1, {"prompt_logprobs": top})
        return _prompt_scores(reply, len(tokens))[start:]

    def _decode(self, prompt: Sequence[int], tokens: int, top: int) -> list[tuple[int, Scores]]:
        found = _scores(self._post(prompt, tokens, top, {}), len(prompt))
        return found if len(found) == tokens else []

    def _post(self, prompt: Sequence[int], tokens: int, top: int, more: Mapping[str, Any]) -> Mapping[str, Any]:
        body = scoring_body(prompt, tokens=tokens, top=top) | {"model": self._model, **more}
        return self._server.http.post("/v1/completions", body, timeout_s=self._timeout_s)


def _scores(answer: Mapping[str, Any], evaluated: int) -> list[tuple[int, Scores]]:
    """Read (token, likeliest tokens) of every position; empty where anything in it is malformed."""
    found = []
    try:
        (choice,) = answer["choices"]
        for token, place in zip(choice["token_ids"], choice["logprobs"]["top_logprobs"], strict=True):
            logprobs = {id_named(name.removeprefix(_MARK)): logprob_of(value) for name, value in place.items()}
            found.append((id_of(token), usable_scores(logprobs, evaluated)))
    except (KeyError, TypeError, ValueError, AttributeError):
        return []
    return found


def _prompt_scores(answer: Mapping[str, Any], evaluated: int) -> list[Scores]:
    """Read the likeliest tokens at every position of a prompt but the first; empty where anything is malformed."""
    found = [Scores({}, evaluated)]
    try:
        (choice,) = answer["choices"]
        for place in choice["prompt_logprobs"][1:]:
            logprobs = {
                id_named(token): logprob_of(entry_of_token["logprob"]) for token, entry_of_token in place.items()
            }
            found.append(usable_scores(logprobs, evaluated, least=2))
    except (KeyError, TypeError, ValueError, AttributeError):
        return []
    return found


MOST_LOGPROBS = 20
"""Log-probabilities at a position, unless the server was started with another `--max-logprobs`."""


def _metrics(pages: Pages) -> MetricsReading | None:
    return pages.metrics("vllm", "vllm:generation_tokens_total")


def _recognise(pages: Pages) -> Recognised | None:
    reading = _metrics(pages)
    if reading is None:
        return None
    version = short_line(pages.object("/version").get("version"))
    # vLLM has the counters of speculation exactly where speculation is on.
    speculates = reading.counters.rounds is not None or reading.counters.drafted is not None
    return Recognised(version, speculates, reading, (f"GET /version: vLLM {version}", str(reading)))


def _ledger(server: Recognised, extra: Mapping[str, Any], before: Counters, after: Counters) -> Ledger:
    del server
    metrics = extra.get("metrics")
    found = step_ledger(metrics) if isinstance(metrics, dict) else Ledger()
    if found != Ledger():
        return found
    return since(before, after).ledger()


def _scorer(target: EndpointTarget) -> VllmScorer:
    return VllmScorer(
        TokenizingTarget.of(target),
        (),
        context=target.context,
        vocabulary=MOST_LOGPROBS,
        timeout_s=target.timeout_s,
        model=target.model,
    )


FAMILY = ServerFamily(_recognise, _ledger, _metrics, _scorer)
