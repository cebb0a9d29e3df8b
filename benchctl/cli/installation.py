"""Is there an engine to measure, and are the models that come with benchctl whole?"""

from __future__ import annotations

from pathlib import Path

import benchctl.models
from benchctl.engines.inventory import FoundEngine, find_engines
from benchctl.engines.llama_cpp.trial import check_quantized
from benchctl.machine.doctor import Check

BUNDLED_MODELS = Path(benchctl.models.__file__).parent / "bundled"


def check_installation(models: Path = BUNDLED_MODELS) -> list[Check]:
    """Look for engines and for the bundled models below `models`."""
    found = find_engines()
    usable = [engine for engine in found if engine.runs and not engine.problem]
    checks = [_llama_cpp([engine for engine in found if engine.kind == "llama.cpp"], others=usable)]
    if checks[0].state == "ok" and (server := next(engine for engine in found if engine.kind == "llama.cpp").where):
        checks.append(check_quantized(Path(server)))
    others = [engine for engine in usable if engine.kind != "llama.cpp"]
    if others:
        names = ", ".join(f"{engine.kind} {engine.version or ''}".strip() for engine in others)
        checks.append(Check("engine.others", "ok", f"Found: {names}.", "A recipe names the kind of engine it runs."))
    return [*checks, _models(models)]


def _llama_cpp(found: list[FoundEngine], others: list[FoundEngine]) -> Check:
    why = "Without an engine nothing can be measured."
    first = found[0]
    if first.problem:
        return Check("engine.llama.cpp", "fail", f"{first.where}: {first.problem.rstrip('.')}.", why, first.hint)
    if not first.found_in:
        todo = "Run `benchctl engines install llama.cpp`."
        return Check("engine.llama.cpp", "warn" if others else "fail", "There is no llama-server.", why, todo)
    seen = f"{first.where} ({first.found_in}) is {first.version or 'of an unknown version'}."
    if not first.speculation_types:
        todo = "Use a newer build: `benchctl engines install llama.cpp` makes one."
        return Check("engine.llama.cpp", "warn", f"{seen} It knows no speculation types.", why, todo)
    return Check("engine.llama.cpp", "ok", seen, why)


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
