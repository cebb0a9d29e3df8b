"""Loading a model folder. Devices, memory and context are checked by benchctl before the server is started."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.integrations import sdpa_attention

from benchctl.engines.transformers.serving import UnsuitableError


@dataclass(frozen=True)
class Loaded:
    """A model and its tokenizer."""

    folder: Path
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    ends: frozenset[int]
    """Tokens that end an answer."""


_FILES = (
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "generation_config.json",
)
"""JSON objects of a model's folder, any of which may be missing."""


def read_object(file: Path) -> dict[str, Any]:
    """Read a file that holds a JSON object. Raises UnsuitableError."""
    try:
        value = json.loads(file.read_bytes())
    except RecursionError:
        problem = "its JSON is nested too deeply"
    except OSError as error:
        problem = str(error.strerror)
    except ValueError as error:
        problem = f"it is not JSON: {error}"
    else:
        if isinstance(value, dict):
            return value
        problem = "it does not hold a JSON object"
    raise UnsuitableError(f"{file} cannot be read: {problem}", "Download the model again, or name another one.")


def choose_device(word: str) -> str:
    """Return torch's device for a recipe's name of it."""
    if word != "auto":
        return "mps" if word == "metal" else word
    return "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"


def load(folder: Path, *, device: str, dtype: str, remote_code: bool = False) -> Loaded:
    """Load a folder to `device` in `dtype`. Raises UnsuitableError."""
    trusted = {"local_files_only": True, "trust_remote_code": remote_code}
    try:
        config = transformers.AutoConfig.from_pretrained(folder, **trusted)
        stored = getattr(config, "dtype", None) or getattr(config.get_text_config(), "dtype", None)
        stored = stored if stored in (torch.float32, torch.bfloat16, torch.float16) else torch.float32
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **trusted)
        # With `None`, transformers takes SDPA if the architecture has it, else eager attention.
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=stored if dtype == "auto" else getattr(torch, dtype),
            attn_implementation=None,
            use_safetensors=True,
            **trusted,
        )
    except Exception as error:  # tokenizers raises plain Exception
        for name in _FILES:
            if (folder / name).is_file():
                read_object(folder / name)
        text = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
        raise UnsuitableError(
            f"transformers {transformers.__version__} cannot run the model: {text[:300]}",
            "Another version of transformers may know it; code from its folder runs only with `remote_code: true` in "
            "engine; it needs tokenizer.json, or what the tokenizer was made from.",
        ) from error
    model = model.to(device).eval()
    if device == "cpu":
        _keep_groups()
    elif device == "cuda":
        _leave_out_cudnn()
    ends = model.generation_config.eos_token_id
    ends = tokenizer.eos_token_id if ends is None else ends
    ends = [] if ends is None else [ends] if isinstance(ends, int) else ends
    # `generate` would take missing settings from the model's defaults, such as a repetition penalty or beams. The
    # decoding loop here does not have them, so the defaults are emptied: only the recipe decides.
    model.generation_config = GenerationConfig()
    return Loaded(folder, model, tokenizer, frozenset(ends))


def _keep_groups() -> None:
    """Have a masked pass, as over a draft, read grouped keys and values as they are.

    transformers copies them for every query head, on account of CUDA; torch's kernel for CPUs takes groups with a
    mask, and returns the same bits, sooner.
    """
    if hasattr(sdpa_attention, "use_gqa_in_sdpa"):
        sdpa_attention.use_gqa_in_sdpa = lambda mask, key, value: key.shape[-1] == value.shape[-1]


def _leave_out_cudnn() -> None:
    """Have attention run on torch's own kernels for CUDA.

    torch prefers cuDNN's on some GPUs, which builds a plan on the processor for every length and layout of the keys:
    on an H100 50 to 70 ms for every token of the first prompt of a length, and nothing for the next one of that length.
    """
    torch.backends.cuda.enable_cudnn_sdp(False)
