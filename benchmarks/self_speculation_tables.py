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


def rounds(found: Found) -> Iterator[Sequence[str]]:
    """Yield the lines of the rounds beside bare passes."""
    yield "type", "accepted", "c", "v", "realised", "overhead", "search", "speed-up"
    for name, row in found["types"].items():
        share = row["accepted"] / row["drafted"] if row["drafted"] else 0.0
        own = (f"{row[key]:.1%}" for key in ("realised", "overhead", "search_share"))
        yield f"`{name}`", f"{share:.0%}", f"{row['c']:.2f}", f"{row['v']:.2f}", *own, f"{row['speed_up']:.2f}×"


def study(found: Found) -> Iterator[Sequence[str]]:
    """Yield the claims of the studies beside what was found."""
    yield "claim", "here"
    greedy = {row["draft"]: row for row in found["drafts"] if not row["temperature"]}

    def share(start: str, model: str) -> str:
        row = next(row for name, row in greedy.items() if name.startswith(start) and model in name)
        return f"{row['accepted_of_k'].get('4', row['accepted_of_k'].get(4)):.0%}"

    yield (
        "parallel hybrids draft well without attention, sequential hybrids less",
        f"of four draft tokens {share('self-ssm', 'parallel')} and {share('self-linear', 'sequential')} are accepted",
    )
    yield (
        "on a sequential hybrid leaving out the component beats skipping a third of the layers, or exiting halfway",
        f"{share('self-linear', 'sequential')} against {share('self-layerskip', 'sequential')} and "
        f"{share('self-early-exit', 'sequential')}",
    )
    every = found["correlations"]["all"]
    yield (
        "tokens per time predicts throughput (KnapSpec: r = 0.84), acceptance less",
        f"r = {every['tpt']:.2f} and {every['acceptance']:.2f} ({every['rows']} rows)",
    )
    best, groups = 0, 0
    rows = [row for row in found["rows"] if row["arm"] in ("swift", "clasp", "del", "knapspec") and "tau" in row]
    for _, group in groupby(rows, key=lambda row: (row["model"], row["context"])):
        groups += 1
        best += max(group, key=lambda row: row["tpt"])["arm"] == "knapspec"
    yield "KnapSpec beats CLaSp, SWIFT and DEL in tokens per time", f"in {best} of {groups} cases"
    by_context: dict[int, list[float]] = {}
    for row in rows:
        if row["arm"] == "knapspec":
            by_context.setdefault(row["context"] or 0, []).append(row["attention_skipped"])
    shares = "; ".join(
        f"{f'{context:,} tokens' if context else 'short'}: {sum(each) / len(each):.0%}"
        for context, each in sorted(by_context.items())
    )
    yield "longer contexts favour leaving out attention (KnapSpec's share of skipped attention layers)", shares


TABLES = {"self_speculation_rounds": rounds, "self_speculation_study": study}


def written(page: str) -> str:
    """Return the page with its tables made of the kept results."""

    def table(match: re.Match[str]) -> str:
        found = json.loads((RESULTS / f"{match[2]}.json").read_text("utf-8"))["found"]
        head, *body = TABLES[match[2]](found)
        return match[1] + "".join(f"| {' | '.join(line)} |\n" for line in (head, ["---"] * len(head), *body))

    return _TABLE.sub(table, page)


def main() -> None:
    """Write the page."""
    PAGE.write_text(written(PAGE.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
