"""What a recipe hands to an engine as it is needs trust, however it is spelled; typed keys need none.

Nothing knows what an option or a variable does, so each of them is shown and refused.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from benchctl.engines.transformers.methods import METHODS, Method, Option
from benchctl.engines.transformers.speculation import recipe_problems
from benchctl.errors import UsageError
from benchctl.permissions import permit, trust_folder
from benchctl.recipes.adapters import registered
from benchctl.recipes.load import load_recipe, shipped_recipes
from benchctl.recipes.schema import Recipe
from benchctl.recipes.speculation import Speculation
from benchctl.recipes.trust import find_openings
from tests.benchctl_process import benchctl

HEAD = "name: demo\nmodels: {target: {source: bundled:tiny-hybrid}}\nprompts: {suite: tiny.json}\n"
BASELINE = "{name: baseline}"
LAUNCHED = sorted(kind for kind, adapter in registered().adapters.items() if adapter.launched)


def recipe_in(folder: Path, engine: str = "{}", arm: str = "{name: a, speculation: {type: ngram-simple}}") -> Recipe:
    file = folder / "r.yaml"
    file.write_text(f"{HEAD}engine: {engine}\narms: [{BASELINE}, {arm}]\n")
    return load_recipe(file)


def with_option(kind: str, key: str, value: str) -> tuple[str, str]:
    return f"{{kind: {kind}}}", f"{{name: a, speculation: {{type: ngram-simple, max: 4, options: {{{key}: {value}}}}}}}"


WORDS = {
    "--tools, all": "--tools all",
    "--trust_rem": "--trust_rem",
    "'-cc.mode=3'": "-cc.mode=3",
    "'--lora=a b'": "'--lora=a b'",
    "--threads, '2'": "--threads 2",
}
VARIABLES = ("LD_PRELOAD", "PYTHONPATH", "LLAMA_ARG_TOOLS", "OMP_NUM_THREADS", "omp_num_threads", "A_FUTURE_NAME")
OPTIONS = {"rpc": "llama.cpp", "model": "vllm", "suffix_x": "vllm", "uno-lora-path": "sglang"}
ARM = "{name: a}"
CUSTOM = "{name: a, speculation: {type: %s, max: 2}}"
CASES: list[tuple[str, str, str]] = [
    *((f"{{kind: {kind}, args: [{words}]}}", ARM, WORDS[words]) for kind in LAUNCHED for words in WORDS),
    *((f"{{kind: {kind}, env: {{{name}: x}}}}", ARM, f"env: {name}=x") for kind in LAUNCHED for name in VARIABLES),
    *((*with_option(OPTIONS[key], key, "/etc/x"), f"arm a: speculation.options: {key}=/etc/x") for key in OPTIONS),
    ("{}", "{name: a, args: [--rpc, 'a:1']}", "arm a: args: --rpc a:1"),
    ("{device: rpc}", ARM, "engine.device: rpc"),
    ("{kind: transformers, remote_code: true}", ARM, "engine.remote_code: True"),
    ("{kind: vllm}", CUSTOM % "custom_class", "speculation.type: custom_class"),
    ("{kind: vllm}", CUSTOM % "Custom_Class", "speculation.type: Custom_Class"),
]


@pytest.mark.parametrize(("engine", "arm", "shown"), CASES)
def test_what_an_engine_is_handed_as_it_is_needs_trust_and_is_shown(
    home: Path, engine: str, arm: str, shown: str
) -> None:
    recipe = recipe_in(Path.cwd(), engine, arm)
    with pytest.raises(UsageError, match="needs your trust") as caught:
        permit(recipe, Path.cwd(), trusted=False)
    assert shown in caught.value.what
    assert "--trust-recipe" in str(caught.value.fix) and f"recipes trust {Path.cwd()}" in str(caught.value.fix)
    assert caught.value.exit_code == 2
    permit(recipe, Path.cwd(), trusted=True)


def test_a_value_is_no_escape_and_no_end_of_the_list(home: Path) -> None:
    arms = ", ".join(f"{{name: a{number}, args: ['{number}']}}" for number in range(30))
    with pytest.raises(UsageError) as caught:
        permit(recipe_in(Path.cwd(), '{args: ["\\u001b[2Jx\\n--y"]}', arms), Path.cwd(), trusted=False)
    assert "\x1b" not in caught.value.what and "and 11 more" in caught.value.what


@pytest.mark.parametrize(
    "engine",
    ["{device: cpu, threads: 2, context: 512}", "{kind: vllm, dtype: bfloat16, prefix_caching: true}",
     "{kind: transformers, trace: true, remote_code: false}", "{kind: sglang, dtype: float16}"],
)  # fmt: skip
def test_typed_keys_need_nothing(home: Path, engine: str) -> None:
    permit(recipe_in(Path.cwd(), engine, ARM), Path.cwd(), trusted=False)


def test_options_that_the_adapter_types_need_nothing(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of transformers are numbers, switches and lists of numbers; one from elsewhere takes no text."""
    arm = "{name: a, speculation: {type: self-layerskip, max: 2, options: {skip: 0.25}}}"
    permit(recipe_in(Path.cwd(), "{kind: transformers}", arm), Path.cwd(), trusted=False)
    options = [method.options for method in METHODS.values()]
    assert {option.kind for named in options for option in (named or {}).values()} <= {int, float, bool, list}
    assert Option(list).problem(["/etc/passwd"]) is not None
    method = Method("other:Drafter", options=None)
    monkeypatch.setattr("benchctl.engines.transformers.speculation.registered", lambda: {"self-other": method})
    document = Speculation(type="self-other", max=4, options={"file": "/etc/passwd", "number": 1})
    (problem,) = recipe_problems(document)
    assert problem.startswith("options.file")


def test_what_is_typed_is_the_users_own_and_nothing_else(home: Path) -> None:
    recipe = recipe_in(Path.cwd(), "{args: [--x], env: {A: a, B: b}}")
    permit(recipe, Path.cwd(), trusted=False, typed=["engine"])
    permit(recipe, Path.cwd(), trusted=False, typed=["engine.args", "matrix.engine.env"])
    for typed, raised in ((["engine.args"], ["A=a", "B=b"]), (["engine.env.A", "engine.arg", "arms"], ["--x", "B=b"])):
        with pytest.raises(UsageError) as caught:
            permit(recipe, Path.cwd(), trusted=False, typed=typed)
        assert [line.split(": ")[1] for line in caught.value.what.splitlines()[1:]] == raised


@pytest.mark.parametrize("name", sorted(shipped_recipes()))
def test_shipped_recipes_run_and_their_copies_ask(home: Path, name: str) -> None:
    file = shipped_recipes()[name]
    checked = benchctl("recipes", "check", name, "--json")
    assert '"openings": []' in checked.stdout, checked.stdout
    copy = Path(file.name)
    copy.write_bytes(file.read_bytes())
    asks = bool(find_openings(load_recipe(copy), Path.cwd()))
    unchecked = ("\n  args:", "\n  env:", "ngram_match", "_per_batch_size")
    assert asks == any(key in file.read_text() for key in unchecked)


def test_a_folder_is_trusted_once_with_what_lies_below_it_and_taken_back(home: Path) -> None:
    mine, sub, neighbour = home / "mine", home / "mine" / "deep", home / "mine2"
    for folder in (sub, neighbour):
        folder.mkdir(parents=True)
    for folder in (mine, sub, neighbour):
        recipe_in(folder, "{args: [--no-warmup]}")

    def codes() -> list[int]:
        return [benchctl("recipes", "check", folder / "r.yaml").returncode for folder in (mine, sub, neighbour)]

    assert codes() == [2, 2, 2]
    listed = benchctl("recipes", "trust", mine)
    assert (listed.returncode, str(mine) in listed.stdout) == (0, True)
    assert codes() == [0, 0, 2]
    recipe_in(mine, "{args: [--no-warmup, --tools, all]}")  # editing it asks nothing
    assert codes() == [0, 0, 2]
    assert benchctl("run", mine / "r.yaml", "--dry-run", "-q").returncode == 0
    (neighbour / "manifest.json").write_text("{}")
    assert benchctl("recipes", "trust", mine, "--remove").returncode == 0
    assert codes() == [2, 2, 2]
    repeated = benchctl("recipes", "trust", mine, "--remove")
    assert (repeated.returncode, "not trusted" in repeated.stderr) == (2, True)


def test_a_results_folder_below_a_trusted_one_is_not_trusted(home: Path) -> None:
    """Whoever sent it wrote what is in it; a recipe lies beside its manifest there."""
    trust_folder(str(Path.cwd()))
    run = Path.cwd() / "results" / "theirs"
    run.mkdir(parents=True)
    recipe_in(run, "{args: [--no-warmup]}")
    assert benchctl("recipes", "check", run / "r.yaml").returncode == 0
    (run / "manifest.json").write_text("{}")
    assert benchctl("recipes", "check", run / "r.yaml").returncode == 2


@pytest.mark.parametrize("name", ["{home}", "/", "{home}/..", "~"])
def test_home_is_too_much_to_trust(home: Path, name: str) -> None:
    done = benchctl("recipes", "trust", name.format(home=home))
    assert (done.returncode, "your home" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ("{env: {BENCHCTL_SCRATCH: /tmp}}", "engine.env.BENCHCTL_SCRATCH: this is a setting of benchctl's own"),
        ('{env: {"A=B": x}}', "engine.env: expected the name of an environment variable, got 'A=B'"),
        ('{env: {"": x}}', "engine.env: expected the name of an environment variable, got ''"),
        ('{env: {"A\\0": x}}', "engine.env: expected the name of an environment variable"),
        ('{env: {A: "x\\0"}}', "engine.env.A: what a process is given cannot contain the character U+0000"),
        ('{args: ["x\\0"]}', "engine.args[0]: what a process is given cannot contain the character U+0000"),
    ],
)
def test_what_no_process_can_be_given_is_one_error(tmp_path: Path, engine: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        recipe_in(tmp_path, engine)
    assert message in str(caught.value)
