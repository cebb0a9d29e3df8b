"""Run by the Python of an installed SGLang, never imported by benchctl: what this version can do, as JSON.

The options are those of SGLang's own argument parser; the algorithms those that its `SpeculativeAlgorithm` takes,
plugins included.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import importlib.metadata
import json
import sys
from typing import Any


def _module(name: str) -> Any:  # noqa: ANN401 - a module of a package that is not here
    return importlib.import_module(f"sglang.srt.{name}")


def _algorithms() -> list[str]:
    names = set(_module("speculative.spec_info").SpeculativeAlgorithm.__members__) - {"NONE"}
    spec_registry = _module("speculative.spec_registry")
    return sorted(names | set(spec_registry._RESERVED_ALIASES) | set(spec_registry._REGISTRY))


def main() -> None:
    """Print the facts as the last line of standard output."""
    parser = argparse.ArgumentParser()
    _module("server_args").ServerArgs.add_cli_args(parser)
    package = importlib.metadata.distribution("sglang")
    record = package.read_text("RECORD")
    facts = {
        "version": package.version,
        "python": sys.version.split()[0],
        "record_sha256": hashlib.sha256(record.encode()).hexdigest() if record else None,
        "algorithms": _algorithms(),
        "options": {name: action.nargs == 0 for action in parser._actions for name in action.option_strings},
    }
    sys.stdout.write("\n" + json.dumps(facts) + "\n")


if __name__ == "__main__":
    main()
