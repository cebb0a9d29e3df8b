"""The engine's process: load a model, test it, serve it.

Every problem is one line on standard error, `benchctl-serve: error: WHAT | FIX`; the exit status is then 2.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
import transformers

from benchctl.engines.transformers.methods import registered
from benchctl.engines.transformers.serving import KEY_VARIABLE, UnsuitableError
from benchctl.engines.transformers.serving.answering import Speculation, make_drafter
from benchctl.engines.transformers.serving.decoder import Decoder, State, without
from benchctl.engines.transformers.serving.http import Service, serve
from benchctl.engines.transformers.serving.loading import choose_device, load
from benchctl.engines.transformers.serving.variants import Variants, items_of

TOLERANCE = 1e-3
"""Allowed difference of a log-probability between a pass and single steps, in float32. Measured: below 1e-4."""
HALF_TOLERANCE = 0.05
"""Allowed mean difference in bfloat16 and float16, even if the recurrent state hardly matters."""
_PREFIX, _WIDTH, _KEPT = 24, 6, 2


@dataclass(frozen=True)
class SelfTest:
    """The result of the self-test. Differences are of natural logarithms of probabilities."""

    difference: float
    """The largest difference between a pass over several tokens and single steps, also after a rollback."""
    mean_difference: float
    lost_difference: float | None
    """The mean difference where the recurrent state is forgotten on purpose; `None` without such a state."""
    variants_in_batches: bool
    """Whether recurrent modules can read two variants of a token in a batch. If not, searches read each alone."""
    restored: bool
    """Whether a snapshot came back bit for bit."""
    skips: bool
    """Whether single steps without the first attention equal a pass without it, also beyond a sliding window."""
    passed: bool

    def problem(self) -> str | None:
        """Return why the model must not speculate."""
        if not self.restored:
            return "its state does not come back bit for bit after a draft"
        if not self.skips:
            return (
                "single steps without its first attention do not give what a pass without it gives: the mask is wrong"
            )
        if self.passed:
            return None
        return (
            "several tokens read in a pass do not give what single steps give (log-probabilities differ by up to "
            f"{self.difference:.2g}): this architecture loses its state there in the installed transformers"
        )


def run_self_test(decoder: Decoder) -> SelfTest:
    """Read the same tokens singly, at once, and after a rejected draft."""
    generator = torch.Generator().manual_seed(0)
    length = _PREFIX + _WIDTH + 1
    tokens = torch.randint(0, decoder.vocabulary, (length + _WIDTH,), generator=generator).tolist()
    rejected, tokens = tokens[length:], tokens[:length]
    prefix, following = tokens[:_PREFIX], tokens[_PREFIX:]
    with torch.inference_mode():
        expected = _one_by_one(State(decoder, prefix), following)
        at_once = State(decoder, prefix)
        before, tensors_before = at_once.snapshot(), [tensor.clone() for _, tensor in at_once.tensors()]
        at_once.verify([*following[:_KEPT], *rejected])
        at_once.restore(before)
        back = [tensor for _, tensor in at_once.tensors()]
        restored = len(back) == len(tensors_before) and all(map(torch.equal, back, tensors_before))
        passes = _logprobs(at_once.verify(following[:-1]))
        after = _one_by_one(at_once, following[-1:])
        at_once.restore(before)
        at_once.verify([*following[:_KEPT], *rejected])
        at_once.keep(before, _KEPT)
        after_keeping = _one_by_one(at_once, following[_KEPT:])
        differences = torch.cat([passes - expected[:-1], after - expected[-1:], after_keeping - expected[_KEPT:]]).abs()
        lost = _lost(decoder, prefix, following, expected) if decoder.recurrent else None
        decoder.variants_in_batches = _reads_batches(decoder, prefix, following[0])
    largest, mean = float(differences.max()), float(differences.mean())
    if decoder.model.dtype == torch.float32:
        passed = largest <= TOLERANCE
    else:
        passed = mean <= max(HALF_TOLERANCE, 0.5 * (lost or 0.0))
    skips = _skips(decoder, tokens)
    return SelfTest(largest, mean, lost, decoder.variants_in_batches, restored, skips, passed and restored and skips)


def _one_by_one(state: State, tokens: list[int]) -> torch.Tensor:
    return torch.cat([_logprobs(state.advance([token])) for token in tokens])


def _logprobs(logits: torch.Tensor) -> torch.Tensor:
    return logits.float().log_softmax(-1)


def _reads_batches(decoder: Decoder, prefix: list[int], token: int) -> bool:
    """Return whether a recurrent module reads two variants of a token as it reads each alone."""
    layers = range(len(decoder.layers))
    item = next((item for number in layers for item in items_of(decoder, number) if item[1] == "recurrent"), None)
    if item is None:
        return True
    state = State(decoder, prefix)
    variants = Variants(decoder, state, state.snapshot(), [token])
    pair = torch.cat([variants.first, -variants.first])
    singly = torch.cat([variants.apply(item, variant, variant) for variant in pair.split(1)])
    try:
        batch = variants.apply(item, pair, pair)
    except RuntimeError:  # the module mixed up the variants, and its result has another shape
        return False
    return float((batch - singly).abs().mean()) <= HALF_TOLERANCE * float(singly.abs().mean())


def _skips(decoder: Decoder, tokens: list[int]) -> bool:
    """Return whether a draft that leaves out the first attention reads what it should, token by token.

    A window of tokens that attention sees is made narrower than what is read, so that its mask takes part.
    """
    first = next((number for number, layer in enumerate(decoder.layers) if layer.modules("attention")), None)
    if first is None:
        return True
    config = decoder.model.config.get_text_config()
    width = getattr(config, "sliding_window", None)
    try:
        if width is not None:
            config.sliding_window = min(width, _WIDTH)
        with torch.inference_mode(), without(decoder, frozenset({(first, "attention")})):
            at_once = _logprobs(State(decoder).advance(tokens, keep=len(tokens)))
            difference = (_one_by_one(State(decoder), tokens) - at_once).abs()
    except RuntimeError:  # mask and keys differ in shape
        return False
    finally:
        if width is not None:
            config.sliding_window = width
    return float(difference.mean()) <= HALF_TOLERANCE


def _lost(decoder: Decoder, prefix: list[int], following: list[int], expected: torch.Tensor) -> float:
    state = State(decoder, prefix)
    for name, tensor in state.tensors():
        if "states" in name:
            tensor.zero_()
    return float((_one_by_one(state, following) - expected).abs().mean())


def main(arguments: Sequence[str]) -> None:
    """Serve until SIGTERM."""
    signal.signal(signal.SIGTERM, _end)
    options = _options(arguments)
    key = os.environ.pop(KEY_VARIABLE, None)
    try:
        address = ("127.0.0.1", int(options.listen)) if options.listen.isdecimal() else options.listen
        serve(_load(options), address, key, lambda: _say("ready"))
    except UnsuitableError as error:
        _refuse(str(error), error.fix)
    except OSError as error:
        _refuse(f"{options.listen}: {error.strerror}", "Run it again; another port is chosen.")


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("benchctl-serve", allow_abbrev=False)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--draft", type=Path)
    parser.add_argument("--listen", required=True, help="a port of this machine, or the path of a Unix socket")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda", "metal"), default="auto")
    parser.add_argument("--dtype", choices=("auto", "float32", "bfloat16", "float16"), default="auto")
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--speculation", type=json.loads)
    parser.add_argument("--trace", type=Path, help="file to which a line is appended for every step of an answer")
    parser.add_argument("--trust-remote-code", action="store_true")
    return parser.parse_args(arguments)


def _load(options: argparse.Namespace) -> Service:
    if options.threads:
        torch.set_num_threads(options.threads)
    transformers.utils.logging.disable_progress_bar()
    device = choose_device(options.device)
    chosen: dict[str, Any] = {"device": device, "dtype": options.dtype, "remote_code": options.trust_remote_code}
    loaded = load(options.model, **chosen)
    decoder = Decoder(loaded.model)
    tested = run_self_test(decoder)
    way = speculation = None
    if options.speculation is not None:
        if problem := tested.problem():
            raise UnsuitableError(f"{decoder.model_type} must not speculate: {problem}", "Measure the target alone.")
        requested = Speculation(*map(options.speculation.get, ("type", "max", "options")))
        method = registered().get(requested.type)
        draft = load(options.draft, **chosen) if options.draft and not (method and method.adapter) else None
        way = make_drafter(decoder, requested, loaded, draft, options.draft)
        speculation = {"type": requested.type, "max": requested.depth}
    info = {
        "model": str(options.model),
        "class": type(loaded.model).__name__,
        "dtype": str(loaded.model.dtype).removeprefix("torch."),
        "device": torch.cuda.get_device_name() if device == "cuda" else device,
        "threads": torch.get_num_threads(),
        "attention": loaded.model.config._attn_implementation,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "self_test": asdict(tested),
        "speculation": speculation,
    }
    service = Service(loaded, decoder, way, options.context, info, options.trace)
    _say(f"info: {json.dumps(service.describe())}")
    return service


def _say(line: str) -> None:
    sys.stderr.write(f"benchctl-serve: {line}\n")
    sys.stderr.flush()


def _refuse(problem: str, fix: str) -> NoReturn:
    _say(f"error: {problem} | {fix}".replace("\n", " "))
    sys.exit(2)


def _end(*_: object) -> NoReturn:
    sys.exit(0)
