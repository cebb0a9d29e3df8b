"""Run by the engine's Python, never imported by benchctl: which torch and transformers it has, as JSON."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import sys


def _distribution(name: str) -> dict[str, str | None]:
    """Return the version, and the SHA-256 of the list of files, which holds their hashes."""
    distribution = importlib.metadata.distribution(name)
    lines = [line for line in (distribution.read_text("RECORD") or "").splitlines() if not line.startswith("../")]
    files = "\n".join(sorted(line for line in lines if ".dist-info/" not in line and "__pycache__" not in line))
    return {
        "version": distribution.version,
        "record_sha256": hashlib.sha256(files.encode()).hexdigest() if files else None,
    }


def main() -> None:
    """Print the facts as the last line of standard output."""
    import torch

    devices = ["cpu"]
    if torch.cuda.is_available():
        devices.append("cuda")
    if torch.backends.mps.is_available():
        devices.append("metal")
    # The group's name is from `methods.py`, which this script cannot import.
    drafters = [entry for entry in importlib.metadata.entry_points(group="benchctl.drafters") if entry.dist is not None]
    names = dict.fromkeys(("torch", "transformers", "tokenizers", "safetensors", "numpy"))
    names |= dict.fromkeys(entry.dist.name for entry in drafters if entry.dist is not None)
    facts = {
        "python": sys.version.split()[0],
        "distributions": {name: _distribution(name) for name in names},
        "drafters": sorted({entry.name for entry in drafters}),
        "devices": devices,
        "accelerator": torch.cuda.get_device_name() if "cuda" in devices else None,
        "threads": torch.get_num_threads(),
    }
    sys.stdout.write("\n" + json.dumps(facts) + "\n")


if __name__ == "__main__":
    main()
