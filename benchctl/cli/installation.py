"""Is there an engine to measure, and are the models that come with benchctl whole?"""

from __future__ import annotations

from pathlib import Path

import benchctl.models
from benchctl.engines.registry import find_engines
from benchctl.machine.doctor import Check
from benchctl.recipes.adapters import load, registered

BUNDLED_MODELS = Path(benchctl.models.__file__).parent / "bundled"


def check_installation(models: Path = BUNDLED_MODELS) -> list[Check]:
    """Look for engines and for the bundled models below `models`."""
    found = find_engines()
    usable = [engine for engine in found if engine.runs and not engine.problem]
    checks, named = [], []
    for kind, adapter in registered().adapters.items():
        mine = [engine for engine in found if engine.kind == kind]
        if adapter.doctor is not None:
            others = any(engine.kind != kind for engine in usable)
            checks += load(adapter.doctor)(mine, others=others)
        else:
            named += [engine for engine in mine if engine in usable]
    if named:
        names = ", ".join(f"{engine.kind} {engine.version or ''}".strip() for engine in named)
        checks.append(Check("engine.others", "ok", f"Found: {names}.", "A recipe names the kind of engine it runs."))
    for kind, why in registered().broken.items():
        checks.append(Check(f"engine.{kind}", "warn", f"{why}.", "Its recipes cannot run.", "Update or remove it."))
    return [*checks, _models(models)]


def _models(folder: Path) -> Check:
    why = "The quickstart recipe measures the pair that comes with benchctl."
    files = sorted(folder.glob("*.gguf"))
    if not files:
        return Check("models.bundled", "warn", "The bundled models are not there.", why, "Install benchctl again.")
    broken = [file.name for file in files if not _is_gguf(file)]
    if broken:
        seen = f"No GGUF model is in {', '.join(broken)}."
        return Check("models.bundled", "fail", seen, why, "Install benchctl again, or restore the files: `git status`.")
    megabytes = sum(file.stat().st_size for file in files) / 1e6
    return Check("models.bundled", "ok", f"{len(files)} models are there ({megabytes:.0f} MB).", why)


def _is_gguf(file: Path) -> bool:
    try:
        with file.open("rb") as stream:
            return stream.read(4) == b"GGUF"
    except OSError:
        return False
