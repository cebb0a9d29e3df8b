"""The llama-server of ik_llama.cpp, where it differs from llama.cpp's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchctl.data.record import FinishReason
from benchctl.engines.base import Completion, Ledger, Progress, Rendered
from benchctl.engines.common.completion_stream import CompletionReader, completed
from benchctl.engines.common.drafts import read_drafts
from benchctl.engines.common.wire import ids_in, protocol_error
from benchctl.engines.llama_cpp.requests import check_echo
from benchctl.engines.llama_cpp.server import LlamaServer
from benchctl.errors import EngineError
from benchctl.models.gguf_header import read_header
from benchctl.models.vocabulary import end_tokens
from benchctl.recipes.schema import Sampling

_PATH = "/v1/completions"


class IkServer(LlamaServer):
    """What it was forked from had no token ids in its answers.

    `/completion` leaves its drafts out, so `/v1/completions` is asked, whose `timings` have them; but that calls every
    end a `stop`, and counts the tokens of a round past the end of the answer, too (`send_final_response` and
    `speculative_decoding_accept` in examples/server/server-context.cpp, PyPI's ik-llama-cpp-python 0.1.5). An answer is
    therefore asked for again, unstreamed and with the log-probability of each token, which comes with its id, wherever
    the pieces of text are fewer than the tokens that it counts: what it lists is counted, and its last token tells the
    end.
    """

    async def complete(self, prompt: Rendered, sampling: Sampling, on_tokens: Progress | None = None) -> Completion:
        """Stream an answer and its ledger. Raises EngineError; leaves no request behind."""
        body = self._body(prompt, sampling, stream=True)
        with self._tally.request():
            streamed = await self._stream(_PATH, body, CompletionReader(sampling.max_tokens), on_tokens)
            answer = streamed.answer
            counted = answer.completion_tokens
            if answer.prompt_tokens is None or counted is None:
                raise protocol_error("The engine does not report how many tokens it read and generated.")
            slots = None if self._overlapping else self.http.get_json("/slots")
            if isinstance(slots, list) and slots and isinstance(slots[0], dict):
                check_echo(body, slots[0])  # the settings of the last request
        ledger = self._ledger(answer.extra, answer.usage)
        hidden = counted != answer.first_tokens + answer.later_tokens
        ids = self._ids_again(prompt, sampling, answer.text) if hidden else None
        ended = hidden and counted < sampling.max_tokens
        if ids is not None:
            ended = ids[-1] in end_tokens(read_header(Path(self.model)))
        elif hidden and ledger.drafted:
            raise protocol_error(
                f"The engine counts {counted} tokens, those of a draft past the end of the answer among them, and does "
                "not list them: asked again it answered otherwise, or a token is a part of a character."
            )
        finish: FinishReason = "stop" if ended else "length"
        n_predicted = counted if ids is None else len(ids)
        self._tally.add(n_predicted, ledger)
        draft_s = self._draft_seconds(ledger)
        first = replace(answer, finish_reason=finish).first_of(n_predicted)
        timings = answer.extra.get("timings")
        timings = timings if isinstance(timings, dict) else {}
        return replace(
            completed(streamed, ledger),
            token_ids=ids,
            n_predicted=n_predicted,
            finish_reason=finish,
            first_tokens=first,
            least_after_first=answer.later_tokens if first is None else None,
            token_gap=None if ids else "the stream of this engine has no token ids",
            **self._engine_times(timings, n_predicted, draft_s),
        )

    def _ledger(self, extra: Mapping[str, Any], usage: Mapping[str, Any]) -> Ledger:
        """Return an answer's drafts; `timings` leaves them out where nothing was drafted."""
        drafts = read_drafts(extra, usage, silent_is_none=True)
        ledger = Ledger() if drafts is None else drafts.ledger
        return ledger if self._requested.types or ledger.drafted else Ledger()

    def recover_token_ids(self, prompt: Rendered, sampling: Sampling, completion: Completion) -> tuple[int, ...] | None:
        """Repeat the request; `None` unless it gives the same text in as many tokens."""
        if completion.token_ids is not None:
            return completion.token_ids
        ids = self._ids_again(prompt, sampling, completion.text)
        return ids if ids is not None and len(ids) == completion.n_predicted else None

    def ask(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to a request for logits, in llama.cpp's shape. Raises EngineError.

        No token is forced: a bias is added to the logits themselves here, before their probabilities are read.
        """
        sent = {key: value for key, value in body.items() if key not in ("logit_bias", "n_probs")}
        answer = self.http.post(
            _PATH, sent | {"logprobs": body.get("n_probs", 1)}, timeout_s=self._spec.request_timeout_s
        )
        try:
            (choice,) = answer["choices"]
            return {"completion_probabilities": choice["logprobs"]["content"], "timings": answer.get("timings")}
        except (KeyError, TypeError, ValueError):
            raise protocol_error(
                "The engine returned no probabilities of the next token: it has none for a token that is a part of a "
                "character."
            ) from None

    def _ids_again(self, prompt: Rendered, sampling: Sampling, text: str) -> tuple[int, ...] | None:
        """Return the ids of an answer of that text to the same request; `None` where another comes."""
        body = self._body(prompt, sampling, stream=False) | {"logprobs": 1}
        try:
            answer = self.http.post(_PATH, body, timeout_s=self._spec.request_timeout_s)
            (choice,) = answer["choices"]
            ids = ids_in([token["id"] for token in choice["logprobs"]["content"]])
            same = choice["text"].rstrip("\ufffd") == text.rstrip("\ufffd")
        except (EngineError, KeyError, TypeError, ValueError, AttributeError):
            return None  # it fails (HTTP 500) where a token is a part of a character
        return tuple(ids) if ids and same else None
