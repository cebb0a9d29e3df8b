"""Loading a model folder; what cannot work is refused before weights are read."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from transformers import GenerationConfig, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

HEADROOM = 1.1
"""Memory beyond the weights: caches, and what a pass needs."""
_BYTES = {torch.float32: 4, torch.bfloat16: 2, torch.float16: 2}
_DEVICES = {"cuda": "CUDA", "mps": "Metal (MPS)"}


class RefusedError(Exception):
    """The server cannot run as requested; `fix` is what to do."""

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(what)
        self.fix = fix


@dataclass(frozen=True)
class Loaded:
    """A model and its tokenizer."""

    folder: Path
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    ends: frozenset[int]
    """Tokens that end an answer."""
    context: int | None
    """How many tokens the model was made for, where its configuration has it."""


def choose_device(word: str) -> str:
    """Return the device for a recipe's name of it. Raises RefusedError for a device that is not there."""
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if word == "auto":
        return next((name for name in ("cuda", "mps") if there[name]), "cpu")
    name = "mps" if word == "metal" else word
    if not there.get(name):
        raise RefusedError(
            f"There is no {_DEVICES.get(name, name)} device that this PyTorch ({torch.__version__}) can use.",
            "Write `device: cpu` in engine, or install a PyTorch for the device.",
        )
    return name


def choose_dtype(word: str, config: PretrainedConfig) -> torch.dtype:
    """Return the precision for a recipe's name of it; `auto` is the model's own."""
    if word != "auto":
        return getattr(torch, word)
    own = getattr(config, "dtype", None) or getattr(config.get_text_config(), "dtype", None)
    return own if own in _BYTES else torch.float32


def load(folder: Path, *, device: str, dtype: str, remote_code: bool = False) -> Loaded:
    """Load a folder to `device` in `dtype`. Raises RefusedError."""
    trusted = {"local_files_only": True, "trust_remote_code": remote_code}
    try:
        config = transformers.AutoConfig.from_pretrained(folder, **trusted)
    except (ValueError, KeyError, OSError) as error:
        raise RefusedError(
            f"transformers {transformers.__version__} cannot run the model: {_first_line(error)}",
            "Another version of transformers may know it; code from its folder runs only with "
            "`remote_code: true` in engine.",
        ) from error
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **trusted)
    except (ValueError, KeyError, OSError, TypeError) as error:
        raise RefusedError(
            f"The model's folder has no tokenizer that can be read: {_first_line(error)}",
            "It must hold tokenizer.json, or what the tokenizer was made from.",
        ) from error
    kind = choose_dtype(dtype, config)
    _check_memory(folder, device, kind)
    try:
        # No attention of choice: SDPA where the architecture has it, else eager.
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, config=config, dtype=kind, attn_implementation=None, use_safetensors=True, **trusted
        )
    except (ValueError, KeyError, OSError) as error:
        raise RefusedError(
            f"transformers cannot load the model: {_first_line(error)}", "Read the engine's log."
        ) from error
    model = model.to(device).eval()
    ends = _ends(model, tokenizer)
    # `generate` fills in from the model's own defaults (a repetition penalty, beams) what it is not told; the decoding
    # loop here knows none of them. The recipe alone decides.
    model.generation_config = GenerationConfig()
    return Loaded(folder, model, tokenizer, ends, _context(config))


def _check_memory(folder: Path, device: str, dtype: torch.dtype) -> None:
    """Raise RefusedError for weights that do not fit."""
    needed = int(_parameters(folder) * _BYTES[dtype] * HEADROOM)
    free = _free_memory(device)
    if free is not None and needed > free:
        raise RefusedError(
            f"The weights need {needed / 2**30:.1f} GiB on {device}, and {free / 2**30:.1f} GiB are free.",
            "Take a smaller model, or dtype: bfloat16.",
        )


def _parameters(folder: Path) -> int:
    """Return the number of parameters, from the headers of the files of weights."""
    total = 0
    for file in folder.glob("*.safetensors"):
        with file.open("rb") as stream:
            header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
        for name, tensor in header.items():
            if name != "__metadata__":
                total += int(torch.Size(tensor["shape"]).numel())
    return total


def _free_memory(device: str) -> int | None:
    if device == "cuda":
        return int(torch.cuda.mem_get_info()[0])
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text("utf-8").splitlines()
        return 1024 * int(next(line.split()[1] for line in lines if line.startswith("MemAvailable:")))
    return None


def _ends(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    ends = model.generation_config.eos_token_id
    if ends is None:
        ends = tokenizer.eos_token_id
    return frozenset([] if ends is None else [ends] if isinstance(ends, int) else ends)


def _context(config: PretrainedConfig) -> int | None:
    longest = getattr(config.get_text_config(), "max_position_embeddings", None)
    return longest if isinstance(longest, int) else None


def _first_line(error: Exception) -> str:
    text = next(iter(str(error).strip().splitlines()), "")
    return (text or type(error).__name__)[:300]
