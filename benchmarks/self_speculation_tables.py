"""The tables of docs/self-speculation.md, written anew from the kept results of the other scripts.

    python -m benchmarks.self_speculation_tables

A table follows a comment `<!-- from NAME.json -->`, NAME a file of benchmarks/results.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.keep import RESULTS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "self-speculation.md"
_TABLE = re.compile(r"(<!-- from (\w+)\.json -->\n\n)(?:\|.*\n)+")
Found = Mapping[str, Any]
SEARCHING = ("self-swift", "self-clasp", "self-del", "self-knapspec")


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def rounds(results: Found) -> Iterator[Sequence[str]]:
    """Yield the lines of the rounds beside bare passes."""
    yield "type", "accepted, %", "c", "v", "realised (search), %", "speed-up"
    for name, row in results["types"].items():
        share = row["accepted"] / row["drafted"] if row["drafted"] else 0.0
        search = f" ({100 * row['search_share']:.1f})" if row["search_share"] else ""
        costs = (f"{row[key]:.2f}" for key in ("c", "v"))
        realised = f"{100 * row['realised']:.1f}{search}"
        yield f"`{name}`", f"{100 * share:.0f}", *costs, realised, f"{row['speed_up']:.2f}×"


def ablation(results: Found) -> Iterator[Sequence[str]]:
    """Yield the lines of the ablation study: what of k draft tokens is accepted."""
    yield "draft, target", "%, k = 2, 4, 8", "at T = 0.6", "perplexity"
    by_draft: dict[str, list[Found]] = {}
    for row in results["drafts"]:
        by_draft.setdefault(row["draft"], []).append(row)
    for name, rows in by_draft.items():
        kind, details = name.split(" (", 1)
        target = details.rstrip(")").rpartition("t_tiny-")[2]
        shares = (", ".join(f"{100 * row['accepted_of_k'][depth]:.0f}" for depth in ("2", "4", "8")) for row in rows)
        yield f"`{kind}`, {target}", *shares, f"{rows[0]['perplexity_ratio']:.2f}×"


def runs(results: Found) -> Iterator[Sequence[str]]:
    """Yield the arms of runs on a real model."""
    yield "draft", "accepted, %", "TPT", "speed-up", "output"
    for row in results["arms"]:
        share = f"{100 * row['accepted'] / row['drafted']:.0f}" if row["drafted"] else "nothing drafted"
        ends = "" if row["interval"] is None else f" ({row['interval'][0]:.2f} to {row['interval'][1]:.2f})"
        tpt = "" if row["tokens_per_time"] is None else f"{row['tokens_per_time']:.2f}×"
        yield f"`{row['arm']}`", share, tpt, f"{row['speedup']:.2f}×{ends}", row["output"]


def methods(results: Found) -> Iterator[Sequence[str]]:
    """Yield the claims of the studies beside what was found."""
    yield "claim", "here"

    def shares(model: str, method: str) -> tuple[str, ...]:
        rows = [row for row in results["rows"] if (row["model"], row["method"]) == (model, method)]
        return tuple(_percent(row["acceptance"]) for row in sorted(rows, key=lambda row: int(row["context"])))

    (short, long), (linear, linear_long), (skip, skip_long) = (
        shares("tiny-hybrid", "self-ssm"),
        shares("tiny-sequential", "self-linear"),
        shares("tiny-sequential", "self-layerskip"),
    )
    yield (
        "parallel hybrids draft well without attention, sequential hybrids less",
        f"{long} and {linear_long} accepted at the long context ({short} and {linear} at the short)",
    )
    yield (
        "on a sequential hybrid leaving out the component beats skipping layers",
        f"{linear} against {skip} at the short context, {linear_long} against {skip_long} at the long",
    )
    correlations = results["correlations"]
    apart = sorted(row["predicted"] for name, row in correlations.items() if name != "all")
    yield (
        "tokens per time predicts throughput (KnapSpec: r = 0.84), acceptance less",
        f"r = {correlations['all']['predicted']:.2f} ({apart[0]:.2f} to {apart[-1]:.2f} by model); of acceptance "
        f"{correlations['all']['acceptance']:.2f}",
    )
    best: list[bool] = []
    rows = [row for row in results["rows"] if row["method"] in SEARCHING and "predicted" in row]
    for _, group in groupby(rows, key=lambda row: (row["model"], row["context"])):
        best.append(max(group, key=lambda row: float(row["predicted"]))["method"] == "self-knapspec")
    yield "KnapSpec beats CLaSp, SWIFT and DEL in tokens per time", f"in {sum(best)} of {len(best)} cases"


def by_context(results: Found) -> Iterator[Sequence[str]]:
    """Yield the methods on a model, at its contexts in their order."""
    yield "method", "accepted, %", "TPT", "speed-up"
    for name, rows in groupby(
        sorted(results["rows"], key=lambda row: str(row["method"])), key=lambda row: row["method"]
    ):
        by_length = sorted(rows, key=lambda row: int(row["context"]))
        yield (
            f"`{name}`",
            ", ".join(f"{100 * row['acceptance']:.0f}" for row in by_length),
            *(", ".join(f"{row[key]:.2f}×" for row in by_length) for key in ("predicted", "speed_up")),
        )


TABLES = {
    "self_speculation_rounds": rounds,
    "self_speculation_ablation": ablation,
    "self_speculation_methods": methods,
    "self_speculation_methods_real": by_context,
    "self_speculation_runs": runs,
}


def written(page: str) -> str:
    """Return the page with its tables made of the kept results."""

    def table(match: re.Match[str]) -> str:
        results = json.loads((RESULTS / f"{match[2]}.json").read_text("utf-8"))["found"]
        head, *body = TABLES[match[2]](results)
        return match[1] + "".join(f"| {' | '.join(line)} |\n" for line in (head, ["---"] * len(head), *body))

    return _TABLE.sub(table, page)


def main() -> None:
    """Write the page."""
    PAGE.write_text(written(PAGE.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
