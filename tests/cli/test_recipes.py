"""`benchctl recipes` as a user meets it."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from benchctl.cli.recipes import app
from benchctl.engines.llama_cpp.trial import write_trial_model
from benchctl.recipes.load import load_recipe, recipe_json_schema, shipped_recipes
from tests.cli.calls import answer, call

pytestmark = pytest.mark.usefixtures("empty_folder")

run = partial(call, app)
good = partial(answer, app)


@pytest.mark.parametrize("command", ["list", "show", "check", "new", "schema"])
def test_every_command_explains_itself(command: str) -> None:
    assert "--help" in good(command, "--help")


def test_list_names_every_shipped_recipe_and_its_question() -> None:
    lines = good("list").splitlines()
    assert lines[0].split() == ["recipe", "engine", "arms", "question"]
    assert [line.split()[0] for line in lines[1:]] == sorted(shipped_recipes())


def test_list_as_json() -> None:
    document = {entry["name"]: entry for entry in json.loads(good("list", "--json"))}
    assert document["quickstart"]["draft"] == "bundled:tiny-hybrid-draft"
    assert document["quickstart"]["arms"] == ["baseline", "spec_d2", "spec_d4", "spec_d8", "spec_d16", "ngram"]


def test_show_prints_the_file_as_it_is() -> None:
    assert good("show", "quickstart") == shipped_recipes()["quickstart"].read_text("utf-8")


def test_show_expanded_names_arms_types_and_settings() -> None:
    rows = [line.split() for line in good("show", "quickstart", "--expanded").splitlines()]
    assert ["baseline", "(baseline)", "—"] in rows
    assert ["spec_d16", "draft-simple", "max=16"] in rows


def test_show_as_json_is_the_whole_recipe_with_its_defaults() -> None:
    shown = json.loads(good("show", "quickstart", "--json"))
    assert shown == load_recipe(shipped_recipes()["quickstart"]).model_dump(mode="json")


def test_check_of_good_recipes_is_quiet_success() -> None:
    assert good("check", "quickstart").startswith("quickstart: good (6 arms: baseline, spec_d2,")


def bad_recipe() -> None:
    Path("bad.yaml").write_text(
        "name: bad\nblcoks: 3\nmodels: {target: {source: 'bundled:tiny-hybrid'}}\n"
        'prompts: {suite: tiny.json}\narms: [{name: baseline, args: ["\\e[31m", 5]}]\n'
    )


def test_check_lists_all_errors_of_all_files_and_exits_with_2() -> None:
    bad_recipe()
    result = run("check", "bad.yaml", "quickstart", "none.yaml")
    assert result.exit_code == 2
    assert result.stderr.splitlines() == [
        "bad.yaml:2: blcoks: unknown key. Did you mean 'blocks'?",
        'bad.yaml:5: arms[0].args[1]: expected text, got 5. Put it in quotes: "5".',
        "none.yaml: there is no recipe file 'none.yaml', and benchctl ships none of that name.",
        "List the shipped recipes: benchctl recipes list",
    ]
    assert result.stdout.startswith("quickstart: good")


def test_check_as_json_is_for_programs() -> None:
    bad_recipe()
    result = run("check", "bad.yaml", "quickstart", "--json")
    assert result.exit_code == 2
    bad, quickstart = json.loads(result.stdout)
    assert (bad["ok"], bad["arms"]) == (False, None)
    assert bad["problems"][0] == {"line": 2, "key": "blcoks", "message": "unknown key. Did you mean 'blocks'?"}
    assert (quickstart["ok"], quickstart["problems"]) == (True, [])


def test_check_looks_into_the_prompts_too() -> None:
    Path("a.yaml").write_text(shipped_recipes()["quickstart"].read_text().replace("ja_chat, ", "ja_caht, "))
    result = run("check", "a.yaml")
    assert result.exit_code == 2
    assert result.stderr == (
        "a.yaml:28: prompts.tasks[0]: the suite 'tiny' has no task 'ja_caht'. Did you mean 'ja_chat'?\n"
    )


def test_check_asks_the_engine_about_a_type_that_benchctl_does_not_know(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("bin")
    Path("a.yaml").write_text(
        "name: a\nmodels: {target: {source: 'bundled:tiny-hybrid'}}\nprompts: {suite: tiny.json}\n"
        "arms: [{name: baseline}, {name: x, speculation: {type: ngram-simpel}}]\n"
    )
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("BENCHCTL_CACHE", str(folder))
    monkeypatch.delenv("BENCHCTL_LLAMA_SERVER", raising=False)
    result = run("check", "a.yaml")
    assert result.exit_code == 2
    assert "no engine here" in result.stderr and "'ngram-simple'" in result.stderr
    server = folder / "llama-server"
    flags = "--model M\n--ctx-size N\n--port P\n--parallel N\n--batch-size N\n--spec-type none,ngram-simpel\n"
    server.write_text(f"#!{sys.executable}\nprint({flags!r})\n")
    server.chmod(0o755)
    assert "good" in good("check", "a.yaml")
    server.write_text(f"#!{sys.executable}\nprint({flags.replace('simpel', 'simple')!r})\n")
    result = run("check", "a.yaml")
    assert (result.exit_code, "'ngram-simple'?" in result.stderr) == (2, True)


def test_new_writes_a_recipe_that_checks_and_never_overwrites() -> None:
    assert good("new", "mine") == "Wrote mine.yaml. Next: benchctl recipes check mine.yaml\n"
    good("check", "mine.yaml")
    text = Path("mine.yaml").read_text()
    assert "# yaml-language-server: $schema=recipe.schema.json" in text
    result = run("new", "mine", "--types", "ngram-mod")
    assert (result.exit_code, str(result.exception)) == (
        1,  # the runner's own; the program turns the exception into 2
        "mine.yaml: this file exists already\nOverwrite it with --force.",
    )
    assert Path("mine.yaml").read_text() == text
    good("new", "mine", "--types", "ngram-mod, ngram-cache", "--force")
    assert [arm.name for arm in load_recipe(Path("mine.yaml")).arms] == ["baseline", "ngram_mod", "ngram_cache"]


def test_new_takes_a_pair_of_one_s_own(tiny_draft: Path) -> None:
    missing = run("new", "mine", "--target", "hf:a/b/c.gguf", "--draft", "d.gguf", "-o", "other.yaml")
    assert "models.draft (d.gguf): there is no such model file" in str(missing.exception)
    Path("d.gguf").symlink_to(tiny_draft)
    good("new", "mine", "--target", "hf:a/b/c.gguf", "--draft", "d.gguf", "-o", "other.yaml")
    recipe = load_recipe(Path("other.yaml"))
    assert recipe.models.draft is not None
    assert (recipe.models.target.source, recipe.models.draft.source) == ("hf:a/b/c.gguf", "d.gguf")


def test_new_into_a_folder_that_is_not_there_says_so() -> None:
    result = run("new", "mine", "-o", "none/mine.yaml")
    assert str(result.exception).startswith("none/mine.yaml: benchctl cannot write here: No such file or directory.")


def test_schema_is_printed_or_written() -> None:
    assert json.loads(good("schema")) == recipe_json_schema()
    good("schema", "-o", "s.json")
    assert json.loads(Path("s.json").read_text("utf-8")) == recipe_json_schema()


def test_asking_for_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; import benchctl.cli.recipes; "
        "print([m for m in ('pydantic', 'yaml', 'rich.table', 'huggingface_hub', 'gguf', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_loading_a_recipe_imports_no_hub_and_no_numbers() -> None:
    code = (
        "import sys; from benchctl.recipes.load import load_recipe, shipped_recipes; "
        "load_recipe(shipped_recipes()['quickstart']); "
        "import benchctl.models.sources, benchctl.models.gguf_facts, benchctl.prompts.load; "
        "print([m for m in ('huggingface_hub', 'gguf', 'numpy', 'httpx') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_check_agrees_with_run_on_recipes_that_need_trust() -> None:
    text = (
        shipped_recipes()["quickstart"]
        .read_text()
        .replace("engine:\n", "engine:\n  args: [--tools, all, --brand-new]\n", 1)
    )
    Path("a.yaml").write_text(text)
    result = run("check", "a.yaml")
    assert result.exit_code == 2
    assert "needs your trust" in result.stderr
    assert "engine.args: --tools all --brand-new" in result.stderr
    assert "engine.args: --tools all --brand-new" in good("check", "a.yaml", "--trust-recipe")
    assert json.loads(run("check", "a.yaml", "--json").stdout)[0]["ok"] is False


def test_a_check_looks_at_prompts_tasks_models_and_vocabularies(
    empty_folder: Path, tiny_target: Path, tmp_path: Path
) -> None:
    def checked(draft: str, task: str = "code") -> str:
        (tmp_path / "r.yaml").write_text(
            "name: r\n"
            'models:\n  target: {source: "bundled:tiny-hybrid"}\n'
            f"  draft:\n    source: {draft}\n"
            f"prompts:\n  suite: tiny.json\n  tasks:\n    - {task}\n"
            "arms:\n  - name: baseline\n  - name: d\n    speculation: {type: draft-simple}\n"
        )
        result = run("check", "r.yaml")
        assert result.exit_code == (0 if result.stdout else 2)
        return result.stdout + result.stderr

    assert "good (2 arms" in checked(str(tiny_target))
    (tmp_path / "draft.gguf").symlink_to(tiny_target)
    answer = checked("drft.gguf")
    assert "r.yaml:5:" in answer and "Did you mean 'draft.gguf'" in answer
    (tmp_path / "cut.gguf").write_bytes(tiny_target.read_bytes()[:1000])
    assert "truncated" in checked("cut.gguf")
    answer = checked("draft.gguf", "cod")
    assert "r.yaml:9:" in answer and "Did you mean 'code'" in answer
    write_trial_model(tmp_path / "other.gguf", "q8_0")
    assert "does not fit the target" in checked("other.gguf")
