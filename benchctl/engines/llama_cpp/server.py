"""The llama-server of a cell: rendering, answering, counting, attesting."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from benchctl.engines.base import Attestation, Completion, Ledger, MemoryReport, Progress, Rendered
from benchctl.engines.common.completion_stream import completed
from benchctl.engines.common.drafts import read_counters, wait_until
from benchctl.engines.common.launched_server import LaunchedServer, check_tools
from benchctl.engines.common.process import EngineProcess
from benchctl.engines.common.wire import count_in, id_of, ids_in, logprob_of, protocol_error, seconds_in, text_in
from benchctl.engines.in_use import Counted, ListedToken
from benchctl.engines.llama_cpp.attest import (
    LlamaObserved,
    LoggedCounts,
    attest,
    contradiction,
    counter_line,
    make_ledger,
    read_counts,
    read_memory,
    speculating,
    uses_checkpoints,
)
from benchctl.engines.llama_cpp.causes import launch_cause
from benchctl.engines.llama_cpp.command import slots_of
from benchctl.engines.llama_cpp.probe import Flags
from benchctl.engines.llama_cpp.requests import answer_settings, check_echo, completion_body, prompt_text, tokenize
from benchctl.engines.llama_cpp.rounds import LoggedRounds, Step, mismatch, read_rounds
from benchctl.engines.llama_cpp.spec_flags import requested_of
from benchctl.engines.llama_cpp.stream import LlamaAnswer, LlamaReader, agreeing_ids, filled_ids
from benchctl.errors import EngineError
from benchctl.models.vocabulary import token_bytes
from benchctl.prompts.suite import Prompt
from benchctl.recipes.engine_spec import CachingEngineSpec
from benchctl.recipes.schema import Sampling

_LOG_WAIT_S = 1.0
"""How long the log may lag behind the end of an answer."""
_DRAFT_TIME_WAIT_S = 0.2
"""How long to wait for the log line with the time of an answer's drafts."""
_ENDING_LINES = 200
"""Log lines at the end of an answer that hold its statistics."""


@dataclass(frozen=True)
class StreamedCompletion(Completion):
    """A completion that remembers which ids the stream did bring, for checking those that are fetched later."""

    streamed_ids: tuple[tuple[int, int], ...] = ()


class LlamaServer(LaunchedServer):
    """A healthy llama-server; see `benchctl.engines.base.Server`."""

    launch_cause = staticmethod(launch_cause)
    dying_s = 2.0

    def __init__(
        self,
        process: EngineProcess,
        url: str,
        spec: CachingEngineSpec,
        argv: Sequence[str],
        flags: Flags,
        *,
        overlapping: bool = False,
    ) -> None:
        """`argv`: its command line; `flags`: the options that it has."""
        super().__init__(process, url, spec)
        self.model = argv[argv.index("-m") + 1]
        """The file of the target, as the engine was given it."""
        self._requested = requested_of(argv, flags)
        self._slots = slots_of(argv)
        self._cached = spec.prefix_caching
        self._by_round = flags.dialect == "legacy"
        """Whether it counts a round's tokens with the first of them: see `benchctl.engines.llama_cpp.stream`."""
        self._overlapping = overlapping
        self._has_metrics = True
        self._logs_rounds: bool | None = None
        """Whether its log has a line for every round; `None` while nothing was drafted."""
        self._rounds = LoggedRounds()
        self._counts_replays = False
        """Whether what it counts as drafted and accepted is of rounds that it repeated after a partial acceptance."""
        self._at_start: Ledger | None = None
        self._before_recovery: Ledger | None = None
        self._logged: LoggedCounts | None = LoggedCounts(0, 0, replays=False, draft_s=0.0)
        """The log's counts up to the last answer; `None` once they are not known."""

    def render(self, prompt: Prompt) -> Rendered:
        """Apply the chat template (raw prompts stay as they are) and tokenize, special tokens included."""
        text = check_tools(prompt, prompt_text(self.http, prompt))
        return Rendered(text, tokenize(self.http, text, special=True), answer_settings(prompt))

    async def complete(self, prompt: Rendered, sampling: Sampling, on_tokens: Progress | None = None) -> Completion:
        """Stream an answer and its ledger. Raises EngineError; leaves no request behind."""
        body = self._body(prompt, sampling, stream=True)
        if not self._overlapping:
            body["timings_per_token"] = True
        with self._tally.request():
            before = self._before_answer()
            logged = self._log_path.stat().st_size
            reader = LlamaReader(sampling.max_tokens, by_round=self._by_round and bool(self._requested.types))
            try:
                streamed = await self._stream("/completion", body, reader, on_tokens)
            except EngineError as error:
                if "exceeds the available context size" in error.what:
                    error.fix = f"Raise engine.context (now {self._spec.context}) or leave the prompt out."
                raise
            answer = streamed.answer
            after = before if self._overlapping else self._counters()
            check_echo(body, answer.settings)
        self._by_round |= reader.by_round
        counted = make_ledger(before, after, answer.timings, speculating=bool(self._requested.types))
        ledger = Ledger() if self._counts_replays else counted
        if not answer.counted:
            answer = self._listed(answer, prompt, sampling)
        self._tally.add(answer.n_predicted, ledger)
        draft_s = self._draft_seconds(ledger)
        ledger = self._with_steps(ledger, answer, logged)
        ids = answer.token_ids or filled_ids(answer, Path(self.model))
        done = replace(
            completed(streamed, ledger),
            token_ids=ids,
            n_predicted=answer.n_predicted,
            token_gap=answer.token_gap if ids is None else None,
            **self._engine_times(answer.timings, answer.n_predicted, draft_s),
        )
        return StreamedCompletion(**vars(done), streamed_ids=answer.streamed_ids)

    def _body(self, prompt: Rendered, sampling: Sampling, *, stream: bool) -> dict[str, Any]:
        return completion_body(prompt.token_ids, sampling, stream=stream, cached=self._cached) | prompt.settings

    def _engine_times(self, timings: Mapping[str, Any], n_predicted: int, draft_s: float | None) -> dict[str, Any]:
        """Return the fields of a `Completion` that the engine's own clock gives, and how much it did not read."""
        cached = count_in(timings.get("cache_n"), 2**31)
        return {
            "cached_tokens": cached,
            "engine_prompt_s": None if self._cached and cached is None else seconds_in(timings.get("prompt_ms")),
            "engine_decode_s": seconds_in(timings.get("predicted_ms")) if n_predicted > 1 else None,
            "phase_s": None if draft_s is None else {"draft": draft_s},
        }

    def _listed(self, answer: LlamaAnswer, prompt: Rendered, sampling: Sampling) -> LlamaAnswer:
        """Return an answer whose end lies within a round with its own tokens alone. Raises EngineError.

        They are those that the engine lists of the same answer when it is asked again; it may end within another
        round then, and the tokens that came are all where they spell the text.
        """
        second_answer = self.ask(self._body(prompt, sampling, stream=False))
        ids = ids_in(second_answer.get("tokens"))
        if ids is None or str(second_answer.get("content")).rstrip("\ufffd") != answer.text.rstrip("\ufffd"):
            came, vocabulary = [token for _, token in answer.streamed_ids], token_bytes(Path(self.model))
            spelled = answer.text.encode("utf-8", "surrogatepass")
            ids = came if vocabulary and spelled in map(vocabulary.spelling, (came, came[:-1])) else None
        if ids is None:
            raise protocol_error(
                "The engine counts tokens past the end of its answer, and neither the ids that came nor a second "
                "answer tell how many."
            )
        return replace(answer, streamed_ids=tuple(enumerate(ids)), n_predicted=len(ids), counted=True)

    def _draft_seconds(self, ledger: Ledger) -> float | None:
        """Return what the drafts of the answer that has just ended took, by the log's own clock.

        `None` where the log does not count exactly the answer's drafted tokens more than before it.
        """
        if not ledger.drafted or self._overlapping or self._logged is None:
            return None
        before, drafted = self._logged, self._logged.drafted + ledger.drafted
        self._logged = now = wait_until(
            lambda: read_counts(self.log_tail(_ENDING_LINES)),
            lambda counts: counts is not None and counts.drafted >= drafted,
            _DRAFT_TIME_WAIT_S,
        )
        if now is None or now.drafted != drafted or now.draft_s is None or before.draft_s is None:
            self._logged = now if now is not None and now.drafted >= drafted else None
            return None
        return now.draft_s - before.draft_s

    def _with_steps(self, ledger: Ledger, answer: LlamaAnswer, logged: int) -> Ledger:
        """Return an answer's ledger with its steps; the log's rounds follow after its first `logged` bytes."""
        if self._overlapping or ledger.drafted is None or self._logs_rounds is False:
            return ledger

        def read() -> list[Step]:
            with self._log_path.open("rb") as log:
                log.seek(logged)
                return read_rounds(log.read().decode("utf-8", "replace"))

        rounds: list[Step] = []
        if ledger.drafted:
            rounds = wait_until(read, lambda lines: not mismatch(lines, ledger), _DRAFT_TIME_WAIT_S)
            if self._logs_rounds is None:
                self._logs_rounds = bool(rounds)
            if not self._logs_rounds:
                return ledger
        return self._rounds.add(ledger, rounds, answer)

    def _before_answer(self) -> Ledger:
        """Return the counters before an answer; where answers overlap, zeros for a server that has counters.

        Timings leave out what is 0. That nothing was drafted is certain once the sums agree with the counters.
        """
        if not self._overlapping:
            return self._counters()
        counts = self._at_start is not None and self._at_start.drafted is not None
        return Ledger(drafted=0, accepted=0) if counts else Ledger()

    def recover_token_ids(self, prompt: Rendered, sampling: Sampling, completion: Completion) -> tuple[int, ...] | None:
        """Repeat the request without streaming; `None` unless the text and every id of the stream agree."""
        if completion.token_ids is not None:
            return completion.token_ids
        if self._overlapping and self._before_recovery is None:
            self._before_recovery = self._counters()  # the repeated request is in no answer's sum
        answer = self.ask(self._body(prompt, sampling, stream=False))
        streamed_ids = completion.streamed_ids if isinstance(completion, StreamedCompletion) else ()
        return agreeing_ids(answer, completion, streamed_ids)

    def ask(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the whole answer to an unstreamed `/completion` request. Raises EngineError."""
        return self.http.post("/completion", body, timeout_s=self._spec.request_timeout_s)

    def ask_all(self, body: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the answers to an unstreamed `/completion` request of several prompts. Raises EngineError."""
        answers = self.http.post_any("/completion", body, timeout_s=self._spec.request_timeout_s)
        answer_list = answers if isinstance(answers, list) else [answers]
        if not all(isinstance(answer, dict) for answer in answer_list):
            raise protocol_error("The engine's answer to /completion is no list of JSON objects.")
        return answer_list

    @property
    def slots(self) -> int | None:
        """How many slots it has, by `/props`."""
        props = self.http.get_json("/props")
        return count_in(props.get("total_slots"), 2**31) if isinstance(props, dict) else None

    @property
    def slot_context(self) -> int | None:
        """The context of a slot, by `/props`."""
        props = self.http.get_json("/props")
        settings = props.get("default_generation_settings") if isinstance(props, dict) else None
        return count_in(settings.get("n_ctx"), 2**31) if isinstance(settings, dict) else None

    def for_several(self, prompt: Rendered, count: int) -> Rendered:
        """Return a prompt with `n_cmpl`."""
        return replace(prompt, settings=prompt.settings | {"n_cmpl": count})

    async def several(self, prompt: Rendered, sampling: Sampling) -> list[tuple[tuple[int, ...], str]]:
        """Answer a prompt of `for_several`. Raises EngineError."""
        _, body = self.request_of(replace(prompt, text=""), sampling)
        answers = await asyncio.to_thread(self.ask_all, body)
        return [(tuple(ids_in(answer.get("tokens")) or ()), str(answer.get("content", ""))) for answer in answers]

    def slot_request(self, action: Literal["save", "restore"], slot: int, name: str) -> tuple[str, dict[str, Any]]:
        """Return the request to `/slots`."""
        return f"/slots/{slot}?action={action}", {"filename": name}

    async def move_slot(self, action: Literal["save", "restore"], slot: int, name: str) -> int:
        """Save or restore a slot. Raises EngineError."""
        path, body = self.slot_request(action, slot, name)
        answer = await asyncio.to_thread(self.http.post, path, body, self._spec.request_timeout_s)
        return count_in(answer.get("n_saved" if action == "save" else "n_restored"), 2**31) or 0

    def counted(self) -> dict[Counted, int]:
        """Count the log's lines of idle slots that were cleared for others."""
        return {"evictions": sum("purging slot" in line for line in self._log())}

    def in_use(self, prompt: Rendered, *, cached: bool, slot: int | None = None) -> Rendered:
        """Return a prompt with or without llama-server's prompt cache, which is on by default."""
        chosen = {"cache_prompt": cached} | ({} if slot is None else {"id_slot": slot})
        return replace(prompt, settings=prompt.settings | chosen)

    def request_of(self, prompt: Rendered, sampling: Sampling, likeliest: int = 0) -> tuple[str, dict[str, Any]]:
        """Return the request, with the prompt's text where that is what its ids spell."""
        body = completion_body(prompt.token_ids, sampling, stream=False) | prompt.settings
        body |= {"n_probs": likeliest} if likeliest else {}
        return "/completion", body | ({"prompt": prompt.text} if prompt.text else {})

    async def listed(self, prompt: Rendered, sampling: Sampling, likeliest: int) -> list[ListedToken]:
        """Answer with `n_probs`. Raises EngineError."""
        _, body = self.request_of(replace(prompt, text=""), sampling, likeliest)
        answer = await asyncio.to_thread(self.ask, body)
        try:
            return [
                ListedToken(
                    id_of(token["id"]),
                    logprob_of(token["logprob"]),
                    {id_of(other["id"]): logprob_of(other["logprob"]) for other in token["top_logprobs"]},
                )
                for token in answer["completion_probabilities"]
            ]
        except (KeyError, TypeError, ValueError):
            raise protocol_error("The engine returned no log probabilities of its tokens.") from None

    def memory_report(self) -> MemoryReport:
        """Read the log."""
        return read_memory(self._log())

    def attest(self, drafted: int | None) -> Attestation:
        """Assess the cell now; see `attest.py` for what counts as evidence."""
        slots, props = self.http.get_json("/slots"), self.http.get_json("/props")
        props = props if isinstance(props, dict) else {}
        counters = self._counters()
        if self._at_start is None and self._overlapping:
            token_bytes(Path(self.model))  # kept: to read it while others are timed would hold them up
        self._at_start = self._at_start or counters

        def settles(lines: list[str]) -> bool:
            return self._overlapping or contradiction(read_counts(lines), counters, self._tally.drafted) is None

        log = wait_until(self._log, settles, _LOG_WAIT_S)
        self._counts_replays = counters.drafted is None and uses_checkpoints(log)
        return attest(
            LlamaObserved(
                requested=self._requested,
                slots=speculating(slots) if isinstance(slots, list) else None,
                total_slots=count_in(props.get("total_slots"), 2**31),
                model_path=text_in(props.get("model_path")),
                requested_model=self.model,
                drafted=self._tally.most_drafted(drafted, counters.drafted),
                longest_answer=self._tally.longest,
                log=log,
                counters=Ledger() if self._overlapping else counters,
                answers=self._tally.drafted,
                requested_slots=self._slots,
                device=self._spec.device,
                rounds=self._rounds,
                counted=counter_line(self._tally, self._before_recovery or counters) if self._overlapping else None,
            )
        )

    def _counters(self) -> Ledger:
        """Read `/metrics`; nothing from older binaries and those without `--metrics`."""
        if not self._has_metrics:
            return Ledger()
        response = self.http.get("/metrics")
        self._has_metrics = response.status_code == 200
        return read_counters(response.text, "llamacpp") if self._has_metrics else Ledger()
