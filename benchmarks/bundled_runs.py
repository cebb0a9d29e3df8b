"""Runs of the bundled pair for benchmarks: recipes made in code, run as `benchctl run` does."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchctl.data.store import RunData, open_run
from benchctl.engines.llama_cpp.adapter import LlamaCppSpec
from benchctl.engines.llama_cpp.installation import search
from benchctl.measurement.prepare import prepare
from benchctl.measurement.progress import RunProgress
from benchctl.measurement.run import start_run
from benchctl.prompts.load import load_suite
from benchctl.recipes.schema import Arm, ModelPair, ModelSpec, PromptsSpec, Recipe, Sampling
from benchctl.recipes.speculation import Speculation
from benchmarks.proxy import wrapper

TASKS = ["ja_chat", "translation_en_ja", "code"]


def bundled_recipe(arms: Sequence[Arm], *, engine: LlamaCppSpec | None = None, **fields: object) -> Recipe:
    """Return a recipe of the bundled pair on one thread; `more` replaces any other of its keys."""
    values: dict[str, object] = {
        "name": "validity",
        "engine": engine or engine_spec(),
        "models": ModelPair(
            target=ModelSpec(source="bundled:tiny-hybrid"), draft=ModelSpec(source="bundled:tiny-hybrid-draft")
        ),
        "prompts": PromptsSpec(suite="tiny.json", tasks=TASKS, limit=1),
        "sampling": Sampling(max_tokens=32),
        "arms": list(arms),
    }
    return Recipe.model_validate({"preflight": "off"} | values | fields)


def engine_spec(binary: Path | None = None, env: Mapping[str, str] | None = None, *, threads: int = 1) -> LlamaCppSpec:
    """Return the engine of every benchmark here, on CPU threads; the one behind `binary` where there is one."""
    return LlamaCppSpec(
        device="cpu", context=2048, threads=threads, binary=None if binary is None else str(binary), env=dict(env or {})
    )


def faulty_engine(folder: Path, faults: Mapping[str, tuple[str, float]]) -> tuple[LlamaCppSpec, Path]:
    """Return an engine that spoils the answers of the arms called as `faults` says, and the file of what it spoilt."""
    truth = folder / "truth.jsonl"
    truth.touch()
    env = {
        "PROXY_SERVER": str(search().find().path),
        "PROXY_FAULTS": json.dumps(faults),
        "PROXY_TRUTH": str(truth),
    }
    return engine_spec(wrapper(folder), env), truth


def plain(name: str, *args: str) -> Arm:
    """Return an arm of the target alone."""
    return Arm(name=name, args=list(args))


def drafting(name: str, *args: str, depth: int = 4) -> Arm:
    """Return an arm with the draft model."""
    return Arm(name=name, speculation=Speculation(type="draft-simple", max=depth), args=list(args))


def numbered_prompts(
    folder: Path,
    count: int,
    suite: str = "tiny.json",
    tasks: Sequence[str] | None = None,
    schema: Mapping[str, object] | None = None,
) -> Path:
    """Write a suite of `count` different prompts in one task: those of `suite`, or of `tasks` in it, in turn, each with
    its number before; `schema`: of the JSON that answers must be."""
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    settings = {"response_format": form} if schema else {}
    items = load_suite(suite, recipe_folder=folder).select(tasks, None)
    prompts = [
        {"messages": [{"role": "user", "content": f"{number}. {item.prompt.messages[0].content}"}], **settings}
        for number, item in zip(range(count), itertools.cycle(items), strict=False)
        if item.prompt.messages
    ]
    file = folder / f"numbered-{count}.json"
    head = {"schema": 1, "name": "numbered", "kind": "chat", "licence": "Apache-2.0", "source": f"{suite}, numbered"}
    file.write_text(json.dumps({**head, "tasks": {"numbered": prompts}}), encoding="utf-8")
    return file


def measure(recipe: Recipe, folder: Path) -> RunData:
    """Run a recipe into a new folder below `folder`; raises what `benchctl run` shows as errors."""
    prepared = prepare(recipe, recipe_folder=folder, trusted=True)
    return open_run(start_run(prepared, folder / "results", RunProgress(), ["benchmarks.validity"]))


def verified(run: Path, *options: str) -> tuple[int, dict[str, Any]]:
    """Return what `benchctl verify-lossless --json` says of a run, and its exit code."""
    command = [sys.executable, "-m", "benchctl", "verify-lossless", str(run.absolute()), "--json", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not done.stdout:
        raise RuntimeError(done.stderr)
    document: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, document
