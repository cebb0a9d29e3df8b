"""The ways to name a model: a path, `hf:ORG/REPO[/FILE]`, `bundled:NAME`, and `served:NAME` of an endpoint."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

import benchctl

_PART = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_HF = re.compile(rf"({_PART}/{_PART})(?:/((?:{_PART}/)*{_PART})|:([A-Za-z0-9_.-]+))?\Z")
_URL = re.compile(r"https?://(?:huggingface\.co|hf\.co)/([^/?#]+/[^/?#]+)(?:/(?:blob|resolve)/[^/]+/([^?#]+))?")


@dataclass(frozen=True)
class PathSource:
    """A file on this machine."""

    path: str


@dataclass(frozen=True)
class HubSource:
    """A repository of the Hugging Face hub, and a file in it where it is named."""

    repo: str
    file: str | None
    tag: str | None = None
    """A quantization, such as Q4_K_M: the file whose name has it."""


@dataclass(frozen=True)
class BundledSource:
    """A model that comes with benchctl."""

    name: str


@dataclass(frozen=True)
class ServedSource:
    """A model of an endpoint that runs already, by the name that it has there; `""`: the only model."""

    name: str


Source = PathSource | HubSource | BundledSource | ServedSource


def parse_source(text: str) -> Source:
    """Return what a recipe's `source` means. Raises ValueError with what was expected."""
    if text.startswith("bundled:"):
        return BundledSource(text.removeprefix("bundled:"))
    if text.startswith("served:"):
        return ServedSource(text.removeprefix("served:"))
    if text.startswith("hf:"):
        match = _HF.match(text.removeprefix("hf:").removesuffix("/"))
        if not match or ".." in text:
            raise ValueError("expected hf:ORG/REPO, hf:ORG/REPO/FILE or hf:ORG/REPO:QUANTIZATION")
        return HubSource(*match.groups())
    if url := _URL.match(text):
        repository = "/".join(part for part in url.groups() if part)
        raise ValueError(f"expected a path, hf:ORG/REPO[/FILE] or bundled:NAME; for this page write hf:{repository}")
    if "://" in text or "\0" in text:
        raise ValueError("expected a path, hf:ORG/REPO[/FILE] or bundled:NAME")
    return PathSource(text)


def of_windows(path: str) -> str:
    """Return a sentence on a path as Windows writes it, also where a shell took its backslashes away; or nothing."""
    drive = re.match(r"([A-Za-z]):", path)
    inside = f"; inside WSL it begins with /mnt/{drive[1].lower()}/ and has / between folders" if drive else ""
    return f"This is a path of Windows{inside}." if drive or "\\" in path else ""


_WEIGHTS = (".gguf", ".ggml", ".safetensors", ".bin", ".pth", ".pt", ".onnx")


def names_a_model(text: str) -> bool:
    """Whether a word of a command line means a model, not a recipe or a run: by its form, or by what lies there."""
    if text.startswith(("bundled:", "hf:", "served:")):
        return True
    path = Path(text).expanduser()
    return text.lower().endswith(_WEIGHTS) or (path / "config.json").is_file() or _begins_as_gguf(path)


def _begins_as_gguf(path: Path) -> bool:
    """Whether a file of another name, such as a blob of Ollama's, is a GGUF file."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as stream:
            return stream.read(4) == b"GGUF"
    except (OSError, ValueError):
        return False


def bundled_folder() -> Path:
    """Return where benchctl's own models and their `index.json` lie."""
    return Path(benchctl.__file__).resolve().parent / "models" / "bundled"


PADDED = {"tiny-hybrid-wide": ("tiny-hybrid", 64)}
"""Models that are made of a bundled model on this machine: its name, and how many times as wide its feed-forward is."""


def bundled_names() -> tuple[str, ...]:
    """Return the names that `bundled:` knows; empty when this installation has no models."""
    index = bundled_folder() / "index.json"
    return (*json.loads(index.read_text("utf-8")), *PADDED) if index.is_file() else ()
