"""One SGLang of one cell: rendering, answering, counting, attesting, stopping."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchctl.engines.base import Attestation, Completion, Ledger, Progress, Rendered
from benchctl.engines.common.answer_clock import protocol_error
from benchctl.engines.common.http import HttpClient
from benchctl.engines.common.launched_server import LaunchedServer
from benchctl.engines.common.process import EngineProcess
from benchctl.engines.sglang.attest import Observed, judge
from benchctl.engines.sglang.causes import launch_cause
from benchctl.engines.sglang.command import MODEL_NAME
from benchctl.engines.sglang.ledger import drafts_are_counted, make_ledger
from benchctl.engines.sglang.stream import GeneratedAnswer, read_generated
from benchctl.prompts.suite import Prompt
from benchctl.recipes.schema import EngineSpec, Sampling

_DYING_S = 8.0
"""A launcher whose worker has failed takes some seconds to kill the rest."""


@dataclass
class _Totals:
    """Sums over the answers of a server."""

    drafted: int | None = None
    rounds: int = 0
    accepted: int = 0
    tokens: int = 0
    longest: int = 0
    cached: int = 0

    def add(self, answer: GeneratedAnswer, ledger: Ledger) -> None:
        if ledger.drafted is not None:
            self.drafted = (self.drafted or 0) + ledger.drafted
        self.rounds += ledger.rounds or 0
        self.accepted += ledger.accepted or 0
        self.tokens += len(answer.ids)
        self.longest = max(self.longest, len(answer.ids))
        cached = answer.meta.get("cached_tokens")
        self.cached += cached if isinstance(cached, int) else 0


class SglangServer(LaunchedServer):
    """A healthy SGLang; see `benchctl.engines.base.Server`. Safe to use from several threads."""

    def __init__(
        self, process: EngineProcess, log_path: Path, url: str, spec: EngineSpec, asked: Mapping[str, str]
    ) -> None:
        """`asked`: the options of its command line, by name without dashes, underscores for them."""
        super().__init__(process, log_path, launch_cause, dying_s=_DYING_S)
        self._spec, self._asked = spec, asked
        self._lock = threading.Lock()
        self._totals = _Totals()
        self._counted = False
        self.http = HttpClient(url, broken=self._broken_off)

    def render(self, prompt: Prompt) -> Rendered:
        """Apply the chat template (raw prompts stay as they are) and tokenize, special tokens included."""
        if prompt.prompt is not None:
            return Rendered(prompt.prompt, self._ids({"prompt": prompt.prompt}))
        ids = self._ids({"messages": [message.model_dump() for message in prompt.messages or ()]})
        body = {"model": MODEL_NAME, "tokens": list(ids), "skip_special_tokens": False}
        text = self.http.post("/detokenize", body).get("text")
        if not isinstance(text, str):
            raise protocol_error("The engine did not tell the prompt's text.")
        return Rendered(text, ids)

    def _ids(self, what: dict[str, Any]) -> tuple[int, ...]:
        return self._prompt_ids(self.http.post("/tokenize", {"model": MODEL_NAME, **what}))

    def complete(self, prompt: Rendered, sampling: Sampling, on_tokens: Progress | None = None) -> Completion:
        """Stream one answer and its ledger. Raises EngineError; leaves no request behind."""
        answer, e2e_s = self.http.stream(
            "/generate",
            generate_body(prompt.token_ids, sampling),
            read_generated,
            silence_s=self._spec.stall_timeout_s,
            timeout_s=self._spec.request_timeout_s,
            on_tokens=on_tokens,
        )
        ledger = make_ledger(answer.meta, counted=self._counted)
        with self._lock:
            self._totals.add(answer, ledger)
        return Completion(
            text=answer.text,
            token_ids=answer.ids,
            n_predicted=len(answer.ids),
            finish_reason=answer.finish_reason,
            prompt_tokens=answer.prompt_tokens,
            ttft_s=answer.ttft_s,
            decode_s=answer.decode_s,
            first_tokens=answer.first_tokens,
            e2e_s=e2e_s,
            engine_prompt_s=None,
            engine_decode_s=None,
            ledger=ledger,
        )

    def recover_token_ids(self, prompt: Rendered, sampling: Sampling, seen: Completion) -> tuple[int, ...] | None:
        """Return the ids, all of which the stream brought."""
        return seen.token_ids

    def attest(self, drafted: int | None) -> Attestation:
        """Judge the cell now; see `attest.py` for what counts as evidence."""
        told = self.http.get_json("/server_info")
        info = told if isinstance(told, dict) else {}
        self._counted = drafts_are_counted(info)
        with self._lock:
            totals = self._totals
            counts = [count for count in (drafted, totals.drafted) if count is not None]
            seen = Observed(
                asked=self._asked,
                info=info,
                drafted=max(counts, default=None),
                rounds=totals.rounds,
                accepted=totals.accepted,
                tokens=totals.tokens,
                longest=totals.longest,
                cached=totals.cached,
            )
        return judge(seen)

    def stop(self) -> int | None:
        """Close the connections first, then end the process."""
        self._stopping = True
        self.http.close()
        return self._process.stop()


def generate_body(token_ids: tuple[int, ...], sampling: Sampling) -> dict[str, Any]:
    """Return the JSON of one streamed `/generate` request; what the model's own settings would fill in is written."""
    return {
        "input_ids": list(token_ids),
        "sampling_params": {
            "temperature": sampling.temperature,
            "top_k": sampling.top_k or -1,
            "top_p": sampling.top_p,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "max_new_tokens": sampling.max_tokens,
            "ignore_eos": sampling.ignore_eos,
            "sampling_seed": sampling.seed,
        },
        "stream": True,
    }
