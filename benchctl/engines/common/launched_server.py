"""Bases of the engines that benchctl starts and of their servers: probing, start, process, end, attestation."""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Generic, TypeVar

from benchctl.engines.base import Attestation, Capabilities, Completion, MemoryReport, Progress, Rendered
from benchctl.engines.common.drafts import Tally, read_totals
from benchctl.engines.common.http import HttpClient, Streamed
from benchctl.engines.common.log import READ_THE_LOG, Reason, log_tail, name_log, read_log
from benchctl.engines.common.process import EngineProcess, describe_exit, refused_variables
from benchctl.engines.common.programs import FoundBinary
from benchctl.engines.common.stream import Answer, AnswerReader
from benchctl.engines.common.wire import prompt_ids, protocol_error
from benchctl.engines.in_use import Counted
from benchctl.engines.registry import Search
from benchctl.errors import EngineError, UsageError
from benchctl.prompts.suite import Prompt
from benchctl.recipes.engine_spec import LaunchedEngineSpec
from benchctl.recipes.schema import Arm, Sampling
from benchctl.text import one_line

MODEL_NAME = "benchctl"
"""The model's served name, whatever its folder is called."""
LaunchCause = Callable[[Sequence[str]], Reason | None]
"""Reads why an engine ended from the lines of its log and from how it ended, the last line: `signal SIGSEGV`."""


def check_tools(prompt: Prompt, text: object) -> str:
    """Return a rendered prompt. Raises EngineError where it is no text, or its template dropped a tool or a call.

    A tool that must be called need not be in the text: the schema of the answer has it.
    """
    if not isinstance(text, str):
        raise protocol_error("The engine did not return the prompt's text.")
    tools = () if prompt.forces_call else prompt.tools or ()
    for tool in (*tools, *prompt.calls):
        function = tool.get("function")
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(name, str) or name not in text:
            raise EngineError(
                f"The model's chat template leaves the tool {name!r} out of the prompt.",
                kind="http",
                fix="Leave `tools` and `tool_calls` out of the prompt, or use a model whose template has them.",
            )
    return text


class LaunchedServer:
    """Base of the servers of adapters that launch their engine: `benchctl.engines.base.Server` but for what differs."""

    model = MODEL_NAME
    dying_s: ClassVar[float]
    """How long it may outlive a broken connection."""
    interrupt_s: ClassVar[float] = 0.0
    """How long it may outlive a SIGINT at the end; 0: it gets none."""
    counters: ClassVar[Mapping[Counted, str]] = MappingProxyType({})
    """The series of `/metrics` by what they count."""
    salt_key: ClassVar[str | None] = None
    """The key of a request that shares cached tokens only with those that have the same value; `None`: it has none."""

    def __init__(self, process: EngineProcess, url: str, spec: LaunchedEngineSpec) -> None:
        """`url`: where it answers, on a port or by the socket of `process.access`."""
        self._process = process
        self._log_path = process.log_path
        self._spec = spec
        self.context, self.timeout_s = spec.context, spec.request_timeout_s
        self._tally = Tally()
        self._stopping = False
        """Set by `stop`: what breaks after that is no failure."""
        self.access = process.access
        self.http = HttpClient(
            url,
            socket_path=None if self.access is None else self.access.socket_path,
            headers=None if self.access is None else self.access.headers,
            broken=self._broken_off,
            log_path=process.log_path,
        )

    @staticmethod
    def launch_cause(log: Sequence[str]) -> Reason | None:
        """Return why the engine ended, where the lines of its log and the last one, how it ended, show that."""
        raise NotImplementedError

    @property
    def log_path(self) -> Path:
        """Where the engine's output goes."""
        return self._log_path

    @property
    def pid(self) -> int:
        """The engine's process id."""
        return self._process.pid

    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._process.alive()

    def log_tail(self, lines: int = 20) -> tuple[str, ...]:
        """The engine's last log lines, oldest first, cleaned."""
        return log_tail(self._log_path, lines)

    @property
    def slots(self) -> int | None:
        """Return nothing: most engines do not report how many requests they answer at a time."""
        return None

    @property
    def slot_context(self) -> int | None:
        """The context that the engine was told, where no slots divide it."""
        return self.context

    def in_use(self, prompt: Rendered, *, cached: bool, slot: int | None = None) -> Rendered:
        """Return a prompt that may share cached tokens with others, or none; most engines have no slots."""
        if cached or self.salt_key is None:
            return prompt
        return replace(prompt, settings=prompt.settings | {self.salt_key: uuid.uuid4().hex})

    def counted(self) -> dict[Counted, int]:
        """Read the counters that the engine has. Raises EngineError."""
        return read_totals(self.http.get("/metrics").text, self.counters) if self.counters else {}

    def memory_report(self) -> MemoryReport:
        """Return nothing: most engines' logs report neither."""
        return MemoryReport()

    def recover_token_ids(self, prompt: Rendered, sampling: Sampling, completion: Completion) -> tuple[int, ...] | None:
        """Return the ids, all of which the stream brought."""
        return completion.token_ids

    def stop(self) -> int | None:
        """Close the connections first (a request in flight would delay SIGTERM), then end the process."""
        self._stopping = True
        self.http.close()
        return self._process.stop(interrupt_s=self.interrupt_s)

    def start_up(self, poll_s: float) -> StartUp:
        """Return the wait for this server, which is asked every `poll_s` seconds."""
        return StartUp(self._process, self._spec.health_timeout_s, self.launch_cause, poll_s)

    def wait_until_healthy(self, start_up: StartUp, path: str = "/health") -> None:
        """Wait until `path` answers with 200. Raises EngineError (`launch`, `health`)."""
        while self.http.status(path, timeout_s=5.0) != 200:
            start_up.wait_a_moment()

    async def _stream(
        self, path: str, body: Mapping[str, Any], reader: AnswerReader[Answer], on_tokens: Progress | None
    ) -> Streamed[Answer]:
        """Stream an answer within the recipe's limits; see `HttpClient.stream`."""
        limits = {"silence_s": self._spec.stall_timeout_s, "timeout_s": self._spec.request_timeout_s}
        return await self.http.stream(path, body, reader, on_tokens=on_tokens, **limits)

    def _ids(self, content: Mapping[str, Any]) -> tuple[int, ...]:
        """Tokenize as vLLM and SGLang do. Raises EngineError."""
        return prompt_ids(self.http.post("/tokenize", {"model": self.model, **content}))

    def _log(self) -> list[str]:
        return read_log(self._log_path)

    def _broken_off(self, message: str) -> EngineError:
        """Return a crash when the engine has ended, be it with status 0, else a broken protocol."""
        if not self._process.wait(0.0 if self._stopping else self.dying_s):
            return protocol_error(f"{message}, but the engine still runs.")
        return self._crash(message, f"the engine ended with {describe_exit(self._process.status)}")

    def _crash(self, message: str, reason: str) -> EngineError:
        return _ended(f"{message}: {reason}.", "crash", self._process, self.launch_cause)


Facts = TypeVar("Facts")


@dataclass(frozen=True)
class Probe(Generic[Facts]):
    """The result of probing a program: its capabilities, and the facts that its adapter needs for commands."""

    capabilities: Capabilities
    facts: Facts

    @property
    def program(self) -> Path:
        """The program that a command line begins with."""
        assert self.capabilities.binary is not None
        return self.capabilities.binary


OwnSpec = TypeVar("OwnSpec", bound=LaunchedEngineSpec)
OwnServer = TypeVar("OwnServer", bound="LaunchedServer")


class LaunchedEngine(ABC, Generic[OwnSpec]):
    """Base of the engines that benchctl starts: `benchctl.engines.base.Engine` but for what differs.

    An engine sets `title` and `search` (or has a `_binary` of its own), and has `_probe` (what its program can do),
    `check`, `launch` and `start`, which ends with `_healthy`. It may set `poll_s`, and `tool` where it brings programs.
    """

    title: str
    """The engine's name in messages."""
    search: Search
    """Finds its program."""
    poll_s = 0.1
    """How often a starting engine is asked whether it is healthy."""

    def __init__(self, spec: OwnSpec, *, binary: str | None = None) -> None:
        """`binary`: the option of the command line, which outranks the recipe's."""
        self._spec = spec
        self._option = binary

    @cached_property
    def _binary(self) -> FoundBinary:
        """Where the program is. Raises EngineError (`launch`), UsageError."""
        return self.search.find(self._spec.binary, self._option)

    @property
    @abstractmethod
    def _probe(self) -> Probe[Any]:
        """What the program can do. Raises EngineError (`launch`), UsageError."""

    def locate(self) -> FoundBinary:
        """Find the program, without running it. Raises EngineError (`launch`), UsageError."""
        return self._binary

    def probe(self) -> Capabilities:
        """Find the program and probe what it can do. Raises EngineError (`launch`), UsageError."""
        return self._probe.capabilities

    def tool(self, name: str) -> Path:
        """Raise EngineError (`launch`): most engines have no programs of that kind."""
        raise EngineError(f"{self.title} has no program {name}", kind="launch", where=self._spec.kind)

    def _recipe_problems(
        self,
        arms: Sequence[Arm],
        refused: Mapping[str, str],
        of_arguments: Callable[[Sequence[str]], Iterable[str]],
        of_arm: Callable[[Arm], Iterable[str]],
    ) -> list[str]:
        """Return a sentence for everything that `engine.env`, `engine.args` or an arm may not hold.

        `refused`: variables of this engine, by their beginning, and why they may not be set.
        """
        problems = [f"engine.env: {text}" for text in refused_variables(self._spec.env, refused)]
        problems += [f"engine.args: {text}" for text in of_arguments(self._spec.args)]
        for arm in arms:
            problems += [f"arm {arm.name}: {text}" for text in (*of_arguments(arm.args), *of_arm(arm))]
        return problems

    def _refuse(self, problems: Sequence[str]) -> None:
        """Raise UsageError where there are any."""
        if problems:
            raise UsageError("\n".join(problems), where=str(self._probe.capabilities.binary))

    def _healthy(self, server: OwnServer) -> OwnServer:
        """Wait until `server` is healthy, else end it. Raises EngineError (`launch`, `health`)."""
        try:
            server.wait_until_healthy(server.start_up(self.poll_s))
        except BaseException:
            server.stop()
            raise
        return server


@dataclass
class StartUp:
    """An engine that is starting; call `wait_a_moment` in a loop until it is healthy."""

    process: EngineProcess
    timeout_s: float
    launch_cause: LaunchCause
    poll_s: float
    _began: float = field(default_factory=time.monotonic)

    def wait_a_moment(self) -> None:
        """Wait `poll_s` seconds. Raises EngineError: the process has ended (`launch`), the time is up (`health`)."""
        if self.process.wait(self.poll_s):
            message = f"The engine ended with {describe_exit(self.process.status)} before it was healthy."
            raise _ended(message, "launch", self.process, self.launch_cause)
        if time.monotonic() - self._began > self.timeout_s:
            log, message = self.process.log_path, f"The engine was not healthy after {self.timeout_s:g} s."
            fix = "Raise engine.health_timeout_s if the model is large; else read the engine's log."
            raise EngineError(message, kind="health", fix=name_log(fix, log), log_tail=log_tail(log))


def _ended(message: str, kind: str, process: EngineProcess, launch_cause: LaunchCause) -> EngineError:
    """Return the error of an engine that has ended, with the remedy where its log shows a known reason."""
    log = process.log_path
    cause = launch_cause([*read_log(log), describe_exit(process.status)])
    return EngineError(
        f"{message} {cause[0]}" if cause else message,
        kind=kind,
        fix=name_log(cause[1] if cause else READ_THE_LOG, log),
        log_tail=log_tail(log),
    )


ROUNDS_NEED_TOKENS = 3
"""Shorter answers have no draft: the first token is prefill's, the last is never drafted."""
CHECK_THE_DRAFT = (
    "Read the engine's log; check that models.draft belongs to the target and that its context is long enough."
)


def conclude(evidence: Sequence[str], failure: Reason | None, *, requested: bool, drafted: object) -> Attestation:
    """Return the attestation: `failed`, `off`, or `active` where `drafted` is true, else `idle`."""
    if failure is not None:
        return Attestation("failed", tuple(evidence), *failure)
    return Attestation("off" if not requested else "active" if drafted else "idle", tuple(evidence))


def other_model(served: str | None, requested: str | None) -> Reason | None:
    """Return what is wrong where the server that answers serves another model than its command line names."""
    if served == requested:
        return None
    message = f"The server that answers serves {one_line(str(served), 200)}, not {requested}."
    return message, "Another program uses the port; run it again."


def unrequested(evidence: str) -> Reason:
    """Return what is wrong with an arm without speculation; `what` shows that it speculates."""
    remedy = "Remove what turns speculation on from engine.args, the arm's args and engine.env."
    return f"The arm requests no speculation, but {evidence}.", remedy


def drafted_nothing(name: str, longest: int, fix: str = READ_THE_LOG, *, did: str = "drafted") -> Reason | None:
    """Return what is wrong with a type that always drafts, where it did not; `longest`: tokens of an answer."""
    if longest < ROUNDS_NEED_TOKENS:
        return None
    return f"{name} is on, but nothing was {did} in answers of up to {longest} tokens.", fix
