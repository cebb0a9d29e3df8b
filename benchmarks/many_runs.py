"""How long planning, listing and resuming 1,000 cells takes, and comparing 100 runs of 10,000 records with each other.

    python -m benchmarks.many_runs [--runs 100] [--records 10000] [--tokens 128]

All in a temporary folder, by the command line as a user would. The cells are those of a recipe over axes on the
bundled pair (10 numbers of threads, 2 KV types, 10 arms, 5 blocks); of its run all is there but the last cell, so that
resuming has one to find. The runs are written once for every ten of them and copied with another id. `compare` reads
them all the first time, and afterwards the summaries that it leaves beside them.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from pathlib import Path

from benchctl.data.cell import Cell
from benchctl.data.record import Record, sha256_text, sha256_tokens
from benchctl.data.writer import RunWriter
from benchctl.measurement.manifest import new_manifest
from benchctl.measurement.plan import make_plan
from benchctl.measurement.prepare import prepare
from benchctl.recipes.load import load_recipe
from benchmarks.keep import keep
from benchmarks.records_scale import measure, write_run

RECIPE = """\
name: thousand
engine: {kind: llama.cpp, device: cpu, context: 1024}
models: {target: {source: "bundled:tiny-hybrid"}, draft: {source: "bundled:tiny-hybrid-draft"}}
prompts: {suite: tiny.json, tasks: [code], limit: 2}
sampling: {max_tokens: 32}
preflight: "off"
blocks: 5
matrix:
  engine.threads: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
  cache_type: [f16, q8_0]
arms:
  - name: baseline
  - name: spec_d{depth}
    speculation: {type: draft-simple, max: "{depth}"}
    matrix: {depth: [1, 2, 3, 4, 5, 6, 7, 8, 9]}
"""
VARIANTS = 10


def write_cells(recipe: Path, results: Path) -> Path:
    """Write the run of a recipe of which the last cell is missing, and return its folder."""
    prepared = prepare(load_recipe(recipe), recipe_folder=recipe.parent)
    manifest = new_manifest(prepared, ["benchmarks.many_runs"])
    manifest.status = "interrupted"
    plan = make_plan(prepared.recipe, prepared.prompts)
    folder = results / manifest.recipe_name / manifest.run
    folder.mkdir(parents=True)
    with (folder / "records.jsonl").open("w", encoding="ascii") as file:
        for cell in plan[:-1]:
            for item in cell.prompts:
                ids = list(range(32))
                text = f"the answer to {item.prompt_idx}"
                fields = {
                    "label": cell.arm.name,
                    "task": item.task,
                    "prompt_idx": item.prompt_idx,
                    "rep": cell.block,
                    "block": cell.block,
                    "order": cell.order,
                    "schema": 1,
                    "run": manifest.run,
                    "n_predicted": len(ids),
                    "client_tok_per_sec": 50.0,
                    "ttft_s": 0.1,
                    "e2e_s": 0.8,
                    "content": text,
                    "content_sha": sha256_text(text),
                    "token_ids": ids,
                    "token_sha": sha256_tokens(ids),
                    "finish_reason": "length",
                }
                file.write(Record.from_dict(fields).to_line() + "\n")
            manifest.cells.append(
                Cell(
                    block=cell.block,
                    arm=cell.arm.name,
                    order=cell.order,
                    status="finished",
                    started_at=manifest.created_at,
                    wall_s=3.0,
                    startup_s=1.0,
                    log="logs/none.log",
                )
            )
    with RunWriter(folder, manifest):
        pass
    return folder


def write_runs(results: Path, count: int, size: int, tokens: int) -> list[Path]:
    """Write `count` runs of `size` records, ten different ones in turn, and return their folders."""
    folders: list[Path] = []
    for number in range(count):
        name = f"20260101-{number:06d}-{number:04x}"
        folder = results / "many" / name
        if number < VARIANTS:
            write_run(folder, size + 21 * number, tokens)
        else:
            shutil.copytree(folders[number % VARIANTS], folder)
            manifest = json.loads((folder / "manifest.json").read_text())
            (folder / "manifest.json").write_text(json.dumps(manifest | {"run": name}))
        folders.append(folder)
    return folders


def timed(arguments: list[str]) -> dict[str, float]:
    """Run benchctl; its seconds and its largest memory, that of its helpers apart."""
    wall, cpu, memory = measure(arguments)
    return {"wall_s": round(wall, 2), "cpu_s": round(cpu, 2), "peak_mib": round(memory, 1)}


def main() -> None:
    """Measure, and keep what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--records", type=int, default=10_000)
    parser.add_argument("--tokens", type=int, default=128)
    options = parser.parse_args()
    found: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as temporary:
        home = Path(temporary)
        recipe, results = home / "thousand.yaml", home / "results"
        recipe.write_text(RECIPE, encoding="utf-8")
        run = write_cells(recipe, results)
        found["plan 1,000 cells"] = timed(["run", str(recipe), "--dry-run", "--output", str(results)])
        found["list and show them"] = timed(["runs", "show", str(run), "--results", str(results)])
        found["find what is left of them"] = timed(["run", "--resume", str(run), "--dry-run", "--output", str(results)])
        found["report them, without figures"] = timed(
            ["report", str(run), "--no-figures", "--output", str(home / "reports")]
        )
        folders = [str(folder) for folder in write_runs(home / "many", options.runs, options.records, options.tokens)]
        for name in ("compare, the first time", "compare, again"):
            found[name] = timed(["compare", *folders, "--quiet"])
    keep("many_runs", {"runs": options.runs, "records": options.records, "tokens": options.tokens, **found})


if __name__ == "__main__":
    main()
