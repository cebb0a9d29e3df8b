"""The server of a cell: its command line, requests, counts, attestation, and the reason why it ended."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from benchctl.data.counts import steps_contradiction
from benchctl.engines.base import Attestation, Completion, Ledger, Progress, Rendered
from benchctl.engines.common.completion_stream import CompletionReader, StreamedAnswer, completed
from benchctl.engines.common.drafts import DEEPEST, Tally
from benchctl.engines.common.launched_server import LaunchedServer, check_tools, conclude, drafted_nothing
from benchctl.engines.common.log import Reason, causes_in, first_reason
from benchctl.engines.common.process import EngineProcess
from benchctl.engines.common.wire import prompt_ids, protocol_error, seconds_in
from benchctl.engines.in_use import ListedToken
from benchctl.engines.transformers.adapter import TransformersSpec
from benchctl.engines.transformers.methods import method_of, registered
from benchctl.engines.transformers.speculation import depth_of
from benchctl.models.files import ResolvedPair
from benchctl.prompts.suite import Prompt
from benchctl.recipes.options import read_flags
from benchctl.recipes.schema import Arm, Sampling
from benchctl.recipes.speculation import Speculation
from benchctl.text import one_line

SERVER = Path(__file__).with_name("serving")
_REPORT = "Report it to benchctl, with the engine's log."


def contradiction(ledger: Ledger, tokens: int, *, loose: bool) -> str | None:
    """Return how an answer's counts contradict its tokens: each step brings what was accepted and a token more.

    `loose`: another step is counted where a draft ended the answer, or the first round also read the prompt.
    """
    drafted, accepted = ledger.drafted or 0, ledger.accepted or 0
    steps = 1 + (ledger.rounds or 0) + (ledger.plain_steps or 0)
    if accepted <= drafted and steps + accepted - tokens in ((0, 1) if loose else (0,)):
        return None
    return f"{tokens} tokens came, and the server counts {steps} steps, {accepted} of {drafted} drafts accepted"


def attest(
    info: Mapping[str, Any],
    tally: Tally,
    contradiction: str | None,
    *,
    model: str,
    dtype: str,
    speculation: Mapping[str, Any] | None,
) -> Attestation:
    """Return the attestation of a cell; `speculation` is what the command line requests."""
    evidence = tuple(
        f"GET /info: {name} = {one_line(json.dumps(info.get(name)), 400)}"
        for name in ("model", "class", "dtype", "device", "torch", "transformers", "self_test", "speculation")
    )
    counted = f"{tally.rounds} rounds, {tally.drafted} draft tokens, {tally.accepted} accepted"
    evidence = (*evidence, f"{tally.answers} answers: {counted}; the longest has {tally.longest} tokens")
    failure = _wrong(info, tally, model, dtype, speculation)
    if contradiction is not None:
        failure = f"The server's figures contradict each other: {contradiction}.", _REPORT
    return conclude(evidence, failure, requested=speculation is not None, drafted=tally.drafted)


def _wrong(
    info: Mapping[str, Any], tally: Tally, model: str, dtype: str, requested: Mapping[str, Any] | None
) -> Reason | None:
    """Return how the server differs from what the command line requests; `None` if it does not."""
    reported = info.get("speculation")
    for name, wanted in (("model", model), ("dtype", dtype)):
        if info.get(name) != wanted != "auto":
            return f"The server's {name} is {one_line(str(info.get(name)), 200)}, not {wanted}.", _REPORT
    if requested is None:
        speculates = reported is not None or tally.drafted
        return ("The server speculates, but no speculation was requested.", _REPORT) if speculates else None
    if not isinstance(reported, dict):
        return "There is no evidence that the server speculates.", _REPORT
    if (reported.get("type"), reported.get("max")) != (requested["type"], requested["max"]):
        runs = one_line(str(reported), 200)
        return f"{requested['type']} to depth {requested['max']} was requested, but the server reports {runs}.", _REPORT
    if not tally.drafted and not reported.get("may_find_nothing"):
        return drafted_nothing(requested["type"], tally.longest, _REPORT)
    return None


_REFUSED = re.compile(r"benchctl-serve: error: (.*?) \| (.*)$")
_KNOWN = causes_in(
    r"""
(?:CUDA out of memory|MPS backend out of memory|OutOfMemoryError)
    The device has too little memory.
    Lower engine.context, write dtype: bfloat16, or take a smaller model.
No module named '(\w+)'
    The Python lacks the package {0}.
    `benchctl engines install transformers`, or name another Python.
^((?:[\w.]*)Error: .{1,300})
    {0}
    Read the engine's log.
"""
)


def launch_cause(log: Sequence[str]) -> Reason | None:
    """Return (sentence, fix) for why the server ended; `None` when the log shows none."""
    for line in log:
        if refusal := _REFUSED.search(line):
            return refusal[1], refusal[2]
    return first_reason(log, _KNOWN)


def command_line(python: Path, spec: TransformersSpec, arm: Arm, models: ResolvedPair) -> tuple[str, ...]:
    """Return the server's command; `-I` keeps the caller's Python settings out."""
    command = [str(python), "-I", str(SERVER / "run.py"), "--model", str(models.target.path), "--listen", "{port}"]
    command += ["--device", spec.device, "--dtype", spec.dtype, "--context", str(spec.context)]
    if spec.threads is not None:
        command += ["--threads", str(spec.threads)]
    if spec.remote_code:
        command.append("--trust-remote-code")
    if spec.trace:
        command += ["--trace", "{trace}"]
    if arm.speculation is not None:
        settings = requested(arm.speculation)
        command += ["--speculation", json.dumps(settings)]
        if registered()[settings["type"]].draft and models.draft is not None:
            command += ["--draft", str(models.draft.path)]
    return tuple(command)


def requested(speculation: Speculation) -> dict[str, Any]:
    """Return an arm's speculation as the server gets it."""
    (name,) = speculation.types
    options = dict(speculation.options or {})
    if speculation.size_n is not None:
        options["size_n"] = speculation.size_n
    return {"type": method_of(name), "max": depth_of(speculation), "options": options}


def requested_speculation(argv: Sequence[str]) -> dict[str, Any] | None:
    """Return the speculation that a command line requests; `None` for the target alone."""
    settings: dict[str, Any] | None = json.loads(dict(read_flags(argv)).get("speculation") or "null")
    return settings


class TransformersServer(LaunchedServer):
    """A healthy server of benchctl's own; see `benchctl.engines.base.Server`."""

    launch_cause = staticmethod(launch_cause)
    dying_s = 5.0

    def __init__(self, process: EngineProcess, url: str, spec: TransformersSpec, argv: Sequence[str]) -> None:
        """`argv`: the command line that runs."""
        super().__init__(process, url, spec)
        flags, speculation = dict(read_flags(argv)), requested_speculation(argv)
        self._requested: dict[str, Any] = {"model": flags["model"], "dtype": flags["dtype"], "speculation": speculation}
        self._assisted = speculation is not None and registered()[speculation["type"]].assisted
        self._contradiction: str | None = None

    def render(self, prompt: Prompt) -> Rendered:
        """Apply the chat template (raw prompts stay as they are) and tokenize."""
        if prompt.prompt is not None:
            body: dict[str, Any] = {"text": prompt.prompt}
        else:
            body = {"messages": [message.model_dump() for message in prompt.messages or ()], **prompt.request}
        answer = self.http.post("/render", body)
        return Rendered(check_tools(prompt, answer.get("text")), prompt_ids(answer))

    async def complete(self, prompt: Rendered, sampling: Sampling, on_tokens: Progress | None = None) -> Completion:
        """Stream an answer and its ledger. Raises EngineError; leaves no request behind."""
        path, body = self.request_of(prompt, sampling)
        with self._tally.request():
            streamed = await self._stream(path, body, CompletionReader(sampling.max_tokens), on_tokens)
        answer = streamed.answer
        tokens = len(answer.ids)
        if answer.completion_tokens != tokens:
            raise protocol_error(f"{tokens} tokens were received, and the engine counts another number.")
        ledger, (prompt_s, decoding) = _ledger(answer), _phases(answer)
        self._tally.add(tokens, ledger)
        loose = self._assisted or answer.finish_reason == "stop"
        self._contradiction = self._contradiction or contradiction(ledger, tokens, loose=loose)
        if ledger.target_steps is not None:
            self._contradiction = self._contradiction or steps_contradiction(
                ledger.target_steps,
                tokens=tokens,
                drafted=ledger.drafted,
                accepted=ledger.accepted,
                rounds=ledger.rounds,
            )
        return replace(
            completed(streamed, ledger),
            engine_prompt_s=prompt_s,
            engine_decode_s=sum(decoding.values()) if prompt_s is not None and tokens > 1 else None,
            phase_s=decoding or None,
        )

    slots = 1
    """It answers one request at a time."""

    def request_of(self, prompt: Rendered, sampling: Sampling, likeliest: int = 0) -> tuple[str, dict[str, Any]]:
        """Return the request; its answers are streamed."""
        settings = sampling.model_dump(include=_SETTINGS)
        return "/v1/completions", {"prompt": list(prompt.token_ids), **settings, **constraints_of(sampling)}

    async def listed(self, prompt: Rendered, sampling: Sampling, likeliest: int) -> list[ListedToken] | None:
        """Return nothing: its answers list no log probabilities."""
        return None

    def attest(self, drafted: int | None) -> Attestation:
        """Assess the cell now."""
        info = self.http.get_json("/info")
        facts = info if isinstance(info, dict) else {}
        return attest(facts, self._tally, self._contradiction, **self._requested)


_SETTINGS = {"max_tokens", "temperature", "top_k", "top_p", "seed", "ignore_eos"}
"""Keys of a recipe's sampling that a request has unchanged."""


def constraints_of(sampling: Sampling) -> dict[str, Any]:
    """Return the keys of a request for what changes logits."""
    biases = {str(token): bias for token, bias in sampling.logit_bias.items()}
    return {"repetition_penalty": sampling.repeat_penalty, "logit_bias": biases}


def _phases(answer: StreamedAnswer) -> tuple[float | None, dict[str, float]]:
    """Return the seconds of the prompt, and those of decoding by the record's phases, as far as they are reported."""
    reported = answer.extra.get("phases")
    phases = reported.items() if isinstance(reported, dict) else ()
    seconds = {phase: float(spent) for phase, spent in phases if seconds_in(spent) is not None}
    prompt_s = seconds.pop("prompt", None)
    return prompt_s, {"state" if phase == "rollback" else phase: spent for phase, spent in seconds.items()}


_Count = Annotated[int, Field(strict=True, ge=0, le=2**53)]
_Counts = Annotated[tuple[_Count, ...], Field(max_length=DEEPEST)]


class _Reported(BaseModel):
    """The server's counts for an answer, by the names of a ledger."""

    drafted: _Count
    accepted: _Count
    rounds: _Count
    drafted_by_position: _Counts
    accepted_by_position: _Counts
    plain_steps: _Count
    target_steps: tuple[Annotated[tuple[_Count, ...], Field(min_length=2, max_length=3)], ...] | None = None


def _ledger(answer: StreamedAnswer) -> Ledger:
    try:
        reported = _Reported.model_validate(answer.extra.get("ledger"))
        return Ledger(**reported.model_dump(), verified=reported.drafted)
    except ValidationError as error:
        raise protocol_error("The engine did not report what it drafted.") from error
