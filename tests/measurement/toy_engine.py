"""An engine of a few lines that does exactly what a test scripts: for the runner's own order of steps and faults."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchctl.engines.base import Attestation, Capabilities, Completion, Launch, Ledger, Progress, Rendered
from benchctl.errors import EngineError
from benchctl.models.files import ResolvedPair
from benchctl.prompts.suite import Prompt
from benchctl.recipes.adapters import ModelFormat
from benchctl.recipes.schema import Arm, Recipe, Sampling

Answer = Callable[[str, int], Completion | Awaitable[Completion]]
"""(arm, number of the request within the process, warm-ups counted) -> what the server answers, or raises."""


def answer(text: str = "one two", *, drafted: int | None = None, token_gap: str | None = None) -> Completion:
    """A finished answer of eight tokens."""
    return Completion(
        text=text,
        token_ids=None if token_gap else tuple(range(8)),
        n_predicted=8,
        finish_reason="length",
        prompt_tokens=5,
        ttft_s=0.1,
        decode_s=0.7,
        e2e_s=0.8,
        engine_prompt_s=0.09,
        engine_decode_s=0.7,
        ledger=Ledger(drafted=drafted, accepted=None if drafted is None else drafted // 2),
        token_gap=token_gap,
    )


@dataclass
class ToyServer:
    """A process that exists only in the test."""

    engine: ToyEngine
    arm: str
    log_path: Path
    asked: int = 0
    running: bool = True
    answering: int = 0
    """Requests in flight."""

    @contextmanager
    def request(self) -> Iterator[None]:
        self.answering += 1
        try:
            yield
        finally:
            self.answering -= 1

    def render(self, prompt: Prompt) -> Rendered:
        return Rendered(text=prompt.prompt or "", token_ids=(1, 2, 3, 4, 5))

    async def complete(self, prompt: Rendered, sampling: Sampling, on_tokens: Progress | None = None) -> Completion:
        self.engine.steps.append(f"{self.arm}: ask")
        self.asked += 1
        with self.request():
            try:
                completion = self.engine.answers(self.arm, self.asked)
                return await completion if isinstance(completion, Awaitable) else completion
            except EngineError as error:
                self.running = error.kind == "http"
                raise

    def recover_token_ids(self, prompt: Rendered, sampling: Sampling, completion: Completion) -> tuple[int, ...] | None:
        self.engine.steps.append(f"{self.arm}: recover")
        return tuple(range(8))

    def attest(self, drafted: int | None) -> Attestation:
        self.engine.steps.append(f"{self.arm}: attest({drafted})")
        return self.engine.attestations(self.arm, drafted)

    def alive(self) -> bool:
        return self.running

    def log_tail(self, lines: int = 20) -> tuple[str, ...]:
        return ("last words",)

    def stop(self) -> int | None:
        self.engine.steps.append(f"{self.arm}: stop")
        return 0


def honest(arm: str, drafted: int | None) -> Attestation:
    """Whatever was asked for, ran."""
    return Attestation(state="off" if arm == "baseline" else "active", evidence=("seen",))


@dataclass
class ToyEngine:
    """Records every step in `steps`."""

    answers: Answer = lambda arm, number: answer()
    attestations: Callable[[str, int | None], Attestation] = honest
    start_failures: dict[str, EngineError] = field(default_factory=dict)
    steps: list[str] = field(default_factory=list)
    servers: list[ToyServer] = field(default_factory=list)
    model_format: ModelFormat = "gguf"

    def locate(self) -> None:
        """It is no program."""

    def probe(self) -> Capabilities:
        return Capabilities("toy", Path("toy"), "recipe", None, None, None, ())

    def check(self, recipe: Recipe, models: ResolvedPair) -> Sequence[str]:
        return ()

    def launch(self, arm: Arm, models: ResolvedPair) -> Launch:
        return Launch(argv=("toy", arm.name), env={})

    def tool(self, name: str) -> Path:
        return Path(name)

    def start(self, launch: Launch, log_path: Path) -> ToyServer:
        arm = launch.argv[1]
        self.steps.append(f"{arm}: start")
        if arm in self.start_failures:
            raise self.start_failures[arm]
        return self.starts(ToyServer(self, arm, log_path))

    def starts(self, server: ToyServer) -> ToyServer:
        self.servers.append(server)
        return server
