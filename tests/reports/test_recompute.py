"""Every number in a report recomputes from the records, by arithmetic that shares nothing with benchctl's own."""

from __future__ import annotations

import csv
import json
import re
from collections import defaultdict
from itertools import product
from typing import Any

import pytest

from benchctl.data.store import open_run
from benchctl.lossless.analysed import analyse_run
from benchctl.reports.write import ReportFiles, write_report
from tests.reports.page_text import page_tables
from tests.reports.recount import ARMS, BLOCKS, PROMPTS, TASKS, Recount, write_run


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Recount, ReportFiles, dict[str, Any]]:
    """The recount, the report's files, and `analysis.json` as a program reads it."""
    folder = tmp_path_factory.mktemp("run") / "20261121-110500-3fa9"
    records = write_run(folder)
    run = open_run(folder)
    files = write_report(run, analyse_run(run), folder.parent / "report", figures=False)
    return Recount(records), files, json.loads(files.analysis.read_text())


def close(found: Any, wanted: Any) -> bool:
    return bool(found == pytest.approx(wanted, rel=1e-6)) if wanted is not None else found is None


def test_json(made: tuple[Recount, ReportFiles, dict[str, Any]]) -> None:
    recount, _, found = made
    assert found["records"] == len(ARMS) * len(TASKS) * PROMPTS * BLOCKS
    for row in found["speedups"]:
        for key, wanted in recount.speedup(row["arm"], row["task"]).items():
            assert close(row[key], wanted), (row["arm"], row["task"], key)
        low, high = recount.interval(row["arm"], row["task"])
        assert row["pointwise"]["low"] == pytest.approx(low, rel=0.01)
        assert row["pointwise"]["high"] == pytest.approx(high, rel=0.01)
    for row in found["acceptance"]:
        for key, wanted in recount.acceptance(row["arm"], row["task"]).items():
            assert close(row[key], wanted), (row["arm"], row["task"], key)
    for row in found["throughput"]:
        for key, wanted in recount.throughput(row["arm"], row["task"]).items():
            assert close(row[key], wanted), (row["arm"], row["task"], key)
    for row in found["costs"]:
        for key, wanted in recount.cost(row["arm"], ARMS[row["arm"]]).items():
            assert close(row[key], wanted), (row["arm"], key)
    assert {len(found[name]) for name in ("speedups", "acceptance")} == {2 * (1 + len(TASKS))}
    assert len(found["throughput"]) == len(ARMS) * (1 + len(TASKS))


def test_losslessness(made: tuple[Recount, ReportFiles, dict[str, Any]]) -> None:
    recount, _, found = made
    for arm in found["losslessness"]:
        outcomes: dict[str, int] = defaultdict(int)
        for row in arm["comparisons"]:
            pairs = [(r, b) for r, b in recount.pairs(arm["arm"], row["task"]) if r["prompt_idx"] == row["prompt_idx"]]
            differing = sum(r["content"] != b["content"] for r, b in pairs)
            assert (row["blocks_compared"], row["blocks_differing"]) == (len(pairs), differing)
            assert row["text_equal"] == (differing == 0)
            wanted = "differs" if differing else "identical" if len(pairs) == BLOCKS else "undetermined"
            assert row["outcome"] == wanted
            outcomes[wanted] += 1
            if differing:
                ours, theirs = pairs[0]
                fork = next(i for i, (a, b) in enumerate(zip(ours["token_ids"], theirs["token_ids"])) if a != b)  # noqa: B905
                assert (row["fork"]["index"], row["fork"]["unit"]) == (fork, "token")
        assert arm["counts"] == dict(outcomes)


def test_csv(made: tuple[Recount, ReportFiles, dict[str, Any]]) -> None:
    recount, files, _ = made

    def rows(name: str) -> list[dict[str, str]]:
        with (files.folder / name).open(newline="") as file:
            return list(csv.DictReader(file))

    def read(cell: str) -> Any:
        return json.loads(cell) if cell else None

    for name, source in (("speedup.csv", recount.speedup), ("acceptance.csv", recount.acceptance)):
        assert len(rows(name)) == 2 * (1 + len(TASKS))
        for row in rows(name):
            for key, wanted in source(row["arm"], row["task"]).items():
                assert close(read(row[key]), wanted), (name, key)
    for row in rows("costs.csv"):
        for key, wanted in recount.cost(row["arm"], ARMS[row["arm"]]).items():
            assert close(read(row[key]), wanted), key
    for arm, task in product(ARMS, TASKS):
        values = [float(r["tok_per_sec"]) for r in rows("throughput.csv") if (r["arm"], r["task"]) == (arm, task)]
        assert values == pytest.approx(recount.throughput(arm, task)["tok_per_sec"])


def test_tables_of_the_page(made: tuple[Recount, ReportFiles, dict[str, Any]]) -> None:
    recount, files, found = made
    tables = page_tables(files.page.read_text())
    audit_summary = {(row["arm"], row["task"]): row for row in found["speedups"]}

    def ends(interval: dict[str, float] | None) -> str:
        return "–" if interval is None else f"{interval['low']:.2f} to {interval['high']:.2f}×"

    def times(value: float) -> str:
        return f"{value:.2f}×"

    def share(value: float | None) -> str:
        return "–" if value is None else f"{100 * value:.1f} %"

    for row in tables["Speed-up"]:
        arm, task, *cells = row
        wanted, told = recount.speedup(arm, task), audit_summary[arm, task]
        assert cells == [
            times(wanted["pooled"]),
            ends(told["interval"]),
            *(times(wanted[key]) for key in ("median", "end_to_end", "ttft_ratio")),
            ends(told["ttft_interval"]),
            times(wanted["length_matched"]),
            " ".join(map(times, wanted["by_block"])),
            str(told["more_blocks"] or "–"),
            *(str(wanted[key]) for key in ("pairs", "pairs_unequal", "pairs_missing")),
        ]
    for row in tables["Acceptance"]:
        arm, task, *cells = row
        wanted = recount.acceptance(arm, task)
        counts = [f"{wanted[key]:,}".replace(",", "\u202f") for key in ("accepted", "drafted", "rounds")]
        lengths = [f"{wanted[key]:.2f}" for key in ("acceptance_length", "tokens_per_round", "tokens_per_step")]
        means = [share(wanted["rate_by_request"]), share(wanted["rate_by_task"])]
        assert cells == [share(wanted["rate"]), *counts, *lengths, *means]
    for row in tables["Acceptance by position"]:
        places = recount.acceptance(row[0], "all")["position_unconditional"]
        assert [cell for cell in row[1:] if cell] == [share(place) for place in places]
    for row in tables["Cost of a round"]:
        wanted = recount.cost(row[0], ARMS[row[0]])
        depth = wanted["depth"]
        needed = share(wanted["break_even_alpha"]) if wanted["break_even_alpha"] or not depth else "over 100 %"
        predicted = "–" if wanted["predicted"] is None else times(wanted["predicted"])
        head = [str(depth or "–"), share(wanted["alpha"]), needed]
        overhead = "–" if wanted["overhead"] is None else f"{wanted['overhead']:.2f}"
        assert row[1:] == [*head, overhead, predicted, times(wanted["measured"])]
    for row in tables["Throughput"]:
        wanted = recount.throughput(row[0], row[1])
        keys = ("median", "mean_rate", "prompt_tok_per_sec_median")
        rates = [f"{wanted[key]:.1f}" for key in keys]
        gap, outer = wanted["burst_gap_median_s"], wanted["burst_gap_p95_s"]
        gaps = [f"{1000 * gap:.1f} / {'–' if outer is None else f'{1000 * outer:.1f}'}"]
        gaps += [f"{wanted['tokens_per_burst']:.2f}", str(wanted["records"])]
        assert row[2:] == [*rates, f"{1000 * wanted['ttft_median_s']:.0f} ms", *gaps]
    assert any("Every engine process" in title for title in tables)


def test_every_number_of_the_first_table(made: tuple[Recount, ReportFiles, dict[str, Any]]) -> None:
    recount, files, found = made
    rows = next(iter(markdown_tables(files.markdown.read_text()).values()))
    assert [row[0] for row in rows] == ["baseline", "spec_d4", "ngram"]
    for arm, rate, speedup, ends, accepted, output in rows:
        assert rate == f"{recount.throughput(arm, 'all')['pooled_rate']:.1f}"
        if arm == "baseline":
            assert (speedup, ends, accepted, output) == ("–", "–", "–", "–")
            continue
        told = next(row for row in found["speedups"] if (row["arm"], row["task"]) == (arm, "all"))
        assert speedup == f"{recount.speedup(arm, 'all')['pooled']:.2f}×"
        assert ends == f"{told['interval']['low']:.2f} to {told['interval']['high']:.2f}×"
        assert accepted == f"{100 * recount.acceptance(arm, 'all')['rate']:.1f} %"
        assert output == next(row["verdict"] for row in found["losslessness"] if row["arm"] == arm)


def markdown_tables(text: str) -> dict[str, list[list[str]]]:
    """Heading to the rows of the table below it; code spans are unwrapped."""
    tables: dict[str, list[list[str]]] = {}
    heading = ""
    for line in text.splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ")
        elif line.startswith("|") and not set(line) <= set("| -:"):
            cells = [cell.strip().strip("`") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            tables.setdefault(heading, []).append(cells)
    return {heading: rows[1:] for heading, rows in tables.items()}
