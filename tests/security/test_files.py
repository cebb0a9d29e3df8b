"""Texts of the user: a recipe reads what is shipped, what lies in its own folder, and what the user typed."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchctl.data.store import open_run
from benchctl.errors import UsageError
from benchctl.measurement.prepare import prepare
from benchctl.measurement.progress import RunProgress
from benchctl.measurement.resume import context_of_run
from benchctl.measurement.run import start_run
from benchctl.permissions import trust_folder
from benchctl.recipes.load import load_recipe
from benchctl.recipes.schema import Recipe
from benchctl.recipes.trust import find_openings
from tests.benchctl_process import benchctl
from tests.security.conftest import Listener

SECRET = "a diary of mine"


def written(prompts: str, engine: str = "{}", folder: Path | None = None) -> Path:
    file = (folder or Path.cwd()) / "r.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(
        f"name: r\nengine: {engine}\nprompts: {prompts}\nblocks: 1\npreflight: 'off'\nsampling: {{max_tokens: 4}}\n"
        + ("" if "url" in engine else "models: {target: {source: 'bundled:tiny-sequential'}}\n")
        + "arms: [{name: baseline}]\n"
    )
    return file


def refused(file: Path) -> list[str]:
    return [str(opening) for opening in find_openings(load_recipe(file), file.parent)]


@pytest.fixture
def diary(home: Path) -> Path:
    file = home / "diary.txt"
    file.write_text(SECRET)
    return file


@pytest.mark.parametrize("named", ["{home}/diary.txt", "../diary.txt", "~/diary.txt", "link.txt", "folder/diary.txt"])
@pytest.mark.parametrize("key", ["suite", "context"])
def test_a_text_outside_the_recipes_folder_is_not_sent(
    home: Path, diary: Path, listener: Listener, named: str, key: str
) -> None:
    Path("link.txt").symlink_to(diary)
    Path("folder").symlink_to(home)
    texts = {"suite": "tiny.json", key: named.format(home=home)}
    file = written(str(texts).replace("'", ""), f"{{kind: openai, url: '{listener.url}'}}")
    assert [key in text for text in refused(file)] == [True]
    with pytest.raises(UsageError, match="needs your trust") as caught:
        prepare(load_recipe(file), recipe_folder=file.parent)
    assert "--trust-recipe" in str(caught.value.fix)
    assert listener.heard == []


def test_nothing_is_sent_of_a_diary_and_check_says_so(diary: Path, listener: Listener) -> None:
    written(f"{{suite: '{diary}'}}", f"{{kind: openai, url: '{listener.url}'}}")
    assert benchctl("recipes", "check", "r.yaml").returncode == 2
    done = benchctl("run", "r.yaml")
    assert done.returncode == 2
    assert str(diary) in done.stderr and "--prompts FILE" in done.stderr and "--trust-recipe" in done.stderr
    assert listener.heard == []


def test_the_working_directory_is_not_the_recipes_folder(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written("{suite: notes.txt}")
    work = home / "work"
    work.mkdir()
    (work / "notes.txt").write_text(SECRET)
    monkeypatch.chdir(work)
    assert len(refused(file)) == 1


@pytest.mark.parametrize("place", [".", ".ssh", ".config/deep/er", "work/.git"])
def test_home_and_dot_folders_are_no_recipes_folder(home: Path, place: str) -> None:
    file = written("{suite: mine.txt}", folder=home / place)
    (file.parent / "mine.txt").write_text(SECRET)
    assert len(refused(file)) == 1


def test_a_hidden_file_of_the_recipes_folder_is_not_the_recipes(home: Path) -> None:
    Path(".env").write_text(SECRET)
    assert len(refused(written("{suite: tiny.json, context: .env}"))) == 1


def test_what_is_shipped_or_beside_the_recipe_needs_nothing(home: Path) -> None:
    Path("own.txt").write_text("hello")
    assert refused(written("{suite: own.txt, context: own.txt}")) == []
    assert refused(written("{suite: default}")) == []


def test_a_typed_text_is_sent_and_only_by_that_call(diary: Path) -> None:
    written(f"{{suite: '{diary}'}}")
    dry = ("run", "r.yaml", "--dry-run", "-q")
    assert benchctl(*dry, "--set", f"prompts.suite={diary}").returncode == 0
    assert benchctl(*dry, "--prompts", diary).returncode == 0
    assert benchctl(*dry).returncode == 2
    trust_folder(str(Path.cwd()))
    assert benchctl(*dry).returncode == 0


def test_a_typed_name_means_the_file_here_and_not_the_strangers(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written("{suite: tiny.json}")
    Path("mine.txt").write_text("theirs")
    work = home / "work"
    work.mkdir()
    (work / "mine.txt").write_text("mine")
    monkeypatch.chdir(work)
    done = benchctl("run", file, "--dry-run", "--json", "--prompts", "mine.txt")
    assert done.returncode == 0, done.stderr
    assert str(work / "mine.txt") in done.stdout


def test_a_strangers_run_has_its_own_folder_whatever_its_manifest_says(diary: Path, llama_server: Path) -> None:
    diary.with_name("own").mkdir()
    file = written("{suite: own.txt}", folder=diary.with_name("own"))
    (file.parent / "own.txt").write_text("hello")
    recipe: Recipe = load_recipe(file)
    prepared = prepare(recipe, recipe_folder=file.parent, binary=str(llama_server))
    run = open_run(start_run(prepared, Path("out"), RunProgress(), ["benchctl"]))
    assert context_of_run(run).folder == file.parent
    manifest = run.manifest
    assert manifest is not None
    manifest.run = "20260101-000000-0000"  # another's
    assert context_of_run(run).folder == run.folder
    assert not context_of_run(run).trusted
    assert context_of_run(run, trusted=True).folder == file.parent
    assert not context_of_run(run).trusted, "of that call alone"
    manifest.run = run.folder.name
    assert context_of_run(run).trusted
    manifest.recipe["prompts"]["suite"] = str(diary)
    assert context_of_run(run).folder == run.folder
