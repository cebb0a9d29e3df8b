"""`benchctl run` asked in a line: no recipe, the bundled pair, one's own prompts."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from benchctl.cli.app import app
from benchctl.measurement.prepare import Prepared
from tests.benchctl_process import benchctl
from tests.cli.calls import answer

SERVERS = ("--url", "http://127.0.0.1:1/v1", "--arm-url", "http://127.0.0.1:2/v1")
PAIR = ("-t", "bundled:tiny-hybrid", "-d", "bundled:tiny-hybrid-draft")


@pytest.mark.engine
def test_a_question_in_a_line_is_measured_and_its_recipe_kept(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("How do I start with photography?\nWhat helps against hiccups?\n")
    words = (*PAIR, "--depth", "2", "--type", "draft-simple", "--type", "ngram-mod", "--prompts", "mine.txt")
    done = benchctl("run", *words, "--set", "sampling.max_tokens=12", "--blocks", 1, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (manifest,) = (tmp_path / "results" / "tiny-hybrid--tiny-hybrid-draft").glob("*/manifest.json")
    recipe = manifest.parent / "recipe.yaml"
    stored = json.loads(manifest.read_text())
    assert stored["recipe"]["sampling"]["max_tokens"] == 12
    assert [arm["name"] for arm in stored["arms"]] == ["baseline", "draft_simple_d2", "ngram_mod"]
    assert [(prompt["task"], prompt["prompt_idx"]) for prompt in stored["prompts"]] == [("mine", 0), ("mine", 1)]
    repeated = benchctl("run", recipe, "--dry-run", "-k", "ngram*", "-k", "mine", cwd=tmp_path)
    assert repeated.returncode == 0, repeated.stderr
    assert "ngram_mod:" in repeated.stdout and "draft_simple_d2:" not in repeated.stdout
    before = sorted(tmp_path.rglob("*"))
    (tmp_path / "elsewhere").mkdir()
    run = str(manifest.parent)
    for options in ((str(recipe),), (run, "--type", "draft-simple", "--depth", "3"), (run, "--only", "ngram_mod")):
        repeated = benchctl("run", *options, "--dry-run", "--json", cwd=tmp_path / "elsewhere")
        assert repeated.returncode == 0, repeated.stderr
        planned = json.loads(repeated.stdout)["recipe"]
        assert planned["sampling"] == stored["recipe"]["sampling"]
        assert planned["prompts"]["suite"] == str(tmp_path / "mine.txt")
    (tmp_path / "elsewhere").rmdir()
    assert sorted(tmp_path.rglob("*")) == before, "a dry run writes nothing"


def test_values_of_a_key(tmp_path: Path) -> None:
    for sweep in (("-L", "depth=3,5"), ("--depth", "3, 5")):
        done = benchctl("run", *PAIR, *sweep, "--dry-run", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "draft_simple_d3:" in done.stdout and "draft_simple_d5:" in done.stdout
        assert "block 3:" in done.stdout and "block 4:" not in done.stdout
        assert "undecided" in done.stdout and "until 5 min are over" in done.stdout, "the default without a recipe"
    assert not list(tmp_path.iterdir()), "a dry run writes nothing"
    failed = benchctl("run", *PAIR, "--set", "engine.binary=/nowhere", "--dry-run", cwd=tmp_path)
    assert failed.returncode and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "dropped"),
    [((), True), (("-k", "code"), True), (("--only", "draft_simple_d8"), False), (("-k", "*_d8"), False)],
)
def test_an_arm_that_was_named_is_not_left_out_for_want_of_time(
    words: tuple[str, ...], dropped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_drop: list[bool] = []

    def within_budget(run: Prepared, results: Path, budget_s: float, *, drops_arms: bool, waiting: object) -> Prepared:
        assert waiting is None, "a dry run starts nothing"
        may_drop.append(drops_arms)
        return run

    monkeypatch.setattr("benchctl.measurement.budget.within_budget", within_budget)
    answer(app, "run", *PAIR, *words, "--dry-run", "-o", str(tmp_path))
    assert may_drop == [dropped]


def test_an_engines_own_line_is_a_run(tmp_path: Path, tiny_target: Path, tiny_draft: Path) -> None:
    (tmp_path / "p.jsonl").write_text('{"prompt": "a"}\n{"messages": []}\n')
    line = f"llama-server -m {tiny_target} -md {tiny_draft} --draft-max 3 -ub 64 -c 512 --port 80"
    own = ("--prompts", "p.jsonl", "--skip-bad", "--dry-run", "--")
    done = benchctl("run", *own, *line.split(), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "--port 80" in done.stdout and "left out: benchctl sets it" in done.stdout
    assert "-ub 64" in done.stdout and "--spec-draft-n-max 3" in done.stdout
    assert "1 of 2 rows were skipped" in done.stdout
    failed = benchctl("run", *line.split()[1:], "--dry-run", cwd=tmp_path)
    assert failed.returncode == 2
    assert "--draft-max is an option of an engine, not of benchctl." in failed.stderr
    assert "behind --: benchctl run -- llama-server" in failed.stderr
    unknown = benchctl("run", "--bloks", "3", "x.yaml", cwd=tmp_path)
    assert unknown.returncode == 2 and "No such option: --bloks" in unknown.stderr


def test_what_is_mistyped_is_said_before_an_engine_is_sought(tmp_path: Path) -> None:
    (tmp_path / "target.gguf").write_bytes(b"junk")
    nowhere = ("--engine-binary", "/nowhere/llama-server", "--dry-run")
    for words, message in (
        (("targt.gguf",), "Did you mean 'target.gguf'?"),
        (("target.gguf",), "this is no GGUF file"),
        (("bundled:tiny-hybrid", "--type", "ngram-simpel"), "Did you mean 'ngram-simple'?"),
    ):
        failed = benchctl("run", *words, *nowhere, cwd=tmp_path)
        assert failed.returncode == 2 and message in failed.stderr, failed.stderr
    failed = benchctl("recipes", "new", "mine", "-t", "targt.gguf", cwd=tmp_path)
    assert failed.returncode == 2 and "no such model file" in failed.stderr and not (tmp_path / "mine.yaml").exists()


def test_a_head_that_the_target_lacks_is_refused_at_once(tmp_path: Path) -> None:
    failed = benchctl("run", "bundled:tiny-hybrid", "--type", "draft-mtp", "--dry-run", cwd=tmp_path)
    assert failed.returncode == 2 and "the target has none" in failed.stderr


def test_models_are_named_as_words_or_with_options(tmp_path: Path) -> None:
    plans = []
    for words in (PAIR, ("bundled:tiny-hybrid", "bundled:tiny-hybrid-draft"), ("bundled:tiny-hybrid", *PAIR[2:])):
        done = benchctl("run", *words, "--depth", 2, "--dry-run", "--json", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        plans.append(json.loads(done.stdout)["recipe"])
    assert plans[0] == plans[1] == plans[2]
    for option in ((), ("-t",), ("-m",)):
        done = benchctl(
            "tune", *option, "bundled:tiny-hybrid", "--type", "ngram-simple", "--depth", 2, "--dry-run", cwd=tmp_path
        )
        assert done.returncode == 0 and "1 settings to search" in done.stdout, done.stderr
    twice = benchctl("tune", "bundled:tiny-hybrid", "-t", "other.gguf", "--dry-run", cwd=tmp_path)
    assert twice.returncode == 2 and "named twice" in twice.stderr


@pytest.mark.parametrize("command", ["run", "tune", "compare"])
def test_help_fits_a_screen_of_80_columns(command: str) -> None:
    shown = benchctl(command, "--help", COLUMNS="80").stdout
    assert "--json" in shown
    lines = [line.rstrip() for line in shown.splitlines()]
    assert max(map(len, lines)) <= 80
    about = lines[: next(index for index, line in enumerate(lines) if line.startswith("╭"))]
    early = [line for line, following in pairwise(about) if following and line and len(line) < 60]
    assert not early, "a paragraph is wrapped where the screen ends"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "Name a recipe, a target, two servers, or a run to resume."),
        (("quickstart", *PAIR), "Name either a recipe or a target."),
        (("quickstart", "-d", "draft.gguf"), "These options make a recipe"),
        (("quickstart", "--engine", "vllm"), "These options make a recipe"),
        (("quickstart", "--depth", "2"), "These options make a recipe"),
        (("--resume", "x", "--set", "blocks=2"), "A resumed run keeps its arms"),
        ((*PAIR, "--type", "draft-simpel"), "draft-simpel"),
        ((*PAIR, "--depth", "two"), "Expected draft depths from 1 to 64"),
        (("quickstart", "-k", "cod"), "code"),
        (("quickstart", "--set", "sampling.max_token=5"), "max_tokens"),
        ((*PAIR, "--prompts", "nowhere.txt"), "nowhere.txt"),
        ((*PAIR, "-L", "depth=,"), "Expected KEY=V1,V2"),
        (("--url", "http://127.0.0.1:1/v1"), "nothing to compare"),
        (("--arm-url", "http://127.0.0.1:1/v1"), "Name a recipe, a target, two servers"),
        ((*SERVERS, "--depth", "2,4"), "one depth"),
        ((*SERVERS, "--depth", "0"), "Expected draft depths from 1 to 64"),
        (("--url", "nonsense", "--arm-url", "http://127.0.0.1:2/v1"), "engine.url"),
        ((*PAIR, "--url", "http://127.0.0.1:1/v1"), "Name a recipe, a target, two servers"),
        (("bundled:tiny-hybrid", "-t", "other.gguf"), "A model is named twice."),
        (("bundled:tiny-hybrid", "a.gguf", "b.gguf"), "A model is named twice."),
        (("quickstart", "draft.gguf"), "Expected one recipe or run, or a target and its draft."),
        (("nowhere.gguf", "--depth", "2"), "nowhere.gguf"),
        ((*PAIR, "-x"), "These options have no effect on a dry run."),
    ],
)
def test_bad_options_are_one_message(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    done = benchctl("run", *words, "--dry-run", cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr and "Traceback" not in done.stderr
