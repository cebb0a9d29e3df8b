"""Does a llama-server survive quantized models? Bundled ones are not quantized, and would not show it.

Compilers have made builds that start, answer with f16 models and crash on every quantized model: GCC 12.2 on processors
with AMX (it drops stores before `ldtilecfg`). So tiny models of the common quantizations are loaded and run, alone and
with a draft. Their weights are random; rows have 256 values, the block of the K-quants, and outputs are multiples of
32: what the kernels for AMX require.
"""

from __future__ import annotations

import json
import os
import re
import struct
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchctl.engines.base import Launch
from benchctl.engines.common.process import engine_environment
from benchctl.engines.llama_cpp.adapter import LlamaCppSpec
from benchctl.engines.llama_cpp.builds import Build
from benchctl.engines.llama_cpp.causes import BROKEN_BUILD
from benchctl.engines.llama_cpp.command import command_line
from benchctl.engines.llama_cpp.ik_server import kind_of
from benchctl.engines.llama_cpp.probe import Probe, probe_server
from benchctl.engines.llama_cpp.server import start_server
from benchctl.engines.llama_cpp.stream import completion_body
from benchctl.errors import EngineError
from benchctl.machine.doctor import Check
from benchctl.models.files import ModelFile, ResolvedModel, ResolvedPair, finish, unfinished
from benchctl.recipes.schema import Arm, Sampling
from benchctl.recipes.speculation import Speculation

WIDTH = 256
VOCABULARY = 288
_HIDDEN = 512
_HEADS = 4
_ALIGNMENT = 32
_U32, _F32, _STRING, _ARRAY, _I32 = 4, 6, 8, 9, 5
"""Numbers of value types in a GGUF."""
_GGML_F32 = 0
_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6
"""Kinds of tokens."""

Blocks = NDArray[np.uint8]
"""Random bytes, a row a block of the quantization; a scale is then written into each."""


def _scale(value: float) -> NDArray[np.uint8]:
    return np.array([value], np.float16).view(np.uint8)


def _q4_0(blocks: Blocks) -> None:
    blocks[:, 0:2] = _scale(0.012)


def _q8_0(blocks: Blocks) -> None:
    blocks[:, 0:2] = _scale(0.0008)


def _q4_k(blocks: Blocks) -> None:
    blocks[:, 0:2] = _scale(0.0004)
    blocks[:, 2:4] = _scale(0.003)


def _q6_k(blocks: Blocks) -> None:
    blocks[:, 192:208] %= 16
    blocks[:, 208:210] = _scale(0.0004)


_TYPES: dict[str, tuple[int, int, int, int, Callable[[Blocks], None]]] = {
    "q4_0": (2, 2, 32, 18, _q4_0),
    "q4_k": (12, 15, 256, 144, _q4_k),
    "q6_k": (14, 18, 256, 210, _q6_k),
    "q8_0": (8, 7, 32, 34, _q8_0),
}
"""Number of the tensor type and of the file type in a GGUF, values and bytes a block, and what writes the scales (so
that weights are some 0.06 in size)."""
QUANTIZATIONS = tuple(_TYPES)


def write_trial_model(path: Path, quantization: str) -> None:
    """Write a model of a single layer whose matrices are of `quantization`, of `QUANTIZATIONS`. Raises OSError."""
    tensor_type, file_type, values, size, scale = _TYPES[quantization]
    generator = np.random.default_rng(1)
    infos, data = [], b""

    def add(name: str, shape: Sequence[int]) -> None:
        nonlocal data
        count = int(np.prod(shape))
        if len(shape) == 1:
            kind, content = _GGML_F32, np.ones(count, np.float32).tobytes()
        else:
            blocks = generator.integers(0, 256, (count // values, size), np.uint8)
            scale(blocks)
            kind, content = tensor_type, blocks.tobytes()
        info = struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, len(data))
        infos.append(_text(name) + info)
        data += content + bytes(-len(content) % _ALIGNMENT)

    add("token_embd.weight", (WIDTH, VOCABULARY))
    add("output_norm.weight", (WIDTH,))
    add("output.weight", (WIDTH, VOCABULARY))
    for name in ("attn_norm", "ffn_norm"):
        add(f"blk.0.{name}.weight", (WIDTH,))
    for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
        add(f"blk.0.{name}.weight", (WIDTH, WIDTH))
    for name in ("ffn_gate", "ffn_up"):
        add(f"blk.0.{name}.weight", (WIDTH, _HIDDEN))
    add("blk.0.ffn_down.weight", (_HIDDEN, WIDTH))
    facts = _facts(quantization, file_type)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(infos), len(facts)) + b"".join((*facts, *infos))
    path.write_bytes(head + bytes(-len(head) % _ALIGNMENT) + data)


def _facts(quantization: str, file_type: int) -> list[bytes]:
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    kinds = [_UNKNOWN, _CONTROL, _CONTROL, *[_BYTE] * 256]
    filler = VOCABULARY - len(tokens)
    tokens += [f"filler{index}" for index in range(filler)]
    kinds += [_NORMAL] * filler
    whole = {
        "general.file_type": file_type,
        "llama.block_count": 1,
        "llama.context_length": 512,
        "llama.embedding_length": WIDTH,
        "llama.feed_forward_length": _HIDDEN,
        "llama.attention.head_count": _HEADS,
        "llama.rope.dimension_count": WIDTH // _HEADS,
        "llama.vocab_size": VOCABULARY,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
    texts = {
        "general.architecture": "llama",
        "general.name": f"trial {quantization}",
        "tokenizer.ggml.model": "llama",
    }
    return [
        *(_text(name) + struct.pack("<I", _STRING) + _text(value) for name, value in texts.items()),
        *(_text(name) + struct.pack("<II", _U32, value) for name, value in whole.items()),
        _text("llama.attention.layer_norm_rms_epsilon") + struct.pack("<If", _F32, 1e-5),
        _array("tokenizer.ggml.tokens", _STRING, [_text(token) for token in tokens]),
        _array("tokenizer.ggml.scores", _F32, [struct.pack("<f", 0.0)] * VOCABULARY),
        _array("tokenizer.ggml.token_type", _I32, [struct.pack("<i", kind) for kind in kinds]),
    ]


def _text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode("ascii")


def _array(name: str, kind: int, items: Sequence[bytes]) -> bytes:
    return _text(name) + struct.pack("<IIQ", _ARRAY, kind, len(items)) + b"".join(items)


_PROMPT = (1, *range(60, 100))
"""More tokens than a tile of AMX has rows (16), and no multiple of them."""
_SAMPLING = Sampling(max_tokens=8, ignore_eos=True)
_ARMS = {
    "alone": Arm(name="alone"),
    "with a draft": Arm(name="draft", speculation=Speculation(type="draft-simple", max=4)),
}
_FILE, _SCHEMA = "trial.json", 1
_SIGNAL = re.compile(r"signal (SIG[A-Z]+)")


@dataclass(frozen=True)
class Failure:
    """One quantization that did not work: `q4_0 alone`, and why."""

    case: str
    error: EngineError

    @property
    def sentence(self) -> str:
        """What failed, and how."""
        return f"{self.case}: {self.error.what}"

    @property
    def crashed(self) -> bool:
        """Whether a signal ended the server: the code of the build is wrong, not a setting."""
        return _SIGNAL.search(self.error.what) is not None


@dataclass(frozen=True)
class Trial:
    """The result of trying a build, each failure a sentence; kept beside `build.json` unless something is unclear."""

    crashed: tuple[str, ...]
    unclear: tuple[str, ...] = ()
    """What failed in another way, such as a machine that was too busy to answer in time: it is tried again."""

    @classmethod
    def of(cls, failures: Sequence[Failure]) -> Trial:
        """Return the trial with these failures."""
        crashed = tuple(failure.sentence for failure in failures if failure.crashed)
        return cls(crashed, tuple(failure.sentence for failure in failures if not failure.crashed))

    @classmethod
    def read(cls, folder: Path) -> Trial | None:
        """Return the trial of the build in `folder`, or `None` when it was not tried, or not by this benchctl."""
        try:
            facts = json.loads((folder / _FILE).read_text())
            known = facts["schema"] == _SCHEMA and facts["cases"] == _cases()
            return cls(tuple(facts["crashed"])) if known else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write(self, folder: Path) -> None:
        """Keep it beside the build. Raises OSError."""
        if not self.unclear:
            facts = {"schema": _SCHEMA, "cases": _cases(), "crashed": list(self.crashed)}
            with unfinished(folder / _FILE) as part:
                part.write_text(json.dumps(facts, indent=1) + "\n")
                finish(part, folder / _FILE)


def tried_once(build: Build) -> Trial:
    """Return the result of trying `build`, which is tried now if it never was; takes seconds then."""
    known = Trial.read(build.folder)
    if known is None:
        known = Trial.of(try_quantized(build.binary()))
        with suppress(OSError):  # a cache that cannot be written to: it is tried again
            known.write(build.folder)
    return known


def refuse_crashing(build: Build) -> None:
    """Raise EngineError (`launch`) where `build` crashes with quantized models."""
    if crashed := tried_once(build).crashed:
        raise EngineError(
            "this build of llama.cpp crashes with quantized models",
            kind="launch",
            where=str(build.binary()),
            fix=BROKEN_BUILD,
            log_tail=crashed,
        )


def try_quantized(binary: Path, on_case: Callable[[str], None] | None = None) -> list[Failure]:
    """Load and run a model of every common quantization, alone and with a draft; return what failed.

    Takes some seconds. Raises EngineError where `binary` is no llama-server that runs here.
    """
    probe = probe_server(binary, "option")
    drafts = "draft-simple" in probe.capabilities.speculation_types
    failures = []
    with tempfile.TemporaryDirectory(prefix="benchctl-trial-", ignore_cleanup_errors=True) as folder:
        for quantization in QUANTIZATIONS:
            model = Path(folder) / f"{quantization}.gguf"
            write_trial_model(model, quantization)
            for name, arm in _ARMS.items():
                if arm.speculation and not drafts:
                    continue
                case = f"{quantization} {name}"
                if on_case:
                    on_case(case)
                try:
                    _request(probe, model, arm, Path(folder) / "server.log")
                except EngineError as error:
                    failures.append(Failure(case, error))
    return failures


def check_quantized(binary: Path) -> Check:
    """Try `binary` now, for `benchctl engines doctor`."""
    name, why = "engine.llama.cpp.quantized", "Most models that people serve are quantized."
    try:
        trial = Trial.of(try_quantized(binary))
    except EngineError as error:
        return Check(name, "fail", f"It cannot be tried: {error.what}", why, error.fix)
    if trial.crashed:
        summary = f"It crashes with {len(trial.crashed)} of {len(_cases())} small models: {' '.join(trial.crashed)}"
        return Check(name, "fail", summary, why, BROKEN_BUILD)
    if trial.unclear:
        todo = "Run `benchctl engines doctor` again when the machine is less busy."
        return Check(name, "warn", f"Not all small models gave an answer: {' '.join(trial.unclear)}", why, todo)
    return Check(name, "ok", f"It answers with {', '.join(QUANTIZATIONS)}, alone and with a draft.", why)


def _cases() -> list[str]:
    return [f"{quantization} {name}" for quantization in QUANTIZATIONS for name in _ARMS]


def _request(probe: Probe, model: Path, arm: Arm, log: Path) -> None:
    resolved = ResolvedModel(str(model), (ModelFile(model, model.stat().st_size, ""),))
    spec = LlamaCppSpec(context=256, health_timeout_s=60, request_timeout_s=60)
    argv = command_line(probe.binary, probe.flags, spec, arm, ResolvedPair(resolved, resolved))
    server = start_server(
        Launch(argv, engine_environment(os.environ, {})), log, spec, probe.flags, kind_of(probe.flags)
    )
    try:
        server.ask(completion_body(_PROMPT, _SAMPLING, stream=False))
    finally:
        server.stop()
