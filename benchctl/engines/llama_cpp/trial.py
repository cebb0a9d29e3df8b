"""Does a llama-server survive quantized models? Bundled ones are not quantized, and would not show it.

Compilers have made builds that start, answer with f16 models and crash on every quantized model: GCC 12.2 on processors
with AMX (it drops stores before `ldtilecfg`). So tiny models of the common quantizations are loaded and run, alone and
with a draft. Their weights are random; rows have 256 values, the block of the K-quants, and outputs are multiples of
32: what the kernels for AMX require.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from benchctl.engines.base import Launch
from benchctl.engines.common.launched_server import Probe
from benchctl.engines.common.process import engine_environment
from benchctl.engines.llama_cpp.adapter import LlamaCppSpec
from benchctl.engines.llama_cpp.causes import BROKEN_BUILD
from benchctl.engines.llama_cpp.command import command_line
from benchctl.engines.llama_cpp.probe import Flags, probe_server
from benchctl.engines.llama_cpp.requests import completion_body
from benchctl.engines.llama_cpp.start import start_server
from benchctl.errors import EngineError
from benchctl.machine.doctor import Check
from benchctl.models.files import ModelFile, ResolvedModel, ResolvedPair
from benchctl.recipes.schema import Arm, Sampling
from benchctl.recipes.speculation import Speculation

WIDTH, VOCABULARY = 256, 288
_HIDDEN, _HEADS = 512, 4
_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6
"""Kinds of tokens."""
_TYPES: dict[str, tuple[str, dict[int, float]]] = {
    "q4_0": ("MOSTLY_Q4_0", {0: 0.012}),
    "q4_k": ("MOSTLY_Q4_K_M", {0: 0.0004, 2: 0.003}),
    "q6_k": ("MOSTLY_Q6_K", {208: 0.0004}),
    "q8_0": ("MOSTLY_Q8_0", {0: 0.0008}),
}
"""The type of the file, and the scales of a block by their offset in it: weights are then some 0.06 in size."""
QUANTIZATIONS = tuple(_TYPES)


def write_trial_model(path: Path, quantization: str) -> None:
    """Write a model of a single layer whose matrices are of `quantization`, of `QUANTIZATIONS`. Raises OSError."""
    import gguf
    import numpy as np

    file_type, scales = _TYPES[quantization]
    kind, generator = gguf.GGMLQuantizationType[quantization.upper()], np.random.default_rng(1)
    writer = gguf.GGUFWriter(path, "llama")
    facts = {"block_count": 1, "context_length": 512, "embedding_length": WIDTH, "feed_forward_length": _HIDDEN}
    facts |= {"head_count": _HEADS, "rope_dimension_count": WIDTH // _HEADS, "vocab_size": VOCABULARY}
    facts |= {"unk_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "file_type": gguf.LlamaFileType[file_type]}
    for name, value in facts.items():
        getattr(writer, f"add_{name}")(value)
    writer.add_layer_norm_rms_eps(1e-5)
    filler = [f"filler{number}" for number in range(VOCABULARY - 259)]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *filler])
    writer.add_token_scores([0.0] * VOCABULARY)
    writer.add_token_types([_UNKNOWN, _CONTROL, _CONTROL, *[_BYTE] * 256, *[_NORMAL] * len(filler)])
    for name, rows, width in _matrices():
        values, size = gguf.GGML_QUANT_SIZES[kind]
        blocks = generator.integers(0, 256, (rows * width // values, size), np.uint8)
        if quantization == "q6_k":
            blocks[:, 192:208] %= 16  # a scale a row of 16, signed
        for offset, scale in scales.items():
            blocks[:, offset : offset + 2] = np.array([scale], np.float16).view(np.uint8)
        writer.add_tensor(f"{name}.weight", blocks.reshape(rows, -1), raw_dtype=kind)
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(WIDTH, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _matrices() -> list[tuple[str, int, int]]:
    """Return the name, rows and width of every matrix."""
    attention = [(f"blk.0.attn_{part}", WIDTH, WIDTH) for part in ("q", "k", "v", "output")]
    mlp = [("blk.0.ffn_gate", _HIDDEN, WIDTH), ("blk.0.ffn_up", _HIDDEN, WIDTH), ("blk.0.ffn_down", WIDTH, _HIDDEN)]
    return [("token_embd", VOCABULARY, WIDTH), ("output", VOCABULARY, WIDTH), *attention, *mlp]


_PROMPT = (1, *range(60, 100))
"""More tokens than a tile of AMX has rows (16), and no multiple of them."""
_SAMPLING = Sampling(max_tokens=8, ignore_eos=True)
_ARMS = {
    "alone": Arm(name="alone"),
    "with a draft": Arm(name="draft", speculation=Speculation(type="draft-simple", max=4)),
}
_SIGNAL = re.compile(r"signal SIG[A-Z]+")


def try_quantized(binary: Path, on_case: Callable[[str], None]) -> dict[str, EngineError]:
    """Load and run a model of every common quantization, alone and with a draft; return what failed: `q4_0 alone`.

    Takes some seconds. Raises EngineError where `binary` is no llama-server that runs here.
    """
    probe, failures = probe_server(binary, "option"), {}
    drafts = "draft-simple" in probe.capabilities.speculation_types
    with tempfile.TemporaryDirectory(prefix="benchctl-trial-", ignore_cleanup_errors=True) as folder:
        for quantization in QUANTIZATIONS:
            model = Path(folder) / f"{quantization}.gguf"
            write_trial_model(model, quantization)
            for name, arm in _ARMS.items():
                if arm.speculation and not drafts:
                    continue
                on_case(case := f"{quantization} {name}")
                try:
                    _request(probe, model, arm, Path(folder) / "server.log")
                except EngineError as error:
                    failures[case] = error
    return failures


def crashed(failures: Mapping[str, EngineError]) -> tuple[str, ...]:
    """Return a sentence for each failure in which a signal ended the server: the build's code is wrong, no setting."""
    return tuple(f"{case}: {error.what}" for case, error in failures.items() if _SIGNAL.search(error.what))


def check_quantized(binary: Path) -> Check:
    """Try `binary` now, for `benchctl engines doctor`."""
    name, reason = "engine.llama.cpp.quantized", "Most models that people serve are quantized."
    try:
        failures = try_quantized(binary, lambda case: None)
    except EngineError as error:
        return Check(name, "fail", f"It cannot be tried: {error.what}", reason, error.fix)
    if crashes := crashed(failures):
        cases = len(QUANTIZATIONS) * len(_ARMS)
        summary = f"It crashes with {len(crashes)} of {cases} small models: {' '.join(crashes)}"
        return Check(name, "fail", summary, reason, BROKEN_BUILD)
    if failures:
        todo = "Run `benchctl engines doctor` again when the machine is less busy."
        unclear = " ".join(f"{case}: {error.what}" for case, error in failures.items())
        return Check(name, "warn", f"Not all small models gave an answer: {unclear}", reason, todo)
    return Check(name, "ok", f"It answers with {', '.join(QUANTIZATIONS)}, alone and with a draft.", reason)


def _request(probe: Probe[Flags], model: Path, arm: Arm, log: Path) -> None:
    resolved = ResolvedModel(str(model), (ModelFile(model, model.stat().st_size, ""),))
    spec = LlamaCppSpec(context=256, health_timeout_s=60, request_timeout_s=60)
    argv = command_line(probe.program, probe.facts, spec, arm, ResolvedPair(resolved, resolved))
    server = start_server(Launch(argv, engine_environment(os.environ, {})), log, spec, probe.facts)
    try:
        server.ask(completion_body(_PROMPT, _SAMPLING, stream=False))
    finally:
        server.stop()
