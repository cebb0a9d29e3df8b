"""Digests for a run that a test edited, as somebody would make them who forges with care: nothing shows by them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from benchctl.data.chain import Chain, chain_seed, sealed
from benchctl.data.integrity import DIGESTS
from benchctl.data.store import MANIFEST, RECORDS
from benchctl.experiments.sampling.stored import ANSWERS, CHECK


def reseal(run: Path) -> Path:
    """Make all digests of a run, or of a check of its sampling, anew; return it."""
    head, lines = (CHECK, ANSWERS) if (run / CHECK).exists() else (MANIFEST, RECORDS)
    document = json.loads((run / head).read_text("utf-8"))
    manifest: dict[str, Any] = document["manifest"] if head == CHECK else document
    seed = chain_seed(manifest["run"], manifest["recipe_sha256"])
    chain = Chain(seed)
    marks = {0: chain.mark}
    made = []
    for line in (run / lines).read_text("ascii").splitlines():
        own = json.loads(line)
        own.pop("chain", None)
        made.append(chain.line(json.dumps(own, separators=(",", ":"))))
        chain.add(made[-1])
        marks[len(made)] = chain.mark
    (run / lines).write_bytes(b"".join(made))
    for cell in manifest["cells"]:
        if cell.get("mark"):
            cell["mark"] = marks[min(cell["mark"]["lines"], len(made))].model_dump()
    write_sealed(run / head, document)
    if (run / DIGESTS).exists():
        digests = json.loads((run / DIGESTS).read_text("utf-8"))
        for name, own in list(digests["files"].items()):
            if not (run / name).exists():
                del digests["files"][name]
                continue
            own["sha256"] = hashlib.sha256((run / name).read_bytes()).hexdigest()
            if own["mark"]:
                own["mark"] = marks[min(own["mark"]["lines"], len(made))].model_dump()
        write_sealed(run / DIGESTS, digests, seed)
    return run


def write_sealed(file: Path, document: dict[str, Any], anchor: str = "") -> None:
    """Write a document with its digest; the one that it has is dropped."""
    document = {key: value for key, value in document.items() if key != "digest"}
    file.write_text(sealed(json.dumps(document, indent=1), anchor) + "\n", "utf-8")
