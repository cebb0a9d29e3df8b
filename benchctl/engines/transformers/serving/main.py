"""The engine's process: load a model, test it, serve it.

Whatever is wrong is one line on standard error, `benchctl-serve: error: WHAT | FIX`, and exit status 2.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch
import transformers

from benchctl.engines.transformers.serving import KEY_VARIABLE
from benchctl.engines.transformers.serving.answering import Speculation, make_drafter
from benchctl.engines.transformers.serving.decoder import Decoder, UnknownArchitectureError
from benchctl.engines.transformers.serving.drafters.silencing import UnsuitableError
from benchctl.engines.transformers.serving.http import Service, serve
from benchctl.engines.transformers.serving.loading import RefusedError, choose_device, load
from benchctl.engines.transformers.serving.self_test import run_self_test


def main(arguments: Sequence[str]) -> None:
    """Serve until SIGTERM."""
    signal.signal(signal.SIGTERM, _end)
    options = _options(arguments)
    key = os.environ.pop(KEY_VARIABLE, None)
    try:
        service = _load(options)
        serve(service, options.socket or (options.host, options.port), key, lambda: _say("ready"))
    except RefusedError as error:
        _refuse(str(error), error.fix)
    except OSError as error:
        where = options.socket or f"{options.host}:{options.port}"
        _refuse(f"{where}: {error.strerror}", "Run it again; another port is chosen.")


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("benchctl-serve", allow_abbrev=False)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--draft", type=Path)
    parser.add_argument("--host", default="127.0.0.1")
    listening = parser.add_mutually_exclusive_group(required=True)
    listening.add_argument("--port", type=int)
    listening.add_argument("--socket", help="path of a Unix socket, in place of host and port")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda", "metal"), default="auto")
    parser.add_argument("--dtype", choices=("auto", "float32", "bfloat16", "float16"), default="auto")
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--speculation", type=json.loads)
    parser.add_argument("--trust-remote-code", action="store_true")
    return parser.parse_args(arguments)


def _load(options: argparse.Namespace) -> Service:
    if options.threads:
        torch.set_num_threads(options.threads)
    transformers.utils.logging.disable_progress_bar()
    device = choose_device(options.device)
    loaded = load(options.model, device=device, dtype=options.dtype, remote_code=options.trust_remote_code)
    if loaded.context is not None and options.context > loaded.context:
        raise RefusedError(
            f"engine.context is {options.context}, more than the model was made for ({loaded.context}).",
            "Lower engine.context.",
        )
    try:
        decoder = Decoder(loaded.model)
    except UnknownArchitectureError as error:
        raise RefusedError(f"This architecture cannot be served: {error}.", "Take another model.") from error
    way, speculation = None, None
    tested = run_self_test(decoder)
    _say(f"self-test: {json.dumps(tested.to_json())}")
    if options.speculation is not None:
        if problem := tested.problem():
            raise RefusedError(f"{decoder.model_type} must not speculate: {problem}.", "Measure the target alone.")
        requested = Speculation(
            options.speculation["type"], options.speculation["max"], options.speculation.get("options") or {}
        )
        draft = None
        if options.draft is not None:
            draft = load(options.draft, device=device, dtype=options.dtype, remote_code=options.trust_remote_code)
        try:
            way = make_drafter(decoder, requested, loaded, draft)
        except UnsuitableError as error:
            raise RefusedError(f"{requested.type}: {error}.", "Correct the arm's speculation.") from error
        speculation = {"type": requested.type, **way.describe()}
        _say(f"speculation: {json.dumps(speculation)}")
    info: dict[str, Any] = {
        "model": str(options.model),
        "class": type(loaded.model).__name__,
        "model_type": decoder.model_type,
        "kind": decoder.architecture.kind,
        "parameters": loaded.model.num_parameters(),
        "dtype": str(loaded.model.dtype).removeprefix("torch."),
        "device": torch.cuda.get_device_name() if device == "cuda" else device,
        "threads": torch.get_num_threads(),
        "attention": loaded.model.config._attn_implementation,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "self_test": tested.to_json(),
        "speculation": speculation,
        "pid": os.getpid(),
    }
    _say(f"info: {json.dumps(info)}")
    return Service(loaded, decoder, way, options.context, info)


def _say(line: str) -> None:
    sys.stderr.write(f"benchctl-serve: {line}\n")
    sys.stderr.flush()


def _refuse(what: str, fix: str) -> NoReturn:
    _say(f"error: {what} | {fix}".replace("\n", " "))
    sys.exit(2)


def _end(*_: object) -> NoReturn:
    sys.exit(0)
