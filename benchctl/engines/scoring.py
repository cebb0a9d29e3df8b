"""The target alone reads text: what an adapter may have beside `benchctl.engines.base`, never used while measuring.

A scorer returns logits, a replayer reads an answer again in its own steps, a comparer reads it with draft and target.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from benchctl.data.traces import DiagnosisSettings, Expectations
from benchctl.engines.base import Launch, Rendered, Renders
from benchctl.recipes.schema import GREEDY, Arm, Sampling


@dataclass(frozen=True)
class Scores:
    """A model's next-token distribution after a prefix, from its raw logits, before any sampler."""

    logprobs: Mapping[int, float]
    """Natural logarithms of the probabilities of the likeliest next tokens, by id, likeliest first."""
    evaluated: int
    """How many tokens of the prefix this request evaluated; the rest was kept from the request before."""

    @property
    def likeliest(self) -> int:
        """The token that greedy decoding would choose."""
        return next(iter(self.logprobs))


class Scorer(Renders, Protocol):
    """A target that scores prefixes and generates nothing: for explaining answers, never while measuring.

    What it has read last stays in its memory, so that a prefix can be read in pieces, each a batch of its own.
    `top` is how many of the likeliest tokens are returned. Every method raises EngineError.
    """

    @property
    def in_batches(self) -> bool:
        """Whether several tokens can be read on in a single batch, as a round of speculation verifies them."""

    @property
    def command(self) -> tuple[str, ...]:
        """The command line that runs."""

    def read_prompt(self, prompt: Sequence[int], top: int) -> Scores:
        """Forget everything and read a prompt, in the batches in which a measured request would be."""

    def read_on(self, prefix: Sequence[int], top: int) -> Scores:
        """Read what `prefix` has more than the prefix that was read last, in a single batch."""

    def read_whole(self, prefix: Sequence[int], top: int) -> Scores:
        """Forget everything and read `prefix` at once."""

    def log_tail(self, lines: int = 20) -> tuple[str, ...]:
        """As `Server.log_tail`."""

    def stop(self) -> int | None:
        """As `Server.stop`."""


@runtime_checkable
class PrefillScorer(Protocol):
    """A scorer that returns the target's distribution at every position of an answer, read in a single request."""

    def score_answer(self, prompt: Sequence[int], answer: Sequence[int], top: int) -> list[Scores]:
        """Return the scores before every token of `answer`, given those before it. Raises EngineError."""


class SlotScorer(Renders, Protocol):
    """A target whose slots keep what was read into them and read on together. Every method raises EngineError."""

    def read_together(self, prefixes: Sequence[Sequence[int]], top: int) -> list[Scores]:
        """Read on in all slots in a single batch; prefixes of which no slot holds anything stand last."""

    def stop(self) -> int | None:
        """As `Server.stop`."""


@runtime_checkable
class SlotScoringEngine(Protocol):
    """An engine that returns its target's logits where several requests share a batch."""

    def start_slot_scorer(self, launch: Launch, log_path: Path, sampling: Sampling = GREEDY) -> SlotScorer:
        """Start the target alone; `launch` is that of a baseline of several requests. Else as `start_scorer`."""


@runtime_checkable
class ScoringEngine(Protocol):
    """An engine that returns its target's logits."""

    def start_scorer(self, launch: Launch, log_path: Path, sampling: Sampling = GREEDY) -> Scorer:
        """Start the target alone; `launch` is a baseline's. Raises EngineError (`launch`, `health`).

        `sampling`: the recipe's; with `ignore_eos` tokens that end an answer are left out, and what of
        `Sampling.constraints` the adapter lists as `scored` is in the logits.
        """


@dataclass(frozen=True)
class ReplayedToken:
    """A token of an answer that is not the likeliest of its row, where the target reads the answer in its own steps."""

    index: int
    """Of the token within the answer."""
    likeliest: int
    gap: float | None
    """Nats by which the target prefers its likeliest token to the answer's; `None` where the request forbids that."""


class Replayer(Protocol):
    """A target alone that reads an answer again in the steps it was made in. Every method raises EngineError."""

    @property
    def command(self) -> tuple[str, ...]:
        """The command line that runs."""

    @property
    def evidence(self) -> str:
        """What reads, and why it computes what the measured engine does; the end of a sentence."""

    def replay(self, prompt: Rendered, answer: Sequence[int], steps: Sequence[Sequence[int]]) -> list[ReplayedToken]:
        """Return every token of `answer` that is not the likeliest of its row, of those that the request allows.

        Penalties, biases, grammars and the prompt's settings are applied as the engine applies them.
        `steps`: as `benchctl.data.record.Record.target_steps`, of every token but those that the prompt's own reading
        decides. Each step is a batch of its drafted tokens and the one before them; other tokens stand in place of
        rejected drafts, and the state behind them is taken back as the engine does it.
        """

    def log_tail(self, lines: int = 20) -> tuple[str, ...]:
        """As `Server.log_tail`."""

    def stop(self) -> int | None:
        """As `Server.stop`."""


@runtime_checkable
class ReplayingEngine(Protocol):
    """An engine whose target can read an answer again in the steps it was made in."""

    def no_replay(self, launch: Launch) -> str | None:
        """Return why the answers of `launch`, an arm's or a baseline's, cannot be replayed with this engine's files.

        The end of a sentence; `None` where they can be.
        """

    def replay_launch(self, launch: Launch) -> Launch:
        """Return the launch of the target that computes what the target of `launch` does.

        Arms whose speculation leaves the target's computing alone have the baseline's, and may share a replayer. A head
        that reads the target's hidden states changes its graph, and its arm has a launch of its own.
        """

    def start_replayer(self, launch: Launch, log_path: Path, sampling: Sampling = GREEDY) -> Replayer:
        """Start the target alone; `launch` is one of `replay_launch`. Raises EngineError (`launch`, `health`)."""


class Comparer(Protocol):
    """An arm's draft and its target, read from all logits, to diagnose. Every method raises EngineError."""

    def describe(self) -> Mapping[str, object]:
        """Return what the engine reports of the draft, such as the parts that are left out."""

    def compare(
        self, prompt: Sequence[int], answer: Sequence[int], temperature: float, settings: DiagnosisSettings
    ) -> Expectations:
        """Return the distributions of the draft and of the target along the target's own `answer`."""

    def flops(self, prompt: Sequence[int]) -> tuple[float, float]:
        """Return the floating-point operations of a step after a prompt, of (target, draft)."""

    def stop(self) -> int | None:
        """As `Server.stop`."""


@runtime_checkable
class ComparingEngine(Protocol):
    """An engine that reads an answer with an arm's draft and with its target in the same process."""

    def incomparable(self, arm: Arm) -> str | None:
        """Return why an arm's draft cannot be read beside the target, as a sentence; `None` where it can."""

    def start_comparer(self, launch: Launch, log_path: Path) -> Comparer:
        """Start an arm for comparing; `launch` is the arm's. Raises EngineError (`launch`, `health`)."""
