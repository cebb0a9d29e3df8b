"""The llama-server of a cell: starting, rendering, answering, counting, attesting, stopping."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchctl.engines.base import Attestation, Completion, Launch, Ledger, MemoryReport, Progress, Rendered
from benchctl.engines.common.drafts import read_counters, settled
from benchctl.engines.common.launched_server import LaunchedServer, StartUp, check_tools
from benchctl.engines.common.process import Access, EngineProcess, free_port, make_access
from benchctl.engines.common.wire import count_in, ids_in, protocol_error, seconds_in, text_in
from benchctl.engines.llama_cpp.attest import (
    LlamaObserved,
    LoggedCounts,
    against,
    attest,
    contradiction,
    make_ledger,
    read_counts,
    read_memory,
    speculating,
    uses_checkpoints,
    with_rounds,
)
from benchctl.engines.llama_cpp.causes import launch_cause
from benchctl.engines.llama_cpp.command import slots_of
from benchctl.engines.llama_cpp.probe import Flags
from benchctl.engines.llama_cpp.spec_flags import RequestedSpeculation, requested_of
from benchctl.engines.llama_cpp.stream import LlamaAnswer, LlamaReader, answer_schema, check_echo, completion_body
from benchctl.errors import EngineError
from benchctl.models.vocabulary import token_bytes
from benchctl.prompts.suite import Prompt
from benchctl.recipes.engine_spec import LaunchedEngineSpec
from benchctl.recipes.schema import Sampling

_DYING_S = 2.0
_LOGGING_S = 1.0
"""How long the log may lag behind the end of an answer."""
_TIMING_S = 0.2
"""How long to wait for the log line with the time of an answer's drafts."""
_ENDING_LINES = 200
"""Log lines at the end of an answer that hold its statistics."""


@dataclass(frozen=True)
class StreamedCompletion(Completion):
    """A completion that remembers which ids the stream did bring, for checking those that are fetched later."""

    known_ids: tuple[tuple[int, int], ...] = ()


class LlamaServer(LaunchedServer):
    """A healthy llama-server; see `benchctl.engines.base.Server`."""

    counts_by_round = False
    """Whether it counts a round's tokens with the first of them: see `benchctl.engines.llama_cpp.stream`."""

    def __init__(
        self,
        process: EngineProcess,
        log_path: Path,
        url: str,
        spec: LaunchedEngineSpec,
        requested: RequestedSpeculation,
        model: str,
        *,
        slots: int = 1,
        overlapping: bool = False,
        access: Access | None = None,
    ) -> None:
        super().__init__(process, log_path, url, spec, launch_cause, dying_s=_DYING_S, access=access)
        self.model = model
        """The file of the target, as the engine was given it."""
        self._requested = requested
        self._slots = slots
        self._overlapping = overlapping
        self._has_metrics = True
        self._traced = 0
        """Bytes of the log up to the last answer."""
        self._counts_replays = False
        """Whether what it counts as drafted and accepted is of rounds that it repeated after a partial acceptance."""
        self._at_start: Ledger | None = None
        self._before_recovery: Ledger | None = None
        self._logged: LoggedCounts | None = LoggedCounts(0, 0, replays=False, draft_s=0.0)
        """What the log counted up to the last answer; `None` once it is not known."""

    def render(self, prompt: Prompt) -> Rendered:
        """Apply the chat template (raw prompts stay as they are) and tokenize, special tokens included."""
        text: object = prompt.prompt
        if text is None:
            messages = [message.model_dump() for message in prompt.messages or ()]
            text = self.http.post("/apply-template", {"messages": messages, **prompt.request}).get("prompt")
        text = check_tools(prompt, text)
        return Rendered(text, self.tokenize(text, special=True), answer_schema(prompt))

    def tokenize(self, text: str, *, special: bool) -> tuple[int, ...]:
        """Return the ids of `text`; `special`: with the tokens that begin a prompt, and special ones parsed."""
        answer = self.http.post("/tokenize", {"content": text, "add_special": special, "parse_special": special})
        return self._prompt_ids(answer)

    async def complete(self, prompt: Rendered, sampling: Sampling, on_tokens: Progress | None = None) -> Completion:
        """Stream an answer and its ledger. Raises EngineError; leaves no request behind."""
        body = completion_body(prompt.token_ids, sampling, stream=True) | prompt.settings
        with self._tally.request():
            before = self._before_answer()
            by_round = self.counts_by_round and bool(self._requested.types)
            reader = LlamaReader(sampling.max_tokens, by_round=by_round)
            try:
                streamed = await self._stream("/completion", body, reader, on_tokens)
            except EngineError as error:
                if "exceeds the available context size" in error.what:
                    error.fix = f"Raise engine.context (now {self._spec.context}) or leave the prompt out."
                raise
            answer = streamed.answer
            after = before if self._overlapping else self._counters()
            check_echo(body, answer.settings)
        self.counts_by_round |= reader.by_round
        ledger = make_ledger(before, after, answer.timings, speculating=bool(self._requested.types))
        ledger = Ledger() if self._counts_replays else ledger
        if not answer.counted:
            answer = self._listed(answer, prompt, sampling)
        self._tally.add(answer.n_predicted, ledger)
        draft_s = self._draft_seconds(ledger)
        ledger = self._with_rounds(ledger)
        ids = answer.token_ids or filled_ids(answer, Path(self.model))
        return StreamedCompletion(
            text=answer.text,
            token_ids=ids,
            n_predicted=answer.n_predicted,
            finish_reason=answer.finish_reason,
            prompt_tokens=answer.prompt_tokens,
            ttft_s=answer.ttft_s,
            decode_s=answer.decode_s,
            first_tokens=answer.first_tokens,
            e2e_s=streamed.e2e_s,
            sent_at=streamed.sent_at,
            burst_gaps_s=streamed.burst_gaps_s,
            engine_prompt_s=seconds_in(answer.timings.get("prompt_ms")),
            engine_decode_s=seconds_in(answer.timings.get("predicted_ms")) if answer.n_predicted > 1 else None,
            ledger=ledger,
            phase_s=None if draft_s is None else {"draft": draft_s},
            token_gap=answer.token_gap if ids is None else None,
            known_ids=answer.known_ids,
        )

    def _listed(self, answer: LlamaAnswer, prompt: Rendered, sampling: Sampling) -> LlamaAnswer:
        """Return an answer whose end lies within a round with its own tokens alone. Raises EngineError.

        They are those that the engine lists of the same answer when it is asked again; it may end within another
        round then, and the tokens that came are all where they spell the text.
        """
        again = self.ask(completion_body(prompt.token_ids, sampling, stream=False) | prompt.settings)
        ids = ids_in(again.get("tokens"))
        if ids is None or str(again.get("content")).rstrip("\ufffd") != answer.text.rstrip("\ufffd"):
            came, vocabulary = [token for _, token in answer.known_ids], token_bytes(Path(self.model))
            spelled = answer.text.encode("utf-8", "surrogatepass")
            ids = came if vocabulary and spelled in map(vocabulary.spelling, (came, came[:-1])) else None
        if ids is None:
            raise protocol_error(
                "The engine counts tokens past the end of its answer, and neither the ids that came nor a second "
                "answer tell how many."
            )
        return replace(answer, known_ids=tuple(enumerate(ids)), n_predicted=len(ids), counted=True)

    def _draft_seconds(self, ledger: Ledger) -> float | None:
        """Return what the drafts of the answer that has just ended took, by the log's own clock.

        `None` where the log does not count exactly the answer's drafted tokens more than before it.
        """
        if not ledger.drafted or self._overlapping or self._logged is None:
            return None
        before, drafted = self._logged, self._logged.drafted + ledger.drafted
        self._logged = now = settled(
            lambda: read_counts(self.log_tail(_ENDING_LINES)),
            lambda counts: counts is not None and counts.drafted >= drafted,
            _TIMING_S,
        )
        if now is None or now.drafted != drafted or now.draft_s is None or before.draft_s is None:
            self._logged = now if now is not None and now.drafted >= drafted else None
            return None
        return now.draft_s - before.draft_s

    def _with_rounds(self, ledger: Ledger) -> Ledger:
        """Add what the log tells of rounds where the recipe has it tell every one: `LLAMA_TRACE` in `engine.env`."""
        if "LLAMA_TRACE" not in self._spec.env or not ledger.drafted or self._overlapping:
            return ledger
        with self._log_path.open("rb") as log:
            log.seek(self._traced)
            text = b""

            def read() -> Ledger | None:
                nonlocal text
                text += log.read()
                return with_rounds(ledger, text.decode("utf-8", "replace"))

            found = settled(read, lambda told: told is not None, _TIMING_S)
        self._traced += len(text)
        return found or ledger

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
        answer = self.ask(completion_body(prompt.token_ids, sampling, stream=False) | prompt.settings)
        known = completion.known_ids if isinstance(completion, StreamedCompletion) else ()
        return agreeing_ids(answer, completion, known)

    def ask(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the whole answer to an unstreamed `/completion` request. Raises EngineError."""
        return self.http.post("/completion", body, timeout_s=self._spec.request_timeout_s)

    def ask_all(self, body: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the answers to an unstreamed `/completion` request of several prompts. Raises EngineError."""
        answers = self.http.post_any("/completion", body, timeout_s=self._spec.request_timeout_s)
        each = answers if isinstance(answers, list) else [answers]
        if not all(isinstance(answer, dict) for answer in each):
            raise protocol_error("The engine's answer to /completion is no list of JSON objects.")
        return each

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
        log = (
            self._log()
            if self._overlapping
            else settled(
                self._log,
                lambda lines: contradiction(read_counts(lines), counters, self._tally.drafted) is None,
                _LOGGING_S,
            )
        )
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
                counted=against(self._tally, self._before_recovery or counters) if self._overlapping else None,
            )
        )

    def _counters(self) -> Ledger:
        """Read `/metrics`; nothing from older binaries and those without `--metrics`."""
        if not self._has_metrics:
            return Ledger()
        response = self.http.get("/metrics")
        self._has_metrics = response.status_code == 200
        return read_counters(response.text, "llamacpp") if self._has_metrics else Ledger()


def filled_ids(answer: LlamaAnswer, model: Path) -> tuple[int, ...] | None:
    """Fill in missing ids from what they spell; `None` unless the vocabulary leaves exactly one possibility."""
    vocabulary = token_bytes(model)
    if vocabulary is None:
        return None
    ids = dict(answer.known_ids)
    for gap in answer.gaps:
        spelled, rest = gap.text.encode("utf-8", "surrogatepass"), vocabulary.spelling(gap.known)
        if not spelled.endswith(rest):
            return None
        split = vocabulary.only_split(spelled[: len(spelled) - len(rest)], gap.count)
        if split is None:
            return None
        ids.update(enumerate(split, gap.position))
    return tuple(ids[place] for place in range(answer.n_predicted)) if len(ids) == answer.n_predicted else None


def agreeing_ids(
    again: Mapping[str, Any], completion: Completion, known: Sequence[tuple[int, int]]
) -> tuple[int, ...] | None:
    """Return the ids of an unstreamed answer to the same request; `None` unless text and the `known` ids agree.

    `known`: (position, id) of every token whose id was in the stream.
    """
    ids, text = ids_in(again.get("tokens")), again.get("content")
    if ids is None or not isinstance(text, str):
        return None
    agree = all(position < len(ids) and ids[position] == token for position, token in known)
    # A last character that the token limit cut in two is U+FFFD here, and nothing in the stream.
    same = text.startswith(completion.text) and not text[len(completion.text) :].strip("\ufffd")
    return tuple(ids) if agree and same and len(ids) == completion.n_predicted else None


_LISTENING = re.compile(
    rb"listening on https?://[^\s/]*?:(\d{1,5})\b|HTTP server is listening, hostname: \S+, port: (\d{1,5})\b"
    rb"|HTTP server listening[^\n]{1,400}?\bport\W{1,5}(\d{1,5})\b"
)
_POLL_S = 0.03
_PORT_ATTEMPTS = 5


def start_server(
    launch: Launch, log_path: Path, spec: LaunchedEngineSpec, flags: Flags, kind: type[LlamaServer] = LlamaServer
) -> LlamaServer:
    """Start llama-server and wait until it is healthy. Raises EngineError (`launch`, `health`)."""
    # On a port, current builds choose a free one themselves and log it; for older builds it is chosen beforehand.
    chooses = flags.dialect == "current"
    for attempt in range(1, _PORT_ATTEMPTS + 1):
        try:
            return _started(launch, log_path, spec, flags, 0 if chooses else free_port(), kind)
        except EngineError as error:
            taken = error.kind == "launch" and "couldn't bind" in "\n".join(error.log_tail)
            if not taken or attempt == _PORT_ATTEMPTS:
                raise
    raise AssertionError("unreachable")


def _started(
    launch: Launch, log_path: Path, spec: LaunchedEngineSpec, flags: Flags, port: int, kind: type[LlamaServer]
) -> LlamaServer:
    host = flags.get("--host")  # a build says in its help that it takes the path of a Unix socket for its address
    access = make_access(by_socket=host is not None and "unix socket" in host.description.lower())
    argv = [str(port) if argument == "{port}" else argument for argument in launch.argv]
    if access.socket_path is not None and "--host" in argv:
        argv[argv.index("--host") + 1] = str(access.socket_path)
    if flags.dialect == "ik":  # it reads no variable of a key
        file = access.folder / "key"
        file.touch(mode=0o600)
        file.write_text(f"{access.key}\n")
        argv += ["--api-key-file", str(file)]
    process = EngineProcess(argv, {**launch.env, "LLAMA_API_KEY": access.key}, log_path, scratch=access.folder)
    server: LlamaServer | None = None
    try:
        start_up = StartUp(process, log_path, spec.health_timeout_s, launch_cause, _POLL_S)
        # On a port, wait for the log line with that on which this very process listens.
        while not access.socket_path and not (found := _LISTENING.search(log_path.read_bytes())):
            start_up.wait_a_moment()
        server = kind(
            process,
            log_path,
            access.url(None if access.socket_path or not found else int(found[1] or found[2] or found[3])),
            spec,
            requested_of(argv, flags),
            model=argv[argv.index("-m") + 1],
            slots=slots_of(argv),
            overlapping=launch.overlapping,
            access=access,
        )
        server.wait_until_healthy(start_up)
    except BaseException:
        if server is not None:
            server.http.close()
        process.stop(grace_s=2.0)
        raise
    return server
