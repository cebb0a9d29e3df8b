"""The contract of engines that quantize (`Adapter.quantizes`): measure how far a model is from its source."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from benchctl.models.quantize import Program


class TextTooShortError(Exception):
    """The text has fewer than two pieces of the requested length; `tokens` is its own."""

    def __init__(self, tokens: int) -> None:
        super().__init__(f"the text has {tokens} tokens")
        self.tokens = tokens


@dataclass(frozen=True)
class Divergence:
    """A model against the reference, over every scored token; errors of the mean; `None` where nothing is finite."""

    divergence: float | None
    """Mean Kullback-Leibler divergence from the reference, in nats, over the whole vocabulary."""
    divergence_error: float | None
    worst: float | None
    """The divergence that one scored token in a thousand exceeds."""
    same_top: float | None
    """Share of positions at which both have the same most likely token."""
    same_top_error: float | None
    perplexity: float | None
    perplexity_error: float | None


class DivergenceMeter(Protocol):
    """Compares the next-token distributions of two models over the same text."""

    @property
    def program(self) -> Program:
        """The program that measures."""

    def write_reference(self, model: Path, text: Path, target: Path, log: Path, *, context: int, pieces: int) -> int:
        """Write the distributions of `model` over the first `pieces` pieces of `text`, each of `context` tokens.

        Returns how many positions were scored. Raises TextTooShortError, EngineError, OSError (a full disk).
        """

    def compare(self, model: Path, reference: Path, log: Path, *, context: int) -> Divergence:
        """Compare `model` with a file of `write_reference`. Raises EngineError."""


@runtime_checkable
class QuantizingEngine(Protocol):
    """An engine that brings programs that quantize, and a program that measures what quantizing did."""

    def quantizer(self) -> Path:
        """The program that quantizes. Raises EngineError (`launch`)."""

    def divergence_meter(self) -> DivergenceMeter:
        """The program that measures, of the same build as the engine. Raises EngineError (`launch`)."""
