"""`benchctl tune` on the real engine: searched, interrupted, gone on with, and decided on fresh data."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import benchctl.models as benchctl_models
from benchctl.data.store import open_run
from benchctl.recipes.load import load_recipe
from tests.benchctl_process import benchctl
from tests.resealed import write_sealed

pytestmark = pytest.mark.slow

PAIR = ("bundled:tiny-hybrid", "bundled:tiny-hybrid-draft")
SMALL = ("--type", "draft-simple", "--depth", "2,4", "--prompts", "mine.txt", "--set", "sampling.max_tokens=12")


@pytest.mark.engine
def test_a_search_that_was_interrupted_goes_on_to_a_winner_on_fresh_data(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("How do I start with photography?\nWhat helps against hiccups?\n")
    words = [sys.executable, "-m", "benchctl", "tune", *PAIR, *SMALL, "--budget", "10m"]
    with subprocess.Popen(words, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        printed = ""
        assert process.stderr is not None
        for line in process.stderr:
            printed += line
            if line.startswith("[2/") and printed.count("\n[2/") == 1:  # rich repeats an interrupted line
                process.send_signal(signal.SIGINT)
        assert process.wait() == 130, printed
    assert "tune --resume" in printed
    assert "Best so far" in printed or "No arm has drafted" in printed
    (folder,) = (tmp_path / "results").glob("*-search/*/")
    before = len(open_run(folder).records)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["tuning"]["budget_s"] = manifest["spent_s"] + 1  # so that the rest is as short as it can be
    manifest["tuning"]["rungs"][-1]["blocks"] = 2
    write_sealed(folder / "manifest.json", manifest)

    done = benchctl("tune", "--resume", folder, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    search, fresh = open_run(tmp_path / result["search"]), open_run(tmp_path / result["fresh"])
    assert search.manifest is not None and search.manifest.tuning is not None and fresh.manifest is not None
    assert result["search"] == str(folder.relative_to(tmp_path)) or Path(result["search"]) == folder
    assert len(search.records) > before
    assert search.manifest.tuning.chosen == result["chosen"] in {"draft_simple_d2", "draft_simple_d4"}
    assert [arm.name for arm in fresh.manifest.arms] == ["baseline", result["chosen"]]
    assert fresh.manifest.tuned_in == search.name and fresh.manifest.status == "finished"
    assert fresh.manifest.blocks >= 3, "below three blocks there is no interval"
    verdicts = {verdict["arm"]: verdict for verdict in result["analysis"]["verdicts"]}
    assert verdicts[result["chosen"]]["interval"] is not None
    assert result["winner"] in (None, result["chosen"])
    assert "--spec-type" in result["command"] and "{port}" not in result["command"]
    fresh_recipe = load_recipe(tmp_path / result["recipe"])
    assert [arm.name for arm in fresh_recipe.arms] == ["baseline", result["chosen"]]
    assert fresh_recipe.blocks == fresh.manifest.blocks

    resumed = benchctl("tune", "--resume", fresh.folder, cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    assert f"{result['chosen']} was the fastest in the search." in " ".join(resumed.stdout.split())
    assert str(result["recipe"]) in resumed.stdout.replace("\n", "")
    assert len(open_run(fresh.folder).records) == len(fresh.records), "nothing is measured twice"
    page = benchctl("report", folder, "--output", "reports", cwd=tmp_path)
    assert page.returncode == 0, page.stderr
    assert "this run is a search" in page.stdout.replace("\n", " ")


@pytest.mark.engine
def test_a_budget_too_short_is_one_message_with_the_least(tmp_path: Path) -> None:
    done = benchctl("tune", *PAIR, "--budget", "1s", cwd=tmp_path)
    assert done.returncode == 2
    assert "1 s is too short" in done.stderr and "The least is --budget" in done.stderr
    assert not list((tmp_path / "results").glob("*-search")), "nothing was measured"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "Name a recipe, a target, or a search to continue."),
        (("quickstart", "--resume", "x"), "Name a recipe, a target, or a search to continue."),
        (("quickstart", "--depth", "2"), "A recipe names its models"),
        (("quickstart", "--budget", "soon"), "Expected a time above 0"),
        (("quickstart", "--budget", "-5m"), "Expected a time above 0"),
        (("--resume", "x", "--type", "ngram-mod"), "A resumed search keeps its settings"),
        (("quickstart", "--set", "concurrency=[1, 4]"), "under one condition"),
        (("bundled:tiny-hybrid", "--only-arms"), "nothing to search"),
    ],
)
def test_bad_options_are_one_message(tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    done = benchctl("tune", *words, "--dry-run", cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr and "Traceback" not in done.stderr


@pytest.mark.engine
def test_a_recipe_adds_its_own_arms_to_what_the_engine_names(tmp_path: Path) -> None:
    all_arms = json.loads(benchctl("tune", "quickstart", "--dry-run", "--json", cwd=tmp_path).stdout)
    recipe_arms = json.loads(benchctl("tune", "quickstart", "--only-arms", "--dry-run", "--json", cwd=tmp_path).stdout)
    assert list(all_arms["commands"])[: len(recipe_arms["commands"])] == list(recipe_arms["commands"]), "its own first"
    assert len(all_arms["commands"]) > len(recipe_arms["commands"]) >= 2
    settings = [json.dumps(arm["speculation"], sort_keys=True) for arm in all_arms["recipe"]["arms"]]
    assert len(set(settings)) == len(settings), "nothing is searched twice"
    searched = {arm["speculation"]["type"] for arm in all_arms["recipe"]["arms"] if arm["speculation"]}
    assert {"draft-simple", "ngram-mod", "ngram-simple", "ngram-map-k"} <= searched


@pytest.mark.engine
def test_several_drafts_are_searched_beside_each_other(tmp_path: Path) -> None:
    shutil.copy(Path(benchctl_models.__file__).parent / "bundled" / "tiny-hybrid-draft.gguf", tmp_path / "other.gguf")
    words = (*PAIR, "other.gguf", "--dry-run", "--json")
    result = json.loads(benchctl("tune", *words, cwd=tmp_path).stdout)
    drafts = {name: argv[argv.index("-md") + 1] for name, argv in result["commands"].items() if "-md" in argv}
    assert {Path(draft).name for draft in drafts.values()} == {"tiny-hybrid-draft.gguf", "other.gguf"}
    assert len([name for name in result["commands"] if name.startswith("ngram_mod")]) == 2, "look-ups have no draft"
    assert sum(draft.endswith("other.gguf") for draft in drafts.values()) == len(drafts) / 2


def test_values_of_a_key(tmp_path: Path) -> None:
    for sweep in (("-L", "depth=3,5"), ("--depth", "3,5")):
        done = benchctl("tune", *PAIR, *sweep, "--type", "draft-simple", "--dry-run", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "draft_simple_d3:" in done.stdout and "draft_simple_d5:" in done.stdout
