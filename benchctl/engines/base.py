"""The contract between the runner (`benchctl.measurement`) and the engine adapters.

The runner knows nothing of flags, endpoints or log lines. It reads an `Engine`'s capabilities, has it check a
recipe, and for every cell gets a `Server`, which renders prompts, answers requests and reports what it drafted. The
adapter turns the engine's own numbers into these neutral types; what an engine does not report is `None`, never 0.

Every adapter has an `Engine` and a `Server`. The protocols below `Engine`, such as `TunableEngine`, are optional, and
so are those of `scoring.py` and `in_use.py` beside this file; their users check for them by `isinstance`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from benchctl.data.record import FinishReason, sha256_text
from benchctl.engines.common.programs import FoundBinary
from benchctl.models.files import ResolvedPair
from benchctl.prompts.suite import Prompt
from benchctl.recipes.adapters import ModelFormat
from benchctl.recipes.schema import Arm, Recipe, Sampling
from benchctl.recipes.speculation import Speculation


@dataclass(frozen=True)
class Capabilities:
    """What the actual binary is and can do, found by probing it, never from a built-in list."""

    kind: str
    binary: Path | None
    """`None` for an endpoint that runs already."""
    found_in: str
    """Where it was found: `recipe`, `option`, `environment`, `PATH`, `bundled`, or the URL of an endpoint."""
    version: str | None
    """As the binary prints it, on a single line."""
    build: str | None
    commit: str | None
    speculation_types: tuple[str, ...]
    """In benchctl's words; empty when the binary has none."""
    request_fields: frozenset[str] = frozenset()
    """Which of `benchctl.prompts.suite.REQUEST_FIELDS` a prompt may have. An engine that has `tools` without
    `tool_choice` shows them to the model; `tool_choice` may then be `auto`."""
    details: Mapping[str, object] = field(default_factory=dict)
    """JSON-able facts of this adapter: flag dialect, devices, SHA-256 of the binary and its sibling libraries."""


@dataclass(frozen=True)
class Launch:
    """The command of a cell. Its address is chosen at the start: a port for `{port}`, or a Unix socket."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    """The whole environment of the process: scrubbed, not the caller's."""
    set_by_us: tuple[str, ...] = ()
    """Names in `env` that benchctl or the recipe set; only these are ever written down."""
    url: str | None = None
    """The address of an endpoint that runs already; `argv` is then empty."""
    overlapping: bool = False
    """Whether several requests may be in flight at a time: `Arm.overlapping`."""

    def command(self, port: int) -> list[str]:
        """Return the command line with its port."""
        return [str(port) if argument == "{port}" else argument for argument in self.argv]


@dataclass(frozen=True)
class Rendered:
    """A prompt as the model sees it."""

    text: str
    token_ids: tuple[int, ...]
    """Empty where the engine does not report how it tokenizes."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Further fields of its request, such as the schema of the answer."""
    sampling: dict[str, Any] = field(default_factory=dict)
    """What the prompt sets in place of the recipe's sampling, by its keys."""

    @property
    def sha256(self) -> str:
        """The hash of the text, and of the settings where there are any."""
        settings = json.dumps(self.settings, sort_keys=True, separators=(",", ":")) if self.settings else ""
        return sha256_text(self.text + settings)


@dataclass(frozen=True)
class Ledger:
    """What was drafted and accepted in an answer. Every field is `None` when the engine does not report it."""

    drafted: int | None = None
    accepted: int | None = None
    rounds: int | None = None
    drafted_by_position: tuple[int, ...] | None = None
    accepted_by_position: tuple[int, ...] | None = None
    plain_steps: int | None = None
    """Steps of the target without a draft. The prefill, which brings the first token, is not counted."""
    accepted_by_length: tuple[int, ...] | None = None
    """Tokens accepted of the drafts of exactly 1, 2, … tokens."""
    target_steps: tuple[tuple[int, ...], ...] | None = None
    """`benchctl.data.record.Record.target_steps`: all of them, or none."""
    verified: int | None = None
    """Drafted tokens that the target read: an engine with a budget for a batch reads a part of what it drafted."""


@dataclass(frozen=True)
class Completion:
    """A finished answer. Times are seconds since its request was sent, on a connection that was open before."""

    text: str
    token_ids: tuple[int, ...] | None
    """Every generated token, an end-of-sequence token included; `None` when some are missing from the stream."""
    n_predicted: int
    finish_reason: FinishReason
    prompt_tokens: int
    ttft_s: float
    decode_s: float
    e2e_s: float
    engine_prompt_s: float | None
    engine_decode_s: float | None
    ledger: Ledger
    token_gap: str | None = None
    phase_s: Mapping[str, float] | None = None
    """Seconds after the first token by phase, as far as the engine reports them:
    `benchctl.data.record.Record.phase_s`."""
    first_tokens: int | None = 1
    """How many tokens came at `ttft_s`: several where the client got the first steps' tokens together; `None`
    where that is not known, so that there is no decode rate."""
    least_after_first: int | None = None
    """Where `first_tokens` is not known: the fewest tokens that can have come after `ttft_s`."""
    sent_at: float | None = None
    """When the request was sent, in seconds of `time.perf_counter`; `None` where that is not known."""
    burst_gaps_s: list[float] | None = None
    """`benchctl.data.record.Record.burst_gaps_s`."""
    text_events: int | None = None
    """`benchctl.data.record.Record.text_events`."""
    cached_tokens: int | None = None
    """Tokens of the prompt that the engine took from its cache; `None` where it does not report them."""
    logprobs: tuple[float | None, ...] | None = None
    """`benchctl.data.record.Record.logprobs`."""
    thought: tuple[int, float] | None = None
    """Where its thinking ended, in tokens and seconds from the first token."""
    reasoned: int | None = None
    """`benchctl.data.record.Record.reasoning_chars`."""

    @property
    def after_first(self) -> int | None:
        """How many tokens came within `decode_s`. Tokens that came together with the first one are not counted."""
        return None if self.first_tokens is None else max(0, self.n_predicted - self.first_tokens)

    @property
    def decode_rate(self) -> float | None:
        """Tokens a second by the client's clock; `None` where nothing was timed."""
        return self.after_first / self.decode_s if self.after_first and self.decode_s > 0 else None


AttestationState = Literal["off", "active", "idle", "unverified", "failed"]


@dataclass(frozen=True)
class Attestation:
    """The evidence that an arm ran as the recipe requests.

    `off`: no speculation, and none was requested. `active`: it drafted. `idle`: it was on but never fired (an n-gram
    that found nothing). `unverified`: the engine does not report whether it speculated; `reason` says what is unknown,
    and the run goes on. `failed`: what ran is not what was requested; `reason` and `remedy` are set.
    """

    state: AttestationState
    evidence: tuple[str, ...]
    """The observations, one a line: log lines, endpoint fields, counters."""
    reason: str | None = None
    remedy: str | None = None


Progress = Callable[[int], None]
"""Called with the number of tokens received so far."""


class Renders(Protocol):
    """Renders a prompt as the model sees it."""

    def render(self, prompt: Prompt) -> Rendered:
        """Apply the model's chat template (or nothing, for raw prompts) and tokenize."""


class Server(Renders, Protocol):
    """An engine of a cell, healthy and ready.

    `complete` runs on an event loop, several at a time where the arm is `overlapping`; the ledger of an answer then
    comes from that answer alone, never from counters that all requests share. Cancelling a `complete` closes its
    connection; `stop` ends what is in flight: every `complete` raises soon after. All else is called between answers.
    """

    @property
    def log_path(self) -> Path:
        """Where the process writes its log."""

    async def complete(self, prompt: Rendered, sampling: Sampling, on_tokens: Progress | None = None) -> Completion:
        """Stream an answer, or leave no request behind. Raises EngineError (`crash`, `timeout`, `http`, `protocol`)."""

    def recover_token_ids(self, prompt: Rendered, sampling: Sampling, completion: Completion) -> tuple[int, ...] | None:
        """Fetch the ids that are missing from the stream, after measuring; `None` unless text and known ids agree."""

    def attest(self, drafted: int | None) -> Attestation:
        """Assess the cell from logs, endpoints and counters. `drafted`: all tokens drafted so far; None before any."""

    def alive(self) -> bool:
        """Whether the process still runs."""

    def log_tail(self, lines: int = 20) -> tuple[str, ...]:
        """The engine's last log lines, oldest first: untrusted text, cleaned of control characters."""

    def stop(self) -> int | None:
        """End the process and its group (SIGTERM, wait, SIGKILL); return its exit status. Safe to call twice."""


class Engine(Protocol):
    """An adapter, made for a recipe."""

    @property
    def model_format(self) -> ModelFormat:
        """The format of its models: GGUF files, Hugging Face folders, or names that an endpoint serves."""

    def locate(self) -> FoundBinary | None:
        """Find the program without running it; None for an endpoint. Raises EngineError (`launch`), UsageError."""

    def probe(self) -> Capabilities:
        """Find the binary and probe what it can do. Raises EngineError (`launch`) when it is no such engine."""

    def check(self, recipe: Recipe, models: ResolvedPair) -> Sequence[str]:
        """Refuse before launch what the binary cannot do: raises UsageError; returns warnings in sentences."""

    def launch(self, arm: Arm, models: ResolvedPair) -> Launch:
        """The command line and environment of a cell of `arm`."""

    def tool(self, name: str) -> Path:
        """The engine's companion program of that name, such as `llama-quantize`. Raises EngineError (`launch`)."""

    def start(self, launch: Launch, log_path: Path) -> Server:
        """Start a process, wait until it is healthy. Raises EngineError (`launch`, `health`); leaves nothing behind."""


@dataclass(frozen=True)
class EngineFault:
    """A fault of an engine's build that is on its list."""

    sentence: str
    arms: tuple[str, ...]
    """Those that ask for it."""
    lacks: str | None = None
    """What a request asks for and its answer lacks, where nothing but this fault is expected to do that."""


@runtime_checkable
class FaultyEngine(Protocol):
    """An engine some of whose builds have faults that are known."""

    def faults(self, recipe: Recipe, models: ResolvedPair, *, in_use: bool = False) -> Sequence[EngineFault]:
        """Return the faults that arms ask for. `in_use`: with several slots, caches and any request, as people do."""


@runtime_checkable
class TunableEngine(Protocol):
    """An engine that knows which settings of speculation are worth trying."""

    def search_space(self, models: ResolvedPair) -> Sequence[Speculation]:
        """Settings that this binary can run with these models, the likeliest to pay first."""


@runtime_checkable
class LoadSchedulingEngine(Protocol):
    """An engine that can choose the draft depth by the number of requests in its batch."""

    def with_schedule(self, setting: Speculation, steps: Sequence[tuple[int, int, int]]) -> Speculation | None:
        """Return `setting` with a depth for each range of requests: (first, last, depth), 0 for no draft.

        Ranges begin at 1 and leave no gap; the last depth holds beyond. `None` where this build cannot draft so.
        """

    def has_schedule(self, setting: Speculation) -> bool:
        """Whether `setting` has such depths already, so that its own is none of a fixed depth."""


@dataclass(frozen=True)
class MemoryReport:
    """The memory that an engine's own log reports."""

    checkpoint: int | None = None
    """Bytes of a sequence's recurrent state, as it is saved to go back to: target and draft together."""
    spilled: str | None = None
    """Which part of the model is not on the device, as a sentence."""


@runtime_checkable
class LaunchedProcess(Protocol):
    """A server whose process is benchctl's own."""

    @property
    def pid(self) -> int:
        """Its process id; what it starts descends from it."""

    def memory_report(self) -> MemoryReport:
        """Read the log for what it reports of memory."""


PassKind = Literal["plain", "draft", "verify", "draft-read", "checkpoint", "restore", "re-evaluate"]
"""plain: a step of the target without a draft; draft: making a whole draft; verify: the target's pass over a draft;
draft-read: the draft model reads what the target verifies; checkpoint: saving the state of a model that cannot be
rolled back; restore: going back to it; re-evaluate: the target then reads the accepted tokens again."""


@dataclass(frozen=True)
class Pass:
    """The time that an engine spent on all passes of one kind and width."""

    kind: PassKind
    width: int
    """Tokens that are read at once; for `draft`, the tokens of the draft; 1 where the kind reads none."""
    count: int
    seconds: float
    """The time of all passes together."""
    median_s: float
    """The median time of a single pass; a busy moment of the machine hardly changes it."""


@runtime_checkable
class TracingEngine(Protocol):
    """An engine whose log can time every pass: for explaining costs, never while measuring."""

    def traced(self, launch: Launch) -> Launch | None:
        """Return the launch with such a log; `None` where this binary has none."""

    def read_trace(self, log: str) -> list[Pass]:
        """Return what the passes in that log, or in a part of it, took."""
