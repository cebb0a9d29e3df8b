"""One SGLang of one cell: rendering, answering, counting, attesting, stopping."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchctl.engines.base import Attestation, Completion, Progress, Rendered
from benchctl.engines.common.access import Access
from benchctl.engines.common.launched_server import LaunchedServer, StartUp
from benchctl.engines.common.log import hide
from benchctl.engines.common.process import EngineProcess
from benchctl.engines.common.stream import protocol_error
from benchctl.engines.common.values import count_in
from benchctl.engines.sglang.attest import Observed, attest, drafts_are_counted, make_ledger
from benchctl.engines.sglang.causes import launch_cause
from benchctl.engines.sglang.command import MODEL_NAME
from benchctl.engines.sglang.stream import GenerateReader
from benchctl.prompts.suite import Prompt
from benchctl.recipes.engine_spec import EngineSpec
from benchctl.recipes.schema import Sampling

_DYING_S = 8.0
"""A launcher whose worker has failed takes some seconds to kill the rest."""


class SglangServer(LaunchedServer):
    """A healthy SGLang; see `benchctl.engines.base.Server`."""

    def __init__(
        self,
        process: EngineProcess,
        log_path: Path,
        access: Access,
        port: int,
        spec: EngineSpec,
        requested: Mapping[str, str],
    ) -> None:
        """`requested`: the options of its command line, by name without dashes, underscores for them."""
        super().__init__(process, log_path, access.url(port), spec, launch_cause, dying_s=_DYING_S, access=access)
        self._requested = requested
        self._key = access.key
        self._cached = 0
        self._counted = False

    def wait_until_healthy(self, start_up: StartUp, path: str = "/health") -> None:
        """See `LaunchedServer`; by then it has logged its settings, the key among them."""
        super().wait_until_healthy(start_up, path)
        hide(self._log_path, self._key)

    def stop(self) -> int | None:
        """See `LaunchedServer`."""
        status = super().stop()
        hide(self._log_path, self._key)
        return status

    def render(self, prompt: Prompt) -> Rendered:
        """Apply the chat template (raw prompts stay as they are) and tokenize, special tokens included."""
        if prompt.prompt is not None:
            return Rendered(prompt.prompt, self._ids({"prompt": prompt.prompt}))
        ids = self._ids({"messages": [message.model_dump() for message in prompt.messages or ()]})
        body = {"model": MODEL_NAME, "tokens": list(ids), "skip_special_tokens": False}
        text = self.http.post("/detokenize", body).get("text")
        if not isinstance(text, str):
            raise protocol_error("The engine did not return the prompt's text.")
        return Rendered(text, ids)

    def _ids(self, what: dict[str, Any]) -> tuple[int, ...]:
        return self._prompt_ids(self.http.post("/tokenize", {"model": MODEL_NAME, **what}))

    async def complete(self, prompt: Rendered, sampling: Sampling, on_tokens: Progress | None = None) -> Completion:
        """Stream one answer and its ledger. Raises EngineError; leaves no request behind."""
        with self._tally.request():
            body = generate_body(prompt.token_ids, sampling)
            streamed = await self._stream("/generate", body, GenerateReader(sampling.max_tokens), on_tokens)
        answer = streamed.answer
        ledger = make_ledger(answer.meta, counted=self._counted)
        self._tally.add(len(answer.ids), ledger)
        cached = answer.meta.get("cached_tokens")
        self._cached += count_in(cached, 2**31) or 0
        return Completion(
            text=answer.text,
            token_ids=answer.ids,
            n_predicted=len(answer.ids),
            finish_reason=answer.finish_reason,
            prompt_tokens=answer.prompt_tokens,
            ttft_s=answer.ttft_s,
            decode_s=answer.decode_s,
            first_tokens=answer.first_tokens,
            e2e_s=streamed.e2e_s,
            sent_at=streamed.sent_at,
            engine_prompt_s=None,
            engine_decode_s=None,
            ledger=ledger,
        )

    def attest(self, drafted: int | None) -> Attestation:
        """Assess the cell now; see `attest.py` for what counts as evidence."""
        reported = self.http.get_json("/server_info")
        info = reported if isinstance(reported, dict) else {}
        self._counted = drafts_are_counted(info)
        tally = self._tally
        return attest(
            Observed(
                requested=self._requested,
                info=info,
                drafted=tally.most_drafted(drafted),
                rounds=tally.rounds or 0,
                accepted=tally.accepted or 0,
                tokens=tally.tokens,
                longest=tally.longest,
                cached=self._cached,
            )
        )


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
