"""One server of one cell: rendering, answering, counting, attesting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchctl.engines.base import Attestation, Completion, Ledger, Progress, Rendered
from benchctl.engines.common.access import Access
from benchctl.engines.common.completion_stream import CompletionReader, StreamedAnswer
from benchctl.engines.common.launched_server import LaunchedServer, check_tools
from benchctl.engines.common.metrics import DEEPEST
from benchctl.engines.common.process import EngineProcess
from benchctl.engines.common.stream import protocol_error
from benchctl.engines.common.values import count_in, counts_in, seconds_in
from benchctl.engines.transformers.adapter import TransformersSpec
from benchctl.engines.transformers.attest import attest, contradiction
from benchctl.engines.transformers.causes import launch_cause
from benchctl.engines.transformers.command import requested_speculation, value_of
from benchctl.engines.transformers.methods import METHODS
from benchctl.prompts.suite import Prompt
from benchctl.recipes.schema import Sampling

_DYING_S = 5.0


class TransformersServer(LaunchedServer):
    """A healthy server of benchctl's own; see `benchctl.engines.base.Server`."""

    def __init__(
        self,
        process: EngineProcess,
        log_path: Path,
        access: Access,
        port: int,
        spec: TransformersSpec,
        argv: Sequence[str],
    ) -> None:
        """`argv`: the command line that runs."""
        super().__init__(process, log_path, access.url(port), spec, launch_cause, dying_s=_DYING_S, access=access)
        self._model = value_of(argv, "--model")
        self._dtype = value_of(argv, "--dtype")
        self._speculation = requested_speculation(argv)
        self._assisted = self._speculation is not None and METHODS[self._speculation["type"]].assisted
        self._contradiction: str | None = None

    def render(self, prompt: Prompt) -> Rendered:
        """Apply the chat template (raw prompts stay as they are) and tokenize."""
        if prompt.prompt is not None:
            body: dict[str, Any] = {"text": prompt.prompt}
        else:
            body = {"messages": [message.model_dump() for message in prompt.messages or ()], **prompt.request}
        answer = self.http.post("/render", body)
        text = answer.get("text")
        if not isinstance(text, str):
            raise protocol_error("The engine did not return the prompt's text.")
        check_tools(prompt, text)
        return Rendered(text, self._prompt_ids(answer))

    async def complete(self, prompt: Rendered, sampling: Sampling, on_tokens: Progress | None = None) -> Completion:
        """Stream one answer and its ledger. Raises EngineError; leaves no request behind."""
        body = {
            "prompt": list(prompt.token_ids),
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_k": sampling.top_k,
            "top_p": sampling.top_p,
            "seed": sampling.seed,
            "ignore_eos": sampling.ignore_eos,
        }
        with self._tally.request():
            streamed = await self._stream("/v1/completions", body, CompletionReader(sampling.max_tokens), on_tokens)
        answer = streamed.answer
        tokens = len(answer.ids)
        if answer.completion_tokens != tokens:
            raise protocol_error(f"{tokens} tokens were received, and the engine counts another number.")
        ledger, phases = _ledger(answer), _phases(answer)
        self._tally.add(tokens, ledger)
        loose = self._assisted or answer.finish_reason == "stop"
        self._contradiction = self._contradiction or contradiction(ledger, tokens, loose=loose)
        prompt_s = phases.get("prompt")
        return Completion(
            text=answer.text,
            token_ids=answer.ids,
            n_predicted=tokens,
            finish_reason=answer.finish_reason,
            prompt_tokens=answer.prompt_tokens or 0,
            ttft_s=answer.ttft_s,
            decode_s=answer.decode_s,
            e2e_s=streamed.e2e_s,
            sent_at=streamed.sent_at,
            engine_prompt_s=prompt_s,
            engine_decode_s=sum(phases.values()) - prompt_s if prompt_s is not None and tokens > 1 else None,
            ledger=ledger,
            phase_s=_decoding(phases),
            first_tokens=answer.first_tokens,
        )

    def attest(self, drafted: int | None) -> Attestation:
        """Assess the cell now; see `attest.py`."""
        info = self.http.get_json("/info")
        return attest(
            info if isinstance(info, dict) else {},
            self._tally,
            self._contradiction,
            model=self._model,
            dtype=self._dtype,
            speculation=self._speculation,
        )


_PHASES = {"draft": "draft", "verify": "verify", "plain": "plain", "rollback": "state", "search": "search"}


def _phases(answer: StreamedAnswer) -> dict[str, float]:
    """Return the seconds of each phase, as far as the server reports them."""
    reported = answer.extra.get("phases")
    each = reported.items() if isinstance(reported, dict) else ()
    return {name: float(seconds) for name, seconds in each if seconds_in(seconds) is not None}


def _decoding(phases: Mapping[str, float]) -> dict[str, float] | None:
    """Return the seconds of decoding by the record's phases; `None` where the server reports none."""
    found: dict[str, float] = {}
    for phase, seconds in phases.items():
        if phase != "prompt":
            name = _PHASES.get(phase, "other")
            found[name] = found.get(name, 0.0) + seconds
    return found or None


def _ledger(answer: StreamedAnswer) -> Ledger:
    reported = answer.extra.get("ledger")
    counts: Mapping[str, Any] = reported if isinstance(reported, dict) else {}
    totals = [count_in(counts.get(name), 2**53) for name in ("drafted", "accepted", "rounds", "plain_steps")]
    drafted_at, accepted_at = (
        counts_in(counts.get(f"{name}_by_position"), 2**53, longest=DEEPEST) for name in ("drafted", "accepted")
    )
    if None in totals or drafted_at is None or accepted_at is None:
        raise protocol_error("The engine did not report what it drafted.")
    drafted, accepted, rounds, plain_steps = totals
    return Ledger(
        drafted=drafted,
        accepted=accepted,
        rounds=rounds,
        drafted_by_position=tuple(drafted_at),
        accepted_by_position=tuple(accepted_at),
        plain_steps=plain_steps,
    )
