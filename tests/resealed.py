"""SHA-256 anew for a run that a test made or edited, as somebody would who forges with care: nothing shows by them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from benchctl.data.digests import sealed
from benchctl.data.store import MANIFEST
from benchctl.experiments.sampling.stored import CHECK


def reseal(run: Path) -> Path:
    """Make all digests of a run, or of a check of its sampling, anew; return it."""
    document = json.loads((run / (CHECK if (run / CHECK).exists() else MANIFEST)).read_text("utf-8"))
    manifest: dict[str, Any] = document.get("manifest", document)
    manifest["files"] = {
        file.name: {"bytes": file.stat().st_size, "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}
        for file in sorted(run.iterdir())
        if file.name not in (CHECK, MANIFEST) and file.suffix in (".json", ".jsonl")
    }
    write_sealed(run / (CHECK if "manifest" in document else MANIFEST), document)
    return run


def write_sealed(file: Path, document: dict[str, Any]) -> None:
    """Write a document with its digest; the one that it has is dropped."""
    document = {key: value for key, value in document.items() if key != "digest"}
    file.write_text(sealed(json.dumps(document, indent=1)), "utf-8")
