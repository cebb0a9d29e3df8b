"""Reports of runs that sweep concurrency, rate or temperature: sections only where swept, every number from records."""

from __future__ import annotations

import csv
import io
import json
from math import ceil
from pathlib import Path

import pytest
from rich.console import Console

from benchctl.data.store import open_run
from benchctl.lossless.judge.run import analyse_run
from benchctl.reports.figures.sweep import draw_concurrency
from benchctl.reports.first_screen import screen_rows
from benchctl.reports.run_summary import print_summary
from benchctl.reports.write import ReportFiles, write_report
from benchctl.words.sweep import crossings
from tests.analysis.conditions.simulated import Server, Sweep, write_sweep
from tests.oracle.reading import Reading, quantile
from tests.reports.page_text import page_tables

GAINS = {1: 1.6, 2: 1.3, 4: 1.1, 8: 0.8}
ARMS = {"baseline": None, "spec_d4": {"type": "draft-simple", "max": 4}, "ngram": {"type": "ngram-simple"}}


def server() -> Server:
    return Server(gain=lambda arm, concurrency, temperature: GAINS[concurrency] - (0.2 if arm == "ngram" else 0.0))


def reported(folder: Path, sweep: Sweep, server: Server, *, figures: bool = False) -> tuple[Reading, ReportFiles]:
    write_sweep(folder / "run", sweep, server)
    run = open_run(folder / "run")
    return Reading(folder / "run"), write_report(run, analyse_run(run), folder / "report", figures=figures)


@pytest.fixture(scope="module")
def concurrency(tmp_path_factory: pytest.TempPathFactory) -> tuple[Reading, ReportFiles]:
    folder = tmp_path_factory.mktemp("concurrency")
    return reported(folder, Sweep(concurrency=(1, 2, 4, 8), arms=ARMS, prompts=24), server(), figures=True)


def seconds(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{1000 * value:.0f} ms" if value < 0.9995 else f"{value:.2f} s" if value < 9.995 else f"{value:.1f} s"


def test_every_number_of_the_concurrency_tables_recomputes(
    concurrency: tuple[Reading, ReportFiles],
) -> None:
    reading, files = concurrency
    levels = {row["arm"]: row for row in json.loads(files.analysis.read_text())["sweep"]["levels"]}
    tables = page_tables(files.page.read_text())
    all_requests = tables["By concurrency: all requests together"]
    assert [row[:2] for row in all_requests] == [[str(level), f"{arm}-c{level}"] for level in GAINS for arm in ARMS]
    for _, arm, throughput, gain, ends, in_flight, batch, _ in all_requests:
        wanted = reading.load(arm)
        assert (throughput, in_flight) == (f"{wanted['throughput']:.1f}", f"{wanted['in_flight']:.2f}")
        if arm == reading.arms[arm].baseline:
            assert (gain, ends) == ("", "")
        else:
            interval = levels[arm]["throughput_interval"]
            assert gain == f"{reading.load_speedup(arm)[0]:.2f}×"
            assert batch == f"{reading.load(reading.arms[arm].baseline)['makespan_s'] / wanted['makespan_s']:.2f}×"
            assert ends == f"{interval['low']:.2f} to {interval['high']:.2f}×"
    one_request = tables["By concurrency: latency of a request (median / p95 / p99)"]
    for _, arm, requests, ttft, latency, token, gain, _ in one_request:
        values = reading.latencies(arm)
        for shown, key in ((ttft, "ttft"), (latency, "e2e")):
            assert shown == " / ".join(seconds(quantile(values[key], share)) for share in (0.5, 0.95, 0.99))
        assert token == " / ".join(
            "–" if (value := quantile(values["tpot"], share)) is None else f"{1000 * value:.1f}"
            for share in (0.5, 0.95, 0.99)
        ) + " ms"  # fmt: skip
        assert requests == "72"
        is_baseline = arm == reading.arms[arm].baseline
        assert gain == ("" if is_baseline else f"{reading.latency_speedup(arm)[0]:.2f}×")


def test_the_csv_holds_every_level(concurrency: tuple[Reading, ReportFiles]) -> None:
    reading, files = concurrency
    with (files.folder / "conditions.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["arm"] for row in rows] == [f"{arm}-c{level}" for level in GAINS for arm in ARMS]
    for row in rows:
        for key, wanted in reading.load(row["arm"]).items():
            assert float(row[key]) == pytest.approx(wanted)
        assert float(row["e2e_median_s"]) == pytest.approx(quantile(reading.latencies(row["arm"])["e2e"], 0.5))
        assert row["e2e_p99_s"] == ""


def test_the_crossing_comes_first(concurrency: tuple[Reading, ReportFiles]) -> None:
    _, files = concurrency
    crossings = json.loads(files.analysis.read_text())["sweep"]["crossings"]
    places = {crossing["arm"]: crossing["at"] for crossing in crossings}
    assert 4 < places["spec_d4"] < 8
    assert 2 < places["ngram"] < 4
    first = files.markdown.read_text().splitlines()[2]
    for arm in ("spec_d4", "ngram"):
        assert f"at about {places[arm]:.1f} (95 %: " in first
        assert f") with {arm}, off from {ceil(places[arm])} on" in first
    assert "concurrency 2, 4, 8" in first
    page = files.page.read_text()
    assert page.index("the curves cross at about") < page.index("<table>")


def test_figures_of_what_varies_are_drawn(concurrency: tuple[Reading, ReportFiles]) -> None:
    _, files = concurrency
    names = {path.name for path in files.figures}
    assert {"by-concurrency.svg", "by-concurrency.png", "front.svg", "front.png"} < names
    assert not {"by-rate.svg", "by-temperature.svg"} & names
    page = files.page.read_text()
    assert page.count("<svg") == 6
    assert "figures/by-concurrency.png" in files.markdown.read_text()


def test_a_crossing_at_a_length_alone_is_drawn_without_its_ring(tmp_path: Path) -> None:
    write_sweep(tmp_path / "run", Sweep(concurrency=(4, 8), prompts=24), server())
    analysis = analyse_run(open_run(tmp_path / "run"))
    assert analysis.sweep is not None
    crossing = analysis.sweep.crossings[0]
    assert crossing.at is not None
    of_a_length = crossing.model_copy(update={"arm": "spec_d4 (1024 tokens)"})
    sweep = analysis.sweep.model_copy(update={"crossings": [of_a_length]})
    assert draw_concurrency(analysis.model_copy(update={"sweep": sweep})) is not None


def test_sections_stand_only_where_something_is_swept(tmp_path: Path) -> None:
    headings = {"By concurrency", "By rate", "By temperature"}
    for name, sweep, wanted in (
        ("none", Sweep(), set()),
        ("temperature", Sweep(temperature=(0.0, 0.8)), {"By temperature"}),
        ("rate", Sweep(rate=(0.5, 2.0)), {"By rate"}),
        ("one-level", Sweep(concurrency=(4,)), {"By concurrency"}),
        ("both", Sweep(concurrency=(1, 4), temperature=(0.0, 0.8)), {"By concurrency", "By temperature"}),
        ("all", Sweep(concurrency=(1, 4), temperature=(0.0, 0.8), rate=(0.5, 2.0)), {"By rate", "By temperature"}),
    ):
        _, files = reported(tmp_path / name, sweep, Server())
        page = files.page.read_text()
        assert {heading for heading in headings if f"<h2>{heading}</h2>" in page} == wanted, name
        assert (files.folder / "conditions.csv").exists() == bool(wanted)
        assert ("sweep" in json.loads(files.analysis.read_text())) == bool(wanted)


def test_temperature_table_and_figure(tmp_path: Path) -> None:
    server = Server(
        gain=lambda arm, concurrency, temperature: 1.5 - 0.5 * temperature,
        accepted=lambda arm, temperature: 0.7 - 0.3 * temperature,
    )
    reading, files = reported(tmp_path, Sweep(temperature=(0.0, 0.8)), server, figures=True)
    assert {"by-temperature.svg", "by-temperature.png"} < {path.name for path in files.figures}
    rows = [row for row in page_tables(files.page.read_text())["Every arm by axis"] if row[0].startswith("spec")]
    assert [row[:2] for row in rows] == [["spec_d4-t0", "0"], ["spec_d4-t0.8", "0.8"]]
    for arm, _, _, speed, _, accepted, length, *_ in rows:
        counted = reading.acceptance(arm)
        assert (accepted, length) == (f"{100 * counted['rate']:.1f} %", f"{counted['acceptance_length']:.2f}")
        assert speed == f"{reading.pooled(arm):.2f}×"
    assert f"spec_d4: {rows[0][3]} at temperature 0, {rows[1][3]} at temperature 0.8" in files.markdown.read_text()


def test_a_rate_that_is_not_kept_is_told_first(tmp_path: Path) -> None:
    _, files = reported(
        tmp_path, Sweep(rate=(0.5, 4.0), prompts=24), Server(gain=lambda *_: 2.0, slots=1), figures=True
    )
    text = files.markdown.read_text()
    assert "keeps up with 0.5; does not keep up with 4" in text
    rows = page_tables(files.page.read_text())["By rate: all requests together"]
    assert [(row[0], row[1], row[4]) for row in rows] == [
        ("0.5", "baseline-r0.5", "yes"),
        ("0.5", "spec_d4-r0.5", "yes"),
        ("4", "baseline-r4", "no"),
        ("4", "spec_d4-r4", "no"),
    ]
    assert {"by-rate.svg", "by-rate.png"} < {path.name for path in files.figures}


def test_too_few_blocks_say_so_in_place_of_a_crossing(tmp_path: Path) -> None:
    _, files = reported(tmp_path, Sweep(concurrency=(1, 8), blocks=2, prompts=40), server())
    text = files.markdown.read_text()
    assert "undetermined at 1 and 8" in text.splitlines()[2]
    assert {row[4] for row in page_tables(files.page.read_text())["By concurrency: all requests together"]} == {
        "",
        "2 blocks: no interval",
    }


@pytest.mark.parametrize("width", [80, 120])
def test_the_terminal_says_it_too(tmp_path: Path, width: int) -> None:
    write_sweep(tmp_path / "run", Sweep(concurrency=(1, 2, 4, 8), prompts=24), server())
    analysis = analyse_run(open_run(tmp_path / "run"))
    console = Console(width=width, record=True, file=io.StringIO())
    print_summary(console, analysis, "results/a/b")
    text = " ".join(console.export_text().split())
    assert analysis.sweep is not None
    assert crossings(analysis.sweep)[0] in text
    for row in analysis.sweep.levels:
        assert row.arm in text
        assert f"{row.throughput:.1f}" in text
    assert text.count("not judged") == 3


def test_where_requests_overlap_whole_answers_decide(tmp_path: Path) -> None:
    """A table without conditions never sets the interval of decoding beside the speed-up of whole answers."""
    write_sweep(tmp_path / "run", Sweep(concurrency=(1, 8), prompts=24), server())
    analysis = analyse_run(open_run(tmp_path / "run"))
    assert analysis.sweep is not None
    overlapping = {row.arm for row in analysis.sweep.levels if row.overlapping}
    rows = {row.arm: row for row in screen_rows(analysis) if row.verdict is not None}
    assert overlapping & rows.keys()
    for arm in overlapping & rows.keys():
        verdict = next(verdict for verdict in analysis.verdicts if verdict.arm == arm)
        assert (rows[arm].speedup, rows[arm].ends) == (verdict.speedup, verdict.interval)


def test_names_are_untrusted_text(tmp_path: Path) -> None:
    name = "<b>x|y`z"
    sweep = Sweep(concurrency=(1, 8), arms={"baseline": None, name: {"type": "draft-simple"}}, prompts=40)
    _, files = reported(tmp_path, sweep, server(), figures=True)
    page, text = files.page.read_text(), files.markdown.read_text()
    assert "<b>x" not in page
    assert "&lt;b&gt;x|y`z, total throughput: helps at concurrency 1" in page
    assert "&lt;b&gt;x\\|y\\`z, total throughput: helps at concurrency 1" in text
    assert {len(row) for row in page_tables(files.page.read_text())["By concurrency: all requests together"]} == {8}


def test_a_run_that_has_only_begun_is_reported(tmp_path: Path) -> None:
    write_sweep(tmp_path / "run", Sweep(concurrency=(1, 8), prompts=40), server())
    file = tmp_path / "run" / "records.jsonl"
    file.write_text("".join(line for line in file.read_text().splitlines(keepends=True) if "-c8" not in line))
    run = open_run(tmp_path / "run")
    files = write_report(run, analyse_run(run), tmp_path / "report")
    text = files.markdown.read_text()
    assert "no cell" in text
    assert "by-concurrency.png" not in {path.name for path in files.figures}
    assert "spec_d4-c8: undetermined" in text
    rows = page_tables(files.page.read_text())["By concurrency: all requests together"]
    assert [row[2] for row in rows if row[0] == "8"] == ["–", "–"]
