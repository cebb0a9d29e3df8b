"""Which types of speculation ran here, with which head, and what a run of each says: the table in docs/engines.md.

    python -m benchmarks.speculation_types [RUN ...] [--random RUN ...]

Of every type in these runs the arm that drafted most is kept in `results/speculation_types.json`, in place of what was
kept of that type before; then the table is written anew. A run must have been verified (`benchctl verify-lossless`).
`--random`: runs of the same recipes with untrained heads (`--steps 0`), of which the same arm's acceptance is kept.
"""

from __future__ import annotations

import argparse
import json
import re
from typing import Any

import benchctl
from benchctl.api import Run
from benchmarks.keep import RESULTS, keep

PAGE = RESULTS.parents[1] / "docs" / "engines.md"
NAME = "speculation_types"
TABLE = re.compile(r"(?<=<!-- types -->\n).*?(?=<!-- /types -->)", re.DOTALL)
COLUMNS = ("engine", "type", "head", "accepted (untrained)", "recipe")


def rows_of(run: Run) -> dict[str, dict[str, Any]]:
    """Return what a run says of every type in it, by engine and type."""
    manifest = run.data.manifest
    assert manifest is not None
    recipe, models = manifest.recipe, manifest.recipe["models"]
    verdicts = {judged.arm: judged.verdict for judged in run.analysis.losslessness}
    accepted = {row.arm: row for row in run.analysis.acceptance if row.task == "all"}
    settings = {arm["name"]: arm["speculation"] for arm in recipe["arms"] if arm["speculation"] is not None}
    rows: dict[str, dict[str, Any]] = {}
    for arm in sorted(settings, key=lambda name: accepted[name].drafted or 0):
        kind = settings[arm]["type"]
        if not isinstance(kind, str):  # several types together
            continue
        head = models["draft"] or models["target"]
        states = [cell.attestation.state for cell in manifest.cells if cell.arm == arm and cell.attestation]
        rows[f"{recipe['engine']['kind']} {kind}"] = {
            "recipe": recipe["name"],
            "arm": arm,
            "head": None if kind.startswith("ngram") or kind == "suffix" else head["source"],
            "blocks": len(states),
            "attested": sorted(set(states)),
            "drafted": accepted[arm].drafted,
            "accepted": accepted[arm].accepted,
            "verdict": verdicts[arm],
            "command": manifest.command,
        }
    return rows


def cells_of(row: dict[str, Any]) -> list[str]:
    """Return the table's cells of a type, after engine and type. The page says that all are active and identical."""
    assert (row["attested"], row["verdict"]) == (["active"], "identical"), row["recipe"]
    head = row["head"] or "–"
    by_path = ":" not in head and head != "–"
    name = "`make heads`" if by_path else head.rpartition("/")[2].removeprefix("bundled:")
    untrained = f" ({share_of(row['random']).partition(' ')[0]})" if "random" in row else ""
    return [name, f"{share_of(row)}{untrained}", f"`{row['recipe']}`"]


def share_of(counts: dict[str, Any]) -> str:
    """Return the share of drafted tokens that were accepted."""
    drafted = counts["drafted"]
    return f"{counts['accepted'] / drafted:.0%} of {drafted}" if drafted else "nothing drafted"


def table(rows: dict[str, dict[str, Any]]) -> str:
    """Return the table in Markdown."""
    lines = [COLUMNS, ("---",) * len(COLUMNS)]
    for key in sorted(rows):
        engine, kind = key.split(" ")
        lines.append((engine, f"`{kind}`", *cells_of(rows[key])))
    return "\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n\n"


def with_random(rows: dict[str, dict[str, Any]], run: Run) -> None:
    """Add what untrained heads reached in `run`, on the arms that are kept."""
    for key, row in rows_of(run).items():
        assert row["arm"] == rows[key]["arm"], f"{key}: kept is {rows[key]['arm']}"
        rows[key]["random"] = {name: row[name] for name in ("drafted", "accepted")}


def main() -> None:
    """Keep what the runs say and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*")
    parser.add_argument("--random", nargs="*", default=[])
    options = parser.parse_args()
    file = RESULTS / f"{NAME}.json"
    rows: dict[str, dict[str, Any]] = json.loads(file.read_text("utf-8"))["found"] if file.is_file() else {}
    for path in options.runs:
        rows |= rows_of(benchctl.open_run(path))
    for path in options.random:
        with_random(rows, benchctl.open_run(path))
    if options.runs or options.random:
        keep(NAME, dict(sorted(rows.items())))
    PAGE.write_text(written(PAGE.read_text("utf-8"), rows), "utf-8")


def written(page: str, rows: dict[str, dict[str, Any]]) -> str:
    """Return the page with the table of what is kept."""
    return TABLE.sub(lambda _: table(rows), page)


if __name__ == "__main__":
    main()
