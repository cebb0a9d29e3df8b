"""The study's two tables, from a run, a search and the draft's own time, all on the bundled pair."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchctl.cli.app import app
from benchctl.data.store import open_run, resolve_run
from benchctl.errors import UsageError
from benchctl.experiments.isolate.search import recall
from benchctl.experiments.isolate.stored import Isolation, read_isolation, write_isolation
from tests.cli.calls import answer, call

pytestmark = pytest.mark.slow

RECIPE = """\
name: studied
engine: {device: cpu, context: 512, threads: 1}
models:
  target: {source: "bundled:tiny-hybrid"}
  draft: {source: "bundled:tiny-hybrid-draft"}
prompts: {suite: tiny.json, tasks: [code, translation_en_ja], limit: 2}
sampling: {temperature: 0, max_tokens: 24}
blocks: 1
preflight: "off"
arms:
  - name: baseline
  - name: spec_d2
    speculation: {type: draft-simple, max: 2}
"""


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory, llama_server: Path) -> Path:
    """A folder with a run, its costs, and a search beside it."""
    path = tmp_path_factory.mktemp("study")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        patch.setenv("BENCHCTL_LLAMA_SERVER", str(llama_server))
        patch.setenv("BENCHCTL_CACHE", str(path / "cache"))
        patch.setenv("COLUMNS", "200")
        Path("r.yaml").write_text(RECIPE)
        Path("text.txt").write_text("The children opened the window because it was raining.\n" * 60)
        answer(app, "run", "r.yaml", "--quiet")
        answer(app, "explain", "studied", "--quiet")
        answer(app, "isolate", "r.yaml", "--type", "q2_k", "--text", "text.txt", "--tokens", "1024", "--quiet")
    return path


@pytest.fixture
def folder(study: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder of a test."""
    monkeypatch.chdir(study)
    monkeypatch.setenv("COLUMNS", "200")
    return study


@pytest.mark.engine
def test_both_tables_and_the_draft(folder: Path) -> None:
    result = json.loads(answer(app, "report", "studied", "--layout", "plamo2-study", "--json"))
    rows = {(row["configuration"], row["task"]): row for row in result["configurations"]}
    tasks = ("code", "translation_en_ja", "all")
    assert list(rows) == [(arm, task) for arm in ("baseline", "spec_d2") for task in tasks]
    run = open_run(resolve_run("studied", Path("results")))
    rates = sorted(
        record.client_tok_per_sec or 0
        for record in run.records
        if record.phase == "measure" and record.label == "spec_d2"
    )
    assert rows["spec_d2", "all"]["tok_per_sec"] == pytest.approx((rates[1] + rates[2]) / 2)
    assert rows["spec_d2", "all"]["identical"] == rows["spec_d2", "all"]["prompts"] == 4
    assert rows["spec_d2", "code"]["prompts"] == 2
    assert 0 < rows["spec_d2", "code"]["acceptance"] <= 1
    assert rows["baseline", "all"]["speedup"] == 1.0
    assert rows["baseline", "all"]["identical"] is None
    assert rows["baseline", "all"]["checkpoint_bytes"] < rows["spec_d2", "all"]["checkpoint_bytes"]
    draft = result["draft_alone"]
    assert draft["tok_per_sec"] > 0
    assert draft["ratio"] == pytest.approx(draft["tok_per_sec"] / rows["baseline", "all"]["tok_per_sec"])
    assert [row["kept"] for row in result["tensors"]][:2] == ["unquantized", "all q2_k"]
    printed = answer(app, "report", "studied", "--layout", "plamo2-study")
    for word in (
        "Tensors (q2_k)",
        "Role",
        "Output",
        "Identical outputs",
        "bytes per sequence",
        "times the target's own",
    ):
        assert word in printed
    assert not Path("reports").exists(), "nothing is written"


@pytest.mark.engine
def test_a_search_of_another_place_and_one_that_was_broken_off(folder: Path, tmp_path: Path) -> None:
    (search_folder,) = Path("results/studied").glob("isolate-*")
    search = read_isolation(search_folder)
    assert search is not None
    assert recall(search) is not None
    cut: Isolation = search.model_copy(update={"measurements": search.measurements[:2]})
    assert recall(cut) is None
    write_isolation(tmp_path, cut)
    words = ("report", "studied", "--layout", "plamo2-study", "--isolation", str(tmp_path))
    assert "interrupted" in answer(app, *words)


@pytest.mark.engine
def test_a_bare_file_has_what_it_tells(folder: Path, tmp_path: Path) -> None:
    records = resolve_run("studied", Path("results")) / "records.jsonl"
    bare = tmp_path / "study.jsonl"
    bare.write_bytes(records.read_bytes())
    printed = answer(app, "report", str(bare), "--layout", "plamo2-study")
    assert "spec_d2" in printed
    assert "isolate" in printed
    assert "benchctl explain RUN" in printed


@pytest.mark.engine
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--isolation", "results"), "needs --layout"),
        (("--layout", "plamo2-study", "--isolation", "results"), "no search"),
    ],
)
def test_a_wrong_command_line_is_one_message(folder: Path, words: tuple[str, ...], message: str) -> None:
    error = call(app, "report", "studied", *words).exception
    assert isinstance(error, UsageError)
    assert message in error.what
    assert call(app, "report", "studied", "--layout", "another").exit_code == 2
