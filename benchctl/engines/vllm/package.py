"""What an installed vLLM can do, as it said when it was probed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Package:
    """What the installed package says of itself."""

    version: str
    platform: str
    """`cpu`, `cuda`, …"""
    device: str
    prefix: Path
    methods: tuple[str, ...]
    deprecated_methods: tuple[str, ...]
    """Names that it takes with a warning, and turns into `mtp`."""
    keys: tuple[str, ...]
    """Of `--speculative-config`."""
    options: Mapping[str, int | None] | None
    """Of `vllm serve`, and how many values each takes (`None`: at least one); `None` where they cannot be had."""
    arctic_inference: bool

    @property
    def cpu(self) -> bool:
        """Whether it runs on the CPU."""
        return self.platform == "cpu"
